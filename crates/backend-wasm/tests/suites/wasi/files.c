/* One file: open, read, write, seek, sizes, times, flags, rights, numbers. */
#include "check.h"

static char text[256];
static __wasi_size_t count;
static __wasi_filesize_t place;

static void reading(int here) {
    int fd;
    GOOD("open to read", open_read(here, "ten", &fd));
    check("open: a number of its own", fd > 3, "another's");
    GOOD("read", get(fd, text, 4, &count));
    same("read: what came", text, count, "0123");
    GOOD("tell", __wasi_fd_tell(fd, &place));
    equal("tell: behind what was read", place, 4);
    char one[2], two[3];
    __wasi_iovec_t pieces[] = {{(uint8_t *)one, 2}, {(uint8_t *)two, 0}, {(uint8_t *)two, 3}};
    GOOD("read: in pieces", __wasi_fd_read(fd, pieces, 3, &count));
    /* A read may give less than asked for, but something. */
    check("read: pieces are filled in their order", count >= 2 && memcmp(one, "45", 2) == 0, "they are not");
    GOOD("seek: from the start", __wasi_fd_seek(fd, 9, __WASI_WHENCE_SET, &place));
    equal("seek: says where", place, 9);
    GOOD("read: the last", get(fd, text, sizeof text, &count));
    same("read: what is left", text, count, "9");
    GOOD("read: at the end", get(fd, text, sizeof text, &count));
    equal("read: nothing at the end", count, 0);
    GOOD("seek: from the end", __wasi_fd_seek(fd, -3, __WASI_WHENCE_END, &place));
    equal("seek: from the end says where", place, 7);
    GOOD("seek: from here", __wasi_fd_seek(fd, -2, __WASI_WHENCE_CUR, &place));
    equal("seek: from here says where", place, 5);
    equal("seek: before the start", __wasi_fd_seek(fd, -6, __WASI_WHENCE_CUR, &place), __WASI_ERRNO_INVAL);
    equal("seek: before the start from it", __wasi_fd_seek(fd, -1, __WASI_WHENCE_SET, &place), __WASI_ERRNO_INVAL);
    GOOD("seek: where it was", __wasi_fd_tell(fd, &place));
    equal("seek: a refused one moves nothing", place, 5);
    GOOD("seek: past the end", __wasi_fd_seek(fd, 1000, __WASI_WHENCE_SET, &place));
    GOOD("read: past the end", get(fd, text, sizeof text, &count));
    equal("read: nothing past the end", count, 0);
    __wasi_iovec_t piece = {(uint8_t *)text, 3};
    GOOD("pread", __wasi_fd_pread(fd, &piece, 1, 2, &count));
    same("pread: what came", text, count, "234");
    GOOD("pread: tell", __wasi_fd_tell(fd, &place));
    equal("pread: moves nothing", place, 1000);
    GOOD("pread: at the end", __wasi_fd_pread(fd, &piece, 1, 10, &count));
    equal("pread: nothing at the end", count, 0);
    GOOD("read: no pieces", __wasi_fd_read(fd, pieces, 0, &count));
    equal("read: no pieces, nothing", count, 0);
    refused("write: to one that is open to read", put(fd, "x", &count));
    __wasi_ciovec_t out = {(const uint8_t *)"x", 1};
    refused("pwrite: to one that is open to read", __wasi_fd_pwrite(fd, &out, 1, 0, &count));
    refused("set_size: of one that is open to read", __wasi_fd_filestat_set_size(fd, 1));
    refused("allocate: in one that is open to read", __wasi_fd_allocate(fd, 0, 100));
    GOOD("close", __wasi_fd_close(fd));
    equal("close: twice", __wasi_fd_close(fd), __WASI_ERRNO_BADF);
    equal("read: after close", get(fd, text, 1, &count), __WASI_ERRNO_BADF);
    same("content: still there", text, content(here, "ten", text, sizeof text), "0123456789");
}

