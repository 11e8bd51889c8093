"""The lab can run Firecracker's machines: a real kernel in a real one, by its raw interface."""

import http.client
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile

from lab import check, main, run, same, until

BIN = "/lab/bin"
KERNEL = "/srv/lab/vmlinux"
# What a guest of Firecracker is always told.
ARGUMENTS = "console=ttyS0 reboot=k panic=1 pci=off 8250.nr_uarts=1 quiet"

INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
echo "guest: $(/bin/busybox uname -s) $((6 * 7))"
echo "interfaces: $(/bin/busybox ls /sys/class/net | /bin/busybox tr '\\n' ' ')"
/bin/busybox reboot -f
"""


def archive(files):
    """An initrd of these folders (no bytes) and programs."""
    out = io.BytesIO()
    for number, (name, body) in enumerate([*files, ("TRAILER!!!", b"")], 1):
        mode = 0o040755 if body is None else 0o100755
        body = body or b""
        fields = [number, mode, 0, 0, 1, 0, len(body), 0, 0, 0, 0, len(name) + 1, 0]
        out.write(b"070701" + "".join(f"{field:08x}" for field in fields).encode() + name.encode() + b"\0")
        out.write(b"\0" * (-out.tell() % 4) + body)
        out.write(b"\0" * (-out.tell() % 4))
    return out.getvalue()


class Api(http.client.HTTPConnection):
    """Firecracker's, at its socket."""

    def __init__(self, path):
        super().__init__("localhost", timeout=120)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(120)
        self.sock.connect(self.path)

    def put(self, what, body):
        self.request("PUT", what, json.dumps(body), {"Content-Type": "application/json"})
        answer = self.getresponse()
        text = answer.read().decode()
        assert answer.status == 204, f"PUT {what}: {answer.status} {text}"

    def version(self):
        self.request("GET", "/version")
        return json.loads(self.getresponse().read())["firecracker_version"]


@check
def the_programs_are_the_pinned_ones():
    same(run(f"{BIN}/firecracker", "--version").ok().splitlines()[0], "Firecracker v1.12.1")
    same(run(f"{BIN}/jailer", "--version").ok().splitlines()[0], "Jailer v1.12.1")


@check
def a_linux_guest_boots_in_it():
    folder = tempfile.mkdtemp()
    initrd, console, api = (os.path.join(folder, name) for name in ("initrd", "console", "api"))
    with open("/bin/busybox", "rb") as busybox, open(initrd, "wb") as out:
        folders = [(name, None) for name in ("bin", "proc", "sys")]
        out.write(archive([*folders, ("bin/busybox", busybox.read()), ("init", INIT.encode())]))
    run("ip", "tuntap", "add", "labtap0", "mode", "tap").ok()
    machine = None
    try:
        with open(console, "wb") as out:
            words = [f"{BIN}/firecracker", "--api-sock", api, "--id", "lab"]
            machine = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        until("it listens", lambda: os.path.exists(api))
        asked = Api(api)
        asked.put("/machine-config", {"vcpu_count": 1, "mem_size_mib": 256})
        asked.put("/boot-source", {"kernel_image_path": KERNEL, "initrd_path": initrd, "boot_args": ARGUMENTS})
        asked.put("/network-interfaces/eth0", {"iface_id": "eth0", "host_dev_name": "labtap0"})
        asked.put("/vsock", {"guest_cid": 3, "uds_path": os.path.join(folder, "vsock")})
        asked.put("/actions", {"action_type": "InstanceStart"})
        same(machine.wait(timeout=600), 0)
        said = open(console, encoding="utf-8", errors="replace").read()
        assert "guest: Linux 42" in said, said
    finally:
        if machine and machine.poll() is None:
            machine.kill()
            machine.wait()
        run("ip", "link", "del", "labtap0").ok()
        shutil.rmtree(folder)


@check
def the_jailer_starts_it_as_somebody_else():
    base = tempfile.mkdtemp()
    words = [f"{BIN}/jailer", "--id", "lab", "--exec-file", f"{BIN}/firecracker", "--uid", "54321", "--gid", "54321"]
    jailed = subprocess.Popen([*words, "--chroot-base-dir", base, "--cgroup-version", "2"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        api = os.path.join(base, "firecracker/lab/root/run/firecracker.socket")
        until("it listens", lambda: os.path.exists(api))
        same(Api(api).version(), "1.12.1")
        same(os.stat(f"/proc/{jailed.pid}").st_uid, 54321)
    finally:
        jailed.send_signal(signal.SIGKILL)
        jailed.wait()
        shutil.rmtree(base)


main()
