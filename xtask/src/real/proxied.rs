//! Programs that fetch things, in sandboxes whose network is `trusted`: each finds the proxy by what the sandbox tells it,
//! and nothing else does. The servers are this machine's own; a hosts file that only this run sees gives them names.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Check, Named, Place, Trouble, program, same, sysroot, system_program};
use crate::command::{Ended, kept, root};

pub(super) const CHECKS: &[Named] = &[
    ("proxied-curl", curl),
    ("proxied-wget", wget),
    ("proxied-python", python),
    ("proxied-pip", pip),
    ("proxied-node", node),
    ("proxied-npm", npm),
    ("proxied-cargo", cargo),
    ("proxied-git", git),
    ("proxied-apt", apt),
    ("proxied-java", java),
    ("proxied-go", go),
];

const SERVERS: &str = include_str!("servers.py");

const NAMES: &str =
    "lab.test pypi.lab.test npm.lab.test cargo.lab.test git.lab.test apt.lab.test go.lab.test other.test";

/// Variables by which a caller's own proxy would stand in front of the one on trial.
const CALLERS: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];

/// What stands before every line inside: where the servers are, and whom to believe.
const HEAD: &str = "set -e; cd; CA=/workspace/ca.pem; export CURL_CA_BUNDLE=$CA SSL_CERT_FILE=$CA REQUESTS_CA_BUNDLE=$CA \
                    PIP_CERT=$CA NODE_EXTRA_CA_CERTS=$CA npm_config_cafile=$CA CARGO_HTTP_CAINFO=$CA GIT_SSL_CAINFO=$CA; ";

/// The servers, and what a sandbox is shown of them.
struct Lab<'a> {
    place: &'a Place,
    servers: Child,
    http: u16,
    https: u16,
    hosts: PathBuf,
    work: PathBuf,
}

impl Drop for Lab<'_> {
    fn drop(&mut self) {
        // They end with their standard input.
        drop(self.servers.stdin.take());
        let _ = self.servers.wait();
    }
}

impl<'a> Lab<'a> {
    fn new(place: &'a Place, needs: &[&str], mounts: &str) -> Result<Self, Trouble> {
        for name in needs {
            system_program(name)?;
        }
        for name in ["openssl", "git", "unshare"] {
            program(name)?;
        }
        system_program("python3")?;
        if !root() {
            return Err(Trouble::Lacking(
                "only root can give the servers names that nobody else sees".into(),
            ));
        }
        let (folder, work, config) =
            (place.folder("servers")?, place.folder("work")?, place.folder("config")?);
        let mut servers = Command::new("/usr/bin/python3")
            .args(["-c", SERVERS])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let out = servers.stdout.take();
        // What can fail from here on finds the servers in the lab, which ends them.
        let mut lab = Self { place, servers, http: 0, https: 0, hosts: place.scratch.0.join("hosts"), work };
        BufReader::new(out.ok_or_else(|| "no output".to_owned())?).read_line(&mut line)?;
        let ports: Vec<u16> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [http, https] = ports[..] else { return Err(format!("the servers said {line:?}").into()) };
        (lab.http, lab.https) = (http, https);
        std::fs::copy(folder.join("ca.pem"), lab.work.join("ca.pem"))?;
        std::fs::write(&lab.hosts, format!("127.0.0.1 localhost {NAMES}\n::1 localhost\n"))?;
        std::fs::write(
            config.join("moltis.toml"),
            format!(
                "[tools.exec.sandbox]\nnetwork = \"trusted\"\n\
                 trusted_domains = [\"lab.test\", \"*.lab.test\", \"127.0.0.1:{http}\", \"127.0.0.1:{https}\"]\n{mounts}"
            ),
        )?;
        Ok(lab)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        let path = self.work.join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(path, text)?)
    }

    /// A shell line in a sandbox. `$H` and `$S` are the ports of HTTP and HTTPS.
    fn line(&self, line: &str) -> Result<Ended, Trouble> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.arg("mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"").arg("sh").arg(&self.hosts);
        command.arg(&self.place.moltis);
        command
            .args(["exec", "--backend", "namespaces", "--data-dir"])
            .arg(self.place.scratch.0.join("data"));
        let mut workspace = self.work.as_os_str().to_owned();
        workspace.push(":rw");
        command.arg("--workspace").arg(workspace);
        command.env("MOLTIS_CONFIG_DIR", self.place.scratch.0.join("config"));
        for name in CALLERS {
            command.env_remove(name);
        }
        let ports = format!("H={} S={}; {HEAD}", self.http, self.https);
        command.args(["--timeout", "300s", "--", "sh", "-c"]).arg(format!("{ports}{line}"));
        Ok(kept(&mut command, None, Duration::from_secs(400))?)
    }

    fn prints(&self, what: &str, line: &str, expected: &str) -> Check {
        same(what, &self.line(line)?, expected.as_bytes())
    }
}

