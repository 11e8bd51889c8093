//! TLS by files: where it lets the gateway listen, who is served, and what a renewed certificate leaves alone.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use moltis_testkit::need;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::support::{As, PATIENCE, World, options, until};

/// Files of TLS that the test made.
struct Files {
    folder: tempfile::TempDir,
}

/// What OpenSSL is told of a certificate for `localhost`.
const REQUEST: &str = "[req]\ndistinguished_name = name\nx509_extensions = server\nprompt = no\n[name]\n\
                       CN = localhost\n[server]\nsubjectAltName = DNS:localhost\nbasicConstraints = CA:FALSE\n";

impl Files {
    fn new() -> Self {
        let files = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::write(files.path("request"), REQUEST).unwrap();
        for name in ["one", "two"] {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
                .args(["-days", "2", "-config"])
                .arg(files.path("request"))
                .arg("-keyout")
                .arg(files.path(&format!("{name}.key")))
                .arg("-out")
                .arg(files.path(&format!("{name}.pem")))
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        }
        files.serve("one");
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts this certificate and its key where the gateway reads them.
    fn serve(&self, name: &str) {
        for kind in ["pem", "key"] {
            std::fs::copy(self.path(&format!("{name}.{kind}")), self.path(&format!("served.{kind}")))
                .unwrap();
        }
    }

    fn config(&self) -> String {
        format!(
            "[gateway]\nbind = \"0.0.0.0\"\ntls_cert = {:?}\ntls_key = {:?}\n\
             [tools.exec.sandbox]\nbackend = \"restricted-host\"\n",
            self.path("served.pem"),
            self.path("served.key")
        )
    }

    /// Connects as a client that trusts this certificate and no other.
    async fn connect(&self, name: &str, port: u16) -> io::Result<Client> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.path(&format!("{name}.pem"))).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        let connecting = TlsConnector::from(Arc::new(config))
            .connect(ServerName::try_from("localhost").unwrap().to_owned(), stream);
        let stream = tokio::time::timeout(PATIENCE, connecting).await.unwrap()?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        Ok(Client { sender, port })
    }

    /// Whether a client that trusts this certificate alone is content with what is served.
    async fn is_served(&self, name: &str, port: u16) -> bool {
        match self.connect(name, port).await {
            Ok(mut client) => client.get("/healthz", "").await.0 == 200,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{error}");
                false
            }
        }
    }
}

/// One connection over TLS.
struct Client {
    sender: SendRequest<Full<Bytes>>,
    port: u16,
}

impl Client {
    /// The status and the body.
    async fn get(&mut self, path: &str, token: &str) -> (u16, Bytes) {
        let mut request = Request::get(path).header("host", format!("localhost:{}", self.port));
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let sent = self.sender.send_request(request.body(Full::default()).unwrap());
        let response = tokio::time::timeout(PATIENCE, sent).await.unwrap().unwrap();
        let status = response.status().as_u16();
        (status, response.into_body().collect().await.unwrap().to_bytes())
    }
}

fn codes(world: &World) -> Vec<&str> {
    world.running().banner().warnings.iter().map(|warning| &*warning.code).collect()
}

#[tokio::test]
async fn a_renewed_certificate_is_served_and_open_connections_stay() {
    if need::program("openssl").is_none() {
        return need::skip("TLS of the gateway", "openssl is not installed");
    }
    let files = Files::new();
    let world = World::with(&files.config()).await;
    let (port, banner) = (world.address.port(), world.running().banner());
    assert_eq!(banner.url, format!("https://127.0.0.1:{port}"));
    assert!(banner.address.ip().is_unspecified());
    assert!(!codes(&world).contains(&"gateway-unencrypted"), "{:?}", banner.warnings);
    let mut open = files.connect("one", port).await.unwrap();
    assert_eq!(open.get("/healthz", "").await.0, 200);
    assert_eq!(open.get("/api/v1/me", "").await.0, 401);
    let (status, me) = open.get("/api/v1/me", &world.token).await;
    let me: serde_json::Value = serde_json::from_slice(&me).unwrap();
    assert_eq!((status, &me["kind"], &me["scope"]), (200, &"admin".into(), &"operator.admin".into()), "{me}");
    assert!(!files.is_served("two", port).await);
    // Nothing is said to whoever speaks without TLS.
    assert_eq!(said_in_plain(([127, 0, 0, 1], port).into()).await, None);
    // Files that have changed hold once it is told, or a little later by themselves.
    files.serve("two");
    world.running().reload().await;
    assert!(files.is_served("two", port).await);
    assert!(!files.is_served("one", port).await);
    assert_eq!(open.get("/api/v1/me", &world.token).await.0, 200);
    // Files that do not go together change nothing.
    std::fs::copy(files.path("one.key"), files.path("served.key")).unwrap();
    world.running().reload().await;
    assert!(files.is_served("two", port).await);
    assert_eq!(open.get("/healthz", "").await.0, 200);
    let told = world.send(As::Owner, hyper::Method::POST, "/api/v1/settings/reload").await.is(200);
    assert_eq!(told["warnings"][0]["code"], "tls-file-invalid", "{told}");
    files.serve("one");
    until(async || files.is_served("one", port).await).await;
    assert_eq!(open.get("/healthz", "").await.0, 200);
    world.end().await;
}

/// The first line that a plain request is answered with, if it is one of HTTP.
async fn said_in_plain(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut said = Vec::new();
    // It may be cut off, which says nothing either.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut said)).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    said.starts_with("HTTP/").then(|| said.lines().next().unwrap_or_default().to_owned())
}

/// The code that a gateway of this configuration does not start with.
async fn refused(folder: &Path, config: &str) -> String {
    let started = moltis_gateway::start(options(folder, config), true).await;
    started.err().unwrap().diagnosis().code.to_string()
}

#[tokio::test]
async fn nothing_is_served_beyond_loopback_in_plain_text() {
    let folders: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
    let exposed = "[gateway]\nbind = \"0.0.0.0\"\n[tools.exec.sandbox]\nbackend = \"restricted-host\"\n";
    assert_eq!(refused(folders[0].path(), exposed).await, "gateway-exposed");
    // Nothing was begun.
    assert!(!folders[0].path().join("state/data").exists());
    let half = "[gateway]\nbind = \"0.0.0.0\"\ntls_cert = \"/nonexistent\"\n";
    assert_eq!(refused(folders[1].path(), half).await, "config-conflict");
    let both = "[gateway]\nbind = \"0.0.0.0\"\ntls_cert = \"/nonexistent\"\ntls_key = \"/nonexistent\"\n";
    assert_eq!(refused(folders[2].path(), both).await, "tls-file-invalid");
    // Who says so may.
    let folder = tempfile::tempdir().unwrap();
    let mut told = options(folder.path(), exposed);
    told.allow_unencrypted = true;
    let running = moltis_gateway::start(told, true).await.unwrap();
    let codes: Vec<_> = running.banner().warnings.iter().map(|warning| warning.code.to_string()).collect();
    assert!(codes.contains(&"gateway-unencrypted".to_owned()), "{codes:?}");
    running.end().await;
}
