//! A technology that can hold sandboxes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    BuildSink, Diagnosis, Guarantees, Images, NotEnforced, Prepared, Result, Sandbox, SandboxId, SandboxSpec,
    SnapshotId, SnapshotKind,
};

/// The backends that there are. The words are those of `backend = "…"`; `auto` is a choice, not a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackendName {
    /// Apple's `container`, one VM per sandbox.
    AppleContainer,
    /// Podman.
    Podman,
    /// Docker.
    Docker,
    /// Vercel Sandbox.
    Vercel,
    /// Daytona.
    Daytona,
    /// Ours: Linux namespaces, Landlock, seccomp, cgroups.
    Namespaces,
    /// `sh -c` on the host with rlimits.
    RestrictedHost,
    /// Straight on the host.
    None,
    /// Local microVM.
    Firecracker,
    /// In-process shell and WASI modules.
    Wasm,
}

impl BackendName {
    /// Every backend; those that `auto` may pick come first, in its order.
    pub const ALL: [Self; 10] = [
        Self::AppleContainer,
        Self::Podman,
        Self::Docker,
        Self::Vercel,
        Self::Daytona,
        Self::Namespaces,
        Self::RestrictedHost,
        Self::None,
        Self::Firecracker,
        Self::Wasm,
    ];

    /// The word used in configuration and answers.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AppleContainer => "apple-container",
            Self::Podman => "podman",
            Self::Docker => "docker",
            Self::Vercel => "vercel",
            Self::Daytona => "daytona",
            Self::Namespaces => "namespaces",
            Self::RestrictedHost => "restricted-host",
            Self::None => "none",
            Self::Firecracker => "firecracker",
            Self::Wasm => "wasm",
        }
    }

    /// Whether `auto` may pick it.
    pub fn in_auto(self) -> bool {
        !matches!(self, Self::Firecracker | Self::Wasm)
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for BackendName {
    type Err = ();

    fn from_str(word: &str) -> std::result::Result<Self, ()> {
        Self::ALL.into_iter().find(|name| name.as_str() == word).ok_or(())
    }
}

/// What detection found: usable *now*, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Detection {
    /// It can open a sandbox now.
    Usable(Box<Usable>),
    /// It cannot on this machine as it is set up, and this is why and how to mend it.
    Unusable(Diagnosis),
    /// It could, but not now: something is short, or its place is not in order. That is no reason to make do with less
    /// isolation.
    Failing(Diagnosis),
}

/// A backend that can open sandboxes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usable {
    /// Version of the technology, or what stands for one.
    pub version: String,
    /// What it keeps here.
    pub guarantees: Guarantees,
    /// Built-in protections that it has to leave off here, whatever the spec: every answer lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_off: Vec<NotEnforced>,
    /// What a person should know about it (for instance: rootless, without limits).
    pub notes: Vec<String>,
}

/// A sandbox that a backend knows of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxRecord {
    /// Its opaque id.
    pub id: SandboxId,
    /// The fingerprint it was opened with.
    pub fingerprint: String,
    /// Whether its first process lives, or may do so out of sight. It need not answer, nor be of this version.
    pub running: bool,
    /// When it was opened, in seconds since 1970; 0 where nobody knows.
    pub created_secs: u64,
    /// What the provider that holds it says of it; absent where there is none, or where it does not list it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Provided>,
}

/// A sandbox, as its provider lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Provided {
    /// Its name there.
    pub name: String,
    /// Its state, in the provider's own word.
    pub state: String,
    /// Whether it is written down here, too. One that is not was left by a process that was killed, or by a data directory
    /// that was lost: nobody uses it.
    pub known: bool,
}

/// Something that an earlier program left in an engine, and that no sandbox of ours uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Legacy {
    /// The engine's id of it, which is what is removed by.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Why it is listed: the label that it has, or the name that it looks like.
    pub why: String,
    /// Whether a label of that program says that it is ours. One that merely has a likely name may be anybody's, and is
    /// removed only when a person says so.
    pub ours_by_label: bool,
}

