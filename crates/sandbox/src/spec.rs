//! Everything that decides what a sandbox *is*. Two specs with the same fingerprint may share a running sandbox; a
//! different one means that it must be made anew.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{Beginning, Gpus, ImageChoice, Limits, Network, Origin, SandboxId, SessionKey, Setting};

/// Whether a mount can be written to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MountMode {
    /// Read-only.
    #[default]
    Ro,
    /// Readable and writable.
    Rw,
}

/// A host folder or file that shows inside the sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute host path. Resolved, judged and opened once by the backend.
    pub source: PathBuf,
    /// Absolute guest path.
    pub target: PathBuf,
    /// Whether the sandbox may write to it.
    pub mode: MountMode,
}

/// How long a sandbox lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Lifetime {
    /// It ends with the process that opened it, however that one ends.
    Ephemeral,
    /// It outlives its opener and ends itself after this long without use.
    Idle(Duration),
}

/// What a sandbox is made of. Paths are the host's unless said otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxSpec {
    /// The session it belongs to.
    pub key: SessionKey,
    /// How long it lives.
    pub lifetime: Lifetime,
    /// What it may reach.
    pub network: Setting<Network>,
    /// What it may use up.
    pub limits: Limits,
    /// Host folder behind `/home/sandbox`, a folder of ours; absent: a home that ends with the sandbox.
    pub home: Option<PathBuf>,
    /// Who asked for a home that lasts.
    pub home_origin: Origin,
    /// Bytes in the home above which no new command starts; whoever starts commands measures it.
    pub home_quota: Option<Setting<u64>>,
    /// The named workspace at `/workspace`, and who named it.
    pub workspace: Option<Setting<Mount>>,
    /// Who set the workspace's mode. `Default` where `ro` stands only because nobody said otherwise.
    pub workspace_mode: Origin,
    /// Globs below a writable workspace whose existing matches stay read-only, because the host runs them
    /// later.
    pub workspace_protect: Vec<String>,
    /// Who set those globs.
    pub workspace_protect_origin: Origin,
    /// Globs of names below the workspace that are sent to a provider though they are those of secrets. No part of what the
    /// sandbox is.
    #[serde(default)]
    pub workspace_upload: Vec<String>,
    /// Managed files at `/home/sandbox/files`.
    pub managed_files: Option<Mount>,
    /// Who asked for them.
    pub managed_files_origin: Origin,
    /// Further mounts from the configuration file.
    pub mounts: Vec<Setting<Mount>>,
    /// Root directory to use instead of the host's system folders (`namespaces`).
    pub rootfs: Option<Setting<PathBuf>>,
    /// What a container starts from; absent: the backend has its own.
    pub image: Option<ImageChoice>,
    /// The snapshot that it begins from; absent: none.
    #[serde(default)]
    pub begins: Option<Beginning>,
    /// OCI runtime of the engine, such as `runsc`; absent: the engine's own.
    pub runtime: Option<Setting<String>>,
    /// GPUs that it gets; absent: none.
    pub gpus: Option<Setting<Gpus>>,
    /// It gets the host's Podman socket, which removes the boundary.
    pub host_podman: Setting<bool>,
    /// Podman runs inside it, for which it is privileged.
    pub nested_podman: Setting<bool>,
    /// A user's folder is relabelled for SELinux when it is mounted.
    pub selinux_relabel: bool,
    /// First part of the names of containers and images. A label decides what is ours, not the name.
    pub container_prefix: String,
    /// Instructions that one run of a WASI module may execute (`wasm_fuel_limit`); absent: what the backend was set up
    /// with. No part of what the sandbox is.
    #[serde(default)]
    pub fuel: Option<Setting<u64>>,
    /// Host uid that stands behind the sandbox's user when Moltis runs as root.
    pub sandbox_uid: Option<u32>,
    /// `allow_unenforced = true` stands in the configuration file: on `restricted-host` a demanded network
    /// policy is listed as not enforced instead of refused. No other source may set it.
    pub allow_unenforced: bool,
    /// The sandbox was switched off by name (backend `none`, `mode = "off"`, `sandboxEnabled = false`): what the
    /// configuration file demands is listed where it is not kept, instead of refused.
    pub switched_off: bool,
}

impl SandboxSpec {
    /// The smallest spec: everything built in, no home, no mounts, no limits, network blocked.
    pub fn new(key: SessionKey, lifetime: Lifetime) -> Self {
        Self {
            key,
            lifetime,
            network: Setting::built_in(Network::Blocked),
            limits: Limits::default(),
            home: None,
            home_origin: Origin::Default,
            home_quota: None,
            workspace: None,
            workspace_mode: Origin::Default,
            workspace_protect: Vec::new(),
            workspace_protect_origin: Origin::Default,
            workspace_upload: Vec::new(),
            managed_files: None,
            managed_files_origin: Origin::Default,
            mounts: Vec::new(),
            rootfs: None,
            image: None,
            begins: None,
            runtime: None,
            gpus: None,
            host_podman: Setting::built_in(false),
            nested_podman: Setting::built_in(false),
            selinux_relabel: false,
            container_prefix: "moltis".to_owned(),
            fuel: None,
            sandbox_uid: None,
            allow_unenforced: false,
            switched_off: false,
        }
    }

