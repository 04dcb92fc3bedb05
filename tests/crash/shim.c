/* A fault layer between a process and the files below one directory. Loaded with LD_PRELOAD; does nothing until armed.
 *
 * Owns the calls of the C library that are put in between. What becomes of each is decided in fault.c.
 *
 * Stores through a shared writable mapping cannot be seen from here: such a mapping of a file below the root aborts. Calls
 * that avoid the C library (raw system calls, io_uring) are not seen either: a recording that is done again and compared
 * with the directory tells (see power.py).
 */
#include "fault.h"

#include <dirent.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- halves */

static size_t half(int fd, size_t length)
{
    int direct = REAL(fcntl)(fd, F_GETFL) & O_DIRECT;
    size_t part = direct ? length / 2 / BLOCK * BLOCK : length / 2;
    return part ? part : length;
}

static size_t bytes_in(const struct iovec *pieces, int count)
{
    size_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += pieces[i].iov_len;
    return sum;
}

/* The first ``length`` bytes of some pieces; returns how many pieces that are. */
static int first(const struct iovec *pieces, int count, size_t length, struct iovec *out)
{
    int n = 0;
    for (; n < count && length; n++) {
        out[n] = pieces[n];
        if (out[n].iov_len > length)
            out[n].iov_len = length;
        length -= out[n].iov_len;
    }
    return n;
}

/* ---- opening */

static int opened(int at, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];
    if (!watched_path(at, name, path))
        return REAL(openat64)(at, name, flags, mode);
    int unnamed = (flags & O_TMPFILE) == O_TMPFILE, changes = unnamed || flags & (O_CREAT | O_TRUNC);
    struct call call = {.op = changes ? CREATE : OPEN, .path = path};
    enter(&call);
    if (call.verdict == FAIL)
        return fail(&call);
    int was = !unnamed && inode_of(at, name, 0) != 0;
    int fd = REAL(openat64)(at, name, flags, mode);
    if (fd >= 0 && changes) {
        call.inode = inode_of_fd(fd);
        call.flags = was ? (flags & O_TRUNC ? FLAG_TRUNCATED : 0) : FLAG_CREATED;
        call.path = unnamed ? NULL : path;
    }
    int failing = call.error_after && fd >= 0;
    long result = leave(&call, fd);
    if (failing)
        syscall(SYS_close, fd);
    return result;
}

#define MODE(flags)                                                                                                    \
    ({                                                                                                                 \
        mode_t mode = 0;                                                                                               \
        if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {                                                 \
            va_list list;                                                                                              \
            va_start(list, flags);                                                                                     \
            mode = va_arg(list, mode_t);                                                                               \
            va_end(list);                                                                                              \
        }                                                                                                              \
        mode;                                                                                                          \
    })

int open(const char *name, int flags, ...) { return opened(AT_FDCWD, name, flags, MODE(flags)); }
int open64(const char *name, int flags, ...) { return opened(AT_FDCWD, name, flags, MODE(flags)); }
int openat(int at, const char *name, int flags, ...) { return opened(at, name, flags, MODE(flags)); }
int openat64(int at, const char *name, int flags, ...) { return opened(at, name, flags, MODE(flags)); }
int creat(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *name, mode_t mode) { return opened(AT_FDCWD, name, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int close(int fd)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path) || (REAL(fcntl)(fd, F_GETFL) & O_ACCMODE) == O_RDONLY)
        return REAL(close)(fd);
    struct call call = {.op = CLOSE, .path = path};
    enter(&call);
    /* The descriptor is gone whatever close says. */
    int result = REAL(close)(fd);
    return call.verdict == FAIL ? fail(&call) : leave(&call, result);
}

/* ---- writing */

static ssize_t written(int fd, const struct iovec *pieces, int count, off64_t offset, int how)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return offset == -1 && !how ? REAL(writev)(fd, pieces, count) : REAL(pwritev64v2)(fd, pieces, count, offset, how);
    struct call call = {.op = WRITE, .path = path, .inode = inode_of_fd(fd), .length = bytes_in(pieces, count)};
    enter(&call);
    if (call.verdict == FAIL)
        return fail(&call);
    int flags = REAL(fcntl)(fd, F_GETFL);
    call.offset = flags & O_APPEND ? lseek(fd, 0, SEEK_END) : offset == -1 ? lseek(fd, 0, SEEK_CUR) : offset;
    if (flags & O_DSYNC || how & (RWF_DSYNC | RWF_SYNC))
        call.flags = FLAG_DURABLE;
    struct iovec part[count + 1];
    size_t length = call.length;
    if (call.verdict == HALF)
        length = half(fd, length);
    int parts = first(pieces, count, length, part);
    ssize_t result = offset == -1 && !how ? REAL(writev)(fd, part, parts) : REAL(pwritev64v2)(fd, part, parts, offset, how);
    call.data = part;
    call.length = call.data_length = result > 0 ? result : 0;
    return leave(&call, result);
}

