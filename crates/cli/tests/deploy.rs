//! What lies in `deploy/`: units that systemd takes, and an image that runs.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use moltis_testkit::need;

const UNITS: [&str; 4] =
    ["moltis.service", "moltis-podman-api.service", "moltis-podman.conf", "moltis-scopes.conf"];

/// Keys that imply `NoNewPrivileges=yes` for a service that is not root's (`systemd.exec(5)`).
const IMPLY: [&str; 12] = [
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "ProtectClock",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "SystemCallArchitectures",
    "SystemCallFilter",
];

/// Keys that would take something from the sandboxes of `namespaces`, which are made by the gateway's own process.
const NEVER: [&str; 12] = [
    "DynamicUser",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "PrivateDevices",
    "PrivateUsers",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelTunables",
    "ProtectProc",
    "RestrictNamespaces",
];

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").canonicalize().unwrap()
}

fn read(name: &str) -> String {
    std::fs::read_to_string(deploy().join(name)).unwrap()
}

/// The values of each key by section and key, in their order.
fn keys(unit: &str) -> BTreeMap<(String, String), Vec<String>> {
    let (mut section, mut keys) = (String::new(), BTreeMap::<_, Vec<String>>::new());
    for line in unit.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix('[').and_then(|line| line.strip_suffix(']')), line.split_once('=')) {
            (Some(name), _) => section = name.to_owned(),
            (None, Some((key, value))) => {
                keys.entry((section.clone(), key.to_owned())).or_default().push(value.to_owned());
            }
            (None, None) => panic!("{line:?} is no line of a unit"),
        }
    }
    keys
}

fn service(name: &str) -> BTreeMap<String, Vec<String>> {
    let of =
        |((section, key), values): ((String, String), _)| (section == "Service").then_some((key, values));
    keys(&read(name)).into_iter().filter_map(of).collect()
}

fn one<'a>(keys: &'a BTreeMap<String, Vec<String>>, key: &str) -> Option<&'a str> {
    keys.get(key)?.last().map(String::as_str)
}

#[test]
fn the_service_says_when_it_is_ready_reloads_and_leaves_sandboxes_alone() {
    let unit = service("moltis.service");
    for (key, value) in [
        ("Type", "notify"),
        ("ExecStart", "/usr/local/bin/moltis gateway"),
        ("ExecReload", "/bin/kill -HUP $MAINPID"),
        ("User", "moltis"),
        ("KillMode", "process"),
        ("OOMPolicy", "continue"),
        ("Delegate", "cpu memory pids"),
        ("NoNewPrivileges", "yes"),
        ("CapabilityBoundingSet", ""),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("StateDirectory", "moltis"),
        ("StateDirectoryMode", "0700"),
    ] {
        assert_eq!(one(&unit, key), Some(value), "{key}");
    }
    for key in NEVER {
        assert_eq!(one(&unit, key), None, "{key}");
    }
}

#[test]
fn with_scopes_the_users_own_manager_keeps_limits_and_homes_stay_hidden() {
    let scopes = service("moltis-scopes.conf");
    assert_eq!((one(&scopes, "Delegate"), one(&scopes, "ProtectHome")), (Some("no"), Some("no")));
    assert_eq!(one(&scopes, "InaccessiblePaths"), Some("-/home -/root"));
}

#[test]
fn with_podman_nothing_implies_no_new_privileges() {
    let (unit, podman) = (service("moltis.service"), service("moltis-podman.conf"));
    assert_eq!(one(&podman, "NoNewPrivileges"), Some("no"));
    // Its namespaces outlive the service, and a private /tmp does not.
    assert_eq!(
        (one(&podman, "PrivateTmp"), one(&podman, "ReadWritePaths")),
        (Some("no"), Some("/tmp /var/tmp"))
    );
    for key in IMPLY.iter().filter(|key| unit.contains_key(**key)) {
        let reset = one(&podman, key);
        assert!(matches!(reset, Some("" | "no")), "{key} is {reset:?}");
    }
    // Podman's home and sockets lie outside of what `ProtectHome` hides, and both units mean the same.
    let api = service("moltis-podman-api.service");
    for variable in ["HOME=/var/lib/moltis-podman", "XDG_RUNTIME_DIR=/run/moltis"] {
        for keys in [&podman, &api] {
            assert!(keys["Environment"].iter().any(|value| value == variable), "{variable}");
        }
    }
    let socket = one(&api, "ExecStart").unwrap().rsplit("unix://").next().unwrap();
    assert_eq!(socket, "/run/moltis/podman/podman.sock");
    for keys in [&podman, &api] {
        assert_eq!(one(keys, "RuntimeDirectory"), Some("moltis"));
        assert_eq!(one(keys, "RuntimeDirectoryPreserve"), Some("yes"));
    }
}

