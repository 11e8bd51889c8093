//! What a command of the program and the gateway must agree on, so that it makes no difference who of them runs it.

use std::ffi::OsString;
use std::fmt::Write;

use moltis_config::schema;
use moltis_sandbox::Origin;
use sha2::{Digest, Sha256};

use crate::runtime::Runtime;

/// Variables by which an engine, a proxy or what commands see of the host is found.
const VARIABLES: &[&str] = &[
    "ALL_PROXY",
    "CONTAINER_CONNECTION",
    "CONTAINER_HOST",
    "DOCKER_CONFIG",
    "DOCKER_CONTEXT",
    "DOCKER_HOST",
    "HTTPS_PROXY",
    "HTTP_PROXY",
    "NO_PROXY",
    "PODMAN_HOST",
    "TZ",
    "all_proxy",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// A digest of it, which tells nothing of any value: the version, what the configuration says of commands, which files it
/// was read from, and the variables that say which engine is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sameness(String);

impl Sameness {
    /// As it is sent.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// That of this process, under the configuration that holds now.
pub fn sameness(runtime: &Runtime) -> Sameness {
    of(runtime, |name| std::env::var_os(name))
}

fn of(runtime: &Runtime, variable: impl Fn(&str) -> Option<OsString>) -> Sameness {
    let mut hash = Sha256::new();
    let mut add = |name: &str, value: &[u8]| {
        for part in [name.as_bytes(), value] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    };
    add("version", env!("CARGO_PKG_VERSION").as_bytes());
    let config = runtime.config();
    for key in schema::keys().filter(|key| key.path.starts_with("tools.")) {
        if let Some((value, origin)) = key.value(config) {
            add(key.path, value.as_bytes());
            add("asked", &[u8::from(origin != Origin::Default)]);
        }
    }
    // A secret is only said to be set: another one is another account.
    let sandbox = &config.tools.exec.sandbox;
    for secret in [&sandbox.vercel_token, &sandbox.daytona_api_key] {
        add("secret", secret.as_ref().map_or(&b""[..], |secret| secret.value.expose().as_bytes()));
    }
    for file in runtime.config_files() {
        add("file", file.as_os_str().as_encoded_bytes());
    }
    for name in VARIABLES {
        if let Some(value) = variable(name) {
            add(name, value.as_encoded_bytes());
        }
    }
    let digest = hash.finalize();
    Sameness(digest.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    }))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use moltis_config::Config;
    use moltis_config::value::secret::Secret;
    use moltis_sandbox::Setting;

    use super::*;

    fn same(change: impl FnOnce(&mut Config), files: &[&str], variables: &[(&str, &str)]) -> Sameness {
        let mut config = Config::default();
        change(&mut config);
        let runtime = Runtime::new(config, None, files.iter().map(PathBuf::from).collect());
        of(&runtime, |name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn what_makes_a_difference_to_a_command_differs() {
        let plain = same(|_| {}, &[], &[]);
        assert_eq!(plain, same(|_| {}, &[], &[]));
        let token = |text: &str| {
            let text = text.to_owned();
            move |config: &mut Config| {
                config.tools.exec.sandbox.vercel_token = Some(Setting::new(Secret::new(text), Origin::File));
            }
        };
        let others = [
            same(|config| config.tools.exec.default_timeout_secs.value = 31, &[], &[]),
            // Asked for, though it is what would hold anyway.
            same(|config| config.tools.exec.sandbox.network.origin = Origin::File, &[], &[]),
            same(token("one"), &[], &[]),
            same(token("two"), &[], &[]),
            same(|_| {}, &["/etc/moltis.toml"], &[]),
            same(|_| {}, &[], &[("DOCKER_HOST", "tcp://a")]),
            same(|_| {}, &[], &[("DOCKER_HOST", "tcp://b")]),
        ];
        for (at, one) in others.iter().enumerate() {
            assert_ne!(*one, plain, "{at}");
            assert!(others.iter().skip(at + 1).all(|other| other != one), "{at}");
        }
        // Where the gateway listens, and how the path of the data directory is written, changes no command.
        assert_eq!(plain, same(|config| config.gateway.port.value = 1, &[], &[]));
        assert_eq!(plain, same(|config| config.data_dir.value = "/elsewhere".into(), &[], &[]));
    }

    #[test]
    fn every_secret_counts() {
        let secrets: Vec<_> = schema::keys().filter(|key| key.secret).map(|key| key.path).collect();
        assert_eq!(secrets, ["tools.exec.sandbox.vercel_token", "tools.exec.sandbox.daytona_api_key"]);
    }
}
