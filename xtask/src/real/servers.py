"""Servers on the host's loopback for programs that fetch things: an index of Python packages, registries of npm and
cargo, a Go module proxy, a git repository, an apt repository; by HTTP and HTTPS, with an authority made here.

Usage: servers.py FOLDER   Prints `PORT-OF-HTTP PORT-OF-HTTPS` once it serves, and ends with its standard input.
"""

import base64, gzip, hashlib, http.server, io, json, os, ssl, subprocess, sys, tarfile, threading, zipfile

NAMES = ["lab.test", "pypi.lab.test", "npm.lab.test", "cargo.lab.test", "git.lab.test", "apt.lab.test", "go.lab.test"]

folder = sys.argv[1]
site = os.path.join(folder, "site")


def write(path, content):
    path = os.path.join(site, path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content if isinstance(content, bytes) else content.encode())


def run(*arguments, **more):
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **more)


def tar_gz(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content.encode()))
    return out.getvalue()


def certificates():
    """An authority and a certificate of its for every name."""
    def path(name):
        return os.path.join(folder, name)

    with open(path("openssl.cnf"), "w") as f:
        f.write(
            "[req]\ndistinguished_name=dn\nprompt=no\n[dn]\nCN=lab\n"
            "[ca]\nbasicConstraints=critical,CA:true\nkeyUsage=critical,keyCertSign,cRLSign\nsubjectKeyIdentifier=hash\n"
            "[leaf]\nbasicConstraints=CA:false\nkeyUsage=digitalSignature\nextendedKeyUsage=serverAuth\n"
            "subjectAltName=%s\n" % ",".join("DNS:" + name for name in NAMES)
        )
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("openssl", "req", "-x509", *key, "-config", path("openssl.cnf"), "-extensions", "ca", "-subj", "/CN=lab authority",
        "-days", "30", "-keyout", path("ca.key"), "-out", path("ca.pem"))
    run("openssl", "req", *key, "-config", path("openssl.cnf"), "-subj", "/CN=lab", "-keyout", path("leaf.key"),
        "-out", path("leaf.csr"))
    run("openssl", "x509", "-req", "-in", path("leaf.csr"), "-CA", path("ca.pem"), "-CAkey", path("ca.key"), "-CAserial",
        path("ca.srl"), "-CAcreateserial", "-days", "30", "-extfile", path("openssl.cnf"), "-extensions", "leaf",
        "-out", path("leaf.pem"))