fn curl(place: &Place) -> Check {
    let lab = Lab::new(place, &["curl"], "")?;
    let line = "curl -sS https://lab.test:$S/word; curl -sS http://lab.test:$H/word; \
                curl -sS --proxy \"$MOLTIS_SOCKS_PROXY\" https://lab.test:$S/word; \
                head -c 3000000 /dev/zero | curl -sS --data-binary @- https://lab.test:$S/post | wc -c; \
                curl -s --noproxy '*' https://lab.test:$S/word || echo \"alone $?\"; \
                curl -s http://other.test:$H/word -o /dev/null -w '%{http_code}\\n'; \
                curl -s https://other.test:$S/word || echo \"other $?\"; \
                echo here >index.html; python3 -m http.server -b 127.0.0.1 8000 >/dev/null 2>&1 & \
                until curl -s http://localhost:8000/index.html; do sleep 0.1; done; kill $!";
    let expected = "from the host\nfrom the host\nfrom the host\n3000000\nalone 6\n403\nother 56\nhere\n";
    lab.prints("curl", line, expected)
}

fn wget(place: &Place) -> Check {
    let lab = Lab::new(place, &["wget"], "")?;
    let line = "wget -qO- --ca-certificate=$CA https://lab.test:$S/word; wget -qO- http://lab.test:$H/word";
    lab.prints("wget", line, "from the host\nfrom the host\n")
}

/// The standard library, requests and httpx.
fn python(place: &Place) -> Check {
    for (module, package) in [("requests", "python3-requests"), ("httpx", "python3-httpx")] {
        if !Path::new("/usr/lib/python3/dist-packages").join(module).exists() {
            return Err(Trouble::Lacking(format!("{package} is not installed")));
        }
    }
    let lab = Lab::new(place, &["python3"], "")?;
    lab.write(
        "fetch.py",
        "import sys, urllib.request, requests, httpx\nfor url in sys.argv[1:]:\n    \
         print(urllib.request.urlopen(url).read(), requests.get(url).content, httpx.get(url).content)\n",
    )?;
    let row = "b'from the host\\n' b'from the host\\n' b'from the host\\n'\n";
    let line = "python3 /workspace/fetch.py https://lab.test:$S/word http://lab.test:$H/word";
    lab.prints("python", line, &row.repeat(2))
}

fn pip(place: &Place) -> Check {
    let lab = Lab::new(place, &["pip3"], "")?;
    let line = "pip3 install -q --disable-pip-version-check --no-cache-dir --target packages \
                --index-url https://pypi.lab.test:$S/simple/ labwheel==1.0; \
                PYTHONPATH=packages python3 -c 'import labwheel; print(labwheel.WORD)'";
    lab.prints("pip", line, "from the index\n")
}

/// `fetch`, and the agents of `http` and `https`, in the program and in a worker of its.
fn node(place: &Place) -> Check {
    let lab = Lab::new(place, &["node"], "")?;
    lab.write(
        "fetch.mjs",
        "import http from 'node:http';\nimport https from 'node:https';\n\
         import { Worker, isMainThread } from 'node:worker_threads';\n\
         const [S, H] = [process.env.S, process.env.H];\n\
         const get = (way, url, options = {}) => new Promise((done) => way.get(url, options, (answer) => {\n  \
           let text = '';\n  answer.on('data', (piece) => { text += piece; }).on('end', () => done(text.trim()));\n\
         }).on('error', (error) => done(error.message)));\n\
         const text = async (url, options) => (await (await fetch(url, options)).text()).trim();\n\
         console.log(await text(`https://lab.test:${S}/word`), await text(`http://lab.test:${H}/word`));\n\
         console.log(await get(https, `https://lab.test:${S}/word`), await get(http, `http://lab.test:${H}/word`));\n\
         const agent = new https.Agent({ keepAlive: true });\n\
         console.log(await get(https, `https://lab.test:${S}/word`, { agent }), await get(https, `https://lab.test:${S}/word`, { agent }));\n\
         agent.destroy();\n\
         console.log((await text(`https://lab.test:${S}/post`, { method: 'POST', body: 'x'.repeat(300000) })).length);\n\
         const many = await Promise.all(Array.from({ length: 20 }, () => text(`https://lab.test:${S}/word`)));\n\
         console.log(many.filter((word) => word === 'from the host').length);\n\
         console.log((await fetch(`https://other.test:${S}/`).catch((error) => error)) instanceof Error);\n\
         const own = http.createServer((_, answer) => answer.end('here')).listen(0, '127.0.0.1', async () => {\n  \
           const { port } = own.address();\n  \
           console.log(await text(`http://127.0.0.1:${port}/`), await get(http, `http://localhost:${port}/`));\n  \
           own.close();\n  own.closeAllConnections();\n  \
           if (isMainThread) new Worker(new URL(import.meta.url));\n\
         });\n",
    )?;
    let once = "from the host from the host\nfrom the host from the host\nfrom the host from the host\n300000\n20\ntrue\nhere here\n";
    lab.prints("node", "export S H; node /workspace/fetch.mjs", &once.repeat(2))
}

