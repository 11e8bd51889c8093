/* Waiting: for times, for input, for several at once. */
#include "check.h"

static __wasi_timestamp_t now(void) {
    __wasi_timestamp_t time = 0;
    if (__wasi_clock_time_get(__WASI_CLOCKID_MONOTONIC, 1, &time) != 0)
        return 0;
    return time;
}

static __wasi_subscription_t clock_in(__wasi_userdata_t tag, __wasi_clockid_t clock, __wasi_timestamp_t timeout, bool absolute) {
    __wasi_subscription_t one;
    memset(&one, 0, sizeof one);
    one.userdata = tag;
    one.u.tag = __WASI_EVENTTYPE_CLOCK;
    one.u.u.clock.id = clock;
    one.u.u.clock.timeout = timeout;
    one.u.u.clock.precision = 1;
    one.u.u.clock.flags = absolute ? __WASI_SUBCLOCKFLAGS_SUBSCRIPTION_CLOCK_ABSTIME : 0;
    return one;
}

static __wasi_subscription_t ready(__wasi_userdata_t tag, __wasi_eventtype_t what, int fd) {
    __wasi_subscription_t one;
    memset(&one, 0, sizeof one);
    one.userdata = tag;
    one.u.tag = what;
    one.u.u.fd_read.file_descriptor = fd;
    return one;
}

#define MS 1000000ull