#define ONE(data, size) &(struct iovec){(void *)(data), (size)}, 1

ssize_t write(int fd, const void *data, size_t size)
{
    char path[PATH_MAX];
    return watched_fd(fd, path) ? written(fd, ONE(data, size), -1, 0) : REAL(write)(fd, data, size);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    char path[PATH_MAX];
    return watched_fd(fd, path) ? written(fd, ONE(data, size), offset, 0) : REAL(pwrite64)(fd, data, size, offset);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return pwrite64(fd, data, size, offset); }
ssize_t writev(int fd, const struct iovec *pieces, int count) { return written(fd, pieces, count, -1, 0); }
ssize_t pwritev64(int fd, const struct iovec *pieces, int n, off64_t at) { return written(fd, pieces, n, at, 0); }
ssize_t pwritev(int fd, const struct iovec *pieces, int count, off_t at) { return written(fd, pieces, count, at, 0); }
ssize_t pwritev64v2(int fd, const struct iovec *p, int n, off64_t at, int how) { return written(fd, p, n, at, how); }
ssize_t pwritev2(int fd, const struct iovec *pieces, int n, off_t at, int how) { return written(fd, pieces, n, at, how); }

/* Copies inside the kernel: done with read and write instead, so that the bytes are seen. */
static ssize_t copied(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size)
{
    char buffer[65536];
    size = size < sizeof buffer ? size : sizeof buffer;
    ssize_t got = from_offset ? pread64(from, buffer, size, *from_offset) : read(from, buffer, size);
    if (got <= 0)
        return got;
    ssize_t put_ = to_offset ? pwrite64(to, buffer, got, *to_offset) : write(to, buffer, got);
    if (put_ > 0 && from_offset)
        *from_offset += put_;
    if (put_ > 0 && to_offset)
        *to_offset += put_;
    if (put_ >= 0 && put_ < got && !from_offset)
        lseek(from, put_ - got, SEEK_CUR);
    return put_;
}

ssize_t copy_file_range(int from, off64_t *from_offset, int to, off64_t *to_offset, size_t size, unsigned flags)
{
    char path[PATH_MAX];
    if (!watched_fd(to, path) && !watched_fd(from, path))
        return REAL(copy_file_range)(from, from_offset, to, to_offset, size, flags);
    return copied(from, from_offset, to, to_offset, size);
}
ssize_t sendfile64(int to, int from, off64_t *offset, size_t size)
{
    char path[PATH_MAX];
    if (!watched_fd(to, path) && !watched_fd(from, path))
        return REAL(sendfile64)(to, from, offset, size);
    return copied(from, offset, to, NULL, size);
}
ssize_t sendfile(int to, int from, off_t *offset, size_t size) { return sendfile64(to, from, offset, size); }

int ftruncate64(int fd, off64_t length)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return REAL(ftruncate64)(fd, length);
    struct call call = {.op = TRUNCATE, .path = path, .inode = inode_of_fd(fd), .length = length};
    return AROUND(&call, REAL(ftruncate64)(fd, length));
}
int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int truncate64(const char *name, off64_t length)
{
    char path[PATH_MAX];
    if (!watched_path(AT_FDCWD, name, path))
        return REAL(truncate64)(name, length);
    struct call call = {.op = TRUNCATE, .path = path, .inode = inode_of(AT_FDCWD, name, 0), .length = length};
    return AROUND(&call, REAL(truncate64)(name, length));
}
int truncate(const char *name, off_t length) { return truncate64(name, length); }

int fallocate64(int fd, int mode, off64_t offset, off64_t length)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return REAL(fallocate64)(fd, mode, offset, length);
    if (mode & ~(FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE)) {
        errno = EOPNOTSUPP;
        return -1;
    }
    int zeroes = mode & (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_ZERO_RANGE);
    struct call call = {
        .op = ALLOCATE, .path = path, .inode = inode_of_fd(fd), .offset = offset, .length = length,
        .flags = (mode & FALLOC_FL_KEEP_SIZE ? FLAG_KEEP_SIZE : 0) | (zeroes ? FLAG_PUNCH : 0),
    };
    return AROUND(&call, REAL(fallocate64)(fd, mode, offset, length));
}
int fallocate(int fd, int mode, off_t offset, off_t length) { return fallocate64(fd, mode, offset, length); }

