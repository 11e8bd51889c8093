"""Firecracker by the program: machines that people ask for, with a kernel and a root file system that the program built."""

import atexit
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

from lab import MOLTIS, check, main, run, same, until

# All that belongs to this part, beside whatever else the lab has.
BASE = tempfile.mkdtemp(prefix="machines-", dir="/var/lib")
# The next part has no more room than this one.
atexit.register(shutil.rmtree, BASE)
DATA = f"{BASE}/data"
AROUND = {"MOLTIS_CONFIG_DIR": f"{BASE}/config", "MOLTIS_DATA_DIR": DATA}

SETTINGS = """
[tools.exec.sandbox]
firecracker_bin = "/lab/bin/firecracker"
firecracker_kernel = "/lab/guest/vmlinux"
firecracker_rootfs = "/lab/guest/rootfs.ext4"
firecracker_vcpus = 1
firecracker_memory_mb = 256
trusted_domains = ["192.0.2.2:8080"]
"""

# Says who asks. It is in a network of its own, to which the lab is the router.
SERVER = """
import socket
server = socket.create_server(("192.0.2.2", 8080))
print("on", flush=True)
while True:
    stream, who = server.accept()
    stream.recv(4096)
    stream.sendall(b"HTTP/1.0 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(who[0]), who[0].encode()))
    stream.close()
"""
SERVED = "http://192.0.2.2:8080/"


def moltis(*words, limit=600):
    return run(MOLTIS, *words, env=AROUND, limit=limit)


def executed(line, *flags, session=None):
    """The answer of one command."""
    words = ["--session", session] if session else []
    if "--timeout" not in flags:
        flags = [*flags, "--timeout", "5m"]
    return moltis("exec", "--json", "--backend", "firecracker", *words, *flags, line).json()


def said(line, *flags, session=None):
    """What a command printed that has to end well."""
    answer = executed(line, *flags, session=session)
    same(answer.get("exitCode"), 0) if "exitCode" in answer else same(answer, "an exit code")
    return answer["stdout"]


def machines():
    """Numbers of Firecracker's processes."""
    found = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) in (b"firecracker", b"jailer"):
            found.append(int(number))
    return found


def devices():
    return sorted(name for name in os.listdir("/sys/class/net") if re.fullmatch("mt[0-9a-f]{12}", name))


def traces():
    """All that machines could leave behind."""
    tables = re.findall(r"table inet (mt[0-9a-f]{12})", run("nft", "list", "tables").ok())
    files = []
    for at, folders, names in os.walk(f"{DATA}/run/firecracker"):
        files += [os.path.join(at, name) for name in [*folders, *names] if name not in (".users", ".networks")]
    return {"processes": machines(), "devices": devices(), "tables": tables, "files": files}


NOTHING = {"processes": [], "devices": [], "tables": [], "files": []}


def ended(name):
    moltis("session", "rm", name, "--purge").ok()
    until("all of the machine is gone", lambda: traces() == NOTHING)


@check
def the_status_says_that_machines_can_be_had():
    os.mkdir(f"{BASE}/config")
    with open(f"{BASE}/config/moltis.toml", "w", encoding="utf-8") as file:
        file.write(SETTINGS)
    run("sysctl", "-qw", "net.ipv4.ip_forward=1").ok()
    found = [each for each in moltis("sandbox", "status", "--json").json()["backends"] if each["backend"] == "firecracker"]
    same([(each["usable"], each["version"]) for each in found], [(True, "Firecracker 1.12.1")])


@check
def a_command_runs_in_a_machine_that_ends_with_it():
    answer = executed("id -un; hostname; pwd; nproc; ls -A; test ! -e /lab && echo nothing of the lab; exit 7")
    same((answer["exitCode"], answer["backend"]), (7, "firecracker"))
    same(answer["stdout"], "sandbox\nsandbox\n/home/sandbox\n1\nnothing of the lab\n")
    until("all of it is gone", lambda: traces() == NOTHING)


@check
def each_machine_that_begins_from_one_snapshot_is_its_own():
    assert any(name.startswith("snapshot-") for name in os.listdir(f"{DATA}/cache/firecracker")), "no snapshot was taken"
    line = "hostname; cat /etc/machine-id; head -c 16 /dev/urandom | od -An -tx1; cat /proc/sys/kernel/random/uuid; date +%s"
    found = []
    for _ in range(3):
        begun = int(time.time())
        *own, clock = said(line).splitlines()
        assert begun - 2 <= int(clock) <= time.time() + 2, f"{begun} {clock} {time.time()}"
        found.append(own)
    hosts, *apart = zip(*found)
    same(hosts, ("sandbox",) * 3)
    same([len(set(each)) for each in apart], [3, 3, 3])


