/* What the interposed calls (shim.c) need from the fault layer (fault.c). Nothing of it is seen outside of the library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/uio.h>

#pragma GCC visibility push(hidden)

#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static __typeof__(name) *found;                                                                                \
        if (!found)                                                                                                    \
            found = (__typeof__(name) *)dlsym(RTLD_NEXT, #name);                                                       \
        found;                                                                                                         \
    })

/* The order of both lists is repeated in layer.py. */
enum op {
    MARK, CREATE, WRITE, TRUNCATE, ALLOCATE, SYNC, DATASYNC, SYNC_ALL, CLOSE, LINK, RENAME, UNLINK, MKDIR, RMDIR, SYMLINK,
    OPEN, READ, LIST, STAT
};
enum fault {
    NOTHING, KILL_BEFORE, KILL_AFTER, KILL_TORN, ERROR_ONCE, ERROR_AFTER, ERROR_FROM, SHORT_ONCE, SHORT_ALL,
    READ_ERROR, READ_ERROR_FROM, READ_SHORT, READ_SHORT_ALL, READ_END, READ_FLIP, PAUSE, READ_PAUSE
};
enum verdict { GO, FAIL, HALF, FLIP, END };
enum { BLOCK = 4096 };
enum { FLAG_CREATED = 1, FLAG_TRUNCATED = 2, FLAG_DURABLE = 4, FLAG_EXCHANGE = 8, FLAG_KEEP_SIZE = 16, FLAG_PUNCH = 32 };

/* One call: from enter() to leave(). Everything between is done under the lock, so that the trace has the real order. */
struct call {
    enum op op;
    int looks; /* it changes nothing */
    long number;
    enum verdict verdict;
    int error, kill_after, error_after;
    const char *path, *path2;
    uint64_t inode;
    int64_t offset, length;
    uint32_t flags;
    const struct iovec *data;
    size_t data_length;
};

/* Whether the layer is armed and the file is below the root; if so, its path. They keep errno. */
int watched_fd(int fd, char *path);
int watched_path(int at, const char *name, char *path);

/* 0 if there is no such file. */
uint64_t inode_of(int at, const char *name, int flags);
uint64_t inode_of_fd(int fd);
int64_t size_of(int fd);

/* Whether the layer does anything at all. */
int is_armed(void);

/* Begins a call: numbers it, and decides what becomes of it. Holds the lock. */
void enter(struct call *call);

/* Ends a call that returned ``result`` (-1 and errno, or not); gives what the caller gets. */
long leave(struct call *call, long result);

/* Ends a call that is not made. */
long fail(struct call *call);

/* The whole life of a call that has no halves. */
#define AROUND(call, expression)                                                                                       \
    ({                                                                                                                 \
        enter(call);                                                                                                   \
        (call)->verdict == FAIL ? fail(call) : leave(call, (expression));                                              \
    })

#pragma GCC visibility pop
