/* Folders and names: make, list, rename, link, follow, remove. */
#include "check.h"

static char text[4096];
static __wasi_size_t count;

/* Reads a folder to its end in pieces of this size; says how many names it has, and whether one of them is this. */
static unsigned listed(int folder, size_t room, const char *wanted, bool *found) {
    uint8_t *piece = malloc(room);
    __wasi_dircookie_t cookie = 0;
    unsigned names = 0;
    *found = false;
    for (unsigned turn = 0; turn < 5000; turn++) {
        if (__wasi_fd_readdir(folder, piece, room, cookie, &count) != 0) {
            names = 9999;
            break;
        }
        size_t at = 0;
        while (at + sizeof(__wasi_dirent_t) <= count) {
            __wasi_dirent_t entry;
            memcpy(&entry, piece + at, sizeof entry);
            if (at + sizeof entry + entry.d_namlen > count)
                break;
            const char *name = (const char *)piece + at + sizeof entry;
            names++;
            if (entry.d_namlen == strlen(wanted) && memcmp(name, wanted, entry.d_namlen) == 0)
                *found = true;
            cookie = entry.d_next;
            at += sizeof entry + entry.d_namlen;
        }
        if (count < room)
            break;
    }
    free(piece);
    return names;
}

static void making(int here) {
    int fd;
    __wasi_filestat_t file;
    GOOD("mkdir", __wasi_path_create_directory(here, "made"));
    equal("mkdir: twice", __wasi_path_create_directory(here, "made"), __WASI_ERRNO_EXIST);
    equal("mkdir: where a file is", __wasi_path_create_directory(here, "ten"), __WASI_ERRNO_EXIST);
    equal("mkdir: in nothing", __wasi_path_create_directory(here, "nothing/made"), __WASI_ERRNO_NOENT);
    equal("mkdir: in a file", __wasi_path_create_directory(here, "ten/made"), __WASI_ERRNO_NOTDIR);
    refused("mkdir: no name", __wasi_path_create_directory(here, ""));
    GOOD("mkdir: with a mark at its end", __wasi_path_create_directory(here, "made/in/"));
    GOOD("mkdir: filestat", __wasi_path_filestat_get(here, 0, "made/in", &file));
    equal("mkdir: it is a folder", file.filetype, __WASI_FILETYPE_DIRECTORY);
    GOOD("open: a folder", open_to(here, "made", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd));
    GOOD("open: a file in it", open_write(fd, "file", &(int){0}));
    GOOD("open: below it", __wasi_path_filestat_get(fd, 0, "in", &file));
    refused("read: a folder", get(fd, text, 1, &count));
    refused("write: a folder", put(fd, "x", &count));
    refused("seek: a folder", __wasi_fd_seek(fd, 0, __WASI_WHENCE_SET, &(__wasi_filesize_t){0}));
    refused("set_size: a folder", __wasi_fd_filestat_set_size(fd, 0));
    GOOD("close: a folder", __wasi_fd_close(fd));
    equal("open: a file as a folder", open_to(here, "ten", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd), __WASI_ERRNO_NOTDIR);
    equal("open: a folder to write", open_to(here, "made", 0, READS | WRITES, 0, &fd), __WASI_ERRNO_ISDIR);
    refused("open: a folder to be made", open_to(here, "other", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd));
    equal("open: a folder to be made is not made", __wasi_path_filestat_get(here, 0, "other", &file), __WASI_ERRNO_NOENT);
    equal("open: below a file", open_read(here, "ten/x", &fd), __WASI_ERRNO_NOTDIR);
    refused("open: a file with a mark at its end", open_read(here, "ten/", &fd));
    refused("open: no name", open_read(here, "", &fd));
    static char longest[5000];
    memset(longest, 'a', 300);
    equal("open: a name that is too long", open_read(here, longest, &fd), __WASI_ERRNO_NAMETOOLONG);
    memset(longest, 'a', sizeof longest - 1);
    for (unsigned at = 1; at < sizeof longest - 1; at += 2)
        longest[at] = '/';
    equal("open: a path that is too long", open_read(here, longest, &fd), __WASI_ERRNO_NAMETOOLONG);
    equal("rmdir: what is full", __wasi_path_remove_directory(here, "made"), __WASI_ERRNO_NOTEMPTY);
    equal("rmdir: a file", __wasi_path_remove_directory(here, "ten"), __WASI_ERRNO_NOTDIR);
    equal("rmdir: nothing", __wasi_path_remove_directory(here, "nothing"), __WASI_ERRNO_NOENT);
    either("unlink: a folder", __wasi_path_unlink_file(here, "made"), __WASI_ERRNO_ISDIR, __WASI_ERRNO_PERM);
    equal("unlink: nothing", __wasi_path_unlink_file(here, "nothing"), __WASI_ERRNO_NOENT);
    refused("unlink: a file with a mark at its end", __wasi_path_unlink_file(here, "ten/"));
    GOOD("unlink: in a folder", __wasi_path_unlink_file(here, "made/file"));
    GOOD("rmdir: within", __wasi_path_remove_directory(here, "made/in"));
    GOOD("rmdir", __wasi_path_remove_directory(here, "made"));
    equal("rmdir: twice", __wasi_path_remove_directory(here, "made"), __WASI_ERRNO_NOENT);
}

