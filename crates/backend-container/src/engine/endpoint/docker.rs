//! Where Docker is: `DOCKER_HOST`, a context, or one of the usual sockets.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::{Endpoint, Environment, Found, TlsFiles, address, read};
use crate::engine::{EngineError, EngineKind, Place, Result};

const ENGINE: EngineKind = EngineKind::Docker;

/// Candidates in the order in which they are tried; exactly one where somebody named it.
pub(super) fn find(environment: &Environment) -> Result<Vec<Found>> {
    if let Some(host) = environment.var("DOCKER_HOST") {
        let tls = || tls_of_environment(environment);
        return Ok(vec![named(environment, host, "DOCKER_HOST", tls)?]);
    }
    let directory = config_directory(environment);
    if let Some(name) = environment.var("DOCKER_CONTEXT") {
        if name != "default" {
            return Ok(vec![context(environment, directory.as_deref(), name, "DOCKER_CONTEXT")?]);
        }
    } else if let Some(directory) = &directory
        && let Some(name) = current_context(directory)?
    {
        let told_by = directory.join("config.json").display().to_string();
        return Ok(vec![context(environment, Some(directory), &name, &told_by)?]);
    }
    Ok(usual(environment))
}

/// The sockets that Docker, rootless Docker and Docker Desktop listen at.
fn usual(environment: &Environment) -> Vec<Found> {
    let here = if environment.macos { Place::Vm } else { Place::Here };
    let mut places = vec![(environment.system("var/run/docker.sock"), here)];
    if let Some(dir) = environment.runtime_dir() {
        places.push((dir.join("docker.sock"), here));
    }
    if let Some(home) = &environment.home {
        places.push((home.join(".docker/desktop/docker.sock"), Place::Vm));
        places.push((home.join(".docker/run/docker.sock"), Place::Vm));
    }
    places
        .into_iter()
        .filter(|(path, _)| std::fs::symlink_metadata(path).is_ok())
        .map(|(path, place)| Found { endpoint: Endpoint::Unix(path), place, named: false })
        .collect()
}

/// Where the configuration of Docker's own program is.
pub(in crate::engine) fn config_directory(environment: &Environment) -> Option<PathBuf> {
    match environment.var("DOCKER_CONFIG") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => environment.home.as_ref().map(|home| home.join(".docker")),
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(rename = "currentContext", default)]
    current_context: String,
}

/// The context that is in use; `None` for Docker's default.
fn current_context(directory: &Path) -> Result<Option<String>> {
    let path = directory.join("config.json");
    let Some(text) = read(ENGINE, &path)? else { return Ok(None) };
    let config: Config = serde_json::from_str(&text).map_err(|error| broken(&path, &error.to_string()))?;
    Ok(Some(config.current_context).filter(|name| !name.is_empty() && name != "default"))
}

#[derive(Deserialize)]
struct Meta {
    #[serde(rename = "Endpoints", default)]
    endpoints: std::collections::BTreeMap<String, MetaEndpoint>,
}

#[derive(Deserialize)]
struct MetaEndpoint {
    #[serde(rename = "Host", default)]
    host: String,
    #[serde(rename = "SkipTLSVerify", default)]
    skip_tls_verify: bool,
}

/// The endpoint of a context. Its files lie under a hash of its name.
fn context(environment: &Environment, directory: Option<&Path>, name: &str, told_by: &str) -> Result<Found> {
    let Some(directory) = directory else {
        return Err(EngineError::Endpoint {
            engine: ENGINE,
            message: format!(
                "{told_by} names the context {name:?}, and there is no home directory to look in"
            ),
            fix: "set DOCKER_CONFIG, or DOCKER_HOST".to_owned(),
        });
    };
    let id: String = Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
    let path = directory.join("contexts/meta").join(&id).join("meta.json");
    let Some(text) = read(ENGINE, &path)? else {
        return Err(EngineError::Endpoint {
            engine: ENGINE,
            message: format!("{told_by} names the context {name:?}, and there is no {}", path.display()),
            fix: "docker context ls shows those that there are; docker context use NAME chooses one"
                .to_owned(),
        });
    };
    let meta: Meta = serde_json::from_str(&text).map_err(|error| broken(&path, &error.to_string()))?;
    let Some(endpoint) = meta.endpoints.get("docker").filter(|endpoint| !endpoint.host.is_empty()) else {
        return Err(broken(&path, "it has no endpoint \"docker\" with a \"Host\""));
    };
    let files = directory.join("contexts/tls").join(&id).join("docker");
    let tls = || {
        if endpoint.skip_tls_verify {
            return Err(unverified(&path.display().to_string()));
        }
        Ok(files.is_dir().then(|| TlsFiles::of_context(&files)))
    };
    named(environment, &endpoint.host, &path.display().to_string(), tls)
}

