//! Images that could not be built or pulled a moment ago, so that `auto` does not try again with every command.

use std::fs::{self, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use moltis_sandbox::{BackendName, Diagnosis, ImageChoice};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// How long a failure is believed, in seconds. Trying again may take as long as a registry that is out of reach.
const BELIEVED: u64 = 10 * 60;
/// Longest file that is read.
const MAX_BYTES: u64 = 16 * 1024;

/// The failures of one data directory: `cache/image-failures/`, one file for each backend and image, believed only by
/// the same user with the same `PATH` since the same boot. It is a convenience: whatever is wrong with a file counts as
/// not remembered. All of it blocks on small files.
pub(crate) struct ImageFailures(PathBuf);

#[derive(Serialize, Deserialize)]
struct Memory {
    /// Seconds since boot.
    at: u64,
    why: Diagnosis,
}

impl ImageFailures {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join("cache/image-failures"))
    }

    /// Why the image was absent, if that was within the last minutes.
    pub(crate) fn recall(&self, backend: BackendName, image: Option<&ImageChoice>) -> Option<Diagnosis> {
        // Neither a link nor a pipe in the file's place can make us wait or read something else.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(self.file(backend, image)).ok()?;
        let mut text = String::new();
        file.take(MAX_BYTES).read_to_string(&mut text).ok()?;
        let Memory { at, why } = serde_json::from_str(&text).ok()?;
        let age = now().checked_sub(at)?;
        (age < BELIEVED).then_some(why)
    }

    /// Remembers it, as far as that is possible.
    pub(crate) fn remember(&self, backend: BackendName, image: Option<&ImageChoice>, why: &Diagnosis) {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let Ok(text) = serde_json::to_vec(&Memory { at: now(), why: why.clone() }) else { return };
        if text.len() as u64 > MAX_BYTES
            || fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0).is_err()
        {
            return;
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let new = self.0.join(format!(".new-{}-{serial}", std::process::id()));
        let written =
            OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new).and_then(|mut file| {
                file.write_all(&text)?;
                fs::rename(&new, self.file(backend, image))
            });
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
    }

    /// Forgets all of them.
    pub(crate) fn forget(&self) {
        let _ = fs::remove_dir_all(&self.0);
    }

    fn file(&self, backend: BackendName, image: Option<&ImageChoice>) -> PathBuf {
        let what = image.map(|image| (image.reference().value.as_str(), image.packages()));
        let finished = matches!(image, Some(ImageChoice::Finished { .. }));
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (uid, path) = (rustix::process::geteuid().as_raw(), std::env::var_os("PATH"));
        let key = format!("{backend} {what:?} {finished} {uid} {path:?} {}", boot.trim());
        let digest = Sha256::digest(key.as_bytes());
        self.0.join(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>())
    }
}

/// Seconds since boot.
#[cfg(target_os = "linux")]
fn now() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    u64::try_from(clock.tv_sec).unwrap_or(0)
}

/// Seconds since some moment that stays the same until the next boot.
#[cfg(not(target_os = "linux"))]
fn now() -> u64 {
    let clock = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    u64::try_from(clock.tv_sec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::{Origin, Setting};

    use super::*;

    fn base(packages: &[&str]) -> ImageChoice {
        ImageChoice::Base {
            reference: Setting::built_in("debian:12".into()),
            packages: Setting::new(packages.iter().map(|p| (*p).to_owned()).collect(), Origin::File),
        }
    }

    #[test]
    fn a_failure_is_of_one_backend_and_one_image_and_of_ten_minutes() {
        let place = tempfile::tempdir().unwrap();
        let failures = ImageFailures::new(place.path());
        let why = Diagnosis::new("image-unavailable", "no registry").cause("no route");
        let (jq, none) = (base(&["jq"]), base(&[]));
        assert_eq!(failures.recall(BackendName::Docker, Some(&jq)), None);
        failures.remember(BackendName::Docker, Some(&jq), &why);
        assert_eq!(failures.recall(BackendName::Docker, Some(&jq)), Some(why.clone()));
        assert_eq!(failures.recall(BackendName::Podman, Some(&jq)), None);
        assert_eq!(failures.recall(BackendName::Docker, Some(&none)), None);
        let finished = ImageChoice::Finished { reference: Setting::built_in("debian:12".into()) };
        failures.remember(BackendName::Docker, Some(&none), &why);
        assert_eq!(failures.recall(BackendName::Docker, Some(&finished)), None);
        let file = failures.file(BackendName::Docker, Some(&jq));
        let old = Memory { at: now().saturating_sub(BELIEVED), why };
        fs::write(&file, serde_json::to_vec(&old).unwrap()).unwrap();
        assert_eq!(failures.recall(BackendName::Docker, Some(&jq)), None);
        fs::write(&file, "{").unwrap();
        assert_eq!(failures.recall(BackendName::Docker, Some(&jq)), None);
        failures.forget();
        assert_eq!(failures.recall(BackendName::Docker, Some(&none)), None);
        assert_eq!(fs::read_dir(place.path().join("cache")).unwrap().count(), 0);
    }
}