static void listing(int here) {
    int fd;
    bool found;
    GOOD("list: make", __wasi_path_create_directory(here, "list"));
    GOOD("list: open", open_to(here, "list", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd));
    unsigned empty = listed(fd, 1024, ".", &found);
    equal("list: an empty one has itself and its parent", empty, 2);
    check("list: itself", found, "it is not there");
    bool made = true;
    for (unsigned at = 0; at < 300; at++) {
        int file;
        char name[64];
        snprintf(name, sizeof name, "a-name-of-some-length-%u", at);
        made = open_write(fd, name, &file) == 0 && __wasi_fd_close(file) == 0 && made;
    }
    check("list: 300 files", made, "not made");
    const size_t rooms[] = {100, 128, 1000, 4096, 65536};
    for (unsigned at = 0; at < 5; at++) {
        char name[64];
        snprintf(name, sizeof name, "list: in pieces of %zu", rooms[at]);
        equal(name, listed(fd, rooms[at], "a-name-of-some-length-299", &found), 302);
        snprintf(name, sizeof name, "list: in pieces of %zu, the last", rooms[at]);
        check(name, found, "it is not there");
    }
    GOOD("list: no room", __wasi_fd_readdir(fd, (uint8_t *)text, 0, 0, &count));
    equal("list: no room, nothing", count, 0);
    GOOD("list: far behind the end", __wasi_fd_readdir(fd, (uint8_t *)text, sizeof text, 100000, &count));
    equal("list: nothing there", count, 0);
    bool gone = true;
    for (unsigned at = 0; at < 300; at++) {
        char name[64];
        snprintf(name, sizeof name, "a-name-of-some-length-%u", at);
        gone = __wasi_path_unlink_file(fd, name) == 0 && gone;
    }
    check("list: all removed", gone, "some are not");
    equal("list: empty again", listed(fd, 1024, "..", &found), 2);
    check("list: its parent", found, "it is not there");
    GOOD("list: close", __wasi_fd_close(fd));
    GOOD("list: remove", __wasi_path_remove_directory(here, "list"));
    /* What the entries say of their kinds. */
    GOOD("kinds: read", __wasi_fd_readdir(here, (uint8_t *)text, sizeof text, 0, &count));
    const struct {
        const char *name;
        __wasi_filetype_t type;
    } expected[] = {{"ten", __WASI_FILETYPE_REGULAR_FILE},
                    {"in", __WASI_FILETYPE_DIRECTORY},
                    {"to-in", __WASI_FILETYPE_SYMBOLIC_LINK},
                    {"abs-root", __WASI_FILETYPE_SYMBOLIC_LINK}};
    for (unsigned want = 0; want < 4; want++) {
        __wasi_filetype_t type = 99;
        for (size_t at = 0; at + sizeof(__wasi_dirent_t) <= count;) {
            __wasi_dirent_t entry;
            memcpy(&entry, text + at, sizeof entry);
            if (entry.d_namlen == strlen(expected[want].name) &&
                memcmp(text + at + sizeof entry, expected[want].name, entry.d_namlen) == 0)
                type = entry.d_type;
            at += sizeof entry + entry.d_namlen;
        }
        char name[64];
        snprintf(name, sizeof name, "kinds: %s", expected[want].name);
        equal(name, type, expected[want].type);
    }
}

