"""Limits hold for a whole sandbox on cgroup v2. Argument: the backend."""

import getpass
import os
import sys
import time

from lab import IMAGE, MOLTIS, check, imported, long, main, run, same, until

BACKEND = sys.argv[1]
USER, UID = getpass.getuser(), os.getuid()
# Someone who logs in has a manager of their own; root's is the system's.
MANAGER = [] if USER == "root" else ["--user"]

if BACKEND == "podman":

    @check
    def podman_is_rootless_and_on_cgroup_v2():
        found = run("podman", "info", "--format", "{{.Host.Security.Rootless}} {{.Host.CgroupsVersion}} {{.Host.CgroupManager}}")
        same(found.ok(), "true v2 systemd\n")
        imported()


def executed(command, *flags, seconds=120):
    """The answer of one command in a sandbox of its own, or of a session's."""
    words = [MOLTIS, "exec", "--json", "--backend", BACKEND, "--timeout", f"{seconds}s", *flags]
    if BACKEND == "podman":
        words += ["--image", IMAGE]
    answer = run(*words, command).json()
    assert "exitCode" in answer or "signal" in answer, answer
    same((answer["backend"], answer["notEnforced"]), (BACKEND, []))
    return answer


def scopes():
    found = run("systemctl", *MANAGER, "list-units", "--all", "--plain", "--no-legend", "moltis-*.scope")
    return [line.split()[0] for line in found.ok().splitlines()]


def containers():
    return run("podman", "ps", "-aq").ok().split() if BACKEND == "podman" else []


@check
def the_status_says_that_limits_are_kept():
    for found in run(MOLTIS, "sandbox", "status", "--json").json()["backends"]:
        if found["backend"] == BACKEND:
            assert found["usable"], found
            kept = {name: found["guarantees"][name] for name in ("memory", "cpus", "pids")}
            same(kept, {name: {"state": "held"} for name in kept})
            return
    raise AssertionError("the backend is not listed")


@check
def a_command_over_its_memory_is_killed_and_one_within_it_is_not():
    same(executed("dd if=/dev/zero of=/dev/null bs=24M count=1 2>&1 && echo had", "--memory", "96M")["stdout"].splitlines()[-1], "had")
    answer = executed("dd if=/dev/zero of=/dev/null bs=300M count=1; echo ended $?", "--memory", "96M")
    same(answer["stdout"], "ended 137\n")


@long
def the_memory_is_that_of_all_together():
    # Each holds what nobody takes from it, until whoever does not take it ends.
    hold = "{ dd if=/dev/zero bs=24M count=1 2>/dev/null; echo $? >&2; } | sleep 15"
    answer = executed(f"for i in 1 2 3 4 5 6 7 8 9 10; do {hold} & done; wait; echo over", "--memory", "128M")
    killed = answer["stderr"].split().count("137")
    assert 4 <= killed < 10, f"{killed} of ten that had 24 MiB each were killed under a limit of 128 MiB: {answer}"
    same(answer["stdout"], "over\n")


@long
def a_fork_bomb_stops_at_its_limit_and_ends_with_its_time():
    began = time.monotonic()
    # The time-out has to end it, whatever it has become.
    answer = executed("bomb() { bomb | bomb & }; bomb; sleep 600", "--pids", "40", seconds=10)
    assert answer["timedOut"], answer
    assert time.monotonic() - began < 150
    until("nothing of the bomb is left", lambda: not bombs())


def bombs():
    found = run("ps", "-u", USER, "-o", "args=").out.splitlines()
    return [line for line in found if "bomb" in line and "limits.py" not in line]


@check
def so_many_processes_and_no_more():
    line = "n=0; while [ $n -lt 120 ]; do sleep 600 & n=$((n+1)); done; echo all"
    answer = executed(line, "--pids", "40")
    assert "all" not in answer["stdout"], answer
    assert answer["leftoversTotal"] <= 40, answer
    assert answer["leftoversTotal"] >= 20, answer


@long
def the_processor_time_is_that_of_all_together():
    spin = "end=$(($(date +%s)+6)); while [ $(date +%s) -lt $end ]; do :; done"
    line = f"for i in 1 2 3 4; do ({spin}) & done; wait; times"
    answer = executed(line, "--cpus", "0.25")
    words = [word.rstrip("s").split("m") for word in answer["stdout"].split()]
    seconds = sum(float(minutes) * 60 + float(seconds) for minutes, seconds in words)
    share = seconds / (answer["durationMs"] / 1000)
    # They would take a whole processor and more.
    assert 0.02 < share < 0.33, f"{share} of a processor at 0.25: {answer}"


@long
def the_limits_of_a_session_last_as_long_as_it():
    flags = ["--session", "limited", "--memory", "96M", "--pids", "64", "--cpus", "0.5"]
    same(executed("echo here", *flags)["stdout"], "here\n")
    again = executed("dd if=/dev/zero of=/dev/null bs=300M count=1; echo ended $?", "--session", "limited")
    same(again["stdout"], "ended 137\n")
    same(executed("echo alive", "--session", "limited")["stdout"], "alive\n")
    if BACKEND == "namespaces":
        same(len(scopes()), 1)
    run(MOLTIS, "session", "rm", "--purge", "limited").ok()


@check
def nothing_of_them_is_left():
    until("no scope is left", lambda: not scopes())
    until("no container is left", lambda: not containers())
    same(run(MOLTIS, "sandbox", "ps", "--json").json().get("sandboxes", []), [])
    found = run("find", "/sys/fs/cgroup", "-name", "moltis-*", "-path", f"*{UID}*")
    same(found.out, "")


# Says what limits the groups in a folder have while a program runs.
WATCH = """
import os, subprocess, sys, time
child = subprocess.Popen(sys.argv[2:])
seen = set()
while child.poll() is None:
    time.sleep(0.02)
    for group in os.listdir(sys.argv[1]) if os.path.isdir(sys.argv[1]) else []:
        try:
            files = [open(os.path.join(sys.argv[1], group, name)) for name in ("memory.max", "cpu.max", "pids.max")]
            limits = " ".join(file.read().strip() for file in files)
        except OSError:
            # It is gone already.
            continue
        # Not while they are being set.
        if "max" not in limits:
            seen.add(limits)
print("limits", sorted(seen), file=sys.stderr)
"""

if BACKEND == "namespaces":

    @check
    def in_a_delegated_group_they_are_groups_beneath_it():
        words = [MOLTIS, "exec", "--json", "--backend", BACKEND, "--memory", "96M", "--pids", "40", "--cpus", "0.5"]
        words += ["dd if=/dev/zero of=/dev/null bs=300M count=1; echo ended $?"]
        unit = ["systemd-run", *MANAGER, "--quiet", "--pipe", "--wait", "--collect", "--unit", "lab-delegated.service"]
        # What a service has started beside it is no hindrance.
        unit += ["--setenv", f"HOME={os.path.expanduser('~')}", "-p", "Delegate=cpu memory pids", "sh", "-c", 'sleep 600 & exec "$@"', "sh", *words]
        above = "system.slice" if USER == "root" else f"user.slice/user-{UID}.slice/user@{UID}.service/app.slice"
        # Watched from outside its group, which has to hold the program alone.
        answer = run(sys.executable, "-c", WATCH, f"/sys/fs/cgroup/{above}/lab-delegated.service/moltis", *unit)
        found = answer.json()
        same((found["stdout"], found["notEnforced"]), ("ended 137\n", []))
        same(answer.err, f"limits {[f'{96 << 20} 50000 100000 40']}\n")
        assert not scopes()


main(f"_{BACKEND}_{USER}")