def pypi():
    wheel = io.BytesIO()
    info = "labwheel-1.0.dist-info/"
    files = {
        "labwheel.py": "WORD = 'from the index'\n",
        info + "METADATA": "Metadata-Version: 2.1\nName: labwheel\nVersion: 1.0\n",
        info + "WHEEL": "Wheel-Version: 1.0\nGenerator: lab\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        record = ""
        for name, content in files.items():
            archive.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
            record += "%s,sha256=%s,%d\n" % (name, digest, len(content))
        archive.writestr(info + "RECORD", record + info + "RECORD,,\n")
    name = "labwheel-1.0-py3-none-any.whl"
    write("files/" + name, wheel.getvalue())
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()
    write("simple/labwheel/index.html", '<a href="/files/%s#sha256=%s">%s</a>' % (name, digest, name))


def npm(https):
    manifest = {"name": "labpackage", "version": "1.0.0", "main": "index.js"}
    archive = tar_gz({
        "package/package.json": json.dumps(manifest),
        "package/index.js": "module.exports = 'from the registry'\n",
    })
    write("labpackage/-/labpackage-1.0.0.tgz", archive)
    dist = {
        "tarball": "https://npm.lab.test:%d/labpackage/-/labpackage-1.0.0.tgz" % https,
        "shasum": hashlib.sha1(archive).hexdigest(),
        "integrity": "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode(),
    }
    versions = {"1.0.0": dict(manifest, dist=dist)}
    document = {"name": "labpackage", "dist-tags": {"latest": "1.0.0"}, "versions": versions}
    write("labpackage/index.html", json.dumps(document))


def cargo(https):
    archive = tar_gz({
        "labcrate-1.0.0/Cargo.toml": '[package]\nname = "labcrate"\nversion = "1.0.0"\nedition = "2021"\n',
        "labcrate-1.0.0/src/lib.rs": 'pub const WORD: &str = "from the registry";\n',
    })
    write("crates/labcrate/1.0.0/download", archive)
    write("index/config.json", json.dumps({"dl": "https://cargo.lab.test:%d/crates" % https}))
    entry = {"name": "labcrate", "vers": "1.0.0", "deps": [], "cksum": hashlib.sha256(archive).hexdigest(),
             "features": {}, "yanked": False}
    write("index/la/bc/labcrate", json.dumps(entry) + "\n")


def go():
    out = io.BytesIO()
    top = "go.lab.test/labmodule@v1.0.0/"
    module = "module go.lab.test/labmodule\n"
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(top + "go.mod", module)
        archive.writestr(top + "lab.go", 'package labmodule\n\nconst Word = "from the module proxy"\n')
    base = "go.lab.test/labmodule/@v/"
    write(base + "list", "v1.0.0\n")
    write(base + "v1.0.0.info", json.dumps({"Version": "v1.0.0", "Time": "2020-01-01T00:00:00Z"}))
    write(base + "v1.0.0.mod", module)
    write(base + "v1.0.0.zip", out.getvalue())


def git():
    work, bare = os.path.join(folder, "work"), os.path.join(site, "lab.git")
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    clean.update(HOME=folder, GIT_CONFIG_NOSYSTEM="1")
    run("git", "init", "-q", work, env=clean)
    with open(os.path.join(work, "file"), "w") as f:
        f.write("from the repository\n")
    run("git", "-C", work, "add", "file", env=clean)
    run("git", "-C", work, "-c", "user.name=lab", "-c", "user.email=lab@lab.test", "commit", "-q", "-m", "lab", env=clean)
    run("git", "clone", "-q", "--bare", work, bare, env=clean)
    run("git", "-C", bare, "update-server-info", env=clean)


def deb():
    def member(name, content):
        head = "%-16s%-12d%-6d%-6d%-8s%-10d`\n" % (name, 0, 0, 0, "100644", len(content))
        return head.encode() + content + b"\n" * (len(content) % 2)

    control = "Package: labdeb\nVersion: 1.0\nArchitecture: all\nMaintainer: lab <lab@lab.test>\nDescription: lab\n"
    data = member("debian-binary", b"2.0\n")
    data += member("control.tar.gz", tar_gz({"./control": control}))
    data += member("data.tar.gz", tar_gz({"./opt/labdeb": "from the repository\n"}))
    package = b"!<arch>\n" + data
    write("debian/labdeb_1.0_all.deb", package)
    packages = control + "Filename: ./labdeb_1.0_all.deb\nSize: %d\nSHA256: %s\n" % (
        len(package), hashlib.sha256(package).hexdigest())
    write("debian/Packages", packages)
    write("debian/Packages.gz", gzip.compress(packages.encode()))
    sums = "".join(
        " %s %d %s\n" % (hashlib.sha256(content).hexdigest(), len(content), name)
        for name, content in (("Packages", packages.encode()), ("Packages.gz", gzip.compress(packages.encode(), mtime=0)))
    )
    write("debian/Packages.gz", gzip.compress(packages.encode(), mtime=0))
    write("debian/Release", "Origin: lab\nSuite: lab\nDate: Wed, 01 Jan 2020 00:00:00 UTC\nSHA256:\n" + sums)


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, *arguments):
        super().__init__(*arguments, directory=site)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    """Shakes hands in the connection's own thread."""
    context = None

    def finish_request(self, request, address):
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, address)

    def handle_error(self, *_):
        pass


certificates()
plain, secure = Server(("127.0.0.1", 0), Handler), Server(("127.0.0.1", 0), Handler)
secure.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
secure.context.load_cert_chain(os.path.join(folder, "leaf.pem"), os.path.join(folder, "leaf.key"))
https = secure.server_address[1]
write("word", "from the host\n")
pypi()
npm(https)
cargo(https)
go()
git()
deb()
for server in (plain, secure):
    threading.Thread(target=server.serve_forever, daemon=True).start()
print(plain.server_address[1], https, flush=True)
sys.stdin.read()