static void writing(int here) {
    int fd;
    equal("open: what is not there", open_read(here, "new", &fd), __WASI_ERRNO_NOENT);
    GOOD("open: make it", open_write(here, "new", &fd));
    GOOD("write", put(fd, "hello", &count));
    equal("write: so much", count, 5);
    GOOD("write: tell", __wasi_fd_tell(fd, &place));
    equal("write: moves on", place, 5);
    __wasi_ciovec_t pieces[] = {{(const uint8_t *)", ", 2}, {(const uint8_t *)"", 0}, {(const uint8_t *)"world", 5}};
    __wasi_size_t written = 0;
    for (unsigned at = 0; at < 3; at++) {
        GOOD(at == 0 ? "write: a piece" : at == 1 ? "write: an empty piece" : "write: a last piece",
             __wasi_fd_write(fd, pieces + at, 1, &count));
        written += count;
    }
    equal("write: all pieces", written, 7);
    same("write: what is there", text, content(here, "new", text, sizeof text), "hello, world");
    __wasi_ciovec_t out = {(const uint8_t *)"J", 1};
    GOOD("pwrite", __wasi_fd_pwrite(fd, &out, 1, 0, &count));
    equal("pwrite: so much", count, 1);
    GOOD("pwrite: tell", __wasi_fd_tell(fd, &place));
    equal("pwrite: moves nothing", place, 12);
    same("pwrite: what is there", text, content(here, "new", text, sizeof text), "Jello, world");
    GOOD("pwrite: past the end", __wasi_fd_pwrite(fd, &out, 1, 14, &count));
    equal("pwrite: past the end, the gap", content(here, "new", text, sizeof text), 15);
    check("pwrite: the gap is empty", text[12] == 0 && text[13] == 0 && text[14] == 'J', "it is not");
    GOOD("set_size: less", __wasi_fd_filestat_set_size(fd, 5));
    same("set_size: what is left", text, content(here, "new", text, sizeof text), "Jello");
    GOOD("set_size: more", __wasi_fd_filestat_set_size(fd, 8));
    equal("set_size: so much", content(here, "new", text, sizeof text), 8);
    check("set_size: more is empty", text[5] == 0 && text[7] == 0, "it is not");
    GOOD("set_size: nothing", __wasi_fd_filestat_set_size(fd, 0));
    equal("set_size: nothing left", content(here, "new", text, sizeof text), 0);
    GOOD("sync", __wasi_fd_sync(fd));
    GOOD("datasync", __wasi_fd_datasync(fd));
    for (unsigned advice = 0; advice < 6; advice++) {
        char name[32];
        snprintf(name, sizeof name, "advise: %u", advice);
        GOOD(name, __wasi_fd_advise(fd, 0, 100, (__wasi_advice_t)advice));
    }
    GOOD("close: the new one", __wasi_fd_close(fd));
    equal("open: make it, and it is there", open_to(here, "new", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL, READS | WRITES, 0, &fd),
          __WASI_ERRNO_EXIST);
    GOOD("open: fill it", open_write(here, "new", &fd));
    GOOD("write: to fill it", put(fd, "full", &count));
    GOOD("close: the full one", __wasi_fd_close(fd));
    GOOD("open: to empty it", open_to(here, "new", __WASI_OFLAGS_TRUNC, READS | WRITES, 0, &fd));
    GOOD("close: the emptied one", __wasi_fd_close(fd));
    equal("open: it is empty", content(here, "new", text, sizeof text), 0);
    GOOD("open: make one that was not there", open_to(here, "newer", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL, READS | WRITES, 0, &fd));
    GOOD("close: that one", __wasi_fd_close(fd));
    /* At the end, whatever the place. */
    GOOD("append: open", open_to(here, "newer", 0, READS | WRITES, __WASI_FDFLAGS_APPEND, &fd));
    GOOD("append: write", put(fd, "one", &count));
    GOOD("append: seek", __wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &place));
    GOOD("append: write again", put(fd, "two", &count));
    same("append: what is there", text, content(here, "newer", text, sizeof text), "onetwo");
    __wasi_fdstat_t stat;
    GOOD("append: fdstat", __wasi_fd_fdstat_get(fd, &stat));
    equal("append: its flag shows", stat.fs_flags & __WASI_FDFLAGS_APPEND, __WASI_FDFLAGS_APPEND);
    GOOD("set_flags: without append", __wasi_fd_fdstat_set_flags(fd, 0));
    GOOD("set_flags: fdstat", __wasi_fd_fdstat_get(fd, &stat));
    equal("set_flags: the flag is gone", stat.fs_flags & __WASI_FDFLAGS_APPEND, 0);
    GOOD("set_flags: seek", __wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &place));
    GOOD("set_flags: write", put(fd, "ONE", &count));
    same("set_flags: written where it stood", text, content(here, "newer", text, sizeof text), "ONEtwo");
    GOOD("set_flags: append again", __wasi_fd_fdstat_set_flags(fd, __WASI_FDFLAGS_APPEND));
    GOOD("set_flags: write at the end", put(fd, "!", &count));
    same("set_flags: written at the end", text, content(here, "newer", text, sizeof text), "ONEtwo!");
    GOOD("close: the appended one", __wasi_fd_close(fd));
    GOOD("remove: new", __wasi_path_unlink_file(here, "new"));
    GOOD("remove: newer", __wasi_path_unlink_file(here, "newer"));
}

