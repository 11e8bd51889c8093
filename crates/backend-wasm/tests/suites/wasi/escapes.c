/* Ways out of the folders that a program is given; none leads anywhere. */
#include "check.h"

static char text[4096];
static __wasi_size_t count;

/* Every call that takes a path, with one that leads out. */
static void none(int folder, const char *path, const char *label) {
    int fd = -1;
    char name[300];
    __wasi_filestat_t file;
#define OUT(what, call)                                                                                        \
    snprintf(name, sizeof name, "%s: %s", label, what);                                                          \
    refused(name, call)
    OUT("open", open_read(folder, path, &fd));
    OUT("open a folder", open_to(folder, path, __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd));
    OUT("open to write", open_to(folder, path, 0, READS | WRITES, 0, &fd));
    OUT("open to make", open_write(folder, path, &fd));
    OUT("open to empty", open_to(folder, path, __WASI_OFLAGS_TRUNC, READS | WRITES, 0, &fd));
    OUT("filestat", __wasi_path_filestat_get(folder, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, path, &file));
    OUT("times", __wasi_path_filestat_set_times(folder, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, path, 1, 1, __WASI_FSTFLAGS_MTIM));
    OUT("mkdir", __wasi_path_create_directory(folder, path));
    OUT("rmdir", __wasi_path_remove_directory(folder, path));
    OUT("link from", __wasi_path_link(folder, __WASI_LOOKUPFLAGS_SYMLINK_FOLLOW, path, folder, "stolen"));
    OUT("link to", __wasi_path_link(folder, 0, "ten", folder, path));
    OUT("symlink", __wasi_path_symlink("ten", folder, path));
}

/* And those that would not follow the last part of a path. */
static void nor(int folder, const char *path, const char *label) {
    char name[300];
    __wasi_filestat_t file;
    none(folder, path, label);
    OUT("filestat of itself", __wasi_path_filestat_get(folder, 0, path, &file));
    OUT("link of itself", __wasi_path_link(folder, 0, path, folder, "stolen"));
    OUT("rename from", __wasi_path_rename(folder, path, folder, "stolen"));
    OUT("rename to", __wasi_path_rename(folder, "ten", folder, path));
    OUT("unlink", __wasi_path_unlink_file(folder, path));
    OUT("readlink", __wasi_path_readlink(folder, path, (uint8_t *)text, sizeof text, &count));
}

int main(void) {
    int here = given("."), home = given("/home/sandbox"), tmp = given("/tmp"), shown = given("/mnt/shown");
    check("folders that show", here > 0 && home > 0 && tmp > 0 && shown > 0, "one is missing");
    const char *paths[] = {"..",
                           "../above",
                           "../..",
                           "../../../../../../../../etc/passwd",
                           "/",
                           "/etc/passwd",
                           "/home/sandbox/work/ten",
                           "/proc/self/root",
                           "in/../../above",
                           "in/deep/../../../above",
                           "./../above",
                           ".//..//above",
                           "nothing/../../above",
                           "ten/../../above"};
    for (unsigned at = 0; at < sizeof paths / sizeof *paths; at++)
        nor(here, paths[at], paths[at]);
    /* Links that lie in a folder and lead out of it. */
    const char *links[] = {"abs-passwd", "abs-secret", "abs-root/etc/passwd", "abs-root/proc/self/environ",
                           "abs-outside/outside", "abs-outside/file", "up-etc/passwd", "up-tmp/x", "in/up-two/above",
                           "winding/above", "loop", "loop-a", "loop-b/x"};
    for (unsigned at = 0; at < sizeof links / sizeof *links; at++)
        none(here, links[at], links[at]);
    const char *beneath[] = {"abs-root/etc/passwd", "abs-outside/outside", "up-etc/passwd", "in/up-two/above", "winding/above"};
    for (unsigned at = 0; at < sizeof beneath / sizeof *beneath; at++) {
        char name[300];
        __wasi_filestat_t file;
        const char *path = beneath[at], *label = path;
        int folder = here;
        OUT("filestat of itself", __wasi_path_filestat_get(folder, 0, path, &file));
        OUT("rename from", __wasi_path_rename(folder, path, folder, "stolen"));
        OUT("rename to", __wasi_path_rename(folder, "ten", folder, path));
        OUT("unlink", __wasi_path_unlink_file(folder, path));
        OUT("readlink", __wasi_path_readlink(folder, path, (uint8_t *)text, sizeof text, &count));
    }
    none(shown, "way-out", "way-out of a read-only folder");
    refused("abs-inside: an absolute link, even to what shows", open_read(here, "abs-inside", &(int){0}));
    /* Those that stay inside do lead there. */
    same("to-file", text, content(here, "to-file", text, sizeof text), "inside\n");
    same("to-in/file", text, content(here, "to-in/file", text, sizeof text), "inside\n");
    same("in/up/in/file", text, content(here, "in/up/in/file", text, sizeof text), "inside\n");
    same("in/deep/../file", text, content(here, "in/deep/../file", text, sizeof text), "inside\n");
    same("around, from the home", text, content(home, "work/around", text, sizeof text), "inside\n");
    same("the parent, from the home", text, content(home, "above", text, sizeof text), "above\n");
    refused("around, from here", open_read(here, "around", &(int){0}));
    /* Links that a program makes itself. */
    refused("symlink: to what is absolute", __wasi_path_symlink("/etc", here, "mine-abs"));
    __wasi_errno_t error = __wasi_path_symlink("../..", here, "mine-up");
    if (error == 0) {
        none(here, "mine-up/above", "a link of its own up");
        equal("a link of its own: remove", __wasi_path_unlink_file(here, "mine-up"), 0);
    } else {
        refused("a link of its own up", error);
    }
    GOOD("a link of its own: across", __wasi_path_symlink("in/up/in/up", here, "mine-across"));
    refused("a link of its own: with more above", open_read(here, "mine-across/../above", &(int){0}));
    GOOD("a link of its own: remove that", __wasi_path_unlink_file(here, "mine-across"));
    /* A folder that is moved while it is open takes nobody out. */
    int deep, fd;
    GOOD("moved: make", __wasi_path_create_directory(here, "m1"));
    GOOD("moved: make within", __wasi_path_create_directory(here, "m1/m2"));
    GOOD("moved: open", open_to(here, "m1/m2", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &deep));
    GOOD("moved: move", __wasi_path_rename(here, "m1/m2", here, "m2"));
    refused("moved: up from it", open_read(deep, "..", &fd));
    refused("moved: up and down from it", open_read(deep, "../ten", &fd));
    refused("moved: far up from it", open_read(deep, "../../above", &fd));
    GOOD("moved: close", __wasi_fd_close(deep));
    GOOD("moved: remove", __wasi_path_remove_directory(here, "m2"));
    GOOD("moved: remove the other", __wasi_path_remove_directory(here, "m1"));
    /* Nothing else has a number. */
    unsigned others = 0;
    for (int at = 0; at < 4096; at++) {
        __wasi_fdstat_t stat;
        others += __wasi_fd_fdstat_get(at, &stat) == 0;
    }
    equal("numbers: the three streams and four folders", others, 7);
    same("ten is as it was", text, content(here, "ten", text, sizeof text), "0123456789");
    end();
    return 0;
}
