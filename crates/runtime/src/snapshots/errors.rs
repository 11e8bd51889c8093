//! What can go wrong with snapshots, as people are told.

use moltis_sandbox::{BackendName, Diagnosis, Error, Result, SessionKey, SnapshotId};

use crate::sessions::quoted;
use crate::store::snapshots::MOST;

/// Code of the refusal to remove one that a session begins from.
pub(super) const IN_USE: &str = "snapshot-in-use";

/// Longest name.
const LONGEST: usize = 64;

/// Sees that a snapshot can be called so.
pub(super) fn see_name(name: &str) -> Result<()> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let starts = name.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if starts && name.len() <= LONGEST && name.bytes().all(fine) && SnapshotId::parse(name).is_none() {
        return Ok(());
    }
    Err(Error::Invalid(
        Diagnosis::new("snapshot-name-invalid", format!("{name:?} cannot be the name of a snapshot")).fix(
            format!(
                "use letters, digits, `.`, `_` and `-`, {LONGEST} at most, beginning with a letter or digit"
            ),
        ),
    ))
}

pub(super) fn unsupported(name: BackendName, able: &[BackendName]) -> Error {
    let able: Vec<_> = able.iter().map(|name| name.as_str()).collect();
    Error::Refused(
        Diagnosis::new("snapshot-unsupported", format!("{name} takes no snapshots of its sandboxes"))
            .fix(format!("use a session on a backend that does: {}", able.join(", "))),
    )
}

pub(super) fn ended(key: &SessionKey) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "snapshot-interrupted",
            format!("the sandbox of the session {:?} ended before its snapshot was taken", key.as_str()),
        )
        .fix("try again"),
    )
}

pub(super) fn name_taken(key: &SessionKey, name: &str) -> Error {
    Error::Invalid(
        Diagnosis::new(
            "snapshot-name-taken",
            format!("the session {:?} has a snapshot {name:?} already", key.as_str()),
        )
        .fix(format!(
            "take another name, or remove it: moltis session rm-snapshot {} {name}",
            quoted(key.as_str())
        )),
    )
}

pub(super) fn full(key: &SessionKey) -> Error {
    let session = quoted(key.as_str());
    Error::Refused(
        Diagnosis::new(
            "snapshots-full",
            format!("the session {:?} has {MOST} snapshots, which is as many as it can have", key.as_str()),
        )
        .fix(format!(
            "`moltis session snapshots {session}` lists them, `moltis session rm-snapshot` removes them"
        )),
    )
}

pub(super) fn missing(key: &SessionKey, word: &str) -> Error {
    Error::Invalid(
        Diagnosis::new(
            "snapshot-missing",
            format!("the session {:?} has no snapshot {word:?}", key.as_str()),
        )
        .fix(format!("`moltis session snapshots {}` lists those that it has", quoted(key.as_str()))),
    )
}

pub(super) fn in_use(id: &SnapshotId, sessions: u64) -> Error {
    let who =
        if sessions == 1 { "a session begins".to_owned() } else { format!("{sessions} sessions begin") };
    Error::Refused(
        Diagnosis::new(IN_USE, format!("the snapshot {id} is in use")).cause(format!("{who} from it")).fix(
            "have them begin from another one, or from none (`moltis session restore KEY --none`), or remove them",
        ),
    )
}

pub(super) fn elsewhere(
    key: &SessionKey,
    snapshot: &SnapshotId,
    there: BackendName,
    wanted: BackendName,
) -> Error {
    let session = quoted(key.as_str());
    Error::Refused(
        Diagnosis::new(
            "snapshot-elsewhere",
            format!("the snapshot {snapshot} is one of {there}, and the session is to be on {wanted}"),
        )
        .cause("a snapshot can be used only where it was taken")
        .fix(format!(
            "moltis session set {session} --backend {there}, or begin from none: moltis session restore {session} --none"
        )),
    )
}

pub(super) fn exists(key: &SessionKey) -> Error {
    Error::Refused(
        Diagnosis::new("session-exists", format!("there is a session {:?} already", key.as_str()))
            .fix("choose another key, or have that one begin from a snapshot of its own"),
    )
}

pub(super) fn changed(key: &SessionKey) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "session-changed",
            format!("the session {:?} sets something else than when this was asked for", key.as_str()),
        )
        .cause("somebody changed its settings meanwhile, and a new session would take them on")
        .fix("look at it (`moltis session show`) and ask again"),
    )
}

pub(super) fn home_exists(key: &SessionKey) -> Error {
    Error::Refused(
        Diagnosis::new(
            "fork-home-exists",
            format!("the home of an earlier session {:?} is still there", key.as_str()),
        )
        .cause("a new session that begins from a snapshot would replace it")
        .fix("choose another key"),
    )
}

pub(super) fn unusable(place: &std::path::Path, cause: &std::io::Error) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "snapshot-unusable",
            format!("the snapshot cannot be read or written: {}", place.display()),
        )
        .cause(cause)
        .fix("see whether the disk is in order; if a part of it is gone, begin from another snapshot"),
    )
}

/// The sandbox says nothing of its files any more.
pub(super) fn stalled(within: std::time::Duration) -> Error {
    Error::Unavailable(
        Diagnosis::new("snapshot-stalled", "the sandbox does not go on telling what is in its files")
            .cause(format!("nothing came for {} s", within.as_secs()))
            .fix("try again; if it stays so, end the sandbox (`moltis sandbox stop`): it may be stuck, or hostile"),
    )
}
