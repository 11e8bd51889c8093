//! The guest binary that is built into this program, and the ways it reaches a sandbox.

#[cfg(target_os = "linux")]
mod memfd;

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

#[cfg(target_os = "linux")]
pub use memfd::memfd;

static GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/moltis-guest"));

/// The guest binary for this machine's architecture. Empty where none could be built in (hosts other than Linux).
pub fn guest_bytes() -> &'static [u8] {
    GUEST
}

/// SHA-256 of the guest binary in lower-case hexadecimal.
pub fn guest_hash() -> &'static str {
    env!("MOLTIS_GUEST_SHA256")
}

/// Puts the guest binary into `cache` (a directory of ours, made 0700 if missing) as `guest-<hash>`, 0555, unless it
/// is there already, and says where. A file of that name is used only if it is a regular file of this user or root
/// that nobody can write to and whose content has the right hash; else it is replaced at once. Blocks on the disk.
///
/// # Errors
/// When the directory cannot be made or written to, or no guest binary is built in.
pub fn extract(cache: &Path) -> io::Result<PathBuf> {
    if GUEST.is_empty() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "no guest binary is built into this program"));
    }
    put(cache, GUEST, guest_hash())
}

/// The same for another guest binary, such as one for another architecture.
///
/// # Errors
/// When the directory cannot be made or written to.
pub fn extract_bytes(cache: &Path, guest: &[u8]) -> io::Result<PathBuf> {
    let hash: String = Sha256::digest(guest).iter().map(|byte| format!("{byte:02x}")).collect();
    put(cache, guest, &hash)
}

fn put(cache: &Path, guest: &[u8], hash: &str) -> io::Result<PathBuf> {
    match fs::DirBuilder::new().recursive(true).mode_0700().create(cache) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
        _ => {}
    }
    let path = cache.join(format!("guest-{hash}"));
    if !is_intact(&path, guest, hash)? {
        replace(cache, &path, guest)?;
        if !is_intact(&path, guest, hash)? {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("{} changes while it is being used", path.display()),
            ));
        }
    }
    Ok(path)
}

/// Whether the file at `path` is our binary and nobody can write to it.
fn is_intact(path: &Path, guest: &[u8], hash: &str) -> io::Result<bool> {
    let flags = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let file = match OpenOptions::new().read(true).custom_flags(flags as i32).open(path) {
        Ok(file) => file,
        // Missing, a link, a socket, or not ours to read: put the right one there.
        Err(_) => return Ok(false),
    };
    let stat = file.metadata()?;
    let owned = stat.uid() == rustix::process::geteuid().as_raw() || stat.uid() == 0;
    if !stat.is_file() || !owned || stat.mode() & 0o7777 != 0o555 || stat.len() != guest.len() as u64 {
        return Ok(false);
    }
    hash_of(&file).map(|found| found == hash)
}

fn hash_of(mut file: &File) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            n => hash.update(&buffer[..n]),
        }
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Writes the binary beside `path` and moves it there.
fn replace(cache: &Path, path: &Path, guest: &[u8]) -> io::Result<()> {
    let mut temp = Temp::new(cache)?;
    temp.file.write_all(guest)?;
    temp.file.set_permissions(Permissions::from_mode(0o555))?;
    temp.file.sync_all()?;
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir(path)?;
    }
    fs::rename(&temp.path, path)
}

/// A file that is removed unless it was moved away.
struct Temp {
    file: File,
    path: PathBuf,
}

impl Temp {
    fn new(directory: &Path) -> io::Result<Self> {
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for attempt in 0..100u32 {
            let path = directory.join(format!(".guest-{}-{attempt}", std::process::id()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(file) => return Ok(Self { file, path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => last = e,
                Err(e) => return Err(e),
            }
        }
        Err(last)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        // Gone already when it was moved.
        let _ = fs::remove_file(&self.path);
    }
}

trait DirMode {
    fn mode_0700(&mut self) -> &mut Self;
}

impl DirMode for fs::DirBuilder {
    fn mode_0700(&mut self) -> &mut Self {
        std::os::unix::fs::DirBuilderExt::mode(self, 0o700)
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_bytes() {
        let found: String = Sha256::digest(guest_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(found, guest_hash());
        assert_eq!(&guest_bytes()[..4], b"\x7fELF");
    }

    #[test]
    fn extraction_repairs_whatever_stands_there() {
        let temp = tempfile::tempdir().unwrap();
        let cache = temp.path().join("a/cache");
        let path = extract(&cache).unwrap();
        let check = || {
            assert_eq!(extract(&cache).unwrap(), path);
            assert_eq!(fs::read(&path).unwrap(), guest_bytes());
            assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o555);
            assert_eq!(fs::read_dir(&cache).unwrap().count(), 1, "nothing else is left there");
        };
        check();
        let before = fs::metadata(&path).unwrap().ino();
        check();
        assert_eq!(fs::metadata(&path).unwrap().ino(), before, "an intact file is used as it is");

        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        check();
        fs::remove_file(&path).unwrap();
        fs::write(&path, vec![0; guest_bytes().len()]).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o555)).unwrap();
        check();
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        check();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        check();
    }
}
