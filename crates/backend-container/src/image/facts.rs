//! What is known of an image's content, and the file in which it is kept.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Manager;

/// Raised whenever what is looked for, or how, changes.
const VERSION: u32 = 1;

/// Most that is read of such a file.
const MAX_FILE: u64 = 1024 * 1024;

/// What an image has in it, found by reading its files; nothing of it has run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageFacts {
    /// Which distribution it says it is.
    pub os_release: OsRelease,
    /// The lines of `/etc/passwd`; those that are no UTF-8 or too long are left out, and it is cut if it is too long.
    pub passwd: String,
    /// The lines of `/etc/group`, in the same way.
    pub group: String,
    /// Whether there is a program `/bin/sh`.
    pub has_shell: bool,
    /// Whether there is a directory `/home/sandbox`.
    pub has_home: bool,
    /// The first names in it, what is no UTF-8 replaced.
    pub home_entries: Vec<String>,
    /// Whether there are, or may be, more of them.
    pub has_more_in_home: bool,
    /// Whether there is something at `/workspace`.
    pub has_workspace: bool,
    /// Whether there is something at `/.moltis`.
    pub has_moltis: bool,
    /// What installs packages in it.
    pub manager: Option<Manager>,
}

/// The words of `/etc/os-release` that are of use, without control characters; empty where it does not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OsRelease {
    /// `ID`: `debian`.
    pub id: String,
    /// `ID_LIKE`: what it descends from, with spaces between.
    pub id_like: String,
    /// `VERSION_ID`: `12`.
    pub version: String,
    /// `PRETTY_NAME`, for people.
    pub name: String,
}

impl OsRelease {
    /// Reads it as far as it can be read.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let mut read = Self::default();
        for line in String::from_utf8_lossy(bytes).lines().take(256) {
            let Some((key, value)) = line.split_once('=') else { continue };
            let value = value.trim();
            let bare = ['"', '\'']
                .iter()
                .find_map(|quote| value.strip_prefix(*quote).and_then(|value| value.strip_suffix(*quote)))
                .unwrap_or(value);
            let text = || bare.chars().filter(|c| !c.is_control()).take(128).collect::<String>();
            match key.trim() {
                "ID" => read.id = text(),
                "ID_LIKE" => read.id_like = text(),
                "VERSION_ID" => read.version = text(),
                "PRETTY_NAME" => read.name = text(),
                _ => {}
            }
        }
        read
    }
}

/// The lines of a file of accounts of which `bytes` is the beginning, or all of it.
pub(super) fn accounts(bytes: &[u8], whole: bool) -> String {
    const LONGEST: usize = 4096;
    let end = if whole { bytes.len() } else { bytes.iter().rposition(|b| *b == b'\n').unwrap_or(0) };
    let mut text = String::new();
    for line in bytes[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        if let Ok(line) = std::str::from_utf8(line)
            && line.len() <= LONGEST
            && !line.contains(char::is_control)
        {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// A file of facts, with what they are of.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    version: u32,
    image: String,
    facts: ImageFacts,
}

/// Folder of what is kept of images.
pub(super) fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("cache").join("images")
}

/// Makes that folder for its owner alone. Blocks.
pub(super) fn make_folder(data_dir: &Path) -> io::Result<PathBuf> {
    let folder = folder(data_dir);
    DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
    Ok(folder)
}

fn file(data_dir: &Path, image: &str) -> PathBuf {
    let hash = super::recipe::hex(&Sha256::digest(image.as_bytes()));
    folder(data_dir).join(format!("{hash}.json"))
}

/// What is known of an image. A file that is not as we write it counts as none. Blocks.
pub(super) fn load(data_dir: &Path, image: &str) -> Option<ImageFacts> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = OpenOptions::new().read(true).custom_flags(flags as i32).open(file(data_dir, image)).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    (kept.version == VERSION && kept.image == image).then_some(kept.facts)
}

/// Keeps what is known of an image, at once or not at all. Blocks.
pub(super) fn save(data_dir: &Path, image: &str, facts: &ImageFacts) -> io::Result<()> {
    static NEXT: AtomicU64 = AtomicU64::new(0);

    let folder = make_folder(data_dir)?;
    let kept = Kept { version: VERSION, image: image.to_owned(), facts: facts.clone() };
    let text = serde_json::to_vec(&kept)?;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let part = folder.join(format!(".facts-{}-{number}", std::process::id()));
    let write = |mut new: File| {
        new.write_all(&text)?;
        fs::rename(&part, file(data_dir, image))
    };
    let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    let opened = match open() {
        // Left by a process of the same number that was killed.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_file(&part)?;
            open()
        }
        other => other,
    };
    let written = opened.and_then(write);
    if written.is_err() {
        // It may be what was in the way.
        let _ = fs::remove_file(&part);
    }
    written
}

/// Forgets what is known of an image. Blocks.
pub(super) fn forget(data_dir: &Path, image: &str) {
    // It may not be known.
    let _ = fs::remove_file(file(data_dir, image));
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn facts_are_kept_by_image_and_version() {
        let temp = tempfile::tempdir().unwrap();
        let facts = ImageFacts {
            has_shell: true,
            manager: Some(Manager::Apk),
            home_entries: vec!["a\u{1b}".into()],
            ..ImageFacts::default()
        };
        assert_eq!(load(temp.path(), "sha256:a"), None);
        save(temp.path(), "sha256:a", &facts).unwrap();
        save(temp.path(), "sha256:a", &facts).unwrap();
        assert_eq!(load(temp.path(), "sha256:a"), Some(facts.clone()));
        assert_eq!(load(temp.path(), "sha256:b"), None);
        let path = file(temp.path(), "sha256:a");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(folder(temp.path())).unwrap().mode() & 0o777, 0o700);
        assert_eq!(fs::read_dir(folder(temp.path())).unwrap().count(), 1, "nothing else is left there");
        // One of another image, of another version, cut off, or a link.
        fs::copy(&path, file(temp.path(), "sha256:b")).unwrap();
        assert_eq!(load(temp.path(), "sha256:b"), None);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"version\":1", "\"version\":0")).unwrap();
        assert_eq!(load(temp.path(), "sha256:a"), None);
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(load(temp.path(), "sha256:a"), None);
        fs::write(temp.path().join("elsewhere"), &text).unwrap();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(temp.path().join("elsewhere"), &path).unwrap();
        assert_eq!(load(temp.path(), "sha256:a"), None);
        forget(temp.path(), "sha256:a");
        assert!(!path.exists());
    }

    #[test]
    fn accounts_are_cut_at_the_end_of_a_line() {
        let cut = accounts(b"root:x:0:0::/:/bin/sh\n\nb\xffd\na\x1b\na:x", false);
        assert_eq!(cut, "root:x:0:0::/:/bin/sh\n");
        assert_eq!(accounts(b"a:x:1:", true), "a:x:1:\n");
    }

    #[test]
    fn the_distribution_is_what_it_says() {
        let read = OsRelease::read(b"# x\nID=debian\nVERSION_ID=\"12\"\nPRETTY_NAME='D \x1b[1m'\nID_LIKE=\n");
        let expected = OsRelease {
            id: "debian".into(),
            version: "12".into(),
            name: "D [1m".into(),
            id_like: String::new(),
        };
        assert_eq!(read, expected);
    }
}