static void file_with(int folder, const char *path, const char *what) {
    int fd;
    char name[128];
    snprintf(name, sizeof name, "fill %s with %s", path, what);
    __wasi_errno_t error = open_write(folder, path, &fd);
    if (error == 0)
        error = put(fd, what, &count);
    if (error == 0)
        error = __wasi_fd_close(fd);
    equal(name, error, 0);
}

static void renaming(int here, int tmp) {
    __wasi_filestat_t file;
    file_with(here, "r1", "one");
    GOOD("rename", __wasi_path_rename(here, "r1", here, "r2"));
    same("rename: what it holds", text, content(here, "r2", text, sizeof text), "one");
    equal("rename: the old name is gone", __wasi_path_filestat_get(here, 0, "r1", &file), __WASI_ERRNO_NOENT);
    file_with(here, "r1", "two");
    GOOD("rename: over another", __wasi_path_rename(here, "r1", here, "r2"));
    same("rename: the other is replaced", text, content(here, "r2", text, sizeof text), "two");
    equal("rename: nothing", __wasi_path_rename(here, "nothing", here, "r3"), __WASI_ERRNO_NOENT);
    equal("rename: into nothing", __wasi_path_rename(here, "r2", here, "nothing/r3"), __WASI_ERRNO_NOENT);
    GOOD("rename: to itself", __wasi_path_rename(here, "r2", here, "r2"));
    GOOD("rename: a folder to move", __wasi_path_create_directory(here, "rd"));
    GOOD("rename: into a folder", __wasi_path_rename(here, "r2", here, "rd/r2"));
    GOOD("rename: a folder", __wasi_path_rename(here, "rd", here, "re"));
    same("rename: a folder with what is in it", text, content(here, "re/r2", text, sizeof text), "two");
    equal("rename: a folder into itself", __wasi_path_rename(here, "re", here, "re/in"), __WASI_ERRNO_INVAL);
    equal("rename: a folder over a file", __wasi_path_rename(here, "re", here, "ten"), __WASI_ERRNO_NOTDIR);
    equal("rename: a file over a folder", __wasi_path_rename(here, "ten", here, "re"), __WASI_ERRNO_ISDIR);
    GOOD("rename: an empty folder", __wasi_path_create_directory(here, "rf"));
    GOOD("rename: a folder over an empty one", __wasi_path_rename(here, "re", here, "rf"));
    GOOD("rename: another folder", __wasi_path_create_directory(here, "rg"));
    either("rename: a folder over a full one", __wasi_path_rename(here, "rg", here, "rf"), __WASI_ERRNO_NOTEMPTY, __WASI_ERRNO_EXIST);
    GOOD("rename: remove the other", __wasi_path_remove_directory(here, "rg"));
    GOOD("rename: remove the file", __wasi_path_unlink_file(here, "rf/r2"));
    GOOD("rename: remove the folder", __wasi_path_remove_directory(here, "rf"));
    /* From one folder that shows to another. */
    file_with(here, "r1", "far");
    __wasi_errno_t error = __wasi_path_rename(here, "r1", tmp, "r1");
    either("rename: to another folder that shows", error, __WASI_ERRNO_SUCCESS, __WASI_ERRNO_XDEV);
    int where = error == 0 ? tmp : here;
    same("rename: it is in one of them", text, content(where, "r1", text, sizeof text), "far");
    GOOD("rename: remove it there", __wasi_path_unlink_file(where, "r1"));
}

