

# -- ways out that are not the proxy -------------------------------------------------------------------------------

import json, select


def apart(address):
    """Host and port of `HOST:PORT`, and the family of the host."""
    host, port = address.rsplit(":", 1)
    return (socket.AF_INET6 if ":" in host else socket.AF_INET), host, int(port)


@probe
def http_without_proxy(address):
    """What `--noproxy` does: a request by a client that asks no variable."""
    import urllib.request
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return "read %r" % opener.open("http://%s/" % address, timeout=3).read(20)


@probe
def raw_connect(address):
    """Connects by the system calls alone: whatever a library in between does, or does not, is no matter."""
    family, host, port = apart(address)
    packed = socket.inet_pton(family, host)
    if family == socket.AF_INET:
        name = struct.pack("=H", family) + struct.pack(">H", port) + packed + b"\0" * 8
    else:
        name = struct.pack("=H", family) + struct.pack(">HI", port, 0) + packed + b"\0" * 4
    fd = call(41, family, socket.SOCK_STREAM, 0)
    call(42, fd, name, len(name))
    return "connected: %r" % os.read(fd, 20)


@probe
def udp(address):
    family, host, port = apart(address)
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.sendto(b"x", (host, port))
    return "answered %r" % s.recvfrom(100)[0]


@probe
def udp_route(host):
    """Whether the kernel knows a way there; sends nothing."""
    family, host, port = apart(host + ":53")
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.connect((host, port))
    return "would leave from %s" % s.getsockname()[0]


QUERY = struct.pack(">6H", 0x4d4f, 0x100, 1, 0, 0, 0) + b"\x05canny\x07example\0" + struct.pack(">2H", 1, 1)


@probe
def dns_by_udp(address):
    family, host, port = apart(address)
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.settimeout(1)
    s.sendto(QUERY, (host, port))
    return "answered %r" % s.recvfrom(512)[0][-4:]


@probe
def dns_by_tcp(address):
    family, host, port = apart(address)
    s = socket.create_connection((host, port), 3)
    s.sendall(struct.pack(">H", len(QUERY)) + QUERY)
    answer = s.recv(512)
    if not answer:
        raise Stopped("ended")
    return "answered %r" % answer[-4:]


@probe
def dns_of_the_system(_):
    """Every server that the sandbox is told of, at port 53, and the library's own way."""
    servers = []
    try:
        with open("/etc/resolv.conf") as f:
            servers = [line.split()[1] for line in f if line.startswith("nameserver")]
    except OSError:
        pass
    for server in servers:
        for kind in (dns_by_udp, dns_by_tcp):
            try:
                return "%s: %s" % (server, kind("%s:53" % server))
            except (OSError, Stopped):
                pass
    try:
        return "resolved %s" % socket.getaddrinfo("example.com", 80)[0][4][0]
    except OSError as e:
        raise Stopped("%d servers; %s" % (len(servers), e))


@probe
def ping(host):
    """An echo request, raw or by the socket that kernels have for it."""
    error = None
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            s = socket.socket(socket.AF_INET, kind, socket.IPPROTO_ICMP)
            s.settimeout(1)
            s.sendto(struct.pack(">BBHHH", 8, 0, 0xf7ff - 0x4d4f, 0x4d4f, 0), (host, 0))
            while True:
                answer = s.recvfrom(100)[0]
                if kind == socket.SOCK_DGRAM or answer[20] == 0:
                    return "answered"
        except OSError as e:
            error = e
    raise error


@probe
def raw_ipv6_socket(_):
    return "fd %d" % socket.socket(socket.AF_INET6, socket.SOCK_RAW, 58).fileno()


def netlink(kind, flags, body):
    """A request to the kernel's routing tables; raises what it answers."""
    s = socket.socket(16, socket.SOCK_RAW, 0)
    s.settimeout(3)
    s.sendto(struct.pack("=IHHII", 16 + len(body), kind, flags | 5, 1, 0) + body, (0, 0))
    answer = s.recv(4096)
    code = struct.unpack_from("=i", answer, 16)[0]
    if code:
        raise OSError(-code, os.strerror(-code))


