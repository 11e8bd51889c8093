//! Firecracker's API: HTTP over a Unix socket in the machine's working directory.
//!
//! A call has a connection of its own, a deadline, and an answer of bounded size: whatever has become of the process at
//! the other end, nobody here waits for it without end. The process must be the one that was started.

pub mod body;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use moltis_host::process::Process;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::UnixStream;

use crate::error::{Error, Result};
use body::{
    BootSource, Drive, Entropy, Instance, MachineConfig, NetworkInterface, SnapshotCreate, SnapshotLoad,
    State, Vsock,
};

/// Name of the socket in the machine's working directory.
pub const SOCKET: &str = "api.sock";

/// Bytes of an answer that are read, at most. What is documented is shorter than a tenth of it.
const MAX_ANSWER: usize = 64 * 1024;

/// Bytes of Firecracker's own words that are passed on, at most.
const MAX_WORDS: usize = 1000;

/// Time for a call that only sets something down.
const QUICK: Duration = Duration::from_secs(20);

/// Time for a call that reads or writes the machine's whole memory.
const LONG: Duration = Duration::from_secs(300);

/// Time between two looks for the socket of a process that was just started.
const PAUSE: Duration = Duration::from_micros(300);

/// The API of one machine.
#[derive(Debug)]
pub struct Api {
    socket: OwnedFd,
    process: u32,
}

#[derive(Deserialize)]
struct Fault {
    fault_message: String,
}

impl Api {
    /// Waits until the process listens on its socket in this directory.
    ///
    /// # Errors
    /// [`Error::Silent`] when it does not in time, [`Error::Died`] when it ends before, [`Error::Impostor`] when another
    /// process listens there.
    pub async fn of(directory: impl AsFd, process: &Process, within: Duration) -> Result<Self> {
        let until = Instant::now() + within;
        loop {
            if let Some(api) = Self::find(&directory, process.pid())? {
                return Ok(api);
            }
            if process.ends_within(PAUSE).await {
                return Err(Error::Died { said: String::new() });
            }
            if Instant::now() > until {
                let why = format!("it does not listen after {} s", within.as_secs());
                return Err(Error::Silent { call: "connect".to_owned(), why });
            }
        }
    }

    /// The same if the process listens already.
    ///
    /// # Errors
    /// [`Error::Impostor`] when another process listens there.
    pub fn find(directory: impl AsFd, process: u32) -> Result<Option<Self>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(socket) = rustix::fs::openat(directory, SOCKET, flags, Mode::empty()) else { return Ok(None) };
        let api = Self { socket, process };
        match api.connect("connect") {
            Ok(_) => Ok(Some(api)),
            Err(error @ Error::Impostor(_)) => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// A connection with the process, made without waiting.
    fn connect(&self, call: &str) -> Result<UnixStream> {
        connect_to(&self.socket, self.process, call)
    }

    async fn call(&self, method: Method, path: &str, body: Vec<u8>, within: Duration) -> Result<Bytes> {
        let call = format!("{method} {path}");
        match tokio::time::timeout(within, self.exchange(method, path, body, &call)).await {
            Ok(answer) => answer,
            Err(_) => {
                let why = format!("it does not answer within {} s", within.as_secs());
                Err(Error::Silent { call, why })
            }
        }
    }

    async fn exchange(&self, method: Method, path: &str, body: Vec<u8>, call: &str) -> Result<Bytes> {
        let broken =
            |why: &dyn std::fmt::Display| Error::Silent { call: call.to_owned(), why: why.to_string() };
        let stream = TokioIo::new(self.connect(call)?);
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(stream).await.map_err(|error| broken(&error))?;
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("Host", "localhost")
            .header("Accept", "application/json")
            .header("Content-Type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| broken(&error))?;
        let answer = async {
            let answer = sender.send_request(request).await.map_err(|error| broken(&error))?;
            let status = answer.status();
            let read = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            let body = read.map_err(|error| broken(&error))?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            let message = match serde_json::from_slice::<Fault>(&body) {
                Ok(fault) => fault.fault_message,
                Err(_) => String::from_utf8_lossy(&body).into_owned(),
            };
            let message = message.chars().filter(|c| !c.is_control()).take(MAX_WORDS).collect();
            Err(Error::Fault { call: call.to_owned(), status: status.as_u16(), message })
        };
        // The connection is driven here, and gone when the answer is there or nobody waits for it any more.
        tokio::pin!(answer);
        tokio::select! {
            answer = &mut answer => answer,
            ended = connection => {
                // It may have ended right after the answer.
                match ended {
                    Ok(()) => answer.await,
                    Err(error) => Err(broken(&error)),
                }
            }
        }
    }

    async fn put(&self, path: &str, body: &impl Serialize, within: Duration) -> Result<()> {
        let bytes = serde_json::to_vec(body)
            .map_err(|error| Error::Silent { call: format!("PUT {path}"), why: error.to_string() })?;
        self.call(Method::PUT, path, bytes, within).await.map(drop)
    }

    /// What the process says of itself.
    ///
    /// # Errors
    /// [`Error::Silent`], [`Error::Fault`], as every call here.
    pub async fn instance(&self) -> Result<Instance> {
        let answer = self.call(Method::GET, "/", Vec::new(), QUICK).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| Error::Silent { call: "GET /".to_owned(), why: error.to_string() })
    }

    /// Processors and memory.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn machine_config(&self, config: &MachineConfig) -> Result<()> {
        self.put("/machine-config", config, QUICK).await
    }

