//! The host paths that a spec names, all of them judged.

use moltis_sandbox::{MountMode, SandboxSpec};

use crate::error::Result;
use crate::sources::{Judge, Judged, Role};
use crate::target;

/// Everything of a spec that was found on the host: opened, judged, and held until the launch.
#[derive(Debug)]
pub struct Sources {
    /// The root directory instead of the host's system folders.
    pub rootfs: Option<Judged>,
    /// The home that stays.
    pub home: Option<Judged>,
    /// The managed files, for [`target::FILES`].
    pub files: Option<(Judged, MountMode)>,
    /// The workspace, for [`target::WORKSPACE`].
    pub workspace: Option<(Judged, MountMode)>,
    /// The further mounts; what lies within another one's target comes after it.
    pub mounts: Vec<Requested>,
}

/// A mount of the configuration file.
#[derive(Debug)]
pub struct Requested {
    /// What is shown.
    pub source: Judged,
    /// How.
    pub mode: MountMode,
    /// Where, as [`target::judge`] wrote it.
    pub target: Vec<u8>,
}

impl Sources {
    /// Opens and judges every path that the spec names. Blocks on the file system.
    ///
    /// # Errors
    /// The `Source…` and `Target…` errors.
    pub fn judge(spec: &SandboxSpec, judge: &Judge) -> Result<Self> {
        let mut mounts = Vec::with_capacity(spec.mounts.len());
        for mount in &spec.mounts {
            let target = target::judge(&mount.value.target)?;
            let source = judge.judge(Role::Mount, &mount.value.source)?;
            mounts.push(Requested { source, mode: mount.value.mode, target });
        }
        // What lies within another target is mounted after it.
        mounts.sort_by_key(|mount: &Requested| mount.target.iter().filter(|byte| **byte == b'/').count());
        let with_mode = |role, mount: &moltis_sandbox::Mount| {
            judge.judge(role, &mount.source).map(|judged| (judged, mount.mode))
        };
        Ok(Self {
            rootfs: spec.rootfs.as_ref().map(|path| judge.judge(Role::Rootfs, &path.value)).transpose()?,
            home: spec.home.as_ref().map(|path| judge.judge(Role::Home, path)).transpose()?,
            files: spec.managed_files.as_ref().map(|mount| with_mode(Role::Files, mount)).transpose()?,
            workspace: spec
                .workspace
                .as_ref()
                .map(|mount| with_mode(Role::Workspace, &mount.value))
                .transpose()?,
            mounts,
        })
    }
}
