//! Notes that have been told already, so that what stays as it is for days is not said with every command.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

/// How long a note need not be told again.
const ENOUGH: Duration = Duration::from_secs(24 * 60 * 60);
/// Notes that are remembered at most; with more of them all are told anew.
const MOST: usize = 64;

/// The notes told in one data directory: `cache/told/`, an empty file for each, of one user. It is a convenience: where
/// nothing can be written, everything is told. All of it blocks on small files.
pub(crate) struct Told(PathBuf);

impl Told {
    pub(crate) fn new(data_dir: &Path) -> Self {
        Self(data_dir.join("cache/told"))
    }

    /// Whether this is to be told now. It counts as told then.
    pub(crate) fn is_news(&self, note: &str) -> bool {
        let uid = rustix::process::geteuid().as_raw();
        let digest = Sha256::digest(format!("{uid} {note}").as_bytes());
        let file = self.0.join(digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>());
        let told = fs::symlink_metadata(&file).and_then(|meta| meta.modified());
        let age = told.ok().and_then(|at| SystemTime::now().duration_since(at).ok());
        if age.is_some_and(|age| age < ENOUGH) {
            return false;
        }
        if fs::read_dir(&self.0).is_ok_and(|entries| entries.count() >= MOST) {
            let _ = fs::remove_dir_all(&self.0);
        }
        // One of an older day, or of a day to come, gives way.
        let _ = fs::remove_file(&file);
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.0);
        let _ = made.and_then(|()| OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_told_once_a_day_and_to_everybody_where_nothing_can_be_remembered() {
        let place = tempfile::tempdir().unwrap();
        let told = Told::new(place.path());
        assert_eq!(["a", "a", "b", "a"].map(|note| told.is_news(note)), [true, false, true, false]);
        let yesterday = SystemTime::now() - ENOUGH - Duration::from_secs(60);
        for entry in fs::read_dir(place.path().join("cache/told")).unwrap() {
            let file = fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
            file.set_modified(yesterday).unwrap();
        }
        assert_eq!(["a", "a"].map(|note| told.is_news(note)), [true, false]);
        let nowhere = Told::new(Path::new("/proc/nowhere"));
        assert_eq!(["a", "a"].map(|note| nowhere.is_news(note)), [true, true]);
    }

    #[test]
    fn what_is_remembered_does_not_grow() {
        let place = tempfile::tempdir().unwrap();
        let told = Told::new(place.path());
        for number in 0..3 * MOST {
            assert!(told.is_news(&number.to_string()));
        }
        assert!(fs::read_dir(place.path().join("cache/told")).unwrap().count() <= MOST);
    }
}