    /// The kernel.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn boot_source(&self, source: &BootSource) -> Result<()> {
        self.put("/boot-source", source, QUICK).await
    }

    /// A disk. They show inside in the order in which they are added.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn drive(&self, drive: &Drive) -> Result<()> {
        self.put(&format!("/drives/{}", drive.drive_id), drive, QUICK).await
    }

    /// A network interface.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn network(&self, interface: &NetworkInterface) -> Result<()> {
        self.put(&format!("/network-interfaces/{}", interface.iface_id), interface, QUICK).await
    }

    /// The way to the guest.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn vsock(&self, vsock: &Vsock) -> Result<()> {
        self.put("/vsock", vsock, QUICK).await
    }

    /// A source of random numbers.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn entropy(&self, entropy: &Entropy) -> Result<()> {
        self.put("/entropy", entropy, QUICK).await
    }

    /// Starts the machine.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn start(&self) -> Result<()> {
        self.put("/actions", &json!({ "action_type": "InstanceStart" }), QUICK).await
    }

    /// Stops its processors where they are.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn pause(&self) -> Result<()> {
        self.set("Paused").await
    }

    /// Lets them go on.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn resume(&self) -> Result<()> {
        self.set("Resumed").await
    }

    async fn set(&self, state: &str) -> Result<()> {
        let body = json!({ "state": state }).to_string().into_bytes();
        self.call(Method::PATCH, "/vm", body, QUICK).await.map(drop)
    }

    /// Writes down a machine that is paused.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn create_snapshot(&self, snapshot: &SnapshotCreate) -> Result<()> {
        self.put("/snapshot/create", snapshot, LONG).await
    }

    /// Becomes the machine of a snapshot.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn load_snapshot(&self, snapshot: &SnapshotLoad) -> Result<()> {
        self.put("/snapshot/load", snapshot, LONG).await
    }

    /// Whether the machine runs.
    ///
    /// # Errors
    /// As [`instance`](Self::instance).
    pub async fn is_running(&self) -> Result<bool> {
        Ok(self.instance().await?.state == State::Running)
    }
}

