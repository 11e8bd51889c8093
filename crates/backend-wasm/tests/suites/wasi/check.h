/* What the programs share: checks that print a line each, and the folders that a program is given. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wasi/api.h>

#define UNUSED __attribute__((unused))

/* Every name once. */
static UNUSED void check(const char *name, bool good, const char *why) {
    if (good)
        printf("ok %s\n", name);
    else
        printf("not ok %s: %s\n", name, why);
}

static UNUSED void equal(const char *name, uint64_t came, uint64_t expected) {
    if (came == expected)
        printf("ok %s\n", name);
    else
        printf("not ok %s: expected %llu, came %llu\n", name, (unsigned long long)expected,
               (unsigned long long)came);
}

static UNUSED void same(const char *name, const void *came, size_t length, const char *expected) {
    size_t wanted = strlen(expected);
    if (length == wanted && memcmp(came, expected, wanted) == 0)
        printf("ok %s\n", name);
    else
        printf("not ok %s: expected %s, came %.*s\n", name, expected, (int)length, (const char *)came);
}

/* One of several: systems differ in which of them they say. */
static UNUSED void either(const char *name, uint64_t came, uint64_t one, uint64_t other) {
    if (came == one || came == other)
        printf("ok %s\n", name);
    else
        printf("not ok %s: expected %llu or %llu, came %llu\n", name, (unsigned long long)one,
               (unsigned long long)other, (unsigned long long)came);
}

static UNUSED void refused(const char *name, __wasi_errno_t came) {
    if (came != __WASI_ERRNO_SUCCESS)
        printf("ok %s\n", name);
    else
        printf("not ok %s: it was done\n", name);
}

#define GOOD(name, call) equal(name, call, __WASI_ERRNO_SUCCESS)

/* The folder of this name that the program is given, or -1. */
static UNUSED int given(const char *wanted) {
    for (int fd = 3;; fd++) {
        __wasi_prestat_t about;
        if (__wasi_fd_prestat_get(fd, &about) != 0)
            return -1;
        char name[256] = {0};
        if (about.u.dir.pr_name_len < sizeof name &&
            __wasi_fd_prestat_dir_name(fd, (uint8_t *)name, about.u.dir.pr_name_len) == 0 &&
            strcmp(name, wanted) == 0)
            return fd;
    }
}

#define READS (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_SEEK | __WASI_RIGHTS_FD_TELL | __WASI_RIGHTS_FD_FILESTAT_GET)
#define WRITES                                                                                                 \
    (__WASI_RIGHTS_FD_WRITE | __WASI_RIGHTS_FD_ALLOCATE | __WASI_RIGHTS_FD_DATASYNC | __WASI_RIGHTS_FD_SYNC |     \
     __WASI_RIGHTS_FD_FILESTAT_SET_SIZE | __WASI_RIGHTS_FD_FILESTAT_SET_TIMES)
#define FOLDER                                                                                                 \
    (__WASI_RIGHTS_PATH_OPEN | __WASI_RIGHTS_FD_READDIR | __WASI_RIGHTS_PATH_FILESTAT_GET |                       \
     __WASI_RIGHTS_PATH_CREATE_DIRECTORY | __WASI_RIGHTS_PATH_CREATE_FILE)

static UNUSED __wasi_errno_t open_to(int folder, const char *path, __wasi_oflags_t how, __wasi_rights_t rights,
                                     __wasi_fdflags_t flags, int *fd) {
    return __wasi_path_open(folder, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, path, how, rights, rights, flags, fd);
}

static UNUSED __wasi_errno_t open_read(int folder, const char *path, int *fd) {
    return open_to(folder, path, 0, READS, 0, fd);
}

static UNUSED __wasi_errno_t open_write(int folder, const char *path, int *fd) {
    return open_to(folder, path, __WASI_OFLAGS_CREAT, READS | WRITES, 0, fd);
}

static UNUSED __wasi_errno_t put(int fd, const char *text, __wasi_size_t *count) {
    __wasi_ciovec_t piece = {(const uint8_t *)text, strlen(text)};
    return __wasi_fd_write(fd, &piece, 1, count);
}

static UNUSED __wasi_errno_t get(int fd, char *buffer, size_t room, __wasi_size_t *count) {
    __wasi_iovec_t piece = {(uint8_t *)buffer, room};
    return __wasi_fd_read(fd, &piece, 1, count);
}

/* What a file holds; an error as text that no file holds. */
static UNUSED size_t content(int folder, const char *path, char *buffer, size_t room) {
    int fd;
    __wasi_size_t count = 0;
    __wasi_errno_t error = open_read(folder, path, &fd);
    if (error != 0)
        return (size_t)snprintf(buffer, room, "(error %d)", error);
    error = get(fd, buffer, room, &count);
    if (error != 0)
        count = (__wasi_size_t)snprintf(buffer, room, "(error %d)", error);
    if (__wasi_fd_close(fd) != 0)
        count = (__wasi_size_t)snprintf(buffer, room, "(not closed)");
    return count;
}

static UNUSED void end(void) { printf("end\n"); }
