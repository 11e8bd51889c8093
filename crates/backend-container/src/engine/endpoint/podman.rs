//! Where Podman is: `CONTAINER_HOST`, a connection of its configuration, one of the usual sockets, or its program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml_edit::DocumentMut;

use super::{Endpoint, Environment, Found, address, read};
use crate::engine::words::{clean, message};
use crate::engine::{EngineError, EngineKind, Place, Result};

const ENGINE: EngineKind = EngineKind::Podman;

/// Candidates in the order in which they are tried; exactly one where somebody named it.
pub(super) fn find(environment: &Environment) -> Result<Vec<Found>> {
    if let Some(host) = environment.var("CONTAINER_HOST") {
        let connection = Connection {
            name: None,
            uri: host.to_owned(),
            identity: environment.var("CONTAINER_SSHKEY").map(str::to_owned),
            machine: false,
        };
        return Ok(vec![named(environment, &connection, "CONTAINER_HOST")?]);
    }
    if let Some(name) = environment.var("CONTAINER_CONNECTION") {
        let mut known = connections(environment)?;
        let Some(connection) = known.all.remove(name) else {
            return Err(unknown(name, "CONTAINER_CONNECTION", &known));
        };
        return Ok(vec![named(environment, &connection, "CONTAINER_CONNECTION")?]);
    }
    // On Linux `podman` means this machine, unless its configuration says `remote`; elsewhere it is always a client.
    let mut known = connections(environment)?;
    if (known.remote || environment.macos)
        && let Some(name) = known.default.clone()
    {
        let Some(connection) = known.all.remove(&name) else {
            return Err(unknown(&name, "Podman's configuration", &known));
        };
        return Ok(vec![named(environment, &connection, &format!("Podman's connection {name}"))?]);
    }
    Ok(usual(environment))
}

/// The sockets that Podman's service listens at for this user, then its program.
fn usual(environment: &Environment) -> Vec<Found> {
    let place = if environment.macos { Place::Vm } else { Place::Here };
    let socket = match environment.runtime_dir() {
        Some(dir) if environment.uid != 0 => Some(dir.join("podman/podman.sock")),
        _ if environment.uid == 0 => Some(environment.system("run/podman/podman.sock")),
        _ => None,
    };
    let mut found: Vec<Found> = socket
        .into_iter()
        .filter(|path| std::fs::symlink_metadata(path).is_ok())
        .map(|path| Found { endpoint: Endpoint::Unix(path), place, named: false })
        .collect();
    if let Some(program) = environment.program("podman") {
        let endpoint = Endpoint::Podman { program, arguments: Vec::new(), remote: None };
        found.push(Found { endpoint, place, named: false });
    }
    found
}

/// A way to a Podman, by its configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Connection {
    name: Option<String>,
    uri: String,
    identity: Option<String>,
    machine: bool,
}

/// What Podman's configuration files say of connections.
#[derive(Debug, Default, PartialEq, Eq)]
struct Connections {
    remote: bool,
    default: Option<String>,
    all: BTreeMap<String, Connection>,
}

/// Reads them in Podman's order; what a later file says holds.
fn connections(environment: &Environment) -> Result<Connections> {
    let mut known = Connections::default();
    for path in configuration_files(environment)? {
        if let Some(text) = read(ENGINE, &path)? {
            known.read_toml(&path, &text)?;
        }
    }
    let file = match environment.var("PODMAN_CONNECTIONS_CONF") {
        Some(path) => Some(PathBuf::from(path)),
        None => environment.config_dir().map(|dir| dir.join("containers/podman-connections.json")),
    };
    if let Some(path) = file
        && let Some(text) = read(ENGINE, &path)?
    {
        known.read_json(&path, &text)?;
    }
    Ok(known)
}

/// The `containers.conf` files that count, with those of their `.d` directories after each.
fn configuration_files(environment: &Environment) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    match environment.var("CONTAINERS_CONF") {
        Some(path) => files.push(PathBuf::from(path)),
        None => {
            let mut places = vec![
                environment.system("usr/share/containers/containers.conf"),
                environment.system("etc/containers/containers.conf"),
            ];
            places.extend(environment.config_dir().map(|dir| dir.join("containers/containers.conf")));
            for path in places {
                let mut directory = path.clone().into_os_string();
                directory.push(".d");
                files.push(path);
                files.extend(parts(Path::new(&directory))?);
            }
        }
    }
    files.extend(environment.var("CONTAINERS_CONF_OVERRIDE").map(PathBuf::from));
    Ok(files)
}

/// The `.conf` files of a directory by name.
fn parts(directory: &Path) -> Result<Vec<PathBuf>> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Ok(Vec::new()) };
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|end| end == "conf"))
        .collect();
    files.sort();
    Ok(files)
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "Connection", default)]
    connection: FileConnections,
}

