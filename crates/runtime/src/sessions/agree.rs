//! Whether what a request says of a session agrees with what the session is, and what a new session stores of it.

use moltis_config::Config;
use moltis_config::value::number::write_size;
use moltis_sandbox::{Diagnosis, Error, MountMode, Result, SessionKey};

use crate::settings::{self, NamedWorkspace, Overrides};
use crate::store::{LimitPatch, Patch, SessionPatch, StoredWorkspace};

/// What a new session stores.
pub fn first_settings(asked: &Overrides) -> SessionPatch {
    fn set<T>(value: Option<T>) -> Patch<T> {
        value.map_or(Patch::Keep, Patch::Set)
    }
    let limits = LimitPatch {
        memory: set(asked.memory.map(|s| s.value)),
        cpus: set(asked.cpus.map(|s| s.value)),
        pids: set(asked.pids.map(|s| s.value)),
    };
    SessionPatch {
        sandbox_enabled: set(asked.enabled.map(|s| s.value)),
        sandbox_image: set(asked.image.clone().map(|s| s.value)),
        sandbox_backend: set(asked.backend.map(|s| s.value)),
        network: set(asked.network.map(|s| s.value)),
        limits: if limits == LimitPatch::default() { Patch::Keep } else { Patch::Set(limits) },
        workspace: set(asked
            .workspace
            .clone()
            .map(|s| StoredWorkspace { source: s.value.source, mode: s.value.mode })),
        ..SessionPatch::default()
    }
}

/// Compares what a request asks for with what the session, or else the configuration, says.
///
/// # Errors
/// `session-differs`, naming each value that differs and the line that would change it.
pub fn agree(key: &SessionKey, asked: &Overrides, stored: &Overrides, config: &Config) -> Result<()> {
    let sandbox = &config.tools.exec.sandbox;
    let mut differ = Differ::default();
    if let Some(asked) = asked.backend {
        let unset = Overrides { backend: stored.backend, enabled: stored.enabled, ..Overrides::default() };
        differ.compare("backend", asked.value, settings::choice(config, &unset).value, |choice| {
            choice.to_string()
        });
    }
    if let Some(asked) = asked.network {
        let is = stored.network.unwrap_or(sandbox.network).value;
        differ.compare("network", asked.value, is, |network| network.to_string());
    }
    if let Some(asked) = &asked.image {
        let is = stored.image.as_ref().map_or(String::new(), |image| image.value.to_string());
        differ.compare("image", asked.value.to_string(), is, Clone::clone);
    }
    if let Some(asked) = asked.memory {
        let is = stored.memory.map(|s| s.value).or(sandbox.resource_limits.memory_limit.map(|s| s.value));
        differ.compare("memory", Some(asked.value), is, |size| size.map_or(String::new(), write_size));
    }
    if let Some(asked) = asked.cpus {
        let is = stored.cpus.map(|s| s.value).or(sandbox.resource_limits.cpu_quota.map(|s| s.value));
        differ.compare("cpus", Some(asked.value), is, number);
    }
    if let Some(asked) = asked.pids {
        let is = stored.pids.map(|s| s.value).or(sandbox.resource_limits.pids_max.map(|s| s.value));
        differ.compare("pids", Some(asked.value), is, number);
    }
    if let Some(asked) = &asked.workspace {
        // What would be mounted, whoever said so.
        let is = settings::workspace(config, stored).map(|workspace| workspace.mount.value);
        let same = is.as_ref().is_some_and(|is| {
            is.source == asked.value.source && asked.value.mode.is_none_or(|mode| mode == is.mode)
        });
        if !same {
            let is = is.map(|is| NamedWorkspace { source: is.source, mode: Some(is.mode) });
            differ.name("workspace", &shown(&asked.value), &is.as_ref().map_or(String::new(), shown));
        }
    }
    differ.refuse(key)
}

fn number<T: ToString>(value: &Option<T>) -> String {
    value.as_ref().map_or(String::new(), ToString::to_string)
}

fn shown(workspace: &NamedWorkspace) -> String {
    let mode = match workspace.mode {
        Some(MountMode::Rw) => ":rw",
        Some(MountMode::Ro) => ":ro",
        None => "",
    };
    format!("{}{mode}", workspace.source.display())
}

/// What differs.
#[derive(Default)]
struct Differ {
    told: Vec<String>,
    flags: Vec<String>,
}

impl Differ {
    fn compare<T: PartialEq>(&mut self, name: &str, asked: T, is: T, show: impl Fn(&T) -> String) {
        if asked != is {
            self.name(name, &show(&asked), &show(&is));
        }
    }

    fn name(&mut self, name: &str, asked: &str, is: &str) {
        let is = if is.is_empty() { "not set".to_owned() } else { is.to_owned() };
        self.told.push(format!("{name} is {is}, not {asked}"));
        self.flags.push(format!("--{name} {}", quoted(asked)));
    }

    fn refuse(self, key: &SessionKey) -> Result<()> {
        if self.told.is_empty() {
            return Ok(());
        }
        let message =
            format!("the session {:?} is set up differently: {}", key.as_str(), self.told.join("; "));
        Err(Error::Refused(Diagnosis::new("session-differs", message).fix(format!(
            "leave the flags off, or change the session: moltis session set {} {}",
            quoted(key.as_str()),
            self.flags.join(" ")
        ))))
    }
}

/// A word as a shell reads it.
pub(crate) fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@,+".contains(c);
    if !word.is_empty() && word.chars().all(plain) && !word.starts_with('-') {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use moltis_config::BackendChoice;
    use moltis_sandbox::{BackendName, Network, Origin, Setting};

    use super::*;

    fn flag<T>(value: T) -> Option<Setting<T>> {
        Some(Setting::new(value, Origin::Flag))
    }

    #[test]
    fn what_is_the_same_is_no_difference() {
        let config = Config::default();
        let asked = Overrides {
            network: flag(Network::Blocked),
            backend: flag(BackendChoice::Auto),
            workspace: flag(NamedWorkspace { source: "/w".into(), mode: None }),
            ..Overrides::default()
        };
        let stored = Overrides {
            workspace: flag(NamedWorkspace { source: "/w".into(), mode: Some(MountMode::Rw) }),
            ..Overrides::default()
        };
        let key = SessionKey::new("s").unwrap();
        agree(&key, &asked, &stored, &config).unwrap();
    }

    #[test]
    fn each_difference_is_named_with_the_line_that_mends_it() {
        let asked = Overrides {
            network: flag(Network::Open),
            backend: flag(BackendChoice::Named(BackendName::None)),
            memory: flag(1 << 30),
            workspace: flag(NamedWorkspace { source: "/a b".into(), mode: Some(MountMode::Rw) }),
            ..Overrides::default()
        };
        let key = SessionKey::new("it's").unwrap();
        let error = agree(&key, &asked, &Overrides::default(), &Config::default()).unwrap_err();
        assert_eq!(error.code(), "session-differs");
        assert_eq!(
            error.diagnosis().message,
            "the session \"it's\" is set up differently: backend is auto, not none; network is blocked, not open; \
             memory is not set, not 1G; workspace is not set, not /a b:rw"
        );
        assert_eq!(
            error.diagnosis().fix.as_deref().unwrap(),
            r"leave the flags off, or change the session: moltis session set 'it'\''s' --backend none --network open --memory 1G --workspace '/a b:rw'"
        );
    }
}
