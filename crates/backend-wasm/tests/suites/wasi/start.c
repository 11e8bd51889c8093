/* How a program starts: arguments, variables, folders, clocks, chance, and what it cannot have. */
#include "check.h"

static void arguments(void) {
    __wasi_size_t count = 0, bytes = 0;
    GOOD("args_sizes_get", __wasi_args_sizes_get(&count, &bytes));
    equal("args: so many", count, 6);
    equal("args: so many bytes", bytes, sizeof "start" + sizeof "one" + sizeof "two" + 1 + sizeof "''" + sizeof "\xc3\xbc");
    uint8_t *all[16];
    uint8_t text[256];
    memset(text, 0xaa, sizeof text);
    GOOD("args_get", __wasi_args_get(all, text));
    const char *expected[] = {"start", "one", "two", "", "''", "\xc3\xbc"};
    for (unsigned at = 0; at < 6; at++) {
        char name[32];
        snprintf(name, sizeof name, "args: number %u", at);
        same(name, all[at], strlen((char *)all[at]), expected[at]);
    }
    check("args: they lie one after the other", all[0] == text && all[1] == text + sizeof "start", "elsewhere");
    equal("args: nothing behind the last", text[bytes], 0xaa);
}

static void variables(void) {
    __wasi_size_t count = 0, bytes = 0;
    GOOD("environ_sizes_get", __wasi_environ_sizes_get(&count, &bytes));
    check("environ: some", count >= 4 && count < 64, "too few or too many");
    uint8_t **all = calloc(count + 1, sizeof *all);
    uint8_t *text = calloc(bytes + 1, 1);
    GOOD("environ_get", __wasi_environ_get(all, text));
    size_t sum = 0;
    bool shaped = true;
    for (unsigned at = 0; at < count; at++) {
        sum += strlen((char *)all[at]) + 1;
        shaped = shaped && strchr((char *)all[at], '=') != NULL;
    }
    equal("environ: the bytes are theirs", sum, bytes);
    check("environ: each is NAME=VALUE", shaped, "one is not");
    const char *expected[] = {"HOME=/home/sandbox", "LANG=C.UTF-8", "A=of the caller", "EMPTY="};
    for (unsigned want = 0; want < 4; want++) {
        bool found = false;
        for (unsigned at = 0; at < count; at++)
            found = found || strcmp((char *)all[at], expected[want]) == 0;
        char name[64];
        snprintf(name, sizeof name, "environ: %s", expected[want]);
        check(name, found, "it is not there");
    }
    const char *hidden[] = {"CARGO", "PWD=/tmp/", "USER=root", "HOSTNAME=", "SHELL=/bin/bash", "TMPDIR", "RUST"};
    for (unsigned want = 0; want < sizeof hidden / sizeof *hidden; want++) {
        bool found = false;
        for (unsigned at = 0; at < count; at++)
            found = found || strncmp((char *)all[at], hidden[want], strlen(hidden[want])) == 0;
        char name[64];
        snprintf(name, sizeof name, "environ: no %s of the host", hidden[want]);
        check(name, !found, "it shows");
    }
}

static void folders(void) {
    const char *expected[] = {"/home/sandbox", "/tmp", "/mnt/shown", "."};
    unsigned count = 0;
    for (int fd = 3; fd < 40; fd++) {
        __wasi_prestat_t about = {0};
        if (__wasi_fd_prestat_get(fd, &about) != 0)
            break;
        count++;
        char name[64], text[128] = {0};
        snprintf(name, sizeof name, "preopen %d: is a folder", fd);
        equal(name, about.tag, __WASI_PREOPENTYPE_DIR);
        snprintf(name, sizeof name, "preopen %d: its name", fd);
        GOOD(name, __wasi_fd_prestat_dir_name(fd, (uint8_t *)text, about.u.dir.pr_name_len));
        bool known = false;
        for (unsigned at = 0; at < 4; at++)
            known = known || strcmp(text, expected[at]) == 0;
        snprintf(name, sizeof name, "preopen %d: one of those that show", fd);
        check(name, known, text);
        snprintf(name, sizeof name, "preopen %d: a name that has no room", fd);
        either(name, __wasi_fd_prestat_dir_name(fd, (uint8_t *)text, 0), __WASI_ERRNO_NAMETOOLONG,
               __WASI_ERRNO_INVAL);
        __wasi_fdstat_t stat;
        snprintf(name, sizeof name, "preopen %d: fdstat", fd);
        GOOD(name, __wasi_fd_fdstat_get(fd, &stat));
        snprintf(name, sizeof name, "preopen %d: file type", fd);
        equal(name, stat.fs_filetype, __WASI_FILETYPE_DIRECTORY);
        __wasi_filestat_t file;
        snprintf(name, sizeof name, "preopen %d: filestat", fd);
        GOOD(name, __wasi_fd_filestat_get(fd, &file));
        snprintf(name, sizeof name, "preopen %d: filestat's type", fd);
        equal(name, file.filetype, __WASI_FILETYPE_DIRECTORY);
    }
    equal("preopens: so many", count, 4);
    __wasi_prestat_t about;
    for (int fd = 0; fd < 3; fd++) {
        char name[64];
        snprintf(name, sizeof name, "preopens: %d is none", fd);
        equal(name, __wasi_fd_prestat_get(fd, &about), __WASI_ERRNO_BADF);
    }
    const int none[] = {3 + 4, 100, 4096, 0x7fffffff, -1, -2};
    for (unsigned at = 0; at < sizeof none / sizeof *none; at++) {
        char name[64], text[8];
        snprintf(name, sizeof name, "preopens: %d is none either", none[at]);
        equal(name, __wasi_fd_prestat_get(none[at], &about), __WASI_ERRNO_BADF);
        snprintf(name, sizeof name, "preopens: %d has no name", none[at]);
        equal(name, __wasi_fd_prestat_dir_name(none[at], (uint8_t *)text, sizeof text), __WASI_ERRNO_BADF);
    }
}

