/* Opens by a path whose parts are turned into links out of the sandbox and back, many times, and never comes out. */
#include "check.h"

int main(void) {
    int here = given("."), home = given("/home/sandbox");
    char text[64];
    unsigned inside = 0, outside = 0, refusals = 0, folders = 0;
    const char *paths[] = {"turning/outside", "turning/file", "real/../turning/outside", "real/outside", "in/up/turning/outside",
                           "turning/deep/../outside"};
    __wasi_timestamp_t began = 0, time = 0;
    if (__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &began) != 0)
        return 1;
    /* For two seconds, and at least so often. */
    for (unsigned turn = 0; turn < 20000 || time < began + 2000000000ull; turn++) {
        const char *path = paths[turn % 6];
        size_t length = content(here, path, text, sizeof text);
        if (length == strlen("outside") && memcmp(text, "outside", length) == 0)
            outside++;
        else if (length == strlen("shown\n") && memcmp(text, "shown\n", length) == 0)
            outside++;
        else if (length == strlen("inside\n") && memcmp(text, "inside\n", length) == 0)
            inside++;
        else
            refusals++;
        int fd;
        if (open_to(turn % 2 ? here : home, turn % 2 ? "turning" : "work/real", __WASI_OFLAGS_DIRECTORY, FOLDER, 0, &fd) == 0) {
            __wasi_filestat_t file;
            folders++;
            if (__wasi_path_filestat_get(fd, 0, "outside", &file) == 0)
                outside++;
            if (__wasi_fd_close(fd) != 0)
                return 1;
        }
        int made;
        if (open_write(here, turn % 2 ? "turning/made" : "real/made", &made) == 0 && __wasi_fd_close(made) != 0)
            return 1;
        refusals += __wasi_path_create_directory(here, "turning/made-folder") != 0;
        refusals += __wasi_path_unlink_file(here, "turning/made") != 0;
        refusals += __wasi_path_remove_directory(here, "turning/made-folder") != 0;
        if (turn % 256 == 0 && __wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &time) != 0)
            return 1;
        if (turn > 5000000)
            break;
    }
    equal("nothing of outside came", outside, 0);
    check("what is inside came", inside > 0, "never");
    check("what leads out was refused", refusals > 0, "never");
    check("folders were opened", folders > 0, "never");
    end();
    return 0;
}
