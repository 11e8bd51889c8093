"""What hostile commands try. Each probe runs in a child of its own and ends in one line: name, REACHED or STOPPED, why.

Usage: probes.py NAME[=ARGUMENT]...   The same file runs inside a sandbox and, as the control, where nothing defends.
"""

import ctypes, errno, fcntl, glob, mmap, os, pty, socket, stat, struct, sys, termios, time

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Stopped(Exception):
    pass


def call(number, *arguments):
    """A raw system call of x86_64; raises OSError."""
    ctypes.set_errno(0)
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result == -1 and ctypes.get_errno():
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def ok(result, what):
    if result == -1:
        raise OSError(ctypes.get_errno(), what)
    return result


PROBES = {}

# The descriptor on which a probe reports.
REPORT = -1


def probe(function):
    PROBES[function.__name__.replace("_", "-")] = function
    return function


# -- files of the host -------------------------------------------------------------------------------------------

@probe
def read_file(path):
    with open(path, "rb") as f:
        return "read %r" % f.read(40)


@probe
def read_through_proc_roots(path):
    """Every root, working directory and open file that /proc shows."""
    for base in glob.glob("/proc/[0-9]*/root") + glob.glob("/proc/[0-9]*/cwd") + glob.glob("/proc/[0-9]*/fd/*"):
        for up in ("", "/..", "/../..", "/../../../../.."):
            try:
                with open(base + up + path, "rb") as f:
                    return "%s%s: %r" % (base, up, f.read(40))
            except OSError:
                pass
    raise Stopped("no link in /proc leads there")


@probe
def read_by_handle(path):
    """open_by_handle_at with inode numbers, the way out of a container with CAP_DAC_READ_SEARCH."""
    mount = os.open(os.path.dirname(path) if os.path.exists(path) else "/tmp", os.O_RDONLY | os.O_DIRECTORY)
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0) + b"\0" * 128)
    mount_id = ctypes.c_int()
    name = path.encode() if os.path.exists(path) else b"/tmp"
    call(303, ctypes.c_long(-100), name, handle, ctypes.byref(mount_id), 0)
    fd = call(304, mount, handle, os.O_RDONLY)
    return "opened by handle: fd %d" % fd


@probe
def find_file(argument):
    """Walks everything that is visible, but for /proc, or one folder (`name:folder`)."""
    name, _, top = argument.partition(":")
    for folder, folders, files in os.walk(top or "/"):
        if folder == "/":
            folders[:] = [f for f in folders if f != "proc"]
        if name in files or name in folders:
            return os.path.join(folder, name)
    raise Stopped("not found")


# -- the kernel's settings -----------------------------------------------------------------------------------------

@probe
def write_sysctl(path):
    os.close(os.open(path, os.O_WRONLY))
    return "opened for writing"


@probe
def write_any_sysctl(_):
    opened = []
    for folder, _, files in os.walk("/proc/sys"):
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
                opened.append(os.path.join(folder, name))
            except OSError:
                pass
    if not opened:
        raise Stopped("none of /proc/sys opens for writing")
    return "%d open for writing, such as %s" % (len(opened), opened[:3])


@probe
def write_any_sys(_):
    opened = []
    for folder, _, files in os.walk("/sys"):
        for name in files:
            path = os.path.join(folder, name)
            # Opening some of these blocks or logs; none is written to.
            if not os.stat(path, follow_symlinks=False).st_mode & 0o222 or "trace" in path or "debug" in path:
                continue
            try:
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
                opened.append(path)
            except OSError:
                pass
        if len(opened) > 20:
            break
    if not opened:
        raise Stopped("nothing in /sys opens for writing")
    return "%d open for writing, such as %s" % (len(opened), opened[:3])


@probe
def read_kernel(path):
    with open(path, "rb") as f:
        data = f.read(64)
    if not data:
        raise Stopped("empty")
    return "read %d bytes" % len(data)


# -- mounts, namespaces, roots -------------------------------------------------------------------------------------

def mount(source, target, kind, flags=0):
    ok(libc.mount(source, target, kind, ctypes.c_ulong(flags), None), "mount")


def enter_user_namespace(flags):
    """The weaker setting of the controls: root of a user namespace of its own."""
    uid, gid = os.getuid(), os.getgid()
    ok(libc.unshare(0x10000000 | flags), "unshare")
    for file, text in (("setgroups", "deny"), ("uid_map", "0 %d 1" % uid), ("gid_map", "0 %d 1" % gid)):
        with open("/proc/self/" + file, "w") as f:
            f.write(text)


