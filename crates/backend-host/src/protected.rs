//! Places that no workspace may show: secrets, Moltis's own folders, and what gives away the host. The rules are those of
//! the backends that isolate.

use std::ffi::{CStr, OsStr};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::FsWord;

use crate::error::Error;
use crate::mounts::{self, Mounts};

/// The rules of one data directory and one user.
#[derive(Debug)]
pub struct Protected {
    places: Vec<Place>,
    mounts: Mounts,
}

#[derive(Debug)]
struct Place {
    path: PathBuf,
    identity: Option<(u64, u64)>,
    what: String,
    /// Whether what lies in it is protected too; otherwise only the place and what contains it.
    inside: bool,
    /// As its file system names it.
    place: Option<mounts::Place>,
    /// What is mounted in it, where that is protected.
    mounted: Vec<mounts::Place>,
}

impl Place {
    /// How a folder of this place on its file system shows this one, wherever it is mounted.
    fn shown_by(&self, folder: &mounts::Place) -> Option<&'static str> {
        if self.place.as_ref().is_some_and(|place| place.is_within(folder)) {
            return Some("contains");
        }
        let within = |place: &mounts::Place| folder.is_within(place);
        let inside =
            self.inside && (self.place.as_ref().is_some_and(within) || self.mounted.iter().any(within));
        inside.then_some("lies in")
    }
}

impl Protected {
    /// Collects the places. `homes` are the folders that count as this user's home. Blocks on a few look-ups.
    ///
    /// # Errors
    /// When the mounts cannot be read.
    pub fn new(data_dir: &Path, config_dir: Option<&Path>, homes: &[PathBuf]) -> Result<Self, Error> {
        let mut places = Self { places: Vec::new(), mounts: Mounts::read().map_err(Error::Mounts)? };
        places.add(Path::new("/"), "the whole file system", false);
        for home in homes {
            places.add(home, "your home folder", false);
        }
        places.add(data_dir, "Moltis's data directory", true);
        if let Some(config_dir) = config_dir {
            places.add(config_dir, "Moltis's configuration directory", true);
        }
        for (path, what) in [
            ("/proc", "the kernel's process files"),
            ("/sys", "the kernel's device files"),
            ("/dev", "the host's devices"),
            ("/run", "the host's run-time files and sockets"),
        ] {
            places.add(Path::new(path), what, true);
        }
        places.add_engines(homes);
        Ok(places)
    }

    /// Where container engines keep the sockets that give away the host.
    fn add_engines(&mut self, homes: &[PathBuf]) {
        for variable in ["DOCKER_HOST", "CONTAINER_HOST", "PODMAN_HOST"] {
            let value = std::env::var_os(variable).unwrap_or_default();
            if let Some(socket) = value.as_bytes().strip_prefix(b"unix://") {
                // The folder may be as common as /tmp: only the socket, and what contains it.
                self.add(Path::new(OsStr::from_bytes(socket)), "a container engine's socket", false);
            }
        }
        let folders = [
            ".docker/run",
            ".docker/desktop",
            ".local/share/containers/podman/machine",
            ".colima",
            ".lima",
            ".rd",
            ".orbstack/run",
        ];
        let below_homes = homes.iter().flat_map(|home| folders.map(|folder| home.join(folder)));
        // One that is not there hides nothing.
        for folder in below_homes.filter(|folder| folder.exists()) {
            self.add(&folder, "a container engine's folder", true);
        }
        let storage = ["/var/lib/docker", "/var/lib/containers", "/var/lib/containerd"].map(Path::new);
        for folder in storage.into_iter().filter(|folder| folder.exists()) {
            self.add(folder, "a container engine's storage", true);
        }
    }

    fn add(&mut self, path: &Path, what: &str, inside: bool) {
        let identity = fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let path = real(path);
        let what = format!("{what} ({})", path.display());
        let place = self.mounts.place(&path);
        let mounted =
            if inside { self.mounts.beneath(&path).map(mounts::Mount::place).collect() } else { Vec::new() };
        self.places.push(Place { path, identity, what, inside, place, mounted });
    }