def network_namespace(setting):
    if setting.startswith("weaker"):
        enter_user_namespace(0x40000000)


def attribute(kind, data):
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


@probe
def add_address(setting):
    network_namespace(setting)
    body = struct.pack("=BBBBI", 2, 32, 0, 0, 1) + attribute(2, bytes([198, 51, 100, 7]))
    netlink(20, 0x400, body)
    return "lo has another address"


@probe
def add_route(setting):
    network_namespace(setting)
    if setting == "weaker":
        netlink(16, 0, struct.pack("=BxHiII", 0, 0, 1, 1, 1))
    netlink(24, 0x400, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0) + attribute(4, struct.pack("=I", 1)))
    return "there is a default route"


@probe
def add_interface(setting):
    network_namespace(setting)
    error = None
    for name in (b"dummy", b"veth", b"bridge"):
        try:
            info = attribute(18, attribute(1, name))
            netlink(16, 0x600, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + attribute(3, b"moltis0\0") + info)
            return "made a %s" % name.decode()
        except OSError as e:
            error = e
    raise error


@probe
def make_tunnel(setting):
    network_namespace(setting)
    fd = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(fd, 0x400454CA, struct.pack("16sH22x", b"moltis1", 0x1001))
    return "made a tunnel"


@probe
def set_address_by_ioctl(setting):
    network_namespace(setting)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    name = struct.pack("=H2x4s8x", socket.AF_INET, bytes([198, 51, 100, 8]))
    fcntl.ioctl(s, 0x8916, struct.pack("16s16s8x", b"lo:1", name))
    return "lo has another address"


@probe
def set_flags_by_ioctl(setting):
    network_namespace(setting)
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    fcntl.ioctl(s, 0x8914, struct.pack("16sH22x", b"lo", 0x1 | 0x100))
    return "lo is promiscuous"


@probe
def find_sockets(needle):
    """Connects to every Unix socket that can be named here, until one says the word. Programs hold no sockets."""
    names = socket_names(("usr", "lib", "opt"))
    for name in names:
        s = socket.socket(socket.AF_UNIX)
        s.settimeout(1)
        try:
            s.connect("\0" + name[1:] if name.startswith("@") else name)
            if needle.encode() in s.recv(20):
                return name
        except OSError:
            pass
    raise Stopped("%d names, none is it" % len(names))


# -- through the proxy ---------------------------------------------------------------------------------------------

def converse(port, said, wait=1.5, pause=0.0):
    """Says each piece after there was an answer to the one before, and returns all that came."""
    s = socket.create_connection(("127.0.0.1", port), 5)
    heard = b""
    for n, piece in enumerate(said):
        if pause:
            for at in range(len(piece)):
                s.sendall(piece[at:at + 1])
                time.sleep(pause)
        else:
            s.sendall(piece)
        end = time.time() + wait
        while time.time() < end:
            if not select.select([s], [], [], max(0.0, end - time.time()))[0]:
                break
            part = s.recv(65536)
            if not part:
                return heard
            heard += part
            # The last answer may come in pieces, and more than one.
            end = min(end, time.time() + (0.05 if n + 1 < len(said) else 0.3))
    return heard


@probe
def talk(argument):
    """A conversation with a proxy: `port`, pieces to `say` in hex, and what must be in the answer to have reached."""
    told = json.loads(argument)
    try:
        heard = converse(told["port"], [bytes.fromhex(piece) for piece in told["say"]])
    except ConnectionError as e:
        raise Stopped("cut: %s" % e)
    if all(word.encode() in heard for word in told["want"]):
        return "%r" % heard[-300:]
    raise Stopped("%r" % heard[:120])