#[derive(Deserialize, Default)]
struct FileConnections {
    #[serde(rename = "Default", default)]
    default: String,
    #[serde(rename = "Connections", default)]
    connections: BTreeMap<String, FileConnection>,
}

#[derive(Deserialize)]
struct FileConnection {
    #[serde(rename = "URI", default)]
    uri: String,
    #[serde(rename = "Identity", default)]
    identity: String,
    #[serde(rename = "IsMachine", default)]
    machine: bool,
}

impl Connections {
    fn read_json(&mut self, path: &Path, text: &str) -> Result<()> {
        let file: File = serde_json::from_str(text).map_err(|error| broken(path, &error.to_string()))?;
        if !file.connection.default.is_empty() {
            self.default = Some(file.connection.default);
        }
        for (name, entry) in file.connection.connections {
            let identity = Some(entry.identity).filter(|identity| !identity.is_empty());
            let connection =
                Connection { name: Some(name.clone()), uri: entry.uri, identity, machine: entry.machine };
            self.all.insert(name, connection);
        }
        Ok(())
    }

    fn read_toml(&mut self, path: &Path, text: &str) -> Result<()> {
        let document: DocumentMut =
            text.parse().map_err(|error: toml_edit::TomlError| broken(path, error.message()))?;
        let Some(engine) = document.get("engine").and_then(|engine| engine.as_table_like()) else {
            return Ok(());
        };
        if let Some(remote) = engine.get("remote").and_then(|remote| remote.as_bool()) {
            self.remote = remote;
        }
        if let Some(name) = engine.get("active_service").and_then(|name| name.as_str()) {
            self.default = Some(name.to_owned());
        }
        let Some(services) = engine.get("service_destinations").and_then(|item| item.as_table_like()) else {
            return Ok(());
        };
        for (name, service) in services.iter() {
            let word =
                |key: &str| Some(service.get(key)?.as_str()?.to_owned()).filter(|word| !word.is_empty());
            let connection = Connection {
                name: Some(name.to_owned()),
                uri: word("uri").unwrap_or_default(),
                identity: word("identity"),
                machine: service.get("is_machine").and_then(|flag| flag.as_bool()).unwrap_or(false),
            };
            self.all.insert(name.to_owned(), connection);
        }
        Ok(())
    }
}

/// An address that somebody named.
fn named(environment: &Environment, connection: &Connection, told_by: &str) -> Result<Found> {
    let text = &connection.uri;
    let wrong = |what: &str| EngineError::Endpoint {
        engine: ENGINE,
        message: format!("{told_by} is {:?}: {what}", clean(text, 200)),
        fix: "use unix:///path/to/podman.sock, tcp://host:port or ssh://user@host/path/to/podman.sock"
            .to_owned(),
    };
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(wrong("an address with a scheme was expected"));
    };
    let vm = connection.machine || environment.macos;
    let (endpoint, place) = match scheme {
        "unix" if rest.starts_with('/') => {
            (Endpoint::Unix(PathBuf::from(rest)), if vm { Place::Vm } else { Place::Here })
        }
        "unix" => return Err(wrong("the path of a socket has to be absolute")),
        "tcp" => {
            let address = address(rest).filter(|address| address.user.is_none());
            let Some((address, port)) = address.and_then(|address| Some((address.host, address.port?)))
            else {
                return Err(wrong("host and port were expected"));
            };
            (Endpoint::Tcp { host: address.to_owned(), port, tls: None }, Place::Remote)
        }
        "ssh" => {
            if address(rest).is_none() {
                return Err(wrong("user and host were expected"));
            }
            let Some(program) = environment.program("podman") else {
                return Err(EngineError::NotInstalled {
                    engine: ENGINE,
                    cause: format!("there is no program podman on PATH, which {told_by} needs for ssh"),
                });
            };
            let arguments = match (&connection.name, &connection.identity) {
                (Some(name), _) => vec!["--connection".to_owned(), name.clone()],
                (None, identity) => {
                    let mut arguments = vec!["--remote".to_owned(), "--url".to_owned(), text.clone()];
                    if let Some(identity) = identity {
                        arguments.extend(["--identity".to_owned(), identity.clone()]);
                    }
                    arguments
                }
            };
            let place = if connection.machine { Place::Vm } else { Place::Remote };
            (Endpoint::Podman { program, arguments, remote: Some(clean(text, 200)) }, place)
        }
        _ => return Err(wrong("its scheme is not known")),
    };
    Ok(Found { endpoint, place, named: true })
}

fn unknown(name: &str, told_by: &str, known: &Connections) -> EngineError {
    let names: Vec<&str> = known.all.keys().map(String::as_str).collect();
    let there_are =
        if names.is_empty() { "there is none".to_owned() } else { format!("there are {}", names.join(", ")) };
    EngineError::Endpoint {
        engine: ENGINE,
        message: format!("{told_by} names the connection {name:?}, and {there_are}"),
        fix: "podman system connection list shows them; podman system connection default NAME chooses one"
            .to_owned(),
    }
}