static void linking(int here) {
    __wasi_filestat_t one, other;
    file_with(here, "l1", "one");
    GOOD("link", __wasi_path_link(here, 0, "l1", here, "l2"));
    GOOD("link: the one", __wasi_path_filestat_get(here, 0, "l1", &one));
    GOOD("link: the other", __wasi_path_filestat_get(here, 0, "l2", &other));
    equal("link: the same file", one.ino, other.ino);
    equal("link: two names", one.nlink, 2);
    equal("link: to what is there", __wasi_path_link(here, 0, "l1", here, "ten"), __WASI_ERRNO_EXIST);
    equal("link: of nothing", __wasi_path_link(here, 0, "nothing", here, "l3"), __WASI_ERRNO_NOENT);
    refused("link: of a folder", __wasi_path_link(here, 0, "in", here, "l3"));
    refused("link: a mark at its end", __wasi_path_link(here, 0, "l1", here, "l3/"));
    GOOD("link: remove one", __wasi_path_unlink_file(here, "l1"));
    same("link: the other holds it", text, content(here, "l2", text, sizeof text), "one");
    GOOD("link: remove the other", __wasi_path_unlink_file(here, "l2"));
    /* Links by name. */
    GOOD("symlink", __wasi_path_symlink("ten", here, "s1"));
    GOOD("symlink: what it says", __wasi_path_readlink(here, "s1", (uint8_t *)text, sizeof text, &count));
    same("symlink: its target", text, count, "ten");
    GOOD("readlink: little room", __wasi_path_readlink(here, "s1", (uint8_t *)text, 2, &count));
    equal("readlink: cut", count, 2);
    equal("readlink: of a file", __wasi_path_readlink(here, "ten", (uint8_t *)text, sizeof text, &count), __WASI_ERRNO_INVAL);
    equal("readlink: of nothing", __wasi_path_readlink(here, "nothing", (uint8_t *)text, sizeof text, &count), __WASI_ERRNO_NOENT);
    same("symlink: read through it", text, content(here, "s1", text, sizeof text), "0123456789");
    GOOD("symlink: itself", __wasi_path_filestat_get(here, 0, "s1", &one));
    equal("symlink: is a link", one.filetype, __WASI_FILETYPE_SYMBOLIC_LINK);
    equal("symlink: as long as its target", one.size, 3);
    GOOD("symlink: followed", __wasi_path_filestat_get(here, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, "s1", &one));
    equal("symlink: followed, a file", one.filetype, __WASI_FILETYPE_REGULAR_FILE);
    int fd;
    equal("symlink: opened without following", __wasi_path_open(here, 0, "s1", 0, READS, READS, 0, &fd), __WASI_ERRNO_LOOP);
    equal("symlink: where one is", __wasi_path_symlink("ten", here, "s1"), __WASI_ERRNO_EXIST);
    GOOD("symlink: to nothing", __wasi_path_symlink("nowhere", here, "s2"));
    equal("symlink: opened to nothing", open_read(here, "s2", &fd), __WASI_ERRNO_NOENT);
    equal("symlink: made through it, once more", open_to(here, "s2", __WASI_OFLAGS_CREAT | __WASI_OFLAGS_EXCL, READS | WRITES, 0, &fd),
          __WASI_ERRNO_EXIST);
    refused("symlink: no target", __wasi_path_symlink("", here, "s3"));
    refused("symlink: in nothing", __wasi_path_symlink("ten", here, "nothing/s3"));
    GOOD("symlink: times of itself", __wasi_path_filestat_set_times(here, 0, "s1", 0, 6000000000ull, __WASI_FSTFLAGS_MTIM));
    GOOD("symlink: get its time", __wasi_path_filestat_get(here, 0, "s1", &one));
    equal("symlink: its own time", one.mtim, 6000000000ull);
    GOOD("symlink: the file's time", __wasi_path_filestat_get(here, 0, "ten", &one));
    check("symlink: the file's stays", one.mtim != 6000000000ull, "it was changed");
    GOOD("symlink: a name for the link", __wasi_path_link(here, 0, "s1", here, "s4"));
    GOOD("symlink: that name", __wasi_path_filestat_get(here, 0, "s4", &one));
    equal("symlink: it is the link", one.filetype, __WASI_FILETYPE_SYMBOLIC_LINK);
    GOOD("symlink: rename", __wasi_path_rename(here, "s4", here, "s5"));
    GOOD("symlink: remove", __wasi_path_unlink_file(here, "s1"));
    GOOD("symlink: remove the one to nothing", __wasi_path_unlink_file(here, "s2"));
    GOOD("symlink: remove the renamed", __wasi_path_unlink_file(here, "s5"));
    same("symlink: what they led to is there", text, content(here, "ten", text, sizeof text), "0123456789");
    GOOD("symlink: of a folder", __wasi_path_symlink("in", here, "s6"));
    same("symlink: through a folder's", text, content(here, "s6/file", text, sizeof text), "inside\n");
    either("rmdir: a link to a folder", __wasi_path_remove_directory(here, "s6"), __WASI_ERRNO_NOTDIR, __WASI_ERRNO_LOOP);
    GOOD("unlink: a link to a folder", __wasi_path_unlink_file(here, "s6"));
    same("unlink: the folder is there", text, content(here, "in/file", text, sizeof text), "inside\n");
}

