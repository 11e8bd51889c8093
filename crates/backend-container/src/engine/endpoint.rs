//! Where an engine is spoken to: what the environment, the files of a user and the usual places say.

mod docker;
mod podman;
mod socket;
mod tls;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) use docker::config_directory;
pub(super) use socket::{open as open_socket, refused as socket_refused};
pub(super) use tls::TlsFiles;

use super::api::Api;
use super::podman_cli::PodmanCli;
use super::{Engine, EngineError, EngineKind, Place, Result};

/// Largest configuration file that is read.
const FILE_LIMIT: u64 = 1 << 20;

/// What a process is surrounded by, as far as engines are found by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// Environment variables.
    pub vars: BTreeMap<String, String>,
    /// Home directory.
    pub home: Option<PathBuf>,
    /// User id.
    pub uid: u32,
    /// Whether this is macOS, where every engine is in a virtual machine.
    pub macos: bool,
    /// This kernel's release, as `uname -r` says it.
    pub kernel: String,
    /// This machine's host name.
    pub hostname: String,
    /// Directory under which the system's own sockets and configuration files lie: `/`.
    pub root: PathBuf,
}

impl Environment {
    /// That of this process. Variables that are not UTF-8 are left out.
    pub fn of_process() -> Self {
        let vars: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value): (OsString, OsString)| {
                Some((name.into_string().ok()?, value.into_string().ok()?))
            })
            .collect();
        let system = rustix::system::uname();
        Self {
            home: vars.get("HOME").filter(|home| home.starts_with('/')).map(PathBuf::from),
            vars,
            uid: rustix::process::geteuid().as_raw(),
            macos: cfg!(target_os = "macos"),
            kernel: system.release().to_string_lossy().into_owned(),
            hostname: system.nodename().to_string_lossy().into_owned(),
            root: PathBuf::from("/"),
        }
    }

    /// A variable that is set to something.
    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// A path of the system's.
    fn system(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The directory of this user's sockets, if there is one.
    fn runtime_dir(&self) -> Option<PathBuf> {
        match self.var("XDG_RUNTIME_DIR") {
            Some(dir) => Some(PathBuf::from(dir)),
            None if self.uid != 0 && !self.macos => Some(self.system(&format!("run/user/{}", self.uid))),
            None => None,
        }
    }

    /// The directory of this user's configuration files.
    fn config_dir(&self) -> Option<PathBuf> {
        match self.var("XDG_CONFIG_HOME") {
            Some(dir) => Some(PathBuf::from(dir)),
            None => self.home.as_ref().map(|home| home.join(".config")),
        }
    }

    /// A program on the search path.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        std::env::split_paths(self.var("PATH")?)
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join(name))
            .find(|path| is_program(path))
    }
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Where an engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// A Unix socket.
    Unix(PathBuf),
    /// A TCP port, with or without TLS.
    Tcp {
        /// Name or address.
        host: String,
        /// Port.
        port: u16,
        /// Files for TLS.
        tls: Option<TlsFiles>,
    },
    /// A machine on which `docker system dial-stdio` reaches the engine.
    Ssh {
        /// `user@host`, or `host`.
        destination: String,
        /// Port, if it is not the usual one.
        port: Option<u16>,
        /// The socket there, if it is not the usual one.
        socket: Option<String>,
    },
    /// The `podman` program, with arguments that choose a connection.
    Podman {
        /// The program.
        program: PathBuf,
        /// `--connection NAME` and so on; empty for this machine's own.
        arguments: Vec<String>,
        /// The address behind it, if it is another than this machine.
        remote: Option<String>,
    },
}

impl Endpoint {
    /// For people; holds no secret.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Unix(path) => format!("unix://{}", path.display()),
            Self::Tcp { host, port, .. } if host.contains(':') => format!("tcp://[{host}]:{port}"),
            Self::Tcp { host, port, .. } => format!("tcp://{host}:{port}"),
            Self::Ssh { destination, port, socket } => {
                let port = port.map(|port| format!(":{port}")).unwrap_or_default();
                format!("ssh://{destination}{port}{}", socket.as_deref().unwrap_or_default())
            }
            Self::Podman { remote: Some(remote), .. } => format!("podman ({remote})"),
            Self::Podman { .. } => "podman".to_owned(),
        }
    }
}

/// An endpoint, and where its containers run as far as that can be known without asking it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub endpoint: Endpoint,
    pub place: Place,
    /// Whether somebody named it; else it is one of the usual places.
    pub named: bool,
}

/// Finds an engine and makes a driver for it. Nothing is asked of the engine; a Unix socket is knocked at.
///
/// # Errors
/// [`EngineError::Endpoint`] for a variable or file that says nonsense; [`EngineError::NotInstalled`],
/// [`EngineError::Unreachable`] or [`EngineError::NoPermission`] when no socket (and no program) can be used.
pub async fn connect(kind: EngineKind, environment: &Environment) -> Result<Arc<dyn Engine>> {
    let known = environment.clone();
    if kind == EngineKind::Apple {
        // It has no socket, but a program.
        let found = blocking(kind, move || crate::apple::Apple::find(&known.vars)).await?;
        return Ok(Arc::new(found));
    }
    let candidates = blocking(kind, move || match kind {
        EngineKind::Docker => docker::find(&known),
        EngineKind::Podman => podman::find(&known),
        EngineKind::Apple => Ok(Vec::new()),
    })
    .await?;
    let mut failure = None;
    for found in candidates {
        if let Endpoint::Unix(path) = &found.endpoint
            && let Err(error) = socket::knock(kind, path, found.named).await
        {
            failure = Some(match failure {
                None => error,
                Some(first) => worse(first, error),
            });
            continue;
        }
        let place = found.place;
        return match found.endpoint {
            Endpoint::Podman { program, arguments, remote } => {
                Ok(Arc::new(PodmanCli::new(environment, program, arguments, remote, place)))
            }
            endpoint => {
                let environment = environment.clone();
                let api = blocking(kind, move || Api::new(kind, endpoint, place, &environment)).await?;
                Ok(Arc::new(api))
            }
        };
    }
    Err(failure.unwrap_or_else(|| missing(kind, environment)))
}

