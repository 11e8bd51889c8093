//! A gateway in a process of its own, and a caller with one connection that is kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Time that anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// `moltis gateway` with a data directory of its own.
pub struct Gateway {
    child: Option<Child>,
    folder: Option<tempfile::TempDir>,
    address: String,
    token: String,
}

/// A folder in which a gateway left what it keeps.
pub type Folder = tempfile::TempDir;

impl Gateway {
    /// Starts one, and returns once it is ready; nothing if the program has no such backend.
    pub fn start(moltis: &Path, folder: Option<Folder>, backend: &str) -> Option<Self> {
        let folder =
            folder.unwrap_or_else(|| tempfile::Builder::new().prefix("moltis-bench-").tempdir().unwrap());
        let mut child = Command::new(moltis)
            .args(["gateway", "--port", "0", "--json"])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", folder.path())
            .env("MOLTIS_CONFIG_DIR", folder.path().join("config"))
            .env("MOLTIS_DATA_DIR", folder.path().join("data"))
            .env("MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND", backend)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let banner: Value = serde_json::from_str(&line).unwrap();
        let Some(address) = banner["address"].as_str().map(str::to_owned) else {
            assert_eq!(banner["error"]["code"], "backend-not-built", "{banner}");
            assert!(!child.wait().unwrap().success());
            return None;
        };
        // It stands there from the first start on.
        let token = std::fs::read_to_string(folder.path().join("data/admin-token")).unwrap();
        let token = token.trim().to_owned();
        let gateway = Self { child: Some(child), folder: Some(folder), address, token };
        let (mut client, start) = (gateway.client(), Instant::now());
        while client.ask("GET", "/readyz", "").0 != 200 {
            assert!(start.elapsed() < PATIENCE, "it does not become ready");
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(gateway)
    }

    /// A caller with the admin token.
    pub fn client(&self) -> Client {
        Client::new(&self.address, &self.token)
    }

    /// A caller with a key of its own.
    pub fn client_of_its_own(&self, name: &str) -> Client {
        let body = format!(r#"{{"name":"{name}","scope":"operator.write"}}"#);
        let (status, made) = self.client().ask("POST", "/api/v1/keys", &body);
        assert_eq!(status, 201, "{made}");
        let made: Value = serde_json::from_str(&made).unwrap();
        Client::new(&self.address, made["key"].as_str().unwrap())
    }

    /// Resident memory in MiB, shared pages counted in full.
    pub fn resident(&self) -> f64 {
        let pid = self.child.as_ref().unwrap().id();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
    }

    /// Ends it as a service manager does; the folder holds what it kept.
    pub fn end(mut self) -> Folder {
        let mut child = self.child.take().unwrap();
        let told = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
        assert!(told.success() && child.wait().unwrap().success());
        self.folder.take().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A caller with one connection.
pub struct Client {
    stream: BufReader<TcpStream>,
    head: String,
}

impl Client {
    fn new(address: &str, key: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let head =
            format!("Host: {address}\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n");
        Self { stream: BufReader::new(stream), head }
    }

    /// Asks; gives the status and the body.
    pub fn ask(&mut self, method: &str, path: &str, body: &str) -> (u16, String) {
        let (head, length) = (&self.head, body.len());
        let request = format!("{method} {path} HTTP/1.1\r\n{head}Content-Length: {length}\r\n\r\n{body}");
        self.stream.get_mut().write_all(request.as_bytes()).unwrap();
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            assert!(self.stream.read_line(&mut line).unwrap() > 0, "the gateway went away");
            let line = line.trim_end();
            if line.is_empty() {
                break;
            }
            if status == 0 {
                status = line.split(' ').nth(1).unwrap().parse().unwrap();
            } else if let Some((name, value)) = line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        (status, String::from_utf8(body).unwrap())
    }
}