def connect_request(host, port):
    return ("CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port)).encode()


@probe
def many_at_once(argument):
    """Many processes with many connections: each gets what it asked for, or nothing."""
    port, good, evil, processes, each = (int(word) for word in argument.split(":"))
    reader, writer = os.pipe()
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            line = b""
            for turn in range(each):
                host, at = (("good.test", good), ("evil.test", evil))[(number + turn) % 2]
                try:
                    heard = converse(port, [connect_request(host, at), b"hello"])
                except OSError:
                    heard = b""
                line += b"E" if b"WORD-evil" in heard else b"G" if b"WORD-good" in heard else b"-"
            os.write(writer, line)
            os._exit(0)
        children.append(child)
    os.close(writer)
    heard = b""
    while True:
        part = os.read(reader, 4096)
        if not part:
            break
        heard += part
    for child in children:
        os.waitpid(child, 0)
    if b"E" in heard:
        return "%d reached" % heard.count(b"E")
    raise Stopped("%d good, %d stopped" % (heard.count(b"G"), heard.count(b"-")))


@probe
def flood_of_headers(argument):
    """A head that never ends: reached if it takes as much as this."""
    port, most = (int(word) for word in argument.split(":"))
    s = socket.create_connection(("127.0.0.1", port), 5)
    s.settimeout(10)
    sent = s.send(b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n")
    try:
        while sent < most:
            if select.select([s], [], [], 0)[0]:
                raise Stopped("answered %r after %d bytes" % (s.recv(60), sent))
            sent += s.send(b"X-Long: " + b"x" * 8000 + b"\r\n")
    except (ConnectionError, socket.timeout) as e:
        raise Stopped("%d bytes, then %s" % (sent, e))
    return "%d bytes of head" % sent


@probe
def slow_header(argument):
    """A head that comes byte by byte: reached if it is listened to for as long as this, in seconds."""
    port, seconds = (int(word) for word in argument.split(":"))
    s = socket.create_connection(("127.0.0.1", port), 5)
    s.sendall(b"GET http://good.test/ HTTP/1.1\r\n")
    started = time.time()
    while time.time() - started < seconds:
        try:
            s.sendall(b"x")
            if select.select([s], [], [], 0.2)[0]:
                raise Stopped("over after %.1f s: %r" % (time.time() - started, s.recv(40)))
        except ConnectionError as e:
            raise Stopped("over after %.1f s: %s" % (time.time() - started, e))
    return "listened to for %d s" % seconds


@probe
def idle_connections(argument):
    """Opens this many connections that say nothing, from several processes, and holds them for a time."""
    port, count, seconds = (int(word) for word in argument.split(":"))
    reader, writer = os.pipe()
    children = []
    for start in range(0, count, 500):
        child = os.fork()
        if child == 0:
            held = 0
            kept = []
            for _ in range(min(500, count - start)):
                s = socket.socket()
                s.setblocking(False)
                s.connect_ex(("127.0.0.1", port))
                kept.append(s)
            time.sleep(seconds)
            for s in kept:
                try:
                    s.send(b"G")
                    if not select.select([s], [], [], 0)[0]:
                        held += 1
                except OSError:
                    pass
            os.write(writer, b"%d\n" % held)
            os._exit(0)
        children.append(child)
    os.close(writer)
    held = 0
    for line in os.fdopen(reader):
        held += int(line)
    for child in children:
        os.waitpid(child, 0)
    if held < count // 2:
        raise Stopped("%d of %d are held" % (held, count))
    return "%d of %d are held" % (held, count)


@probe
def kept_open(argument):
    """A tunnel to the host, held while what allowed it is taken away."""
    port, to = (int(word) for word in argument.split(":"))
    s = socket.create_connection(("127.0.0.1", port), 5)
    s.sendall(connect_request("good.test", to))
    s.recv(1000)
    s.sendall(b"first")
    if b"WORD-good" not in s.recv(1000):
        raise Exception("there was no tunnel")
    if select.select([s], [], [], 5)[0] and not s.recv(1000):
        try:
            heard = converse(port, [connect_request("good.test", to), b"again"])
        except ConnectionError:
            heard = b""
        if b"WORD-good" in heard:
            return "connected again"
        raise Stopped("cut, and %r" % heard[:40])
    s.sendall(b"second")
    return "still open: %r" % s.recv(1000)