@check
def a_session_keeps_its_state_and_a_time_out_ends_all_that_it_began():
    same(said("echo kept > state; mkdir /tmp/more", session="kept"), "")
    same(said("cat state; ls -d /tmp/more", session="kept"), "kept\n/tmp/more\n")
    answer = executed("echo on; sleep 1001 & setsid sleep 1002 & trap '' TERM; sleep 1003; sleep 1004", "--timeout", "5s", session="kept")
    same((answer["timedOut"], answer["exitCode"], answer["stdout"]), (True, 124, "on\n"))
    same(said("pgrep -c sleep || :; cat state", session="kept"), "0\nkept\n")
    ended("kept")


@check
def a_machine_that_dies_is_reported_and_made_anew():
    said("echo lost > state", session="dying")
    words = [MOLTIS, "exec", "--json", "--session", "dying", "--timeout", "5m", "touch /tmp/on; sleep 1000"]
    waiting = subprocess.Popen(words, env={**os.environ, **AROUND}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    try:
        until("the command runs", lambda: executed("test -e /tmp/on", session="dying").get("exitCode") == 0)
        [machine] = machines()
        os.kill(machine, signal.SIGKILL)
        out, _ = waiting.communicate(timeout=300)
    finally:
        waiting.kill()
        waiting.wait()
    same(waiting.returncode, 125)
    assert '"lost"' in out, out
    answer = executed("ls -A; echo anew", session="dying")
    same((answer["exitCode"], answer["stdout"], answer.get("restarted")), (0, "anew\n", "crash"))
    ended("dying")


@check
def what_a_killed_program_leaves_is_swept():
    for when in ("device", "process", "command"):
        words = [MOLTIS, "exec", "--backend", "firecracker", "--network", "open", "--timeout", "5m", "echo on; sleep 1000"]
        begun = subprocess.Popen(words, env={**os.environ, **AROUND}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            if when == "command":
                # What it says before is notes, or why there is no machine.
                said_first = []
                while not said_first or said_first[-1] != b"on\n":
                    said_first.append(begun.stdout.readline())
                    assert said_first[-1], f"it ended without its command: {said_first}"
            else:
                until(when, devices if when == "device" else machines)
            assert begun.poll() is None, f"it ended by itself with {begun.returncode}"
        finally:
            begun.kill()
            begun.wait()
        assert traces() != NOTHING, f"{when}: there is nothing to sweep"
        # It never ran for somebody, or ends when nobody holds it any more.
        until(f"{when}: swept", lambda: moltis("sandbox", "ps").ok() is not None and traces() == NOTHING)


class Outside:
    """A server in a network of its own."""

    def __enter__(self):
        run("ip", "netns", "add", "outside").ok()
        for words in (
            "link add outside0 type veth peer name outside1 netns outside",
            "addr add 192.0.2.1/24 dev outside0",
            "link set outside0 up",
            "-n outside addr add 192.0.2.2/24 dev outside1",
            "-n outside link set outside1 up",
        ):
            run("ip", *words.split()).ok()
        words = ["ip", "netns", "exec", "outside", "python3", "-c", SERVER]
        self.server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        same(self.server.stdout.readline(), b"on\n")
        # The lab itself has to reach it, or what a machine does not reach would say nothing.
        same(run("curl", "-sS", "-m", "60", SERVED).ok(), "192.0.2.1")

    def __exit__(self, *_):
        self.server.kill()
        self.server.wait()
        run("ip", "netns", "del", "outside").ok()


@check
def open_reaches_what_the_lab_reaches_and_not_the_lab():
    with Outside():
        tries = "; ".join(f"curl -sS -m 15 telnet://{address}:22 </dev/null; echo $?" for address in ("192.0.2.1", "10.0.2.15"))
        # 28: no answer came in time. The lab's ssh answers on all of its addresses.
        found = said(f"curl -sS -m 60 {SERVED}; echo; {tries}; ls /sys/class/net", "--network", "open")
        same(found, "192.0.2.1\n28\n28\neth0\nlo\n")
    until("all of it is gone", lambda: traces() == NOTHING)


@check
def blocked_reaches_nothing():
    with Outside():
        # 7: there is no way there.
        same(said(f"curl -sS -m 60 {SERVED} 2> /dev/null; echo $?; ls /sys/class/net; cat /proc/net/route | wc -l"), "7\nlo\n1\n")


@check
def trusted_goes_through_the_proxy_and_no_other_way():
    with Outside():
        found = said(
            f"curl -sS -m 60 {SERVED}; echo; curl -sS -m 60 --noproxy '*' {SERVED} 2> /dev/null; echo $?;"
            f"curl -s -m 60 -o /dev/null -w '%{{http_code}}\\n' {SERVED.replace('8080', '8081')}; ls /sys/class/net",
            "--network",
            "trusted",
        )
        same(found, "192.0.2.1\n7\n403\nlo\n")


main()