static void read_only(int shown) {
    int fd;
    __wasi_filestat_t file;
    same("read-only: read", text, content(shown, "file", text, sizeof text), "shown\n");
    GOOD("read-only: filestat", __wasi_path_filestat_get(shown, 0, "file", &file));
    refused("read-only: open to write", open_to(shown, "file", 0, READS | WRITES, 0, &fd));
    refused("read-only: open to empty", open_to(shown, "file", __WASI_OFLAGS_TRUNC, READS, 0, &fd));
    refused("read-only: open to make", open_write(shown, "new", &fd));
    refused("read-only: open to append", open_to(shown, "file", 0, READS | WRITES, __WASI_FDFLAGS_APPEND, &fd));
    refused("read-only: mkdir", __wasi_path_create_directory(shown, "new"));
    refused("read-only: rmdir", __wasi_path_remove_directory(shown, "deep"));
    refused("read-only: unlink", __wasi_path_unlink_file(shown, "file"));
    refused("read-only: rename", __wasi_path_rename(shown, "file", shown, "other"));
    refused("read-only: link", __wasi_path_link(shown, 0, "file", shown, "other"));
    refused("read-only: symlink", __wasi_path_symlink("file", shown, "other"));
    refused("read-only: times", __wasi_path_filestat_set_times(shown, 0, "file", 1, 1, __WASI_FSTFLAGS_MTIM));
    GOOD("read-only: open a folder", open_to(shown, "deep", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd));
    refused("read-only: make in it", open_write(fd, "new", &(int){0}));
    refused("read-only: mkdir in it", __wasi_path_create_directory(fd, "new"));
    GOOD("read-only: close the folder", __wasi_fd_close(fd));
    GOOD("read-only: open to read", open_read(shown, "file", &fd));
    refused("read-only: set_size", __wasi_fd_filestat_set_size(fd, 0));
    refused("read-only: write", put(fd, "x", &count));
    refused("read-only: times of it", __wasi_fd_filestat_set_times(fd, 1, 1, __WASI_FSTFLAGS_MTIM));
    GOOD("read-only: close", __wasi_fd_close(fd));
    same("read-only: as it was", text, content(shown, "file", text, sizeof text), "shown\n");
}

int main(void) {
    int here = given("."), tmp = given("/tmp"), shown = given("/mnt/shown");
    check("folders that show", here > 0 && tmp > 0 && shown > 0, "one is missing");
    making(here);
    listing(here);
    renaming(here, tmp);
    linking(here);
    read_only(shown);
    check("rename: into a read-only folder", __wasi_path_rename(here, "ten", shown, "ten") != 0, "it was done");
    check("link: into a read-only folder", __wasi_path_link(here, 0, "ten", shown, "ten") != 0, "it was done");
    check("rename: out of a read-only folder", __wasi_path_rename(shown, "file", here, "from-shown") != 0, "it was done");
    check("link: out of a read-only folder", __wasi_path_link(shown, 0, "file", here, "from-shown") != 0, "it was done");
    end();
    return 0;
}