    /// The sandbox's opaque id.
    pub fn id(&self) -> SandboxId {
        SandboxId::of(&self.key)
    }

    /// SHA-256, in hexadecimal, over all that would make a running sandbox the wrong one: mounts, limits, root, image,
    /// devices, uid, and whether the network is `open`. `blocked` and `trusted` share one, since they change live; who set a
    /// value, how long the sandbox lives and what may be left unenforced do not count.
    pub fn fingerprint(&self) -> String {
        self.digest(true)
    }

    /// SHA-256, in hexadecimal, over all but the session: two specs with the same one could be the same sandbox, under
    /// whichever session. The network policy is part of it.
    pub fn pool_key(&self) -> String {
        self.digest(false)
    }

    fn digest(&self, of_session: bool) -> String {
        let mut hash = Sha256::new();
        let mut field = |name: &str, value: &dyn std::fmt::Debug| {
            // Debug of strings and paths escapes quotes and newlines, so fields cannot run into each other.
            hash.update(format!("{name}={value:?}\n").as_bytes());
        };
        if of_session {
            field("key", &self.key.as_str());
        } else {
            field("network", &self.network.value);
        }
        field("open", &(self.network.value == Network::Open));
        field("memory", &self.limits.memory.map(|s| s.value));
        field("cpus", &self.limits.cpus.map(|s| s.value));
        field("pids", &self.limits.pids.map(|s| s.value));
        field("home", &self.home);
        field("workspace", &self.workspace.as_ref().map(|s| &s.value));
        field("protect", &self.workspace_protect);
        field("files", &self.managed_files);
        field("mounts", &self.mounts.iter().map(|s| &s.value).collect::<Vec<_>>());
        field("rootfs", &self.rootfs.as_ref().map(|s| &s.value));
        match &self.image {
            None => field("image", &()),
            Some(ImageChoice::Base { reference, packages }) => {
                field("base", &(&reference.value, &packages.value));
            }
            Some(ImageChoice::Finished { reference }) => field("image", &reference.value),
        }
        if let Some(begins) = &self.begins {
            field("begins", begins);
        }
        field("runtime", &self.runtime.as_ref().map(|s| &s.value));
        field("gpus", &self.gpus.as_ref().map(|s| &s.value));
        field("podman", &(self.host_podman.value, self.nested_podman.value));
        field("relabel", &self.selinux_relabel);
        field("prefix", &self.container_prefix);
        field("uid", &self.sandbox_uid);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral)
    }

    #[test]
    fn the_fingerprint_follows_what_the_sandbox_is() {
        let base = spec().fingerprint();
        let mut open = spec();
        open.network = Setting::new(Network::Open, Origin::Flag);
        let mut home = spec();
        home.home = Some("/h".into());
        let mut pids = spec();
        pids.limits.pids = Some(Setting::built_in(7));
        let changed = |change: fn(&mut SandboxSpec)| {
            let mut changed = spec();
            change(&mut changed);
            changed
        };
        let reference = || Setting::built_in("a".to_owned());
        let mut base_image = spec();
        base_image.image =
            Some(ImageChoice::Base { reference: reference(), packages: Setting::built_in(vec![]) });
        let mut finished = spec();
        finished.image = Some(ImageChoice::Finished { reference: reference() });
        let mut all = vec![open, home, pids, base_image, finished];
        all.push(changed(|spec| spec.runtime = Some(Setting::new("runsc".into(), Origin::File))));
        all.push(changed(|spec| spec.gpus = Some(Setting::new(Gpus::All, Origin::File))));
        all.push(changed(|spec| spec.host_podman = Setting::new(true, Origin::File)));
        all.push(changed(|spec| spec.nested_podman = Setting::new(true, Origin::File)));
        all.push(changed(|spec| spec.selinux_relabel = true));
        all.push(changed(|spec| spec.container_prefix = "other".into()));
        all.push(changed(|spec| {
            let snapshot = crate::SnapshotId::parse("snap-0123456789abcdef").unwrap();
            spec.begins = Some(Beginning { snapshot, root: None });
        }));
        let mut prints: Vec<_> = all.iter().map(SandboxSpec::fingerprint).collect();
        prints.push(base);
        prints.sort();
        prints.dedup();
        assert_eq!(prints.len(), all.len() + 1);
    }

    #[test]
    fn the_pool_s_key_is_of_no_session_and_of_one_policy() {
        let mut other = spec();
        other.key = SessionKey::new("t").unwrap();
        assert_eq!(other.pool_key(), spec().pool_key());
        other.network = Setting::new(Network::Trusted, Origin::File);
        assert_ne!(other.pool_key(), spec().pool_key());
        let mut home = spec();
        home.home = Some("/h".into());
        assert_ne!(home.pool_key(), spec().pool_key());
        assert_ne!(spec().pool_key(), spec().fingerprint());
    }

    #[test]
    fn the_fingerprint_ignores_who_asked_and_what_changes_live() {
        let mut same = spec();
        same.network = Setting::new(Network::Trusted, Origin::Flag);
        same.lifetime = Lifetime::Idle(Duration::from_secs(1));
        same.allow_unenforced = true;
        same.switched_off = true;
        same.fuel = Some(Setting::new(5, Origin::Session));
        assert_eq!(same.fingerprint(), spec().fingerprint());
    }
}
