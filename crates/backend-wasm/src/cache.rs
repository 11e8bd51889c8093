//! Compiled modules, kept by their content and by what compiled them, in folders of our own that no sandbox is shown:
//! `<data_dir>/cache/wasm` has those of the configuration, `inside` below it those that sandboxes brought, which may take
//! only so much room. What lies there is machine code that is run as it is; so each folder and each file must be ours
//! alone.

use std::collections::hash_map::DefaultHasher;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use wasmtime::{Engine, Module};

use crate::engine::Identity;

/// End of the names of compiled modules, and of the files that say which one a file's content is.
const COMPILED: &str = ".cwasm";
const KNOWN: &str = ".known";

/// Most files in one folder.
const MAX_FILES: usize = 4096;

/// One of the folders.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// Most bytes of it.
    most: u64,
}

impl Cache {
    /// For modules of the configuration, below this data directory. Nothing is made.
    pub fn configured(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("cache/wasm"), most: 4 << 30 }
    }

    /// For modules that sandboxes brought.
    pub fn inside(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("cache/wasm/inside"), most: 512 << 20 }
    }

    /// What a module's content is kept by.
    pub fn key(&self, engine: &Engine, content: &[u8]) -> String {
        let mut compiler = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut compiler);
        format!("{}-{:016x}", hex(&Sha256::digest(content)), compiler.finish())
    }

    /// A module that is kept by this key.
    pub fn by_key(&self, engine: &Engine, key: &str) -> Option<Module> {
        self.read(engine, &self.folder.join(format!("{key}{COMPILED}"))).ok()
    }

    /// The key of a file's content, if it was kept for that very file.
    pub fn key_of(&self, identity: &Identity) -> Option<String> {
        let file = self.open(&self.known(identity)).ok()?;
        let mut key = String::new();
        file.take(256).read_to_string(&mut key).ok()?;
        let plain = key.len() <= 100 && key.bytes().all(|b| b.is_ascii_hexdigit() || b == b'-');
        plain.then_some(key)
    }

    /// The module that was kept for that very file, if it was compiled by this engine.
    pub fn by_identity(&self, engine: &Engine, identity: &Identity) -> Option<Module> {
        let key = self.key_of(identity)?;
        let mut compiler = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut compiler);
        key.ends_with(&format!("-{:016x}", compiler.finish())).then(|| self.by_key(engine, &key)).flatten()
    }

    /// Notes which key a file's content has.
    pub fn remember(&self, identity: &Identity, key: &str) {
        // Without the note it is found by its content.
        let _ = self.put(&self.known(identity), key.as_bytes());
    }

    /// Keeps what was compiled.
    ///
    /// # Errors
    /// When it cannot be written or read back.
    pub fn keep(&self, engine: &Engine, key: &str, compiled: &[u8]) -> io::Result<Module> {
        let path = self.folder.join(format!("{key}{COMPILED}"));
        self.put(&path, compiled)?;
        self.read(engine, &path)
    }

    /// Removes what was used least lately, until the rest is within bounds.
    fn bound(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let described = |entry: fs::DirEntry| {
            let found = entry.metadata().ok().filter(fs::Metadata::is_file)?;
            Some((found.modified().ok()?, found.len(), entry.path()))
        };
        let mut all: Vec<(SystemTime, u64, PathBuf)> = entries.flatten().filter_map(described).collect();
        all.sort_unstable_by(|one, other| other.cmp(one));
        let mut bytes: u64 = 0;
        for (at, (_, size, path)) in all.iter().enumerate() {
            bytes = bytes.saturating_add(*size);
            if bytes > self.most || at >= MAX_FILES {
                // Whoever uses it has it mapped.
                let _ = fs::remove_file(path);
            }
        }
    }

    fn known(&self, identity: &Identity) -> PathBuf {
        let digest = Sha256::digest(format!("{identity:?}"));
        self.folder.join(format!("{}{KNOWN}", hex(&digest[..20])))
    }

    /// Opens a file of ours.
    fn open(&self, path: &Path) -> io::Result<File> {
        self.is_ours()?;
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let found = file.metadata()?;
        let ours = found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
        // It was used just now.
        let _ = file.set_modified(SystemTime::now());
        if found.is_file() && ours { Ok(file) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    fn read(&self, engine: &Engine, path: &Path) -> io::Result<Module> {
        let file = self.open(path)?;
        // The file that was looked at, whatever its name leads to by now.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        // SAFETY: nobody but this user can have written it or can write to it, in a folder of this user's alone; Moltis
        // puts nothing there but what an engine has compiled, whole, and never writes to a file that has its name.
        unsafe { Module::deserialize_file(engine, opened) }
            .map_err(|error| io::Error::other(format!("{error:#}")))
    }

    fn put(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        self.is_ours()?;
        let draft =
            path.with_extension(format!("{}-{:?}.new", std::process::id(), std::thread::current().id()));
        let _ = fs::remove_file(&draft);
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)
            .and_then(|mut file| file.write_all(bytes))
            .and_then(|()| fs::rename(&draft, path));
        match written {
            Ok(()) => self.bound(),
            Err(_) => drop(fs::remove_file(&draft)),
        }
        written
    }

    /// Whether nobody else can put anything into the folder.
    fn is_ours(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.folder)?;
        let ours =
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0;
        if ours { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_least_lately_makes_room() {
        let data = tempfile::tempdir().unwrap();
        let cache = Cache { most: 100, ..Cache::inside(data.path()) };
        let path = |name: &str| cache.folder.join(name);
        let used = |name: &str, secs: u64| {
            let file = cache.open(&path(name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(secs)).unwrap();
        };
        let there = || {
            let mut names: Vec<_> =
                fs::read_dir(&cache.folder).unwrap().map(|e| e.unwrap().file_name()).collect();
            names.sort();
            names
        };
        cache.put(&path("a.cwasm"), &[0; 40]).unwrap();
        cache.put(&path("b.cwasm"), &[0; 40]).unwrap();
        used("a.cwasm", 20);
        used("b.cwasm", 10);
        cache.put(&path("c.cwasm"), &[0; 40]).unwrap();
        assert_eq!(there(), ["a.cwasm", "c.cwasm"]);
        cache.put(&path("d.cwasm"), &[0; 101]).unwrap();
        assert_eq!(there(), [""; 0]);
    }
}