int posix_fallocate64(int fd, off64_t offset, off64_t length)
{
    int before = errno, result = fallocate64(fd, 0, offset, length) ? errno : 0;
    errno = before;
    return result;
}
int posix_fallocate(int fd, off_t offset, off_t length) { return posix_fallocate64(fd, offset, length); }

/* Nothing is really synced: what a power cut would leave is computed from the trace, and it is faster so. */
static int synced(int fd, enum op op)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return op == SYNC ? REAL(fsync)(fd) : op == DATASYNC ? REAL(fdatasync)(fd) : REAL(syncfs)(fd);
    struct call call = {.op = op, .path = path, .inode = inode_of_fd(fd)};
    return AROUND(&call, 0);
}
int fsync(int fd) { return synced(fd, SYNC); }
int fdatasync(int fd) { return synced(fd, DATASYNC); }
int syncfs(int fd) { return synced(fd, SYNC_ALL); }
void sync(void)
{
    struct call call = {.op = SYNC_ALL};
    if (is_armed())
        AROUND(&call, 0);
    else
        REAL(sync)();
}

void *mmap64(void *where, size_t length, int protection, int flags, int fd, off64_t offset)
{
    char path[PATH_MAX];
    if (fd >= 0 && flags & MAP_SHARED && protection & PROT_WRITE && watched_fd(fd, path)) {
        dprintf(2, "the fault layer cannot see stores through a shared mapping: %s\n", path);
        abort();
    }
    return REAL(mmap64)(where, length, protection, flags, fd, offset);
}
void *mmap(void *where, size_t length, int protection, int flags, int fd, off_t offset)
{
    return mmap64(where, length, protection, flags, fd, offset);
}

/* ---- names */

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    char old_path[PATH_MAX] = "", path[PATH_MAX];
    if (!watched_path(to, new, path))
        return REAL(linkat)(from, old, to, new, flags);
    watched_path(from, old, old_path);
    int follow = flags & AT_EMPTY_PATH ? AT_EMPTY_PATH : flags & AT_SYMLINK_FOLLOW ? 0 : AT_SYMLINK_NOFOLLOW;
    struct call call = {.op = LINK, .path = old_path, .path2 = path, .inode = inode_of(from, old, follow)};
    return AROUND(&call, REAL(linkat)(from, old, to, new, flags));
}
int link(const char *old, const char *new) { return linkat(AT_FDCWD, old, AT_FDCWD, new, 0); }

int renameat2(int from, const char *old, int to, const char *new, unsigned flags)
{
    char old_path[PATH_MAX], path[PATH_MAX];
    if (!(watched_path(from, old, old_path) | watched_path(to, new, path)))
        return REAL(renameat2)(from, old, to, new, flags);
    struct call call = {.op = RENAME, .path = old_path, .path2 = path, .inode = inode_of(from, old, AT_SYMLINK_NOFOLLOW),
                        .flags = flags & RENAME_EXCHANGE ? FLAG_EXCHANGE : 0};
    return AROUND(&call, REAL(renameat2)(from, old, to, new, flags));
}
int renameat(int from, const char *old, int to, const char *new) { return renameat2(from, old, to, new, 0); }
int rename(const char *old, const char *new) { return renameat2(AT_FDCWD, old, AT_FDCWD, new, 0); }

int unlinkat(int at, const char *name, int flags)
{
    char path[PATH_MAX];
    if (!watched_path(at, name, path))
        return REAL(unlinkat)(at, name, flags);
    struct call call = {.op = flags & AT_REMOVEDIR ? RMDIR : UNLINK, .path = path,
                        .inode = inode_of(at, name, AT_SYMLINK_NOFOLLOW)};
    return AROUND(&call, REAL(unlinkat)(at, name, flags));
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name)
{
    int result = unlink(name);
    return result && errno == EISDIR ? rmdir(name) : result;
}

