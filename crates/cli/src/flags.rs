//! Values of flags that several commands share, and what they ask of a sandbox.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;

use moltis_config::InvalidValue;
use moltis_runtime::{NamedWorkspace, Overrides};
use moltis_sandbox::{Diagnosis, GuestPath, Origin, SessionKey, Setting};

use crate::args::SandboxFlags;
use crate::failure::Failure;

/// Reads the value of a flag, if it was given.
pub fn flag<T>(
    name: &str,
    text: Option<&str>,
    parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
) -> Result<Option<T>, Failure> {
    text.map(parse).transpose().map_err(|error| Failure::usage(error.diagnosis(name)))
}

/// The directory that `--cwd` names.
pub fn guest_directory(path: OsString) -> Result<GuestPath, Failure> {
    GuestPath::new(path.clone().into_vec()).ok_or_else(|| {
        Failure::usage(
            Diagnosis::new(
                "cwd-not-absolute",
                format!("--cwd {} is not an absolute path inside the sandbox", path.to_string_lossy()),
            )
            .fix("write it from the root, as in --cwd /workspace/src"),
        )
    })
}

/// A session's key, as a flag or argument names it.
pub fn session_key(key: &OsStr) -> Result<SessionKey, Failure> {
    key.to_str().and_then(SessionKey::new).ok_or_else(|| {
        Failure::usage(
            Diagnosis::new(
                "session-key-invalid",
                format!("{:?} is no key of a session", key.to_string_lossy()),
            )
            .fix(format!("use 1 to {} bytes of UTF-8", SessionKey::MAX_BYTES)),
        )
    })
}

/// What the flags ask of the sandbox.
pub fn overrides(args: &SandboxFlags) -> Result<Overrides, Failure> {
    fn set<T>(value: T) -> Setting<T> {
        Setting::new(value, Origin::Flag)
    }
    Ok(Overrides {
        enabled: None,
        image: flag("--image", args.image.as_deref(), moltis_config::parse_image)?.map(set),
        backend: flag("--backend", args.backend.as_deref(), moltis_config::parse_backend)?.map(set),
        network: flag("--network", args.network.as_deref(), moltis_config::parse_network)?.map(set),
        memory: flag("--memory", args.memory.as_deref(), moltis_config::parse_memory)?.map(set),
        cpus: flag("--cpus", args.cpus.as_deref(), moltis_config::parse_cores)?.map(set),
        pids: flag("--pids", args.pids.as_deref(), moltis_config::parse_pids)?.map(set),
        workspace: args.workspace.as_deref().map(workspace).transpose()?.map(set),
        fuel: None,
    })
}

/// The workspace that a flag names; a relative folder is relative to where we are.
fn workspace(text: &OsStr) -> Result<NamedWorkspace, Failure> {
    let flag = moltis_config::parse_workspace_flag(text)
        .map_err(|error| Failure::usage(error.diagnosis("--workspace")))?;
    let source = std::path::absolute(&flag.dir).map_err(|error| {
        Failure::invalid(
            Diagnosis::new("workspace-missing", "--workspace is relative, and the current directory is gone")
                .cause(error)
                .fix("change to a directory that exists, or name the workspace from the root"),
        )
    })?;
    let name = flag.dir.to_string_lossy();
    if let (None, Some((_, word)), false) = (flag.mode, name.rsplit_once(':'), source.exists()) {
        return Err(Failure::invalid(
            Diagnosis::new("workspace-missing", format!("the workspace {} does not exist", source.display()))
                .fix(format!("write DIR, DIR:ro or DIR:rw (`:{word}` is no mode)")),
        ));
    }
    Ok(NamedWorkspace { source, mode: flag.mode })
}