static void about(int here) {
    int fd;
    __wasi_filestat_t by_path, by_fd, again;
    GOOD("filestat: open", open_write(here, "about", &fd));
    GOOD("filestat: fill", put(fd, "12345", &count));
    GOOD("filestat: by number", __wasi_fd_filestat_get(fd, &by_fd));
    GOOD("filestat: by path", __wasi_path_filestat_get(here, 0, "about", &by_path));
    equal("filestat: type", by_fd.filetype, __WASI_FILETYPE_REGULAR_FILE);
    equal("filestat: size", by_fd.size, 5);
    equal("filestat: links", by_fd.nlink, 1);
    equal("filestat: the same file", by_fd.ino, by_path.ino);
    equal("filestat: the same device", by_fd.dev, by_path.dev);
    equal("filestat: the same size", by_fd.size, by_path.size);
    equal("filestat: the same time", by_fd.mtim, by_path.mtim);
    check("filestat: a time of today", by_fd.mtim > 1704067200000000000ull, "it is not");
    GOOD("times: set", __wasi_fd_filestat_set_times(fd, 1000000000ull, 2000000000ull, __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_MTIM));
    GOOD("times: get", __wasi_fd_filestat_get(fd, &again));
    equal("times: of use", again.atim, 1000000000ull);
    equal("times: of change", again.mtim, 2000000000ull);
    GOOD("times: set one", __wasi_fd_filestat_set_times(fd, 7, 3000000000ull, __WASI_FSTFLAGS_MTIM));
    GOOD("times: get that one", __wasi_fd_filestat_get(fd, &again));
    equal("times: the other stays", again.atim, 1000000000ull);
    equal("times: the one is set", again.mtim, 3000000000ull);
    GOOD("times: now", __wasi_fd_filestat_set_times(fd, 0, 0, __WASI_FSTFLAGS_MTIM_NOW));
    GOOD("times: get now", __wasi_fd_filestat_get(fd, &again));
    check("times: it is now", again.mtim > 1704067200000000000ull, "it is not");
    equal("times: set and now", __wasi_fd_filestat_set_times(fd, 1, 1, __WASI_FSTFLAGS_MTIM | __WASI_FSTFLAGS_MTIM_NOW),
          __WASI_ERRNO_INVAL);
    equal("times: of use, set and now", __wasi_fd_filestat_set_times(fd, 1, 1, __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_ATIM_NOW),
          __WASI_ERRNO_INVAL);
    GOOD("times: by path", __wasi_path_filestat_set_times(here, 0, "about", 4000000000ull, 5000000000ull,
                                                          __WASI_FSTFLAGS_ATIM | __WASI_FSTFLAGS_MTIM));
    GOOD("times: get by path", __wasi_path_filestat_get(here, 0, "about", &again));
    equal("times: by path, of use", again.atim, 4000000000ull);
    equal("times: by path, of change", again.mtim, 5000000000ull);
    equal("times: by path, of nothing", __wasi_path_filestat_set_times(here, 0, "nothing", 1, 1, __WASI_FSTFLAGS_MTIM),
          __WASI_ERRNO_NOENT);
    __wasi_fdstat_t stat;
    GOOD("fdstat", __wasi_fd_fdstat_get(fd, &stat));
    equal("fdstat: type", stat.fs_filetype, __WASI_FILETYPE_REGULAR_FILE);
    check("fdstat: it may read and write",
          (stat.fs_rights_base & (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_WRITE)) == (__WASI_RIGHTS_FD_READ | __WASI_RIGHTS_FD_WRITE),
          "it may not");
    either("set_rights: none more", __wasi_fd_fdstat_set_rights(fd, stat.fs_rights_base, stat.fs_rights_inheriting),
           __WASI_ERRNO_SUCCESS, __WASI_ERRNO_NOTSUP);
    either("allocate: says that it does not, or does", __wasi_fd_allocate(fd, 0, 5), __WASI_ERRNO_NOTSUP, __WASI_ERRNO_SUCCESS);
    GOOD("allocate: the size", __wasi_fd_filestat_get(fd, &again));
    equal("allocate: the size stays", again.size, 5);
    refused("readdir: of a file", __wasi_fd_readdir(fd, (uint8_t *)text, sizeof text, 0, &count));
    refused("open: below a file", open_read(fd, "x", &(int){0}));
    refused("filestat: below a file", __wasi_path_filestat_get(fd, 0, "x", &again));
    GOOD("close: about", __wasi_fd_close(fd));
    /* The three that every program has. */
    for (int stream = 0; stream < 3; stream++) {
        char name[64];
        snprintf(name, sizeof name, "stream %d: fdstat", stream);
        GOOD(name, __wasi_fd_fdstat_get(stream, &stat));
        snprintf(name, sizeof name, "stream %d: is no file", stream);
        check(name, stat.fs_filetype != __WASI_FILETYPE_REGULAR_FILE && stat.fs_filetype != __WASI_FILETYPE_DIRECTORY, "it is");
        snprintf(name, sizeof name, "stream %d: is no terminal", stream);
        check(name, stat.fs_filetype != __WASI_FILETYPE_CHARACTER_DEVICE, "it says so");
        snprintf(name, sizeof name, "stream %d: has no place", stream);
        equal(name, __wasi_fd_seek(stream, 0, __WASI_WHENCE_CUR, &place), __WASI_ERRNO_SPIPE);
        snprintf(name, sizeof name, "stream %d: tells none", stream);
        equal(name, __wasi_fd_tell(stream, &place), __WASI_ERRNO_SPIPE);
    }
    refused("stream 0: is not written to", put(0, "x", &count));
    refused("stream 1: is not read", get(1, text, 1, &count));
    GOOD("remove: about", __wasi_path_unlink_file(here, "about"));
}

