/* Numbering, deciding and writing down: what becomes of a call that touches a file below the root.
 *
 * Owns the plan (which call is broken, and how), the numbers and the trace. Must not: look at anything outside of the root,
 * or keep state about descriptors (a descriptor is asked for its path at each call, so that dup, fork and passing
 * descriptors around need no bookkeeping).
 */
#include "fault.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct plan {
    int fault, error;
    long at;
    int trace, report;
    char root[PATH_MAX];
    size_t root_length;
};

struct __attribute__((packed)) record {
    uint8_t op, looks;
    int32_t error;
    int64_t number;
    uint64_t inode;
    int64_t offset, length;
    uint32_t flags;
    uint16_t path_length, path2_length;
    uint32_t data_length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct plan plan;
static volatile int armed;
static long numbers[2];
static int struck;

static const char *const op_names[] = {
    "mark", "create", "write", "truncate", "allocate", "sync", "datasync", "sync_all", "close", "link", "rename", "unlink",
    "mkdir", "rmdir", "symlink", "open", "read", "list", "stat"
};

/* ---- for the driver, through ctypes */

void fault_arm(const char *root, int fault, long at, int error, int trace, int report)
{
    plan = (struct plan){.fault = fault, .error = error, .at = at, .trace = trace, .report = report};
    snprintf(plan.root, sizeof plan.root, "%s", root);
    plan.root_length = strlen(plan.root);
    numbers[0] = numbers[1] = 0;
    struck = 0;
    armed = 1;
}

/* No more faults; numbering and recording go on. */
void fault_clear(void)
{
    pthread_mutex_lock(&lock);
    plan.fault = NOTHING;
    pthread_mutex_unlock(&lock);
}

static void record(const struct call *call, int error);

/* Something that the program says, in its place between the calls. */
void fault_mark(const char *text)
{
    pthread_mutex_lock(&lock);
    if (armed)
        record(&(struct call){.op = MARK, .path = text}, 0);
    pthread_mutex_unlock(&lock);
}

/* ---- which files */

int is_armed(void) { return armed; }

static int below_root(const char *path)
{
    return !strncmp(path, plan.root, plan.root_length) && (path[plan.root_length] == '/' || !path[plan.root_length]);
}

static int path_of(int fd, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
    return length > 0;
}

int watched_fd(int fd, char *path)
{
    int before = errno, is = armed && path_of(fd, path) && below_root(path);
    errno = before;
    return is;
}

/* Absolute, without "." and "..": links to directories are not followed, so the root must be a real path. */
int watched_path(int at, const char *name, char *path)
{
    if (!armed || !name)
        return 0;
    int before = errno;
    char whole[2 * PATH_MAX];
    if (*name == '/')
        snprintf(whole, sizeof whole, "%s", name);
    else {
        char from[PATH_MAX] = "";
        if (at == AT_FDCWD ? !getcwd(from, sizeof from) : !path_of(at, from))
            from[0] = 0;
        snprintf(whole, sizeof whole, "%s/%s", from, name);
    }
    int number;
    if (sscanf(whole, "/proc/self/fd/%d", &number) == 1) {
        errno = before;
        return watched_fd(number, path);
    }
    size_t end = 0;
    char *rest = whole, *part;
    while ((part = strsep(&rest, "/"))) {
        if (!*part || !strcmp(part, "."))
            continue;
        if (!strcmp(part, "..")) {
            while (end && path[--end] != '/')
                ;
            continue;
        }
        size_t length = strlen(part);
        if (end + length + 2 > PATH_MAX)
            break;
        path[end++] = '/';
        memcpy(path + end, part, length);
        end += length;
    }
    path[end] = 0;
    errno = before;
    return below_root(path);
}

uint64_t inode_of(int at, const char *name, int flags)
{
    struct stat64 found;
    int before = errno, failed = REAL(fstatat64)(at, name, &found, flags);
    errno = before;
    return failed ? 0 : found.st_ino;
}

uint64_t inode_of_fd(int fd)
{
    return inode_of(fd, "", AT_EMPTY_PATH);
}

int64_t size_of(int fd)
{
    struct stat64 found;
    return REAL(fstatat64)(fd, "", &found, AT_EMPTY_PATH) ? 0 : found.st_size;
}

/* ---- writing down */

static void put(int fd, const void *data, size_t length)
{
    while (length) {
        ssize_t done = syscall(SYS_write, fd, data, length);
        if (done <= 0)
            abort();
        data = (const char *)data + done;
        length -= done;
    }
}

static const char *inside(const char *path)
{
    if (!path)
        return "";
    return below_root(path) ? path + plan.root_length + (path[plan.root_length] == '/') : path;
}

static void record(const struct call *call, int error)
{
    if (plan.trace < 0)
        return;
    int before = errno;
    const char *path = call->op == MARK ? call->path : inside(call->path), *path2 = inside(call->path2);
    struct record head = {
        .op = call->op, .looks = call->looks, .error = error, .number = call->number, .inode = call->inode,
        .offset = call->offset, .length = call->length, .flags = call->flags, .path_length = strlen(path),
        .path2_length = strlen(path2), .data_length = error ? 0 : call->data_length,
    };
    put(plan.trace, &head, sizeof head);
    put(plan.trace, path, head.path_length);
    put(plan.trace, path2, head.path2_length);
    const struct iovec *piece = call->data;
    for (size_t left = head.data_length; left; piece++) {
        size_t part = piece->iov_len < left ? piece->iov_len : left;
        put(plan.trace, piece->iov_base, part);
        left -= part;
    }
    errno = before;
}

static void strike(const struct call *call)
{
    if (struck++)
        return;
    char line[3 * PATH_MAX];
    int length = snprintf(line, sizeof line, "%s %ld: %s %s%s%s\n", call->looks ? "look" : "change", call->number,
                          op_names[call->op], inside(call->path), call->path2 ? " -> " : "", inside(call->path2));
    if (plan.report >= 0)
        put(plan.report, line, length);
}

/* ---- deciding */

static int takes_space(enum op op)
{
    return op == CREATE || op == WRITE || op == ALLOCATE || op == LINK || op == RENAME || op == MKDIR || op == SYMLINK;
}

/* Until the driver lets it go on. Nothing of the call is done or written down yet. */
static void pause_here(const struct call *call)
{
    strike(call);
    kill(getpid(), SIGSTOP);
}

static void decide(struct call *call)
{
    int here = call->number == plan.at, on = call->number >= plan.at, space = plan.error == ENOSPC || plan.error == EDQUOT;
    switch (call->looks ? NOTHING : plan.fault) {
    case KILL_BEFORE:
        if (here) {
            strike(call);
            kill(getpid(), SIGKILL);
        }
        return;
    case PAUSE:
        if (here)
            pause_here(call);
        return;
    case KILL_AFTER: call->kill_after = here; return;
    case KILL_TORN: call->kill_after = here; call->verdict = here ? HALF : GO; return;
    case ERROR_ONCE: call->verdict = here ? FAIL : GO; return;
    case ERROR_AFTER: call->error_after = here; return;
    case ERROR_FROM:
        if (!on || call->op == CLOSE || (space && !takes_space(call->op)))
            return;
        /* A disk that fills up takes a part of what it is given first. */
        call->verdict = space && call->op == WRITE && !struck ? HALF : FAIL;
        return;
    case SHORT_ONCE: call->verdict = here && call->op == WRITE ? HALF : GO; return;
    case SHORT_ALL: call->verdict = call->op == WRITE ? HALF : GO; return;
    }
    switch (call->looks ? plan.fault : NOTHING) {
    case READ_PAUSE:
        if (here)
            pause_here(call);
        return;
    case READ_ERROR: call->verdict = here ? FAIL : GO; return;
    case READ_ERROR_FROM: call->verdict = on ? FAIL : GO; return;
    case READ_SHORT: call->verdict = here && call->op == READ ? HALF : GO; return;
    case READ_SHORT_ALL: call->verdict = call->op == READ ? HALF : GO; return;
    case READ_END: call->verdict = here && call->op == READ ? END : GO; return;
    case READ_FLIP: call->verdict = here && call->op == READ ? FLIP : GO; return;
    }
}

void enter(struct call *call)
{
    pthread_mutex_lock(&lock);
    call->looks = call->op >= OPEN;
    call->number = ++numbers[call->looks];
    call->verdict = GO;
    call->error = plan.error;
    decide(call);
    if (call->verdict != GO)
        strike(call);
}

long leave(struct call *call, long result)
{
    int error = result < 0 ? errno : 0;
    record(call, error);
    if (call->kill_after) {
        strike(call);
        kill(getpid(), SIGKILL);
    }
    if (call->error_after && !error) {
        strike(call);
        error = call->error;
        result = -1;
    }
    pthread_mutex_unlock(&lock);
    if (error)
        errno = error;
    return result;
}

long fail(struct call *call)
{
    errno = call->error;
    return leave(call, -1);
}
