//! Who the sandbox's user is: inside, outside, and to the agent. Host root never is.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use moltis_sandbox::{Diagnosis, Error, MountMode, Result};

use crate::engine::{EngineInfo, EngineKind, Place};

/// User and group that the sandbox has where nothing else decides.
pub const USUAL: (u32, u32) = (1000, 1000);

/// The sandbox's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User and group inside.
    pub inside: (u32, u32),
    /// User and group of its files on this machine.
    pub outside: (u32, u32),
    /// User id that this process's connections show inside.
    pub peer: u32,
    /// The engine's word for how ids are mapped, where that is not its default.
    pub userns: Option<String>,
}

/// What decides who it is.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User and group of this process.
    pub ids: (u32, u32),
    /// Owner and mode of the named workspace.
    pub workspace: Option<((u32, u32), MountMode)>,
}

/// User that the files of a sandbox belong to where that is not the caller: on a rootful engine whoever owns a named
/// workspace, and nobody in particular where root does. A home that lasts is one of this user's. Blocks on a look-up.
pub fn home_owner(caller: u32, workspace: Option<&Path>) -> Option<u32> {
    if caller != 0 {
        return None;
    }
    let owner = workspace.and_then(|folder| std::fs::metadata(folder).ok()).map(|found| found.uid());
    Some(owner.filter(|uid| *uid != 0).unwrap_or(USUAL.0))
}

impl Identity {
    /// Who it is on this engine.
    ///
    /// # Errors
    /// `workspace-owned-by-root` for a writable workspace that belongs to root where the caller is root: nobody inside
    /// could write to it.
    pub fn of(kind: EngineKind, info: &EngineInfo, caller: Caller) -> Result<Self> {
        let Caller { ids, workspace } = caller;
        if info.place != Place::Here || kind == EngineKind::Apple {
            // Whoever shares the folders maps them to the caller; elsewhere nothing of this machine is seen.
            return Ok(Self { inside: USUAL, outside: ids, peer: USUAL.0, userns: None });
        }
        if info.rootless && kind == EngineKind::Podman {
            let userns = Some(format!("keep-id:uid={},gid={}", USUAL.0, USUAL.1));
            return Ok(Self { inside: USUAL, outside: ids, peer: USUAL.0, userns });
        }
        if info.rootless {
            // Root inside is the engine's user outside, who is nobody but the caller.
            return Ok(Self { inside: (0, 0), outside: ids, peer: 0, userns: None });
        }
        if ids.0 != 0 {
            return Ok(Self { inside: ids, outside: ids, peer: ids.0, userns: None });
        }
        let inside = match workspace {
            Some(((0, _), MountMode::Rw)) => return Err(owned_by_root()),
            Some(((0, _), MountMode::Ro)) | None => USUAL,
            Some((owner, _)) => owner,
        };
        Ok(Self { inside, outside: inside, peer: 0, userns: None })
    }
}

fn owned_by_root() -> Error {
    Error::Refused(
        Diagnosis::new("workspace-owned-by-root", "the workspace belongs to root, who is nobody inside")
            .cause("a writable workspace is used as the user that it belongs to, and root never enters a sandbox")
            .fix("chown it to a user, mount it read-only (:ro), or use --backend namespaces, which maps ids"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(rootless: bool, place: Place) -> EngineInfo {
        EngineInfo { place, rootless, ..EngineInfo::whole() }
    }

    fn identity(kind: EngineKind, rootless: bool, caller: Caller) -> Result<Identity> {
        Identity::of(kind, &info(rootless, Place::Here), caller)
    }

    const ROOT: Caller = Caller { ids: (0, 0), workspace: None };
    const USER: Caller = Caller { ids: (1007, 1008), workspace: None };

    #[test]
    fn host_root_never_is_the_sandboxs_user() {
        for kind in [EngineKind::Docker, EngineKind::Podman] {
            for workspace in [None, Some(((0, 0), MountMode::Ro)), Some(((1005, 50), MountMode::Rw))] {
                let found = identity(kind, false, Caller { workspace, ..ROOT }).unwrap();
                assert_ne!(found.inside.0, 0);
                assert_eq!((found.inside, found.peer), (found.outside, 0));
            }
            let error = identity(kind, false, Caller { workspace: Some(((0, 0), MountMode::Rw)), ..ROOT })
                .unwrap_err();
            assert_eq!((error.kind(), error.code()), ("refused", "workspace-owned-by-root"));
        }
    }

    #[test]
    fn a_home_belongs_to_the_user_whose_files_it_holds() {
        let workspace = tempfile::tempdir().unwrap();
        assert_eq!(home_owner(1000, Some(workspace.path())), None);
        assert_eq!(home_owner(0, None), Some(1000));
        assert_eq!(home_owner(0, Some(Path::new("/"))), Some(1000));
        assert_eq!(home_owner(0, Some(Path::new("/nonexistent"))), Some(1000));
        if std::os::unix::fs::chown(workspace.path(), Some(1234), Some(5)).is_ok() {
            assert_eq!(home_owner(0, Some(workspace.path())), Some(1234));
        }
    }

    #[test]
    fn a_workspace_is_used_as_its_owner() {
        let workspace = Some(((1005, 50), MountMode::Rw));
        let found = identity(EngineKind::Docker, false, Caller { workspace, ..ROOT }).unwrap();
        assert_eq!(found.inside, (1005, 50));
        // A user's own files are the user's, whoever owns the workspace.
        let found = identity(EngineKind::Docker, false, Caller { workspace, ..USER }).unwrap();
        assert_eq!((found.inside, found.outside, found.peer), ((1007, 1008), (1007, 1008), 1007));
    }

    #[test]
    fn without_root_the_callers_files_stay_the_callers() {
        let podman = identity(EngineKind::Podman, true, USER).unwrap();
        assert_eq!((podman.inside, podman.outside, podman.peer), (USUAL, (1007, 1008), 1000));
        assert_eq!(podman.userns.as_deref(), Some("keep-id:uid=1000,gid=1000"));
        let docker = identity(EngineKind::Docker, true, USER).unwrap();
        assert_eq!((docker.inside, docker.outside, docker.peer), ((0, 0), (1007, 1008), 0));
        let remote = Identity::of(EngineKind::Docker, &info(false, Place::Remote), ROOT).unwrap();
        assert_eq!(remote.inside, USUAL);
    }
}