/// Systemd's, as it tells it: `systemd 252 (252.38-1~deb12u1)`.
fn version() -> u32 {
    let output = Command::new("systemd-analyze").arg("--version").output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    told.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn systemd_takes_the_units() {
    if need::program("systemd-analyze").is_none() {
        return need::skip("the units under deploy", "systemd-analyze is not installed");
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    let units = root.join("etc/systemd/system");
    std::fs::create_dir_all(units.join("moltis.service.d")).unwrap();
    for unit in UNITS {
        let to = match unit {
            "moltis-podman.conf" => units.join("moltis.service.d/podman.conf"),
            "moltis-scopes.conf" => units.join("moltis.service.d/scopes.conf"),
            unit => units.join(unit),
        };
        // Systemd before 254 does not know this one, and says so.
        let known = |line: &&str| !line.starts_with("DelegateSubgroup=") || version() >= 254;
        let lines: Vec<_> = read(unit).lines().filter(known).map(|line| format!("{line}\n")).collect();
        std::fs::write(to, lines.concat()).unwrap();
    }
    // The programs that they start must be there to be verified.
    for program in ["usr/local/bin/moltis", "usr/bin/podman", "bin/kill", "bin/mkdir", "bin/sh"] {
        use std::os::unix::fs::PermissionsExt;
        let program = root.join(program);
        std::fs::create_dir_all(program.parent().unwrap()).unwrap();
        std::fs::write(&program, "").unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    }
    // Targets that are not ours.
    for target in ["sysinit", "basic", "shutdown", "network-online", "multi-user"] {
        std::fs::write(units.join(format!("{target}.target")), "[Unit]\nDescription=A target\n").unwrap();
    }
    for unit in UNITS.iter().filter(|unit| unit.ends_with(".service")) {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--recursive-errors=no", "--man=no", "--root"])
            .args([root, Path::new(unit)])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{unit}");
    }
}

#[test]
fn compose_takes_the_file_and_runs_the_image_as_its_page_does() {
    let test = "deploy/compose.yaml";
    if need::program("docker-compose").is_none() {
        return need::skip(test, "docker-compose is not here");
    }
    let config = |environment: &[(&str, &str)]| {
        let mut command = Command::new("docker-compose");
        command.arg("-f").arg(deploy().join("compose.yaml")).arg("config");
        for name in ["MOLTIS_ROOT", "MOLTIS_UID", "DOCKER_GID"] {
            command.env_remove(name);
        }
        let output = command.envs(environment.iter().copied()).output().unwrap();
        let [out, said] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.success(), out, said)
    };
    let (good, _, said) = config(&[]);
    assert!(!good && said.contains("set it to the group of /var/run/docker.sock"), "{said}");
    let (good, told, said) = config(&[("DOCKER_GID", "998"), ("MOLTIS_ROOT", "/root-of-it")]);
    assert!(good && said.is_empty(), "{said}");
    // A list's items by the key that they stand under.
    let (mut under, mut got) = (String::new(), BTreeMap::<_, Vec<String>>::new());
    for line in told.lines().map(str::trim) {
        match (line.strip_prefix("- "), line.split_once(':')) {
            (Some(item), _) => got.entry(under.clone()).or_default().push(item.trim_matches('\'').to_owned()),
            (None, Some((key, ""))) => under = key.to_owned(),
            (None, Some((key, value))) => {
                got.entry(key.to_owned()).or_default().push(value.trim().to_owned())
            }
            (None, None) => {}
        }
    }
    for (key, values) in [
        ("user", &["10001:10001"][..]),
        ("group_add", &["998"]),
        ("read_only", &["true"]),
        ("tmpfs", &["/tmp"]),
        ("cap_drop", &["ALL"]),
        ("security_opt", &["no-new-privileges:true"]),
        ("MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND", &["docker"]),
        ("MOLTIS_TOOLS__EXEC__SANDBOX__HOST_DATA_DIR", &["/root-of-it/data"]),
        ("ports", &["127.0.0.1:13131:13131/tcp"]),
        (
            "volumes",
            &[
                "/var/run/docker.sock:/var/run/docker.sock:rw",
                "/root-of-it/data:/var/lib/moltis:rw",
                "/root-of-it/config:/etc/moltis:ro",
            ],
        ),
    ] {
        let got = got.get(key).map(|all| all.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(got.as_deref(), Some(values), "{key}: {told}");
    }
    let dockerfile = got.get("dockerfile").and_then(|all| all.first());
    assert_eq!(dockerfile.map(String::as_str), Some("deploy/Dockerfile"), "{told}");
}

/// An image of Debian, made by whoever made the tests' engines.
const BASE: &str = "localhost/sandbox-base:debian";

/// What sandboxes start from.
const SANDBOX: &str = "localhost/sandbox-base:busybox";

/// Docker's answer, which is to be good.
#[track_caller]
fn docker<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let output = Command::new("docker").args(args).output().unwrap();
    let [out, said] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    assert!(output.status.success(), "{out}{said}");
    out
}

/// An image and a folder of the host for it, which go with the test.
struct Image {
    tag: String,
    folder: tempfile::TempDir,
}

impl Image {
    /// Builds it with this very program copied in.
    fn build() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let context = folder.path().join("context");
        std::fs::create_dir(&context).unwrap();
        std::fs::copy(env!("CARGO_BIN_EXE_moltis"), context.join("program")).unwrap();
        let tag = format!("localhost/moltis-test:{}", std::process::id());
        let base = |name: &str| format!("{name}={BASE}");
        // The stage that builds first, by a name of its own: without one it would stay.
        for (tag, target) in [(format!("{tag}-build"), Some("build")), (tag.clone(), None)] {
            let target = target.into_iter().flat_map(|stage| ["--target", stage]).map(OsString::from);
            docker(
                ["build", "-q", "-t", &tag, "--build-arg", "PROGRAM=program"]
                    .map(OsString::from)
                    .into_iter()
                    .chain(target)
                    .chain([
                        "--build-arg".into(),
                        base("BUILD_BASE").into(),
                        "--build-arg".into(),
                        base("RUN_BASE").into(),
                        "-f".into(),
                        deploy().join("Dockerfile").into(),
                        context.clone().into(),
                    ]),
            );
        }
        std::fs::remove_dir_all(context).unwrap();
        let image = Self { tag, folder };
        for name in ["data", "config"] {
            let path = image.folder.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(10001), Some(10001)).unwrap();
        }
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(image.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
        image
    }

    /// Arguments of `docker run` as the page has them, without the image.
    fn run(&self) -> Vec<String> {
        use std::os::unix::fs::MetadataExt;
        let group = std::fs::metadata("/var/run/docker.sock").unwrap().gid().to_string();
        let path = |name: &str| self.folder.path().join(name).display().to_string();
        let words = [
            "run",
            "--user",
            "10001:10001",
            "--group-add",
            &group,
            "--read-only",
            "--tmpfs",
            "/tmp",
            "--cap-drop",
            "ALL",
            "--security-opt",
            "no-new-privileges:true",
            "-e",
            "MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND=docker",
            "-v",
            "/var/run/docker.sock:/var/run/docker.sock",
            "-v",
            &format!("{}:/var/lib/moltis", path("data")),
            "-v",
            &format!("{}:/etc/moltis:ro", path("config")),
        ];
        words.map(str::to_owned).to_vec()
    }

    /// Runs Moltis with these arguments in a container that goes again.
    #[track_caller]
    fn moltis(&self, environment: &[String], args: &[&str]) -> String {
        let environment = environment.iter().flat_map(|one| ["-e", one]);
        let words = self.run().into_iter().chain(["--rm".to_owned()]).chain(environment.map(str::to_owned));
        docker(words.chain([self.tag.clone()]).chain(args.iter().map(|arg| (*arg).to_owned())))
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let stage = format!("{}-build", self.tag);
        let removed = Command::new("docker").args(["rmi", "-f", &self.tag, &stage]).output();
        assert!(std::thread::panicking() || removed.is_ok_and(|output| output.status.success()));
    }
}

