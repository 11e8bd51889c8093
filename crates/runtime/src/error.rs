//! Errors that arise in the runtime itself, not in a backend.

use std::path::Path;

use moltis_host::remove::NotRemoved;
use moltis_sandbox::{BackendName, Diagnosis, Error};

use crate::usage::{Unseen, Why};

/// Code of [`RuntimeError::DiskLow`].
pub(crate) const DISK_LOW: &str = "disk-low";

/// What can go wrong between a caller's wish and a backend.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// A backend that this program does not hold.
    #[error("the backend {0} is not part of this version")]
    NotBuilt(BackendName),
    /// None of the backends that `auto` may pick is usable.
    #[error("no backend is usable here")]
    NoneUsable(String),
    /// A folder that is to be mounted holds the configuration.
    #[error("{source_path} is refused: it holds the configuration file {file}")]
    HoldsConfiguration {
        /// The folder.
        source_path: String,
        /// The file.
        file: String,
    },
    /// A home holds more than it may.
    #[error("the home holds {used} bytes, and `home_quota` allows {quota}")]
    OverQuota {
        /// Bytes in it.
        used: u64,
        /// Bytes allowed.
        quota: u64,
    },
    /// A home cannot be measured as a whole, and a quota holds for it.
    #[error("the home cannot be measured, and `home_quota` holds for it")]
    NotMeasurable {
        /// The home.
        home: std::path::PathBuf,
        /// What was not seen.
        unseen: Unseen,
    },
    /// A home cannot be removed.
    #[error("the home {} cannot be removed", place.display())]
    NotRemovable {
        /// The home.
        place: std::path::PathBuf,
        /// Why.
        why: NotRemoved,
    },
    /// A folder cannot be measured.
    #[error("cannot measure {}", place.display())]
    Measure {
        /// The folder.
        place: std::path::PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Work of our own broke off.
    #[error("preparing the sandbox broke off")]
    Broke(String),
    /// Others may write to the data directory, or it is somebody else's.
    #[error("the data directory {place} is not safe: {why}")]
    DataDirectoryExposed {
        /// The data directory.
        place: String,
        /// What is wrong with it.
        why: String,
        /// What to do.
        fix: String,
    },
    /// The backend that the configuration names cannot be used at the start.
    #[error("the configuration says `backend = \"{backend}\"`, which is not usable: {}", why.message)]
    NamedUnusable {
        /// The backend.
        backend: BackendName,
        /// Why it is not usable.
        why: Diagnosis,
    },
    /// A session that ran isolated would run with no isolation.
    #[error("the session {key:?} ran isolated on {was}, and now only {now} is usable")]
    IsolationLost {
        /// The session.
        key: String,
        /// What held its last sandbox.
        was: BackendName,
        /// What would hold the next.
        now: BackendName,
    },
    /// Too little space left where Moltis keeps its state.
    #[error("only {free} MiB are free below {place}, and new commands need {floor} MiB")]
    DiskLow {
        /// The data directory.
        place: String,
        /// Free space in MiB.
        free: u64,
        /// The floor in MiB.
        floor: u64,
    },
    /// The data directory cannot be made or used.
    #[error("cannot use the data directory {place}")]
    DataDirectory {
        /// The data directory.
        place: String,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl RuntimeError {
    pub(crate) fn data_directory(place: &Path, source: std::io::Error) -> Self {
        Self::DataDirectory { place: place.display().to_string(), source }
    }
}

impl From<RuntimeError> for Error {
    fn from(error: RuntimeError) -> Self {
        let message = error.to_string();
        match error {
            RuntimeError::NotBuilt(name) => {
                let told = Diagnosis::new("backend-not-built", message);
                Self::Unavailable(match feature_left_out(name) {
                    Some(feature) => told
                        .cause(format_args!("this program was built without the feature `{feature}`"))
                        .fix(format!(
                            "build it without `--no-default-features` (`{feature}` is on by default), or use another \
                             backend"
                        )),
                    None => told.fix("`moltis sandbox status` lists the backends that are"),
                })
            }
            RuntimeError::NoneUsable(reasons) => Self::Unavailable(
                Diagnosis::new("no-backend-usable", message)
                    .cause(reasons)
                    .fix("`moltis sandbox status` says for each what would make it usable"),
            ),
            RuntimeError::HoldsConfiguration { .. } => Self::Refused(
                Diagnosis::new("workspace-refused", message)
                    .cause("a sandbox that sees it could read secrets or change its own rules")
                    .fix("keep the configuration file outside of what is mounted"),
            ),
            RuntimeError::OverQuota { .. } => Self::Refused(
                Diagnosis::new("home-over-quota", message)
                    .fix("remove something (`moltis files remove --session`), or raise `home_quota`"),
            ),
            // A name that was made inside has no place in a line to be run.
            RuntimeError::NotMeasurable { home, unseen } => {
                let fix = match unseen.why {
                    Why::Closed => format!("open what is closed in it (`chmod -R u+rwX {}`)", home.display()),
                    Why::Deep => "remove it (`moltis files remove -r --session`)".to_owned(),
                };
                Self::Refused(Diagnosis::new("home-not-measurable", message).cause(&unseen).fix(fix))
            }
            RuntimeError::NotRemovable { why, .. } => {
                Self::Unavailable(Diagnosis::new("home-not-removable", message).cause(&why).fix(why.fix()))
            }
            RuntimeError::Measure { source, .. } => Self::Unavailable(
                Diagnosis::new("measure-failed", message)
                    .cause(source)
                    .fix("see whether the disk is in order"),
            ),
            RuntimeError::Broke(cause) => Self::Unavailable(
                Diagnosis::new("start-failed", message).cause(cause).fix("try again; if it stays, report it"),
            ),
            RuntimeError::DataDirectoryExposed { fix, .. } => Self::Refused(
                Diagnosis::new("data-dir-exposed", message)
                    .cause("whoever can write there could plant what Moltis trusts")
                    .fix(fix),
            ),
            RuntimeError::NamedUnusable { why, .. } => {
                let fix =
                    why.fix.unwrap_or_else(|| "`moltis sandbox status` says what would mend it".to_owned());
                let told = Diagnosis { code: why.code, message, cause: why.cause, fix: None };
                Self::Unavailable(told.fix(format!("{fix}; or set `backend = \"auto\"`")))
            }
            RuntimeError::IsolationLost { key, now, .. } => Self::Refused(
                Diagnosis::new("isolation-lost", message)
                    .cause("`moltis sandbox status` says what is wrong with the one that isolates")
                    .fix(format!(
                        "mend that, or allow it: moltis session set {} --backend {now}",
                        crate::sessions::quoted(&key)
                    )),
            ),
            RuntimeError::DiskLow { .. } => Self::Unavailable(
                Diagnosis::new(DISK_LOW, message).fix("free some space, or name another place by --data-dir"),
            ),
            RuntimeError::DataDirectory { source, .. } => Self::Unavailable(
                Diagnosis::new("data-dir-unusable", message)
                    .cause(source)
                    .fix("name a directory that you can write to by --data-dir or MOLTIS_DATA_DIR"),
            ),
        }
    }
}

/// A command's events stopped without an exit: it may have run, and how it ended is not known.
pub fn ended_without_exit() -> Error {
    Error::Lost(
        Diagnosis::new("exec-lost", "the command's stream ended before the command did")
            .fix("look at what it did before running it again"),
    )
}

/// The feature that would have built a backend.
fn feature_left_out(backend: BackendName) -> Option<&'static str> {
    let (feature, built) = match backend {
        BackendName::Wasm => ("wasm", cfg!(feature = "wasm")),
        BackendName::Vercel => ("remote", cfg!(feature = "remote")),
        _ => return None,
    };
    (!built).then_some(feature)
}