int main(void) {
    int here = given(".");
    __wasi_event_t events[8];
    __wasi_size_t count = 0;
    char text[64];
    refused("poll: of nothing", __wasi_poll_oneoff((__wasi_subscription_t *)events, events, 0, &count));
    for (unsigned clock = 0; clock < 2; clock++) {
        char name[64];
        __wasi_subscription_t one = clock_in(7 + clock, clock, 30 * MS, false);
        __wasi_timestamp_t began = now();
        snprintf(name, sizeof name, "clock %u: wait", clock);
        GOOD(name, __wasi_poll_oneoff(&one, events, 1, &count));
        __wasi_timestamp_t took = now() - began;
        snprintf(name, sizeof name, "clock %u: one event", clock);
        equal(name, count, 1);
        snprintf(name, sizeof name, "clock %u: whose it is", clock);
        equal(name, events[0].userdata, 7 + clock);
        snprintf(name, sizeof name, "clock %u: its kind", clock);
        equal(name, events[0].type, __WASI_EVENTTYPE_CLOCK);
        snprintf(name, sizeof name, "clock %u: no error", clock);
        equal(name, events[0].error, 0);
        snprintf(name, sizeof name, "clock %u: not before its time", clock);
        check(name, took >= 29 * MS, "it came too early");
        __wasi_timestamp_t time = 0;
        snprintf(name, sizeof name, "clock %u: the time", clock);
        GOOD(name, __wasi_clock_time_get(clock, 1, &time));
        one = clock_in(9, clock, time + 30 * MS, true);
        began = now();
        snprintf(name, sizeof name, "clock %u: wait until", clock);
        GOOD(name, __wasi_poll_oneoff(&one, events, 1, &count));
        snprintf(name, sizeof name, "clock %u: not before that", clock);
        check(name, now() - began >= 20 * MS, "it came too early");
        one = clock_in(9, clock, 1, true);
        snprintf(name, sizeof name, "clock %u: wait until long ago", clock);
        GOOD(name, __wasi_poll_oneoff(&one, events, 1, &count));
        snprintf(name, sizeof name, "clock %u: long ago is over", clock);
        equal(name, count, 1);
        one = clock_in(9, clock, 0, false);
        snprintf(name, sizeof name, "clock %u: wait for no time", clock);
        GOOD(name, __wasi_poll_oneoff(&one, events, 1, &count));
        snprintf(name, sizeof name, "clock %u: no time is over", clock);
        equal(name, count, 1);
    }
    /* The first of several. */
    __wasi_subscription_t several[4] = {clock_in(1, __WASI_CLOCKID_MONOTONIC, 3600 * 1000 * MS, false),
                                        clock_in(2, __WASI_CLOCKID_MONOTONIC, 10 * MS, false),
                                        clock_in(3, __WASI_CLOCKID_REALTIME, 3600 * 1000 * MS, false)};
    GOOD("several: wait", __wasi_poll_oneoff(several, events, 3, &count));
    equal("several: one is over", count, 1);
    equal("several: the shortest", events[0].userdata, 2);
    __wasi_subscription_t two[2] = {clock_in(1, __WASI_CLOCKID_MONOTONIC, 0, false), clock_in(2, __WASI_CLOCKID_MONOTONIC, 0, false)};
    GOOD("two: wait", __wasi_poll_oneoff(two, events, 2, &count));
    check("two: at least one, at most both", count == 1 || count == 2, "another count");
    /* Output takes more. */
    for (int stream = 1; stream < 3; stream++) {
        char name[64];
        __wasi_subscription_t one = ready(20, __WASI_EVENTTYPE_FD_WRITE, stream);
        snprintf(name, sizeof name, "output %d: wait", stream);
        GOOD(name, __wasi_poll_oneoff(&one, events, 1, &count));
        snprintf(name, sizeof name, "output %d: ready", stream);
        equal(name, count, 1);
        snprintf(name, sizeof name, "output %d: its kind", stream);
        equal(name, events[0].type, __WASI_EVENTTYPE_FD_WRITE);
        snprintf(name, sizeof name, "output %d: no error", stream);
        equal(name, events[0].error, 0);
    }
    /* Input: something comes, and then its end. */
    __wasi_subscription_t in[2] = {ready(30, __WASI_EVENTTYPE_FD_READ, 0), clock_in(31, __WASI_CLOCKID_MONOTONIC, 60 * 1000 * MS, false)};
    GOOD("input: wait", __wasi_poll_oneoff(in, events, 2, &count));
    equal("input: one event", count, 1);
    equal("input: whose it is", events[0].userdata, 30);
    equal("input: its kind", events[0].type, __WASI_EVENTTYPE_FD_READ);
    equal("input: no error", events[0].error, 0);
    size_t got = 0;
    while (got < sizeof text && get(0, text + got, sizeof text - got, &count) == 0 && count > 0)
        got += count;
    same("input: all of it", text, got, "typed\nmore\n");
    GOOD("input: wait at its end", __wasi_poll_oneoff(in, events, 2, &count));
    equal("input: the end is something", events[0].userdata, 30);
    GOOD("input: read at its end", get(0, text, sizeof text, &count));
    equal("input: nothing there", count, 0);
    /* A file is always ready, and what is not there is said to be so. */
    int fd;
    GOOD("file: open", open_read(here, "ten", &fd));
    __wasi_subscription_t file[2] = {ready(40, __WASI_EVENTTYPE_FD_READ, fd), clock_in(41, __WASI_CLOCKID_MONOTONIC, 60 * 1000 * MS, false)};
    GOOD("file: wait", __wasi_poll_oneoff(file, events, 2, &count));
    check("file: it is ready", count >= 1 && events[0].userdata == 40 && events[0].error == 0, "it is not");
    GOOD("file: close", __wasi_fd_close(fd));
    __wasi_subscription_t gone[2] = {ready(50, __WASI_EVENTTYPE_FD_READ, 999), clock_in(51, __WASI_CLOCKID_MONOTONIC, 10 * MS, false)};
    __wasi_errno_t error = __wasi_poll_oneoff(gone, events, 2, &count);
    check("nothing: it is said", error == __WASI_ERRNO_BADF || (error == 0 && count >= 1 && events[0].error == __WASI_ERRNO_BADF),
          "it is not");
    __wasi_subscription_t wrong = clock_in(60, 9, 1, false);
    error = __wasi_poll_oneoff(&wrong, events, 1, &count);
    check("a clock that there is not", error != 0 || (count == 1 && events[0].error != 0), "it ticks");
    end();
    return 0;
}