#[test]
fn the_image_runs_sandboxes_beside_itself() {
    let test = "the image of deploy/Dockerfile";
    if !need::as_root(test, "Docker's socket is root's") {
        return;
    }
    let is_here = |image: &str| {
        let inspected = Command::new("docker").args(["image", "inspect", image]).output();
        inspected.is_ok_and(|output| output.status.success())
    };
    if need::program("docker").is_none() || !is_here(BASE) || !is_here(SANDBOX) {
        return need::skip(
            test,
            "docker is not here, or has no images of the tests (`cargo xtask engines up`)",
        );
    }
    let image = Image::build();
    let looked =
        docker(["image", "inspect", &image.tag, "--format", "{{.Config.User}} {{.Config.Healthcheck.Test}}"]);
    assert!(looked.starts_with("10001:10001 [CMD bash -c ") && looked.contains("/healthz"), "{looked}");
    // The data directory is found by looking at its own container.
    let line = "id -u; uname -n; echo kept > kept";
    let ran = image.moltis(&[], &["exec", "--image", SANDBOX, "--session", "s", line]);
    assert_eq!(ran, "10001\nsandbox\n");
    // Another container of it finds the session's sandbox, here with the folder named.
    let named =
        format!("MOLTIS_TOOLS__EXEC__SANDBOX__HOST_DATA_DIR={}", image.folder.path().join("data").display());
    let ran = image.moltis(&[named], &["exec", "--json", "--session", "s", "cat kept"]);
    let told: serde_json::Value = serde_json::from_str(&ran).unwrap();
    assert_eq!((&told["stdout"], told.get("restarted")), (&"kept\n".into(), None), "{told}");
    let sandbox = told["sandboxId"].as_str().unwrap();
    let label = format!("label=org.moltis.session={sandbox}");
    let containers = || docker(["ps", "-aq", "--filter", &label]).lines().count();
    assert_eq!(containers(), 1);
    image.moltis(&[], &["session", "rm", "--purge", "s"]);
    assert_eq!(containers(), 0);
    gateway_of(&image);
}