int mkdirat(int at, const char *name, mode_t mode)
{
    char path[PATH_MAX];
    if (!watched_path(at, name, path))
        return REAL(mkdirat)(at, name, mode);
    struct call call = {.op = MKDIR, .path = path};
    enter(&call);
    if (call.verdict == FAIL)
        return fail(&call);
    int result = REAL(mkdirat)(at, name, mode);
    call.inode = result ? 0 : inode_of(at, name, 0);
    return leave(&call, result);
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

int symlinkat(const char *target, int at, const char *name)
{
    char path[PATH_MAX];
    if (!watched_path(at, name, path))
        return REAL(symlinkat)(target, at, name);
    struct call call = {.op = SYMLINK, .path = path, .path2 = target};
    enter(&call);
    if (call.verdict == FAIL)
        return fail(&call);
    int result = REAL(symlinkat)(target, at, name);
    call.inode = result ? 0 : inode_of(at, name, AT_SYMLINK_NOFOLLOW);
    return leave(&call, result);
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }

/* ---- looking */

static ssize_t looked(int fd, const struct iovec *pieces, int count, off64_t offset, int how)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return offset == -1 && !how ? REAL(readv)(fd, pieces, count) : REAL(preadv64v2)(fd, pieces, count, offset, how);
    struct call call = {.op = READ, .path = path, .length = bytes_in(pieces, count)};
    enter(&call);
    if (call.verdict == FAIL)
        return fail(&call);
    struct iovec part[count + 1];
    size_t length = call.length;
    if (call.verdict == END)
        length = 0;
    else if (call.verdict == HALF) {
        int64_t left = size_of(fd) - (offset == -1 ? lseek(fd, 0, SEEK_CUR) : offset);
        length = half(fd, left < call.length ? (left > 0 ? left : 0) : call.length);
    }
    int parts = first(pieces, count, length, part);
    ssize_t got = parts == 0 ? 0
                  : offset == -1 && !how ? REAL(readv)(fd, part, parts)
                                         : REAL(preadv64v2)(fd, part, parts, offset, how);
    if (call.verdict == FLIP && got > 0) {
        size_t bit = (size_t)call.error * 2654435761u % ((size_t)got * 8), byte = bit / 8;
        int piece = 0;
        while (byte >= part[piece].iov_len)
            byte -= part[piece++].iov_len;
        ((unsigned char *)part[piece].iov_base)[byte] ^= 1u << bit % 8;
    }
    call.length = got;
    return leave(&call, got);
}

ssize_t read(int fd, void *data, size_t size)
{
    char path[PATH_MAX];
    return watched_fd(fd, path) ? looked(fd, ONE(data, size), -1, 0) : REAL(read)(fd, data, size);
}
ssize_t pread64(int fd, void *data, size_t size, off64_t offset)
{
    char path[PATH_MAX];
    return watched_fd(fd, path) ? looked(fd, ONE(data, size), offset, 0) : REAL(pread64)(fd, data, size, offset);
}
ssize_t pread(int fd, void *data, size_t size, off_t offset) { return pread64(fd, data, size, offset); }
ssize_t readv(int fd, const struct iovec *pieces, int count) { return looked(fd, pieces, count, -1, 0); }
ssize_t preadv64(int fd, const struct iovec *pieces, int n, off64_t at) { return looked(fd, pieces, n, at, 0); }
ssize_t preadv(int fd, const struct iovec *pieces, int count, off_t at) { return looked(fd, pieces, count, at, 0); }
ssize_t preadv64v2(int fd, const struct iovec *p, int n, off64_t at, int how) { return looked(fd, p, n, at, how); }
ssize_t preadv2(int fd, const struct iovec *pieces, int n, off_t at, int how) { return looked(fd, pieces, n, at, how); }

DIR *opendir(const char *name)
{
    char path[PATH_MAX];
    if (!watched_path(AT_FDCWD, name, path))
        return REAL(opendir)(name);
    struct call call = {.op = LIST, .path = path};
    DIR *found = NULL;
    AROUND(&call, (found = REAL(opendir)(name)) ? 0 : -1);
    return found;
}
DIR *fdopendir(int fd)
{
    char path[PATH_MAX];
    if (!watched_fd(fd, path))
        return REAL(fdopendir)(fd);
    struct call call = {.op = LIST, .path = path};
    DIR *found = NULL;
    AROUND(&call, (found = REAL(fdopendir)(fd)) ? 0 : -1);
    return found;
}

int fstatat64(int at, const char *name, struct stat64 *out, int flags)
{
    char path[PATH_MAX];
    int empty = flags & AT_EMPTY_PATH && !*name;
    if (!(empty ? watched_fd(at, path) : watched_path(at, name, path)))
        return REAL(fstatat64)(at, name, out, flags);
    struct call call = {.op = STAT, .path = path};
    return AROUND(&call, REAL(fstatat64)(at, name, out, flags));
}
int stat64(const char *name, struct stat64 *out) { return fstatat64(AT_FDCWD, name, out, 0); }
int lstat64(const char *name, struct stat64 *out) { return fstatat64(AT_FDCWD, name, out, AT_SYMLINK_NOFOLLOW); }
int fstat64(int fd, struct stat64 *out) { return fstatat64(fd, "", out, AT_EMPTY_PATH); }
int stat(const char *name, struct stat *out) { return stat64(name, (struct stat64 *)out); }
int lstat(const char *name, struct stat *out) { return lstat64(name, (struct stat64 *)out); }
int fstat(int fd, struct stat *out) { return fstat64(fd, (struct stat64 *)out); }
