/* How a program ends: as its argument says. */
#include "check.h"

/* The calls themselves, so that values can be given to them which the header has no names for. */
#define WASI(name) __attribute__((import_module("wasi_snapshot_preview1"), import_name(name)))

WASI("path_open")
int32_t raw_open(int32_t fd, int32_t lookup, const char *path, int32_t length, int32_t how, int64_t base, int64_t inheriting,
                 int32_t flags, int32_t *made);
WASI("path_filestat_set_times")
int32_t raw_times(int32_t fd, int32_t lookup, const char *path, int32_t length, int64_t used, int64_t changed, int32_t flags);
WASI("fd_seek") int32_t raw_seek(int32_t fd, int64_t offset, int32_t whence, int64_t *place);
WASI("fd_advise") int32_t raw_advise(int32_t fd, int64_t offset, int64_t length, int32_t advice);
WASI("random_get") int32_t raw_random(uint32_t buffer, uint32_t length);

static volatile int zero = 0;

static int deep(int turns) { return turns == 0 ? 0 : deep(turns - 1) + zero; }

int main(int count, char **all) {
    const char *how = count > 1 ? all[1] : "";
    int here = given("."), fd = -1;
    if (open_read(here, "ten", &fd) != 0)
        return 99;
    if (strcmp(how, "exit") == 0)
        __wasi_proc_exit((__wasi_exitcode_t)atoi(all[2]));
    if (strcmp(how, "return") == 0)
        return 3;
    if (strcmp(how, "abort") == 0)
        abort();
    if (strcmp(how, "divide") == 0)
        return (int)(100u / (unsigned)zero);
    if (strcmp(how, "wild") == 0)
        return *(volatile int *)0xfffffff0;
    int made = -1;
    int64_t place;
    if (strcmp(how, "fdflags") == 0)
        return 100 + raw_open(here, 1, "ten", 3, 0, READS, READS, 1 << 9, &made);
    if (strcmp(how, "oflags") == 0)
        return 100 + raw_open(here, 1, "ten", 3, 1 << 9, READS, READS, 0, &made);
    if (strcmp(how, "lookup") == 0)
        return 100 + raw_open(here, 1 << 9, "ten", 3, 0, READS, READS, 0, &made);
    if (strcmp(how, "fstflags") == 0)
        return 100 + raw_times(here, 0, "ten", 3, 1, 1, 1 << 9);
    if (strcmp(how, "whence") == 0)
        return 100 + raw_seek(fd, 0, 9, &place);
    if (strcmp(how, "advice") == 0)
        return 100 + raw_advise(fd, 0, 1, 99);
    if (strcmp(how, "pointer") == 0)
        return 100 + raw_random(0xfffffff0, 8);
    if (strcmp(how, "length") == 0)
        return 100 + raw_random(16, 0xffffff00);
    return deep(98);
}