/// Time that anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A container that goes with the test.
struct Container(String);

impl Container {
    fn until_healthy(&self) {
        let start = Instant::now();
        let health = || docker(["inspect", "--format", "{{.State.Health.Status}}", &self.0]);
        while health() != "healthy\n" {
            let logs = || Command::new("docker").args(["logs", &self.0]).output();
            assert!(start.elapsed() < PATIENCE, "{}: {:?}", health(), logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Asks over the published port; gives the status and the JSON.
    fn ask(&self, key: &str, method: &str, path: &str, body: &str) -> (u16, serde_json::Value) {
        let published = docker(["port", &self.0, "13131/tcp"]);
        let address: SocketAddr = published.trim().parse().unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: localhost:{}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            address.port(),
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(body).unwrap_or_else(|_| body.into()))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let removed = Command::new("docker").args(["rm", "-f", "-v", &self.0]).output();
        assert!(std::thread::panicking() || removed.is_ok_and(|output| output.status.success()));
    }
}

/// The image's own command: it becomes healthy, serves the host, and is started again without a loss.
fn gateway_of(image: &Image) {
    // Docker picks the host's port here: whoever calls a host that is not at the gateway's own port has to be named.
    std::fs::write(image.folder.path().join("config/moltis.toml"), "[gateway]\nhosts = [\"localhost\"]\n")
        .unwrap();
    let more = ["-d", "-p", "127.0.0.1::13131", "--health-interval", "1s"];
    let words = image.run().into_iter().chain(more.map(str::to_owned)).chain([image.tag.clone()]);
    let container = Container(docker(words).trim().to_owned());
    container.until_healthy();
    let made = docker([
        "exec",
        &container.0,
        "moltis",
        "gateway",
        "key",
        "create",
        "host",
        "--scope",
        "operator.admin",
    ]);
    let key = made.trim();
    let (status, me) = container.ask(key, "GET", "/api/v1/me", "");
    assert_eq!(
        (status, me),
        (200, serde_json::json!({ "kind": "key", "name": "host", "scope": "operator.admin" }))
    );
    assert_eq!(container.ask("", "GET", "/api/v1/me", "").0, 401);
    let exec = |line: &str| {
        let asked = serde_json::json!({ "command": line });
        let (status, ran) = container.ask(key, "POST", "/api/v1/sessions/g/exec", &asked.to_string());
        assert_eq!(status, 200, "{ran}");
        ran
    };
    let set = serde_json::json!({ "sandboxImage": SANDBOX }).to_string();
    let (status, told) = container.ask(key, "PATCH", "/api/v1/sessions/g", &set);
    assert_eq!(status, 201, "{told}");
    let first = exec("echo kept > kept; uname -n");
    assert_eq!(first["stdout"], "sandbox\n", "{first}");
    docker(["restart", "-t", "30", &container.0]);
    container.until_healthy();
    let second = exec("cat kept");
    assert_eq!((&second["stdout"], second.get("restarted")), (&"kept\n".into(), None), "{second}");
    assert_eq!(second["sandboxId"], first["sandboxId"]);
    let (status, gone) = container.ask(key, "DELETE", "/api/v1/sessions/g?purge=true", "");
    assert!(matches!(status, 200 | 204), "{status} {gone}");
    let label = format!("label=org.moltis.session={}", first["sandboxId"].as_str().unwrap());
    assert_eq!(docker(["ps", "-aq", "--filter", &label]), "");
}
