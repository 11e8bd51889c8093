//! What a session sets over the configuration, and how a request changes it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use moltis_config::value::image::ImageReference;
use moltis_config::value::secret::Secret;
use moltis_config::words::{BackendChoice, OnUnknown};
use moltis_sandbox::{DomainPattern, MountMode, Network};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::error::{Result, StoreError};
use super::word;

/// A change of one value: absent in the request leaves it, `null` clears it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Patch<T> {
    /// Leave it as it is.
    #[default]
    Keep,
    /// Set nothing: what the configuration says holds again.
    Clear,
    /// Set this.
    Set(T),
}

impl<T> Patch<T> {
    /// Whether it changes nothing.
    pub fn is_keep(&self) -> bool {
        matches!(self, Self::Keep)
    }

    fn apply(&self, value: &mut Option<T>)
    where
        T: Clone,
    {
        match self {
            Self::Keep => {}
            Self::Clear => *value = None,
            Self::Set(new) => *value = Some(new.clone()),
        }
    }

    fn set(&self) -> Option<&T> {
        match self {
            Self::Set(value) => Some(value),
            Self::Keep | Self::Clear => None,
        }
    }
}

impl<T> From<Option<T>> for Patch<T> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Clear, Self::Set)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Patch<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::from)
    }
}

/// What a session sets over the configuration; absent is not set. Variables are apart, because their values are
/// secrets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionOverrides {
    /// Whether its commands run in a sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox_enabled: Option<bool>,
    /// A finished image.
    #[serde(skip_serializing_if = "Option::is_none", with = "word::option")]
    pub sandbox_image: Option<ImageReference>,
    /// Backend, or `auto`.
    #[serde(skip_serializing_if = "Option::is_none", with = "word::option")]
    pub sandbox_backend: Option<BackendChoice>,
    /// Network policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Limits.
    #[serde(skip_serializing_if = "LimitOverrides::is_empty")]
    pub limits: LimitOverrides,
    /// Named workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<StoredWorkspace>,
    /// Time without use after which its sandbox ends, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_ttl_secs: Option<u64>,
    /// Domains that are allowed besides those of the configuration.
    #[serde(skip_serializing_if = "Option::is_none", with = "word::list")]
    pub trusted_domains: Option<Vec<DomainPattern>>,
    /// Domains that are denied besides those of the configuration.
    #[serde(skip_serializing_if = "Option::is_none", with = "word::list")]
    pub denied_domains: Option<Vec<DomainPattern>>,
    /// What happens to a domain on neither list.
    #[serde(skip_serializing_if = "Option::is_none", with = "word::option")]
    pub on_unknown: Option<OnUnknown>,
    /// Instructions that a WASI module may run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wasm_fuel_limit: Option<u64>,
}

/// Limits that a session sets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitOverrides {
    /// Memory in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Processor time in cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pids: Option<u64>,
}

impl LimitOverrides {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A host folder that a session shows at `/workspace`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StoredWorkspace {
    /// Absolute host path, in UTF-8.
    pub source: PathBuf,
    /// Read-only or writable; absent: what the configuration says.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mode: Option<MountMode>,
}

/// A change of a session. What is absent stays as it is, `null` clears.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SessionPatch {
    /// Whether its commands run in a sandbox.
    pub sandbox_enabled: Patch<bool>,
    /// A finished image.
    #[serde(with = "word::patch")]
    pub sandbox_image: Patch<ImageReference>,
    /// Backend, or `auto`.
    #[serde(with = "word::patch")]
    pub sandbox_backend: Patch<BackendChoice>,
    /// Network policy.
    pub network: Patch<Network>,
    /// Limits, each by itself; `null` clears all.
    pub limits: Patch<LimitPatch>,
    /// Named workspace.
    pub workspace: Patch<StoredWorkspace>,
    /// Variables, each by itself; `null` clears all.
    pub env: Patch<BTreeMap<String, Patch<EnvValue>>>,
    /// Time without use after which its sandbox ends, in seconds.
    pub idle_ttl_secs: Patch<u64>,
    /// Domains that are allowed besides those of the configuration.
    #[serde(with = "word::list_patch")]
    pub trusted_domains: Patch<Vec<DomainPattern>>,
    /// Domains that are denied besides those of the configuration.
    #[serde(with = "word::list_patch")]
    pub denied_domains: Patch<Vec<DomainPattern>>,
    /// What happens to a domain on neither list.
    #[serde(with = "word::patch")]
    pub on_unknown: Patch<OnUnknown>,
    /// Instructions that a WASI module may run.
    pub wasm_fuel_limit: Patch<u64>,
}

/// A change of a session's limits.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LimitPatch {
    /// Memory in bytes.
    pub memory: Patch<u64>,
    /// Processor time in cores.
    pub cpus: Patch<f64>,
    /// Processes and threads.
    pub pids: Patch<u64>,
}

/// The value of a variable: a secret that no output, error or debug print shows.
#[derive(Clone, PartialEq)]
pub struct EnvValue(Secret);