static void clocks(void) {
    for (unsigned clock = 0; clock < 2; clock++) {
        char name[64];
        __wasi_timestamp_t resolution = 0, first = 0, second = 0;
        snprintf(name, sizeof name, "clock %u: its resolution", clock);
        GOOD(name, __wasi_clock_res_get(clock, &resolution));
        snprintf(name, sizeof name, "clock %u: a resolution between nothing and a second", clock);
        check(name, resolution > 0 && resolution <= 1000000000, "another");
        snprintf(name, sizeof name, "clock %u: its time", clock);
        GOOD(name, __wasi_clock_time_get(clock, 1, &first));
        snprintf(name, sizeof name, "clock %u: its time once more", clock);
        GOOD(name, __wasi_clock_time_get(clock, 1, &second));
        snprintf(name, sizeof name, "clock %u: it does not go back", clock);
        check(name, second >= first, "it does");
        if (clock == __WASI_CLOCKID_REALTIME) {
            /* After 2024, before 2100. */
            check("clock 0: it is today", first > 1704067200000000000ull && first < 4102444800000000000ull, "it is not");
        }
    }
    __wasi_timestamp_t time;
    for (unsigned clock = 2; clock < 4; clock++) {
        char name[64];
        snprintf(name, sizeof name, "clock %u: there is none of a process", clock);
        refused(name, __wasi_clock_time_get(clock, 1, &time));
        snprintf(name, sizeof name, "clock %u: nor its resolution", clock);
        refused(name, __wasi_clock_res_get(clock, &time));
    }
}

static void chance(void) {
    static uint8_t first[70000], second[70000];
    GOOD("random_get: nothing", __wasi_random_get(first, 0));
    equal("random_get: and nothing came", first[0], 0);
    GOOD("random_get", __wasi_random_get(first, 32));
    GOOD("random_get: again", __wasi_random_get(second, 32));
    check("random_get: another time another", memcmp(first, second, 32) != 0, "the same");
    equal("random_get: no more than asked for", first[32], 0);
    GOOD("random_get: much", __wasi_random_get(first, sizeof first));
    unsigned seen[256] = {0};
    for (unsigned at = 0; at < sizeof first; at++)
        seen[first[at]]++;
    bool even = true;
    for (unsigned at = 0; at < 256; at++)
        even = even && seen[at] > 100 && seen[at] < 600;
    check("random_get: every byte comes", even, "some do not");
    GOOD("sched_yield", __wasi_sched_yield());
}

static void sockets(void) {
    const int all[] = {0, 1, 3, 99};
    for (unsigned at = 0; at < 4; at++) {
        int fd;
        char name[64], text[8] = {0};
        __wasi_size_t count;
        __wasi_roflags_t flags;
        __wasi_iovec_t in = {(uint8_t *)text, sizeof text};
        __wasi_ciovec_t out = {(const uint8_t *)"x", 1};
        snprintf(name, sizeof name, "sockets: %d accepts nothing", all[at]);
        refused(name, __wasi_sock_accept(all[at], 0, &fd));
        snprintf(name, sizeof name, "sockets: %d receives nothing", all[at]);
        refused(name, __wasi_sock_recv(all[at], &in, 1, 0, &count, &flags));
        snprintf(name, sizeof name, "sockets: %d sends nothing", all[at]);
        refused(name, __wasi_sock_send(all[at], &out, 1, 0, &count));
        snprintf(name, sizeof name, "sockets: %d is not shut down", all[at]);
        refused(name, __wasi_sock_shutdown(all[at], __WASI_SDFLAGS_RD | __WASI_SDFLAGS_WR));
    }
}

int main(void) {
    arguments();
    variables();
    folders();
    clocks();
    chance();
    sockets();
    end();
    return 0;
}