fn broken(path: &Path, cause: &str) -> EngineError {
    EngineError::Endpoint {
        engine: ENGINE,
        message: format!("{} is not as Podman reads it: {}", path.display(), message(cause)),
        fix: format!("repair or remove {}, or set CONTAINER_HOST", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests_support::{environment, found, with};
    use super::*;

    fn write(path: PathBuf, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    /// An environment with a program `podman` on its `PATH`.
    fn with_program(root: &Path) -> (Environment, PathBuf) {
        use std::os::unix::fs::PermissionsExt;
        let program = root.join("bin/podman");
        write(program.clone(), "");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("relative:{}", root.join("bin").display());
        (with(&environment(root, 1000), &[("PATH", &path)]), program)
    }

    fn remote(program: &Path, arguments: &[&str], remote: &str) -> Endpoint {
        Endpoint::Podman {
            program: program.to_owned(),
            arguments: arguments.iter().map(|word| (*word).to_owned()).collect(),
            remote: Some(remote.to_owned()),
        }
    }

    #[test]
    fn container_host_wins() {
        let dir = tempfile::tempdir().unwrap();
        let (base, program) = with_program(dir.path());
        let at = |host: &str| find(&with(&base, &[("CONTAINER_HOST", host), ("CONTAINER_SSHKEY", "/k")]));
        assert_eq!(at("unix:///p.sock").unwrap(), [found(Endpoint::Unix("/p.sock".into()), Place::Here)]);
        let tcp = Endpoint::Tcp { host: "box".to_owned(), port: 1, tls: None };
        assert_eq!(at("tcp://box:1").unwrap(), [found(tcp, Place::Remote)]);
        let uri = "ssh://me@box:22/run/podman/podman.sock";
        let ssh = remote(&program, &["--remote", "--url", uri, "--identity", "/k"], uri);
        assert_eq!(at(uri).unwrap(), [found(ssh, Place::Remote)]);
        for bad in ["box", "unix://p", "tcp://box", "http://box:1", "ssh://-x"] {
            let EngineError::Endpoint { message, .. } = at(bad).unwrap_err() else { panic!("{bad}") };
            assert!(message.starts_with("CONTAINER_HOST is "), "{message}");
        }
    }

    #[test]
    fn connections_are_read_from_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let (base, program) = with_program(dir.path());
        write(
            dir.path().join("etc/containers/containers.conf"),
            "[engine]\nactive_service = \"a\"\n[engine.service_destinations.a]\nuri = \"ssh://a\"\n",
        );
        write(
            dir.path().join("home/.config/containers/podman-connections.json"),
            r#"{"Connection":{"Default":"b","Connections":{"b":{"URI":"ssh://b:1/s","IsMachine":true}}}}"#,
        );
        let named = |name: &str| find(&with(&base, &[("CONTAINER_CONNECTION", name)]));
        let a = remote(&program, &["--connection", "a"], "ssh://a");
        let b = remote(&program, &["--connection", "b"], "ssh://b:1/s");
        assert_eq!(named("a").unwrap(), [found(a, Place::Remote)]);
        assert_eq!(named("b").unwrap(), [found(b.clone(), Place::Vm)]);
        let EngineError::Endpoint { message, .. } = named("c").unwrap_err() else { panic!() };
        assert_eq!(message, "CONTAINER_CONNECTION names the connection \"c\", and there are a, b");

        // On Linux, this machine's own Podman is meant, until the configuration says otherwise.
        let local = Endpoint::Podman { program, arguments: Vec::new(), remote: None };
        assert_eq!(find(&base).unwrap(), [Found { endpoint: local, place: Place::Here, named: false }]);
        write(dir.path().join("etc/containers/containers.conf.d/x.conf"), "[engine]\nremote = true\n");
        assert_eq!(find(&base).unwrap(), [found(b, Place::Vm)]);
        write(dir.path().join("etc/containers/containers.conf.d/y.conf"), "[engine\n");
        let EngineError::Endpoint { message, .. } = find(&base).unwrap_err() else { panic!() };
        assert!(message.contains("y.conf"), "{message}");
    }

    #[test]
    fn the_users_own_socket_comes_first() {
        let dir = tempfile::tempdir().unwrap();
        let base = environment(dir.path(), 1000);
        let own = dir.path().join("run/user/1000/podman/podman.sock");
        let system = dir.path().join("run/podman/podman.sock");
        write(own.clone(), "");
        write(system.clone(), "");
        let usual =
            |path: &Path| Found { endpoint: Endpoint::Unix(path.into()), place: Place::Here, named: false };
        assert_eq!(find(&base).unwrap(), [usual(&own)]);
        assert_eq!(find(&Environment { uid: 0, ..base }).unwrap(), [usual(&system)]);
    }
}