@probe
def mount_tmpfs(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
    mount(b"none", b"/tmp", b"tmpfs")
    return "mounted a tmpfs"


@probe
def bind_mount(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
    mount(b"/usr", b"/tmp", None, 4096)
    return "bound /usr on /tmp"


@probe
def remount_writable(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
        mount(b"none", b"/tmp", b"tmpfs", 1)
        mount(b"none", b"/tmp", None, 32)
        return "remounted"
    # MS_REMOUNT | MS_BIND without MS_RDONLY.
    for target in (b"/usr", b"/", b"/etc", b"/workspace"):
        if os.path.exists(target) and libc.mount(b"none", target, None, ctypes.c_ulong(32 | 4096), None) == 0:
            return "remounted %s" % target
    raise OSError(ctypes.get_errno(), "remount")


@probe
def unmount(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
        mount(b"none", b"/tmp", b"tmpfs")
    ok(libc.umount2(b"/tmp", 2), "umount")
    return "unmounted /tmp"


@probe
def open_tree(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
    return "fd %d" % call(428, ctypes.c_long(-100), b"/", 1 | 0x8000)


@probe
def fsopen(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
    return "fd %d" % call(430, b"tmpfs", 0)


@probe
def chroot(setting):
    if setting == "weaker":
        enter_user_namespace(0)
    os.chroot("/tmp")
    return "changed root"


@probe
def pivot_root(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000)
        mount(b"none", b"/tmp", b"tmpfs")
        os.mkdir("/tmp/old")
        call(155, b"/tmp", b"/tmp/old")
        return "pivoted"
    call(155, b"/", b"/")
    return "pivoted"


@probe
def user_namespace_by_unshare(_):
    ok(libc.unshare(0x10000000), "unshare")
    return "made a user namespace"


@probe
def user_namespace_by_clone(_):
    pid = call(56, 0x10000000 | 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned into a user namespace"


@probe
def user_namespace_by_clone3(_):
    arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
    pid = call(435, arguments, len(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "cloned into a user namespace"


@probe
def other_namespaces(setting):
    if setting == "weaker":
        enter_user_namespace(0)
    for flag in (0x20000, 0x40000000, 0x20000000, 0x8000000, 0x4000000, 0x2000000):
        if libc.unshare(flag) == 0:
            return "unshared %x" % flag
    raise OSError(ctypes.get_errno(), "unshare")


@probe
def enter_namespaces_of_others(setting):
    if setting == "weaker":
        child = os.fork()
        if child == 0:
            enter_user_namespace(0x4000000)
            time.sleep(10)
            os._exit(0)
        time.sleep(0.3)
        try:
            fd = os.open("/proc/%d/ns/user" % child, os.O_RDONLY)
            ok(libc.setns(fd, 0), "setns")
            return "entered"
        finally:
            os.kill(child, 9)
    error = Stopped("no namespace files")
    for path in glob.glob("/proc/[0-9]*/ns/*"):
        try:
            fd = os.open(path, os.O_RDONLY)
            ok(libc.setns(fd, 0), "setns")
            return "entered " + path
        except OSError as e:
            error = e
    raise error


# -- other processes, the agent ------------------------------------------------------------------------------------

MAIN = os.getpid()


def victims(argument):
    """The pids to attack: a number, or all that stand above this program: its supervisor and the agent."""
    if argument.isdigit():
        return [int(argument)]
    above, pid = [], MAIN
    while pid > 1:
        with open("/proc/%d/status" % pid) as f:
            pid = next(int(line.split()[1]) for line in f if line.startswith("PPid:"))
        if pid:
            above.append(pid)
    return above or [1]


@probe
def ptrace_seize(target):
    for pid in victims(target):
        ctypes.set_errno(0)
        if libc.ptrace(0x4206, pid, 0, 0) == 0:
            libc.ptrace(17, pid, 0, 0)
            return "traced %d" % pid
    raise OSError(ctypes.get_errno(), "ptrace")


@probe
def ptrace_attach(target):
    for pid in victims(target):
        ctypes.set_errno(0)
        if libc.ptrace(16, pid, 0, 0) == 0:
            os.waitpid(pid, 0x40000000)
            libc.ptrace(17, pid, 0, 0)
            return "attached to %d" % pid
    raise OSError(ctypes.get_errno(), "ptrace")


@probe
def read_memory(target):
    for pid in victims(target):
        try:
            with open("/proc/%d/maps" % pid) as f:
                start = int(f.readline().split("-")[0], 16)
            with open("/proc/%d/mem" % pid, "rb") as f:
                f.seek(start)
                return "read %d bytes of %d" % (len(f.read(16)), pid)
        except OSError as e:
            error = e
    raise error


@probe
def open_memory(target):
    for pid in victims(target):
        try:
            os.close(os.open("/proc/%d/mem" % pid, os.O_RDWR))
            return "opened the memory of %d" % pid
        except OSError as e:
            error = e
    raise error


@probe
def process_vm_read(target):
    local = ctypes.create_string_buffer(16)
    for pid in victims(target):
        for address in (0x400000, 0x7FFF00000000):
            vec = struct.pack("QQ", ctypes.addressof(local), 16)
            remote = struct.pack("QQ", address, 16)
            try:
                return "read %d" % call(310, pid, vec, 1, remote, 1, 0)
            except OSError as e:
                if e.errno == errno.EFAULT:
                    return "may read (bad address)"
                error = e
    raise error


@probe
def read_environment(target):
    for pid in victims(target):
        try:
            with open("/proc/%d/environ" % pid, "rb") as f:
                return "%d bytes of %d" % (len(f.read()), pid)
        except OSError as e:
            error = e
    raise error


@probe
def list_descriptors(target):
    for pid in victims(target):
        try:
            return "%s of %d" % (os.listdir("/proc/%d/fd" % pid), pid)
        except OSError as e:
            error = e
    raise error


@probe
def take_descriptor(target):
    for pid in victims(target):
        try:
            handle = os.pidfd_open(pid)
            for number in range(16):
                try:
                    return "took %d as %d" % (number, call(438, handle, number, 0))
                except OSError as e:
                    error = e
                    if e.errno != errno.EBADF:
                        break
        except OSError as e:
            error = e
    raise error


@probe
def read_links(target):
    for pid in victims(target):
        for name in ("exe", "cwd", "root"):
            try:
                return os.readlink("/proc/%d/%s" % (pid, name))
            except OSError as e:
                error = e
    raise error


@probe
def leaked_descriptors(_):
    found = []
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != REPORT:
            try:
                found.append("%s=%s" % (name, os.readlink("/proc/self/fd/" + name)))
            except OSError:
                pass  # the listing's own
    if not found:
        raise Stopped("only 0, 1 and 2")
    return ", ".join(found)


@probe
def signal_outside(target):
    os.kill(int(target), 0)
    return "it takes signals"


@probe
def sees_process(needle):
    # Arguments are told apart by colons here, so that this program's own command line does not match.
    needle = needle.replace(":", "\0")
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as f:
                if needle.encode() in f.read():
                    return path
        except OSError:
            pass
    raise Stopped("not seen")


# -- devices -------------------------------------------------------------------------------------------------------

@probe
def make_device(folder):
    for name, device in (("mem", (1, 1)), ("disk", (8, 0)), ("disk2", (254, 0))):
        path = os.path.join(folder, "node-" + name)
        os.mknod(path, stat.S_IFCHR | 0o666 if name == "mem" else stat.S_IFBLK | 0o666, os.makedev(*device))
        os.unlink(path)
    return "made device nodes"


# null, zero, full, random, urandom, tty, ptmx.
HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}


@probe
def open_devices(_):
    found = []
    for folder, _, files in os.walk("/dev"):
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            number = (os.major(status.st_rdev), os.minor(status.st_rdev))
            if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
                continue
            if number in HARMLESS or 136 <= number[0] <= 143:
                continue
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY))
                found.append(path)
            except OSError:
                pass
            if len(found) > 5:
                break
    if not found:
        raise Stopped("nothing but the harmless ones")
    return ", ".join(found)


# -- system calls that are closed ----------------------------------------------------------------------------------

@probe
def keyring_add(_):
    # The process's own keyring: gone with the process.
    return "key %d" % call(248, b"user", b"moltis-probe", b"x", 1, ctypes.c_long(-2))


@probe
def keyring_read(_):
    return "keyring %d" % call(250, 0, ctypes.c_long(-4), 1)


@probe
def keyring_request(_):
    try:
        return "key %d" % call(249, b"user", b"moltis-no-such-key", None, 0)
    except OSError as e:
        if e.errno == errno.ENOKEY:
            return "asked the keyrings"
        raise


@probe
def io_uring(_):
    return "fd %d" % call(425, 2, b"\0" * 120)


@probe
def bpf(_):
    return "fd %d" % call(321, 0, struct.pack("IIIIIIII", 2, 4, 4, 1, 0, 0, 0, 0) + b"\0" * 64, 96)


@probe
def perf(_):
    attribute = struct.pack("IIQ", 1, 112, 1) + b"\0" * 24 + struct.pack("Q", 0x63) + b"\0" * 64
    return "fd %d" % call(298, attribute, 0, ctypes.c_long(-1), ctypes.c_long(-1), 0)


@probe
def userfaultfd(_):
    return "fd %d" % call(323, 1)


@probe
def set_host_name(_):
    name = socket.gethostname()
    socket.sethostname(name)
    return "set the host name"


@probe
def set_clock(_):
    # To what it is: shows the right without harm.
    time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
    return "set the clock"


@probe
def kernel_log(_):
    if libc.klogctl(10, None, 0) < 0:
        raise OSError(ctypes.get_errno(), "syslog")
    return "read the kernel log's size"


@probe
def raise_limits(_):
    os.nice(-5)
    return "raised its priority"


@probe
def become_root(_):
    os.setuid(0)
    os.setgid(0)
    return "uid %d" % os.getuid()


@probe
def no_privileges(_):
    """What the kernel says of this process: anything but no capabilities, no new privileges and a filter is a find."""
    want = {"CapInh": "0" * 16, "CapPrm": "0" * 16, "CapEff": "0" * 16, "CapBnd": "0" * 16, "CapAmb": "0" * 16,
            "NoNewPrivs": "1", "Seccomp": "2"}
    with open("/proc/self/status") as f:
        have = dict(line.split(":", 1) for line in f if ":" in line)
    bad = ["%s=%s" % (k, have.get(k, "").strip()) for k, v in want.items() if have.get(k, "").strip() != v]
    if not bad:
        raise Stopped("no capabilities, no new privileges, filtered")
    return ", ".join(bad)


@probe
def set_id_program(path):
    """A set-user-id program must not change who runs it."""
    out = os.popen(path + " -c 'import os; print(os.geteuid())' 2>/dev/null").read().strip()
    if out == "" or int(out) == os.getuid():
        raise Stopped("runs as %r" % out)
    return "runs as " + out


@probe
def i386_calls(_):
    """getpid by the 32-bit gate, which a filter for one architecture does not see."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    result = ctypes.CFUNCTYPE(ctypes.c_int)(address)()
    if result != os.getpid():
        raise Stopped("answered %d" % result)
    return "the 32-bit gate works"


@probe
def x32_calls(_):
    result = call(0x40000000 | 39)
    return "the x32 gate works: %d" % result


# -- sockets -------------------------------------------------------------------------------------------------------

@probe
def socket_family(number):
    kind = socket.SOCK_RAW if number == "17" else socket.SOCK_SEQPACKET if number == "38" else socket.SOCK_STREAM
    s = socket.socket(int(number), kind, 0)
    return "fd %d" % s.fileno()


@probe
def socketpair_family(number):
    a, b = socket.socketpair(int(number), socket.SOCK_STREAM)
    return "fds %d %d" % (a.fileno(), b.fileno())


@probe
def raw_socket(_):
    return "fd %d" % socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).fileno()


@probe
def connect_abstract(name):
    s = socket.socket(socket.AF_UNIX)
    s.connect("\0" + name)
    return "connected: %r" % s.recv(20)


@probe
def connect_path(path):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    return "connected: %r" % s.recv(20)


@probe
def connect_tcp(address):
    host, port = address.rsplit(":", 1)
    s = socket.create_connection((host, int(port)), 3)
    return "connected: %r" % s.recv(20)


@probe
def talk_to_agent(_):
    """Every socket that this place knows by name: whether whoever listens says or takes anything."""
    served = []
    names = socket_names()
    for name in names:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(3)
        try:
            s.connect("\0" + name[1:] if name.startswith("@") else name)
        except OSError:
            continue
        try:
            # Longer than any first message, so that one that waits for its end has it.
            s.sendall(b"\x00\x00\x00\x08" + b"\x01" * 4096)
            said = s.recv(20)
            if said:
                served.append("%s said %r" % (name, said))
        except socket.timeout:
            served.append("%s keeps the connection" % name)
        except OSError:
            pass
    if not served:
        raise Stopped("%d names, none says anything" % len(names))
    return ", ".join(served)


@probe
def find_agent_socket(_):
    """Every socket that this place knows by name, and the agent's own by its number."""
    names = socket_names()
    connected = []
    for name in names:
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
            s = socket.socket(socket.AF_UNIX, kind)
            try:
                s.connect("\0" + name[1:] if name.startswith("@") else name)
                connected.append(name)
            except OSError:
                pass
    if not connected:
        raise Stopped("%d names, none takes connections" % len(names))
    return ", ".join(connected)


def socket_names(besides=()):
    names = set()
    with open("/proc/net/unix") as f:
        for line in f.readlines()[1:]:
            fields = line.split()
            if len(fields) > 7:
                names.add(fields[7])
    for folder, folders, files in os.walk("/"):
        if folder == "/":
            folders[:] = [f for f in folders if f not in ("proc", "sys") + besides]
        for name in files:
            path = os.path.join(folder, name)
            try:
                if stat.S_ISSOCK(os.lstat(path).st_mode):
                    names.add(path)
            except OSError:
                pass
    return names


# -- terminals -----------------------------------------------------------------------------------------------------

def controlling_terminal(setting):
    """This process's terminal, or a new one of its own."""
    if setting == "new":
        master, slave = pty.openpty()
        os.setsid()
        fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
        return slave
    return os.open("/dev/tty", os.O_RDWR)


@probe
def tiocsti(setting):
    fcntl.ioctl(controlling_terminal(setting), termios.TIOCSTI, b"x")
    return "pushed input"


@probe
def tioclinux(setting):
    try:
        fcntl.ioctl(controlling_terminal(setting), 0x541C, b"\x02\0\0\0\0\0\0\0\0\0\0\0")
    except OSError as e:
        # On a pseudo-terminal the request is unknown, which shows that it was looked at.
        if e.errno in (errno.ENOTTY, errno.EINVAL):
            return "asked the terminal"
        raise
    return "pasted"


# -- control groups ------------------------------------------------------------------------------------------------

@probe
def write_cgroups(_):
    with open("/proc/self/cgroup") as f:
        lines = [line.strip().split(":", 2) for line in f]
    tried = []
    for _, controllers, path in lines:
        for base in {controllers, controllers.replace("name=", ""), "unified", ""}:
            for up in (path, "/", path + "/..", path + "/../.."):
                for name in ("cgroup.procs", "tasks", "release_agent", "memory.limit_in_bytes", "pids.max", "memory.max"):
                    file = os.path.join("/sys/fs/cgroup", base, up.strip("/"), name)
                    tried.append(file)
                    try:
                        os.close(os.open(file, os.O_WRONLY))
                        return file
                    except OSError:
                        pass
    for folder, _, files in os.walk("/sys/fs/cgroup"):
        for name in files:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY))
                return os.path.join(folder, name)
            except OSError:
                pass
    raise Stopped("%d files, none opens" % len(tried))


@probe
def mount_cgroups(setting):
    if setting == "weaker":
        enter_user_namespace(0x20000 | 0x2000000)
    os.makedirs("/tmp/cg", exist_ok=True)
    try:
        mount(b"none", b"/tmp/cg", b"cgroup2")
        return "mounted"
    finally:
        try:
            os.rmdir("/tmp/cg")
        except OSError:
            pass


# -- using things up -----------------------------------------------------------------------------------------------

@probe
def many_processes(count):
    made = []
    try:
        for _ in range(int(count)):
            pid = os.fork()
            if pid == 0:
                time.sleep(30)
                os._exit(0)
            made.append(pid)
    except OSError as e:
        raise Stopped("%d processes, then %s" % (len(made), e.strerror))
    finally:
        for pid in made:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
    return "%d processes" % len(made)


@probe
def much_memory(mib):
    block = mmap.mmap(-1, int(mib) << 20)
    for at in range(0, int(mib) << 20, 4096):
        block[at] = 1
    return "%s MiB" % mib


@probe
def fill_folder(argument):
    folder, mib = argument.rsplit(":", 1)
    path = os.path.join(folder, "filler")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        os.posix_fallocate(fd, 0, int(mib) << 20)
    finally:
        os.close(fd)
        os.unlink(path)
    return "%s MiB in %s" % (mib, folder)


@probe
def kill_everything(setting):
    """kill -9 -1 where this process is the first of a pid namespace of its own: shows that it reaches all there is."""
    if setting != "weaker":
        raise Stopped("only as a control")
    enter_user_namespace(0x20000000)
    first = os.fork()
    if first == 0:
        if os.getpid() != 1:
            os._exit(3)
        victim = os.fork()
        if victim == 0:
            time.sleep(20)
            os._exit(0)
        killer = os.fork()
        if killer == 0:
            os.kill(-1, 9)
            os._exit(0)
        _, status = os.waitpid(victim, 0)
        os._exit(0 if os.WIFSIGNALED(status) and os.WTERMSIG(status) == 9 else 4)
    _, status = os.waitpid(first, 0)
    if os.waitstatus_to_exitcode(status) != 0:
        raise Stopped("status %d" % status)
    return "everything in the namespace was killed"