/// A technology that can hold sandboxes. Implementations block no async thread and keep no session state: what
/// exists is found again by [`list`](Self::list).
#[async_trait]
pub trait Backend: Send + Sync {
    /// Which one it is.
    fn name(&self) -> BackendName;

    /// Whether it can open a sandbox now, found out by trying, not by looking for a binary.
    async fn detect(&self) -> Detection;

    /// Throws away what an earlier detection remembered, so that the next one asks. An open that failed, or a command that
    /// was lost, makes it doubtful.
    async fn forget_detection(&self) {}

    /// A running sandbox for `spec`: the one that is there if its fingerprint is the same, else a new one. The spec
    /// has been judged against the guarantees already. One that is there and is silent is an error, as for
    /// [`adopt`](Self::adopt).
    ///
    /// # Errors
    /// `Refused` for a mount source or option that is not allowed, `Unavailable` when it cannot start here and now,
    /// `Invalid` for a path that does not exist. Nothing is left behind on an error.
    async fn open(&self, spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>>;

    /// What [`open`](Self::open) would refuse of what the spec names, such as a mount source, found out without opening
    /// anything. Folders of ours that are to be made are no reason.
    ///
    /// # Errors
    /// As `open`, as far as they can be known before.
    async fn check(&self, _spec: &SandboxSpec) -> Result<()> {
        Ok(())
    }

    /// Whether a sandbox that was opened for nobody can be handed to a session by [`assign`](Self::assign), so that a pool
    /// of them is of use.
    fn assigns(&self) -> bool {
        false
    }

    /// Makes the sandbox that was opened for `pooled`, in which nothing ran, the one of `spec`: the two differ in the
    /// session alone, which [`SandboxSpec::pool_key`] says, and in how long it lives. From then on it is found, adopted,
    /// listed and removed under the id of `spec`, has its fingerprint and its time without use, and is not found under the
    /// pooled id any more. The caller has written down that it is the session's. A process that dies half-way leaves it
    /// under one of the two ids.
    ///
    /// # Errors
    /// `Unavailable` when it does not run any more or does not answer; whoever asked removes what is left of it under the
    /// pooled id.
    async fn assign(&self, _pooled: &SandboxSpec, _spec: &SandboxSpec) -> Result<Arc<dyn Sandbox>> {
        let why = format!("{} hands over no sandboxes", self.name());
        Err(crate::Error::Unavailable(Diagnosis::new("pool-unsupported", why)))
    }

    /// The sandbox that runs already for `spec`, if its fingerprint is the same and it answers; nothing is started or
    /// ended. It costs one round trip and takes no lock that an opening holds for long.
    ///
    /// # Errors
    /// Those of looking. A sandbox that is not there, is of another spec, or does not speak as this version does, is
    /// `None`. One that lives may be in use and is never taken for one that is not there: `Unavailable` with
    /// `sandbox-silent` while it does not answer within two seconds, with `sandbox-elsewhere` where it belongs to
    /// another PID namespace of this machine and cannot be judged from here.
    async fn adopt(&self, spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>>;

    /// Whether unused sandboxes are stopped by the place where they are, with what is on their disks, so that
    /// [`revive`](Self::revive) starts one again. Nobody else needs to end them then.
    fn revives(&self) -> bool {
        false
    }

    /// Whether the sandbox of this id was stopped and [`revive`](Self::revive) can start it again. Nothing is started.
    ///
    /// # Errors
    /// Those of asking.
    async fn is_stopped(&self, _id: &SandboxId) -> Result<bool> {
        Ok(false)
    }

    /// The sandbox of `spec` that was stopped, started again with what is on its disk; what ran in it has ended. None is
    /// ever made: `None` when there is none, when it has another fingerprint, and when it cannot be started any more.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be started now; it stays as it is.
    async fn revive(&self, _spec: &SandboxSpec) -> Result<Option<Arc<dyn Sandbox>>> {
        Ok(None)
    }

    /// The sandbox that runs under this id, whatever it was opened with; nothing is started or ended. Its commands,
    /// files and end are the sandbox's own, but a command that is started through it finds only the variables and the
    /// directory that every sandbox of the backend has.
    ///
    /// # Errors
    /// As [`adopt`](Self::adopt), and `Unavailable` with `sandbox-foreign` for one that lives and does not speak as this
    /// version does: another version made it, or it is broken. Only a sandbox whose first process is over is `None`.
    async fn find(&self, id: &SandboxId) -> Result<Option<Arc<dyn Sandbox>>>;

    /// The sandboxes of this data directory, running or not.
    async fn list(&self) -> Result<Vec<SandboxRecord>>;

    /// Ends a sandbox, or what is left of it, and removes all traces but its home. It is ended by its processes: it need
    /// not answer, nor be of this version.
    ///
    /// # Errors
    /// `Unavailable` when it does not end, or belongs to another PID namespace of this machine (`sandbox-elsewhere`).
    async fn remove(&self, id: &SandboxId) -> Result<()>;

    /// Removes a sandbox that [`list`](Self::list) told of as one that its provider alone knows of, by its name there. One
    /// that is written down here, or is gone, is left alone.
    ///
    /// # Errors
    /// Those of the provider.
    async fn discard(&self, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Removes what the backend keeps of a session beyond its sandbox, such as a scratch folder, once the session is
    /// given up for good. Its sandbox has been closed or removed.
    ///
    /// # Errors
    /// `Unavailable` when something cannot be removed.
    async fn purge(&self, _id: &SandboxId) -> Result<()> {
        Ok(())
    }

    /// What a snapshot of its sandboxes holds; `None` where none can be taken.
    fn snapshots(&self) -> Option<SnapshotKind> {
        None
    }

    /// Keeps what was written to the root of the sandbox that runs for `spec`, where that can be written to and lasts in
    /// no folder that [`Files`](crate::Files) reach by themselves; what runs in it stands still meanwhile. The answer is
    /// what a spec's [`Beginning`](crate::Beginning) names then; `None` where there is nothing of the kind to keep.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be kept now; then nothing of it is.
    async fn commit(&self, _spec: &SandboxSpec, _snapshot: &SnapshotId) -> Result<Option<String>> {
        Ok(None)
    }

    /// Removes what [`commit`](Self::commit) kept for a snapshot, also half of it. Nothing to remove is no error.
    ///
    /// # Errors
    /// `Unavailable` when it cannot be removed now, `Refused` while a sandbox is made of it.
    async fn uncommit(&self, _snapshot: &SnapshotId) -> Result<()> {
        Ok(())
    }

    /// Its images, if it has any.
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    /// Makes ready what the first command that uses it would wait for, such as programs that are compiled: all that the
    /// configuration names, in its order. Once whoever looks on has gone away no other one is begun.
    ///
    /// # Errors
    /// `Unavailable` when one of them cannot be used, which names it.
    async fn prepare(&self, _progress: &BuildSink) -> Result<Vec<Prepared>> {
        Ok(Vec::new())
    }

    /// What an earlier program left here: containers with one of its labels and without an instance label of ours, and
    /// those that merely have a likely name.
    ///
    /// # Errors
    /// Those of asking the engine.
    async fn legacy(&self) -> Result<Vec<Legacy>> {
        Ok(Vec::new())
    }

    /// Removes one that [`legacy`](Self::legacy) listed, with its anonymous volumes; homes stay. It is looked at again
    /// first: one that is a sandbox of ours, whatever its data directory, is never removed. One that is gone is no error.
    ///
    /// # Errors
    /// Those of the engine.
    async fn discard_legacy(&self, _legacy: &Legacy) -> Result<()> {
        Ok(())
    }
}