static void numbers(int here) {
    int one, two;
    GOOD("renumber: open one", open_read(here, "ten", &one));
    GOOD("renumber: open two", open_read(here, "in/file", &two));
    GOOD("renumber", __wasi_fd_renumber(one, two));
    equal("renumber: the old number is gone", get(one, text, 1, &count), __WASI_ERRNO_BADF);
    GOOD("renumber: the new number reads", get(two, text, sizeof text, &count));
    same("renumber: it is the other file", text, count, "0123456789");
    GOOD("renumber: to itself", __wasi_fd_renumber(two, two));
    GOOD("renumber: close", __wasi_fd_close(two));
    equal("renumber: from nothing", __wasi_fd_renumber(two, here), __WASI_ERRNO_BADF);
    GOOD("renumber: open again", open_read(here, "ten", &one));
    equal("renumber: to nothing", __wasi_fd_renumber(one, 5000), __WASI_ERRNO_BADF);
    GOOD("renumber: it is still open", __wasi_fd_close(one));
    /* A number that nothing has. */
    const int none[] = {77, 5000, -1};
    for (unsigned at = 0; at < 3; at++) {
        int fd = none[at], made;
        char name[64];
        __wasi_filestat_t file;
        __wasi_fdstat_t stat;
        __wasi_iovec_t in = {(uint8_t *)text, 1};
        __wasi_ciovec_t out = {(const uint8_t *)"x", 1};
#define NONE(what, call)                                                                                       \
    snprintf(name, sizeof name, "nothing at %d: %s", fd, what);                                                  \
    equal(name, call, __WASI_ERRNO_BADF)
        NONE("advise", __wasi_fd_advise(fd, 0, 0, 0));
        NONE("allocate", __wasi_fd_allocate(fd, 0, 1));
        NONE("close", __wasi_fd_close(fd));
        NONE("datasync", __wasi_fd_datasync(fd));
        NONE("fdstat", __wasi_fd_fdstat_get(fd, &stat));
        NONE("set_flags", __wasi_fd_fdstat_set_flags(fd, 0));
        NONE("filestat", __wasi_fd_filestat_get(fd, &file));
        NONE("set_size", __wasi_fd_filestat_set_size(fd, 0));
        NONE("set_times", __wasi_fd_filestat_set_times(fd, 0, 0, __WASI_FSTFLAGS_MTIM_NOW));
        NONE("pread", __wasi_fd_pread(fd, &in, 1, 0, &count));
        NONE("pwrite", __wasi_fd_pwrite(fd, &out, 1, 0, &count));
        NONE("read", __wasi_fd_read(fd, &in, 1, &count));
        NONE("write", __wasi_fd_write(fd, &out, 1, &count));
        NONE("readdir", __wasi_fd_readdir(fd, (uint8_t *)text, sizeof text, 0, &count));
        NONE("seek", __wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &place));
        NONE("tell", __wasi_fd_tell(fd, &place));
        NONE("sync", __wasi_fd_sync(fd));
        NONE("open", open_read(fd, "ten", &made));
        NONE("mkdir", __wasi_path_create_directory(fd, "x"));
        NONE("path filestat", __wasi_path_filestat_get(fd, 0, "x", &file));
        NONE("path times", __wasi_path_filestat_set_times(fd, 0, "x", 0, 0, __WASI_FSTFLAGS_MTIM_NOW));
        NONE("link", __wasi_path_link(fd, 0, "x", here, "y"));
        NONE("link to", __wasi_path_link(here, 0, "ten", fd, "y"));
        NONE("readlink", __wasi_path_readlink(fd, "x", (uint8_t *)text, sizeof text, &count));
        NONE("rmdir", __wasi_path_remove_directory(fd, "x"));
        NONE("rename", __wasi_path_rename(fd, "x", here, "y"));
        NONE("rename to", __wasi_path_rename(here, "ten", fd, "y"));
        NONE("symlink", __wasi_path_symlink("x", fd, "y"));
        NONE("unlink", __wasi_path_unlink_file(fd, "x"));
    }
    same("nothing: ten is as it was", text, content(here, "ten", text, sizeof text), "0123456789");
    /* Many at once, and all of them closed again. */
    int all[500];
    unsigned opened = 0;
    while (opened < 500 && open_read(here, "ten", all + opened) == 0)
        opened++;
    equal("many: so many are open", opened, 500);
    bool closed = true;
    for (unsigned at = 0; at < opened; at++)
        closed = __wasi_fd_close(all[at]) == 0 && closed;
    check("many: all are closed", closed, "some are not");
}

int main(void) {
    int here = given(".");
    check("here", here > 0, "no folder");
    reading(here);
    writing(here);
    about(here);
    numbers(here);
    end();
    return 0;
}