/// TLS as the variables ask for it. The files lie in `DOCKER_CERT_PATH`, or in the configuration directory.
fn tls_of_environment(environment: &Environment) -> Result<Option<TlsFiles>> {
    if environment.var("DOCKER_TLS_VERIFY").is_none() {
        return match environment.var("DOCKER_TLS") {
            Some(_) => Err(unverified("DOCKER_TLS")),
            None => Ok(None),
        };
    }
    let directory = match environment.var("DOCKER_CERT_PATH") {
        Some(dir) => Some(PathBuf::from(dir)),
        None => config_directory(environment),
    };
    match directory {
        Some(directory) => TlsFiles::of_directory(ENGINE, &directory).map(Some),
        None => Err(EngineError::Endpoint {
            engine: ENGINE,
            message: "DOCKER_TLS_VERIFY is set, and there is no directory with certificates".to_owned(),
            fix: "set DOCKER_CERT_PATH to the directory with ca.pem, cert.pem and key.pem".to_owned(),
        }),
    }
}

/// An address that somebody named.
fn named(
    environment: &Environment,
    text: &str,
    told_by: &str,
    tls: impl FnOnce() -> Result<Option<TlsFiles>>,
) -> Result<Found> {
    let wrong = |what: &str| EngineError::Endpoint {
        engine: ENGINE,
        message: format!("{told_by} is {:?}: {what}", crate::engine::words::clean(text, 200)),
        fix: "use unix:///path/to/docker.sock, tcp://host:2376 or ssh://user@host".to_owned(),
    };
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(wrong("an address with a scheme was expected"));
    };
    let (endpoint, place) = match scheme {
        "unix" if rest.starts_with('/') => {
            let in_vm = environment.macos || is_desktop(environment, Path::new(rest));
            (Endpoint::Unix(PathBuf::from(rest)), if in_vm { Place::Vm } else { Place::Here })
        }
        "unix" => return Err(wrong("the path of a socket has to be absolute")),
        "tcp" | "http" | "https" => {
            let address = address(rest).filter(|address| matches!(address.path, "" | "/"));
            let Some(address) = address.filter(|address| address.user.is_none()) else {
                return Err(wrong("host and port were expected"));
            };
            let tls = tls()?;
            if scheme == "https" && tls.is_none() {
                return Err(wrong("https needs DOCKER_TLS_VERIFY=1 and certificates in DOCKER_CERT_PATH"));
            }
            let port = address.port.unwrap_or(if tls.is_some() { 2376 } else { 2375 });
            (Endpoint::Tcp { host: address.host.to_owned(), port, tls }, Place::Remote)
        }
        "ssh" => {
            let Some(address) = address(rest) else { return Err(wrong("user and host were expected")) };
            let destination = match address.user {
                Some(user) => format!("{user}@{}", address.host),
                None => address.host.to_owned(),
            };
            let socket = Some(address.path).filter(|path| !matches!(*path, "" | "/")).map(str::to_owned);
            (Endpoint::Ssh { destination, port: address.port, socket }, Place::Remote)
        }
        "npipe" => return Err(wrong("named pipes are Windows' own")),
        _ => return Err(wrong("its scheme is not known")),
    };
    Ok(Found { endpoint, place, named: true })
}

/// Whether a socket is one of Docker Desktop's.
fn is_desktop(environment: &Environment, path: &Path) -> bool {
    environment.home.as_ref().is_some_and(|home| path.starts_with(home.join(".docker")))
}

fn broken(path: &Path, cause: &str) -> EngineError {
    EngineError::Endpoint {
        engine: ENGINE,
        message: format!(
            "{} is not as Docker writes it: {}",
            path.display(),
            crate::engine::words::message(cause)
        ),
        fix: format!("repair or remove {}, or set DOCKER_HOST", path.display()),
    }
}