/// A connection over a socket, by its handle, on which this process and no other must listen.
pub(crate) fn connect_to(socket: &OwnedFd, process: u32, call: &str) -> Result<UnixStream> {
    let silent =
        |errno: Errno| Error::Silent { call: call.to_owned(), why: std::io::Error::from(errno).to_string() };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(silent)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd())).map_err(silent)?;
    rustix::net::connect(&connection, &address).map_err(silent)?;
    let stream = UnixStream::from_std(connection.into())
        .map_err(|cause| Error::Silent { call: call.to_owned(), why: cause.to_string() })?;
    let peer = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok());
    match peer {
        Some(pid) if pid != 0 && pid == process => Ok(stream),
        other => Err(Error::Impostor(other.unwrap_or(0))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixListener;

    use super::*;

    /// Something that says this to whatever it is asked.
    async fn answering(answer: Vec<u8>) -> (tempfile::TempDir, Api) {
        let temp = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(temp.path().join(SOCKET)).unwrap();
        let directory = File::open(temp.path()).unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = [0; 4096];
                if matches!(stream.read(&mut request).await, Ok(1..)) {
                    let _ = stream.write_all(&answer).await;
                }
            }
        });
        let api = Api::find(&directory, std::process::id()).unwrap().unwrap();
        (temp, api)
    }

    fn http(status: &str, body: &str) -> Vec<u8> {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
    }

    #[tokio::test]
    async fn a_fault_is_told_in_the_engine_s_words() {
        let (_temp, api) =
            answering(http("400 Bad Request", r#"{"fault_message":"no \u001b[31mkernel"}"#)).await;
        let error = api.start().await.unwrap_err();
        let Error::Fault { call, status, message } = &error else { panic!("{error:?}") };
        assert_eq!((call.as_str(), *status, message.as_str()), ("PUT /actions", 400, "no [31mkernel"));
        let error = moltis_sandbox::Error::from(error);
        assert_eq!((error.kind(), error.code()), ("unavailable", "firecracker-fault"));
    }

    #[tokio::test]
    async fn an_answer_of_any_size_and_nonsense_are_errors() {
        let endless =
            format!("HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n{}", "x".repeat(MAX_ANSWER * 2));
        for answer in [
            endless.into_bytes(),
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort".to_vec(),
            b"not http".to_vec(),
            Vec::new(),
            http("200 OK", "{\"id\": 3}"),
            http("200 OK", "{\"id\":\"a\",\"state\":\"Dreaming\",\"vmm_version\":\"1\"}"),
        ] {
            let shown = String::from_utf8_lossy(&answer[..answer.len().min(60)]).into_owned();
            let (_temp, api) = answering(answer).await;
            let asked = tokio::time::timeout(Duration::from_secs(30), api.instance());
            let error = asked.await.unwrap().unwrap_err();
            assert!(matches!(error, Error::Silent { .. }), "{shown}: {error:?}");
        }
        let good =
            http("200 OK", r#"{"id":"a","state":"Not started","vmm_version":"1.12.1","app_name":"F"}"#);
        let (_temp, api) = answering(good).await;
        let expected =
            Instance { id: "a".to_owned(), state: State::NotStarted, vmm_version: "1.12.1".to_owned() };
        assert_eq!(api.instance().await.unwrap(), expected);
    }

    #[tokio::test]
    async fn another_process_on_the_socket_is_not_spoken_to() {
        let temp = tempfile::tempdir().unwrap();
        let directory = File::open(temp.path()).unwrap();
        assert!(Api::find(&directory, std::process::id()).unwrap().is_none());
        let _listener = UnixListener::bind(temp.path().join(SOCKET)).unwrap();
        let other = Api::find(&directory, std::process::id() + 1);
        assert!(matches!(other, Err(Error::Impostor(pid)) if pid == std::process::id()));
    }

    #[test]
    fn bodies_are_what_is_documented() {
        let limiter = RateLimiter {
            bandwidth: Some(TokenBucket { size: 10, one_time_burst: Some(5), refill_time: 100 }),
            ops: None,
        };
        use body::{RateLimiter, TokenBucket};
        let drive = Drive {
            drive_id: "root".to_owned(),
            path_on_host: "rootfs.ext4".to_owned(),
            is_root_device: false,
            is_read_only: true,
            cache_type: "Unsafe",
            rate_limiter: Some(limiter),
        };
        assert_eq!(
            serde_json::to_value(drive).unwrap(),
            json!({
                "drive_id": "root", "path_on_host": "rootfs.ext4", "is_root_device": false, "is_read_only": true,
                "cache_type": "Unsafe",
                "rate_limiter": { "bandwidth": { "size": 10, "one_time_burst": 5, "refill_time": 100 } }
            })
        );
        assert_eq!(
            serde_json::to_value(SnapshotLoad::file("s", "m", true)).unwrap(),
            json!({
                "snapshot_path": "s", "mem_backend": { "backend_path": "m", "backend_type": "File" },
                "resume_vm": true
            })
        );
        assert_eq!(
            serde_json::to_value(BootSource {
                kernel_image_path: "k".to_owned(),
                initrd_path: None,
                boot_args: "a b".to_owned()
            })
            .unwrap(),
            json!({ "kernel_image_path": "k", "boot_args": "a b" })
        );
    }
}