fn npm(place: &Place) -> Check {
    let lab = Lab::new(place, &["npm", "node"], "")?;
    let line = "mkdir p; cd p; echo '{}' >package.json; \
                npm install --silent --no-audit --no-fund --registry=https://npm.lab.test:$S/ labpackage; \
                node -p 'require(\"labpackage\")'";
    lab.prints("npm", line, "from the registry\n")
}

fn cargo(place: &Place) -> Check {
    system_program("cc")?;
    let sysroot = sysroot()?;
    let mounts = format!(
        "[[tools.exec.sandbox.mounts]]\nsource = {sysroot:?}\ntarget = \"/mnt/rust\"\nmode = \"ro\"\n"
    );
    let lab = Lab::new(place, &[], &mounts)?;
    lab.write(
        "small/Cargo.toml",
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n\
         [dependencies]\nlabcrate = { version = \"1\", registry = \"lab\" }\n",
    )?;
    lab.write("small/src/main.rs", "fn main() { println!(\"{}\", labcrate::WORD); }\n")?;
    let line = "export PATH=/mnt/rust/bin:$PATH CARGO_HOME=/tmp/cargo; cd /workspace/small; \
                CARGO_REGISTRIES_LAB_INDEX=sparse+https://cargo.lab.test:$S/index/ cargo run -q";
    lab.prints("cargo", line, "from the registry\n")
}

fn git(place: &Place) -> Check {
    let lab = Lab::new(place, &["git"], "")?;
    let line = "git clone -q https://git.lab.test:$S/lab.git one; git clone -q http://git.lab.test:$H/lab.git two; \
                cat one/file two/file; git -C one fsck --no-progress 2>/dev/null";
    lab.prints("git", line, "from the repository\nfrom the repository\n")
}

/// Without root, over lists and a state of its own.
fn apt(place: &Place) -> Check {
    let lab = Lab::new(place, &["apt-get", "dpkg-deb"], "")?;
    let line = "mkdir -p a/state/lists/partial a/cache/archives/partial a/etc/apt.conf.d a/etc/preferences.d; : >a/status; \
                echo \"deb [trusted=yes] http://apt.lab.test:$H/debian ./\" >a/etc/sources.list; \
                A=\"-qq -o Dir::Etc=$HOME/a/etc -o Dir::State=$HOME/a/state -o Dir::State::status=$HOME/a/status \
                -o Dir::Cache=$HOME/a/cache\"; \
                apt-get $A update; apt-get $A download labdeb; dpkg-deb --fsys-tarfile labdeb_1.0_all.deb | tar xO ./opt/labdeb";
    lab.prints("apt", line, "from the repository\n")
}

fn java(place: &Place) -> Check {
    let lab = Lab::new(place, &["java", "javac", "keytool"], "")?;
    lab.write(
        "Fetch.java",
        "import java.net.*;\nimport java.net.http.*;\npublic class Fetch {\n  \
         public static void main(String[] urls) throws Exception {\n    for (String url : urls) {\n      \
         try (var in = new URL(url).openStream()) { System.out.print(new String(in.readAllBytes())); }\n      \
         var request = HttpRequest.newBuilder(URI.create(url)).build();\n      \
         System.out.print(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).body());\n    \
         }\n  }\n}\n",
    )?;
    let line = "keytool -importcert -noprompt -alias lab -file $CA -keystore keys -storepass changeit >/dev/null 2>&1; \
                java -Djavax.net.ssl.trustStore=keys -Djavax.net.ssl.trustStorePassword=changeit /workspace/Fetch.java \
                https://lab.test:$S/word http://lab.test:$H/word";
    lab.prints("java", line, &"from the host\n".repeat(4))
}

/// A module through a module proxy, and `net/http`.
fn go(place: &Place) -> Check {
    let lab = Lab::new(place, &["go"], "")?;
    lab.write("fetch/go.mod", "module fetch\n\ngo 1.18\n\nrequire go.lab.test/labmodule v1.0.0\n")?;
    lab.write(
        "fetch/main.go",
        "package main\n\nimport (\n\t\"fmt\"\n\t\"io\"\n\t\"net/http\"\n\t\"os\"\n\n\t\"go.lab.test/labmodule\"\n)\n\n\
         func main() {\n\tfmt.Println(labmodule.Word)\n\tfor _, url := range os.Args[1:] {\n\t\tanswer, err := http.Get(url)\n\
         \t\tif err != nil {\n\t\t\tpanic(err)\n\t\t}\n\t\tbody, _ := io.ReadAll(answer.Body)\n\t\tfmt.Print(string(body))\n\t}\n}\n",
    )?;
    let line = "cd /workspace/fetch; export CGO_ENABLED=0 GOFLAGS=-mod=mod GOSUMDB=off GOTOOLCHAIN=local; \
                GOPROXY=https://go.lab.test:$S go run . https://lab.test:$S/word http://lab.test:$H/word 2>/dev/null";
    lab.prints("go", line, "from the module proxy\nfrom the host\nfrom the host\n")
}
