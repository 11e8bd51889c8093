//! Numbers that one machine has at a time: its user, its piece of network. Each is a file that names its sandbox, made so
//! that only one can make it, and removed only after everything that bears the number is gone.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use moltis_sandbox::SandboxId;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Numbers from 0 up to a bound, in a folder of their own.
#[derive(Clone, Debug)]
pub struct Claims {
    folder: PathBuf,
    what: &'static str,
    count: u32,
}

impl Claims {
    /// In this folder, which is made, 0700, if it is missing. `what` names one in errors. Blocks.
    ///
    /// # Errors
    /// [`Error::Folder`].
    pub fn make(folder: PathBuf, what: &'static str, count: u32) -> Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(&folder).map_err(Error::folder(&folder))?;
        Ok(Self { folder, what, count })
    }

    fn path(&self, number: u32) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// Takes a number for this sandbox that `fits` and nobody has. The search begins where the folder's and the sandbox's
    /// names say, so that two data directories seldom try the same. Blocks.
    ///
    /// # Errors
    /// [`Error::Exhausted`], [`Error::Folder`].
    pub fn take(&self, id: &SandboxId, fits: impl Fn(u32) -> bool) -> Result<u32> {
        let first = self.first(id);
        for step in 0..self.count {
            let number = first.wrapping_add(step) % self.count;
            if !fits(number) {
                continue;
            }
            let path = self.path(number);
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    if let Err(cause) = file.write_all(id.as_str().as_bytes()) {
                        let _ = fs::remove_file(&path);
                        return Err(Error::Folder(path, cause));
                    }
                    return Ok(number);
                }
                Err(cause) if cause.kind() == io::ErrorKind::AlreadyExists => {}
                Err(cause) => return Err(Error::Folder(path, cause)),
            }
        }
        Err(Error::Exhausted(self.what))
    }

    fn first(&self, id: &SandboxId) -> u32 {
        let mut hash = Sha256::new();
        hash.update(self.folder.as_os_str().as_encoded_bytes());
        hash.update(id.as_str());
        let digest = hash.finalize();
        u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]]) % self.count
    }

    /// Gives a number back, if this sandbox has it. Blocks.
    pub fn release(&self, number: u32, id: &SandboxId) {
        let path = self.path(number);
        if holder(&path).as_ref() == Some(id) {
            let _ = fs::remove_file(path);
        }
    }

    /// Gives back what sandboxes had that are no more. A number that is taken is written a moment later: one that names
    /// nobody is left alone for as long as it could be such. Blocks.
    pub fn sweep(&self, lives: impl Fn(&SandboxId) -> bool) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let left = match holder(&path) {
                Some(id) => !lives(&id),
                None => is_old(&path),
            };
            if left {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// What is taken, in ascending order. Blocks.
    #[cfg(test)]
    pub fn taken(&self) -> Vec<u32> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Vec::new() };
        let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }
}

fn holder(path: &Path) -> Option<SandboxId> {
    SandboxId::parse(&fs::read_to_string(path).ok()?)
}

fn is_old(path: &Path) -> bool {
    let age = fs::metadata(path).and_then(|found| found.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age.as_secs() > 60)
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::SessionKey;

    use super::*;

    fn id(key: &str) -> SandboxId {
        SandboxId::of(&SessionKey::new(key).unwrap())
    }

    #[test]
    fn no_two_have_one_number_and_none_is_lost() {
        let temp = tempfile::tempdir().unwrap();
        let claims = Claims::make(temp.path().join("numbers"), "number", 4).unwrap();
        let taken: Vec<u32> = (0..4).map(|n| claims.take(&id(&n.to_string()), |_| true).unwrap()).collect();
        assert_eq!(claims.taken(), [0, 1, 2, 3]);
        assert!(matches!(claims.take(&id("more"), |_| true), Err(Error::Exhausted("number"))));
        claims.release(taken[0], &id("1"));
        assert_eq!(claims.taken().len(), 4, "another's is not given back");
        claims.release(taken[0], &id("0"));
        assert!(matches!(claims.take(&id("more"), |number| number != taken[0]), Err(Error::Exhausted(_))));
        assert_eq!(claims.take(&id("more"), |_| true).unwrap(), taken[0]);
        claims.sweep(|living| *living == id("more"));
        assert_eq!(claims.taken(), [taken[0]]);
    }
}