fn unverified(told_by: &str) -> EngineError {
    EngineError::Endpoint {
        engine: ENGINE,
        message: format!("{told_by} asks for TLS that does not check whom it speaks to"),
        fix: "use DOCKER_TLS_VERIFY=1 with ca.pem in DOCKER_CERT_PATH".to_owned(),
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

    fn meta(root: &Path, name: &str, text: &str) -> PathBuf {
        let id: String = Sha256::digest(name.as_bytes()).iter().map(|b| format!("{b:02x}")).collect();
        let path = root.join("home/.docker/contexts/meta").join(id).join("meta.json");
        write(path.clone(), text);
        path
    }

    #[test]
    fn docker_host_wins_and_is_read_strictly() {
        let dir = tempfile::tempdir().unwrap();
        let base = environment(dir.path(), 1000);
        let at = |host: &str| find(&with(&base, &[("DOCKER_HOST", host), ("DOCKER_CONTEXT", "nope")]));
        let unix = Endpoint::Unix("/x/docker.sock".into());
        assert_eq!(at("unix:///x/docker.sock").unwrap(), [found(unix, Place::Here)]);
        let tcp = |port| Endpoint::Tcp { host: "box".to_owned(), port, tls: None };
        assert_eq!(at("tcp://box").unwrap(), [found(tcp(2375), Place::Remote)]);
        assert_eq!(at("tcp://box:80/").unwrap(), [found(tcp(80), Place::Remote)]);
        let ssh = Endpoint::Ssh {
            destination: "me@box".to_owned(),
            port: Some(2222),
            socket: Some("/s".to_owned()),
        };
        assert_eq!(at("ssh://me@box:2222/s").unwrap(), [found(ssh, Place::Remote)]);
        for bad in [
            "box",
            "unix://x",
            "ftp://x",
            "npipe:////./pipe/x",
            "tcp://box/path",
            "ssh://-oX=y",
            "https://box",
        ] {
            let error = at(bad).unwrap_err();
            let EngineError::Endpoint { message, .. } = &error else { panic!("{bad}: {error:?}") };
            assert!(message.starts_with("DOCKER_HOST is "), "{message}");
        }
    }

    #[test]
    fn tls_files_are_named_when_they_are_missing() {
        let dir = tempfile::tempdir().unwrap();
        let certs = dir.path().join("certs");
        let base = with(
            &environment(dir.path(), 1000),
            &[
                ("DOCKER_HOST", "tcp://box"),
                ("DOCKER_TLS_VERIFY", "1"),
                ("DOCKER_CERT_PATH", certs.to_str().unwrap()),
            ],
        );
        let EngineError::Endpoint { message, fix, .. } = find(&base).unwrap_err() else { panic!() };
        assert_eq!(message, format!("there is no {}", certs.join("ca.pem").display()));
        assert!(fix.contains("DOCKER_CERT_PATH"), "{fix}");
        for name in ["ca.pem", "cert.pem", "key.pem"] {
            write(certs.join(name), "");
        }
        let [Found { endpoint: Endpoint::Tcp { port: 2376, tls: Some(_), .. }, .. }] =
            &find(&base).unwrap()[..]
        else {
            panic!()
        };
        let unverified =
            with(&environment(dir.path(), 1), &[("DOCKER_HOST", "tcp://b"), ("DOCKER_TLS", "1")]);
        assert!(matches!(find(&unverified), Err(EngineError::Endpoint { .. })));
    }

    #[test]
    fn contexts_are_found_by_their_hash() {
        let dir = tempfile::tempdir().unwrap();
        let base = environment(dir.path(), 1000);
        let path = meta(dir.path(), "far", r#"{"Name":"far","Endpoints":{"docker":{"Host":"ssh://far"}}}"#);
        let ssh = || Endpoint::Ssh { destination: "far".to_owned(), port: None, socket: None };
        let chosen = with(&base, &[("DOCKER_CONTEXT", "far")]);
        assert_eq!(find(&chosen).unwrap(), [found(ssh(), Place::Remote)]);
        write(dir.path().join("home/.docker/config.json"), r#"{"auths":{},"currentContext":"far"}"#);
        assert_eq!(find(&base).unwrap(), [found(ssh(), Place::Remote)]);
        assert_eq!(find(&with(&base, &[("DOCKER_CONTEXT", "default")])).unwrap(), []);

        let told = |environment: &Environment| {
            let EngineError::Endpoint { message, fix, .. } = find(environment).unwrap_err() else { panic!() };
            assert!(!fix.is_empty());
            message
        };
        assert!(told(&with(&base, &[("DOCKER_CONTEXT", "gone")])).contains("\"gone\""));
        std::fs::write(&path, "{").unwrap();
        assert!(told(&base).starts_with(&path.display().to_string()));
        std::fs::write(&path, r#"{"Endpoints":{}}"#).unwrap();
        assert!(told(&base).contains("no endpoint"));
        std::fs::write(&path, r#"{"Endpoints":{"docker":{"Host":"tcp://far:1","SkipTLSVerify":true}}}"#)
            .unwrap();
        assert!(told(&base).contains("does not check"));
        write(dir.path().join("home/.docker/config.json"), "[");
        assert!(told(&base).contains("config.json"));
    }

    #[test]
    fn usual_sockets_are_tried_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let base = environment(dir.path(), 1000);
        assert_eq!(find(&base).unwrap(), []);
        let desktop = dir.path().join("home/.docker/desktop/docker.sock");
        let rootless = dir.path().join("run/user/1000/docker.sock");
        let system = dir.path().join("var/run/docker.sock");
        let usual = |path: &Path, place| Found { endpoint: Endpoint::Unix(path.into()), place, named: false };
        write(desktop.clone(), "");
        write(rootless.clone(), "");
        write(system.clone(), "");
        assert_eq!(
            find(&base).unwrap(),
            [usual(&system, Place::Here), usual(&rootless, Place::Here), usual(&desktop, Place::Vm)]
        );
        let mac = Environment { macos: true, ..base };
        assert_eq!(find(&mac).unwrap()[0], usual(&system, Place::Vm));
    }
}