    /// Why a folder of this real path may not be shown, as in "it contains your home folder"; `None` if it may. Blocks.
    pub fn refuses(&self, path: &Path, folder: impl AsFd) -> Option<(&'static str, &str)> {
        if let Some(what) = kernel_file_system(&folder) {
            return Some(("lies in", what));
        }
        let identity = rustix::fs::fstat(&folder).ok().map(|found| (found.st_dev, found.st_ino));
        let own = self.mounts.place(path);
        self.places.iter().find_map(|place| {
            let relation = if path == place.path || (identity.is_some() && place.identity == identity) {
                "is"
            } else if place.path.starts_with(path) {
                "contains"
            } else if place.inside && path.starts_with(&place.path) {
                "lies in"
            } else {
                place.shown_by(own.as_ref()?)?
            };
            Some((relation, place.what.as_str()))
        })
    }

    /// What is mounted beneath a folder of this real path and may not be shown: where, and what it is. Nothing of it is
    /// touched: a file system that does not answer harms nobody here.
    pub fn beneath<'p>(&'p self, path: &'p Path) -> Option<(&'p Path, &'p str)> {
        self.mounts.beneath(path).find_map(|mount| {
            let place = mount.place();
            let protected = || self.places.iter().find(|protected| protected.shown_by(&place).is_some());
            let what = mount.kernel_file_system().or_else(|| protected().map(|place| place.what.as_str()))?;
            Some((mount.point(), what))
        })
    }
}

/// The folders that count as this user's home: the user database's and `$HOME`. Blocks on small files.
pub fn homes() -> Vec<PathBuf> {
    let named = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    database_home().into_iter().chain(named).collect()
}

fn database_home() -> Option<PathBuf> {
    let mut buffer = vec![0; 16 * 1024];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    let user = rustix::process::geteuid().as_raw();
    // SAFETY: the entry and the buffer outlive the call and the reading below; `found` is set only when they are filled.
    let home = unsafe {
        let answer =
            libc::getpwuid_r(user, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        if answer != 0 || found.is_null() {
            return None;
        }
        CStr::from_ptr((*found).pw_dir).to_owned()
    };
    Some(PathBuf::from(OsStr::from_bytes(home.as_bytes()))).filter(|home| home.is_absolute())
}

/// A path with its links resolved as far as it exists.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

/// File systems that are the kernel's own, wherever they are mounted.
fn kernel_file_system(folder: impl AsFd) -> Option<&'static str> {
    const PROC: FsWord = 0x9fa0;
    const SYSFS: FsWord = 0x6265_6572;
    const CGROUP: FsWord = 0x0027_e0eb;
    const CGROUP2: FsWord = 0x6367_7270;
    const DEBUGFS: FsWord = 0x6462_6720;
    const TRACEFS: FsWord = 0x7472_6163;
    const SECURITYFS: FsWord = 0x7363_6673;
    const BPF: FsWord = 0xcafe_4a11;
    match rustix::fs::fstatfs(folder).ok()?.f_type {
        PROC => Some("the kernel's process files (a proc file system)"),
        SYSFS => Some("the kernel's device files (a sysfs)"),
        CGROUP | CGROUP2 => Some("the kernel's control groups (a cgroup file system)"),
        DEBUGFS | TRACEFS | SECURITYFS | BPF => Some("a file system of the kernel's own"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_databases_home_counts_whatever_the_environment_says() {
        let named = std::env::var_os("HOME").map(PathBuf::from);
        let homes = homes();
        assert!(named.is_none_or(|named| homes.contains(&named)));
        let line = format!(":{}:", rustix::process::geteuid().as_raw());
        let database = fs::read_to_string("/etc/passwd").unwrap();
        let own = database.lines().find(|entry| entry.contains(&format!(":x{line}")));
        let own = own.and_then(|entry| entry.split(':').nth(5)).map(PathBuf::from);
        assert!(own.is_none_or(|own| homes.contains(&own)), "{homes:?}");
    }
}