/// Which of two failures tells more: a socket that may not be used, then one that nobody listens at.
fn worse(first: EngineError, second: EngineError) -> EngineError {
    let weight = |error: &EngineError| match error {
        EngineError::NoPermission { .. } => 2,
        EngineError::Unreachable { .. } => 1,
        _ => 0,
    };
    if weight(&second) > weight(&first) { second } else { first }
}

/// Nothing was found.
fn missing(kind: EngineKind, environment: &Environment) -> EngineError {
    let (program, socket) = match kind {
        EngineKind::Podman => ("podman", "podman.sock"),
        _ => ("docker", "/var/run/docker.sock"),
    };
    if kind == EngineKind::Docker && environment.program(program).is_some() {
        return EngineError::Unreachable {
            engine: kind,
            endpoint: format!("unix://{socket}"),
            cause: "there is no such socket".to_owned(),
        };
    }
    EngineError::NotInstalled {
        engine: kind,
        cause: format!("there is no socket {socket} and no program {program} on PATH"),
    }
}

/// Runs what reads files away from the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    kind: EngineKind,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => {
            Err(EngineError::Answer { engine: kind, message: format!("a task of ours ended: {error}") })
        }
    }
}

/// Reads a small file; `None` if there is none.
fn read(engine: EngineKind, path: &Path) -> Result<Option<String>> {
    use std::io::Read;
    let failed = |cause: String| EngineError::Endpoint {
        engine,
        message: format!("{} cannot be read: {cause}", path.display()),
        fix: format!("repair or remove {}", path.display()),
    };
    let file = match std::fs::File::open(path) {
        Ok(file) => file,
        Err(error)
            if matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        Err(error) => return Err(failed(error.to_string())),
    };
    let mut text = String::new();
    file.take(FILE_LIMIT + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(failed("it is larger than 1 MiB".to_owned()));
    }
    Ok(Some(text))
}

/// The parts of an address after its scheme: user, host, port and path.
#[derive(Debug, PartialEq, Eq)]
struct Address<'a> {
    user: Option<&'a str>,
    host: &'a str,
    port: Option<u16>,
    path: &'a str,
}

/// Reads `[user@]host[:port][/path]`.
fn address(text: &str) -> Option<Address<'_>> {
    let (authority, path) = match text.find('/') {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let (user, place) = match authority.rsplit_once('@') {
        Some((user, place)) => (Some(user), place),
        None => (None, authority),
    };
    let (host, port) = match place.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, after.strip_prefix(':').or(after.is_empty().then_some(""))?)
        }
        None => match place.rsplit_once(':') {
            Some((host, port)) if !host.contains(':') => (host, port),
            Some(_) => return None,
            None => (place, ""),
        },
    };
    let port = if port.is_empty() { None } else { Some(port.parse().ok()?) };
    let word = |text: &str| {
        !text.is_empty()
            && !text.starts_with('-')
            && text.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:%".contains(c))
    };
    (word(host) && user.is_none_or(word)).then_some(Address { user, host, port, path })
}

#[cfg(test)]
mod tests_support {
    use super::*;

    /// An environment whose `/` and home directory lie under `root`.
    pub fn environment(root: &Path, uid: u32) -> Environment {
        Environment {
            vars: BTreeMap::new(),
            home: Some(root.join("home")),
            uid,
            macos: false,
            kernel: "6.1".to_owned(),
            hostname: "box".to_owned(),
            root: root.to_owned(),
        }
    }

    /// The same with these variables on top.
    pub fn with(environment: &Environment, vars: &[(&str, &str)]) -> Environment {
        let mut environment = environment.clone();
        environment.vars.extend(vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        environment
    }

    /// An endpoint that somebody named.
    pub fn found(endpoint: Endpoint, place: Place) -> Found {
        Found { endpoint, place, named: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let full = Address { user: Some("me"), host: "box", port: Some(22), path: "/run/x.sock" };
        assert_eq!(address("me@box:22/run/x.sock"), Some(full));
        assert_eq!(address("box"), Some(Address { user: None, host: "box", port: None, path: "" }));
        assert_eq!(
            address("[::1]:2376"),
            Some(Address { user: None, host: "::1", port: Some(2376), path: "" })
        );
        for bad in [
            "",
            ":80",
            "box:99999",
            "::1:2375",
            "-oProxyCommand=x",
            "-l@box",
            "b ox",
            "[::1",
            "[::1]x",
            "a b@c",
        ] {
            assert_eq!(address(bad), None, "{bad}");
        }
    }
}