impl EnvValue {
    /// Takes a value.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Secret::new(value))
    }

    /// The value itself, for the command that needs it.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl fmt::Debug for EnvValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl<'de> Deserialize<'de> for EnvValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        // The errors that serde makes for a wrong type quote the value.
        macro_rules! refuse {
            ($($visit:ident: $type:ty),*) => {
                $(fn $visit<E: de::Error>(self, _: $type) -> Result<EnvValue, E> {
                    Err(E::custom("the value of a variable must be a string"))
                })*
            };
        }

        impl Visitor<'_> for Text {
            type Value = EnvValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<EnvValue, E> {
                Ok(EnvValue::new(text))
            }

            fn visit_string<E: de::Error>(self, text: String) -> Result<EnvValue, E> {
                Ok(EnvValue::new(text))
            }

            refuse!(visit_bool: bool, visit_i64: i64, visit_u64: u64, visit_f64: f64, visit_bytes: &[u8]);
        }

        deserializer.deserialize_any(Text)
    }
}

impl SessionPatch {
    /// Judges what types alone cannot.
    ///
    /// # Errors
    /// [`StoreError::Override`], which names the value and never quotes a variable's.
    pub fn check(&self) -> Result<()> {
        let wrong = |name, why| Err(StoreError::Override { name, why });
        if let Some(limits) = self.limits.set() {
            if limits.memory.set().is_some_and(|bytes| !(1 << 20..=i64::MAX as u64).contains(bytes)) {
                return wrong("limits.memory", "use at least 1048576 bytes (1 MiB)");
            }
            if limits.cpus.set().is_some_and(|cores| !(cores.is_finite() && *cores > 0.0)) {
                return wrong("limits.cpus", "use a number of cores above 0");
            }
            if limits.pids.set().is_some_and(|count| !(1..=4_194_304).contains(count)) {
                return wrong("limits.pids", "use 1 to 4194304");
            }
        }
        if let Some(workspace) = self.workspace.set() {
            if !workspace.source.is_absolute() {
                return wrong("workspace", "name the folder by its absolute path");
            }
            let text = workspace.source.to_str();
            if text.is_none_or(|text| text.contains('\0') || text.len() > 4096) {
                return wrong(
                    "workspace",
                    "a folder that is stored must have a path in UTF-8 of at most 4096 bytes",
                );
            }
        }
        if self.idle_ttl_secs.set().is_some_and(|ttl| !(1..=31_536_000).contains(ttl)) {
            return wrong("idleTtlSecs", "use 1 to 31536000 seconds");
        }
        if self.wasm_fuel_limit.set().is_some_and(|fuel| !(1..=i64::MAX as u64).contains(fuel)) {
            return wrong("wasmFuelLimit", "use at least 1 instruction");
        }
        for (name, list) in
            [("trustedDomains", &self.trusted_domains), ("deniedDomains", &self.denied_domains)]
        {
            if list.set().is_some_and(|list| list.len() > 1024) {
                return wrong(name, "use at most 1024 entries");
            }
        }
        for (name, value) in self.env.set().into_iter().flatten() {
            if name.is_empty() || name.len() > 256 || name.contains(['=', '\0']) {
                return wrong("env", "a variable's name is 1 to 256 bytes without `=` and NUL");
            }
            if value.set().is_some_and(|value| value.expose().contains('\0')) {
                return wrong("env", "a variable's value holds no NUL byte");
            }
        }
        Ok(())
    }

    /// Changes everything but the variables.
    pub(super) fn apply(&self, to: &mut SessionOverrides) {
        self.sandbox_enabled.apply(&mut to.sandbox_enabled);
        self.sandbox_image.apply(&mut to.sandbox_image);
        self.sandbox_backend.apply(&mut to.sandbox_backend);
        self.network.apply(&mut to.network);
        match &self.limits {
            Patch::Keep => {}
            Patch::Clear => to.limits = LimitOverrides::default(),
            Patch::Set(limits) => {
                limits.memory.apply(&mut to.limits.memory);
                limits.cpus.apply(&mut to.limits.cpus);
                limits.pids.apply(&mut to.limits.pids);
            }
        }
        self.workspace.apply(&mut to.workspace);
        self.idle_ttl_secs.apply(&mut to.idle_ttl_secs);
        self.trusted_domains.apply(&mut to.trusted_domains);
        self.denied_domains.apply(&mut to.denied_domains);
        self.on_unknown.apply(&mut to.on_unknown);
        self.wasm_fuel_limit.apply(&mut to.wasm_fuel_limit);
    }

    /// Changes the variables.
    ///
    /// # Errors
    /// When they would be more than a sandbox's environment can hold.
    pub(super) fn apply_env(&self, to: &mut BTreeMap<String, String>) -> Result<()> {
        match &self.env {
            Patch::Keep => return Ok(()),
            Patch::Clear => to.clear(),
            Patch::Set(changes) => {
                for (name, change) in changes {
                    match change {
                        Patch::Keep => {}
                        Patch::Clear => drop(to.remove(name)),
                        Patch::Set(value) => drop(to.insert(name.clone(), value.expose().to_owned())),
                    }
                }
            }
        }
        if to.iter().map(|(name, value)| name.len() + value.len() + 2).sum::<usize>() > 256 << 10 {
            return Err(StoreError::Override { name: "env", why: "all variables together are over 256 KiB" });
        }
        Ok(())
    }
}
