//! Where the store lies: its files, who may own them, and how a damaged one is put aside.

use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::error::{Result, StoreError};

/// Name of the database in the data directory.
pub(super) const DATABASE: &str = "moltis.db";

/// What SQLite keeps beside it. The database goes first when they are put aside: whoever is killed in between leaves
/// a log without its database, which the next start notices, and never a database that has lost its log unnoticed.
const COMPANIONS: [&str; 3] = ["-wal", "-shm", "-journal"];

/// What lies where the database belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing, or a file without a byte.
    Nothing,
    /// Nothing, but a log that belongs to a database which is not there.
    Log,
    /// A file.
    File,
}

/// The data directory, its real path and the database in it.
#[derive(Clone, Debug)]
pub struct Place {
    folder: PathBuf,
    database: PathBuf,
}

impl Place {
    /// Finds the data directory, or makes it for its owner alone.
    ///
    /// # Errors
    /// `Owner` and `Exposed` when others could put files of theirs into it, `Io` when it cannot be made or reached.
    pub fn new(data_dir: &Path) -> Result<Self> {
        // The real path, so that the database can be opened without following any link.
        let folder = match data_dir.canonicalize() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir);
                made.and_then(|()| data_dir.canonicalize())
            }
            found => found,
        };
        let folder = folder.map_err(|e| StoreError::io(data_dir, e))?;
        let is = fs::metadata(&folder).map_err(|e| StoreError::io(&folder, e))?;
        if !is.is_dir() {
            return Err(StoreError::io(&folder, io::Error::from(io::ErrorKind::NotADirectory)));
        }
        belongs_to_us(&folder, &is)?;
        if is.mode() & 0o022 != 0 {
            return Err(StoreError::Exposed(folder));
        }
        let database = folder.join(DATABASE);
        Ok(Self { folder, database })
    }

    /// The database.
    pub fn database(&self) -> &Path {
        &self.database
    }

    /// The file that locks are taken on.
    pub fn lock(&self) -> PathBuf {
        self.folder.join("moltis.lock")
    }

    /// Looks at what is there, without opening it.
    ///
    /// # Errors
    /// `NotAFile` and `Owner` when it is not a file of ours.
    pub fn look(&self) -> Result<Found> {
        let is = match fs::symlink_metadata(&self.database) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(StoreError::io(&self.database, error)),
            Ok(is) => Some(is),
        };
        let Some(is) = is else { return Ok(self.log_or_nothing()) };
        if let Some(found) = other_than_file(&is) {
            return Err(StoreError::NotAFile { place: self.database.clone(), found });
        }
        belongs_to_us(&self.database, &is)?;
        if is.mode() & 0o077 != 0 {
            // A copy that was restored, say. It holds secrets.
            let narrowed = fs::set_permissions(&self.database, fs::Permissions::from_mode(0o600));
            narrowed.map_err(|e| StoreError::io(&self.database, e))?;
        }
        Ok(if is.len() == 0 { self.log_or_nothing() } else { Found::File })
    }

    /// SQLite removes the log of a database that is empty or not there, so it must be noticed before.
    fn log_or_nothing(&self) -> Found {
        let log = fs::symlink_metadata(self.companion(&self.database, "-wal"));
        if log.is_ok_and(|log| log.len() > 0) { Found::Log } else { Found::Nothing }
    }

    /// Makes the empty file with its mode: SQLite would make it readable for others, and gives its companions the
    /// mode of the database.
    ///
    /// # Errors
    /// The kernel's.
    pub fn make(&self) -> Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        match options.open(&self.database) {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(self.cannot_write(error)),
        }
    }

    /// Puts the database and what belongs to it aside, and says where it is now.
    ///
    /// # Errors
    /// The kernel's.
    pub fn put_aside(&self) -> Result<PathBuf> {
        let aside = self.free_name()?;
        self.rename(&self.database, &aside)?;
        for suffix in COMPANIONS {
            self.rename(&self.companion(&self.database, suffix), &self.companion(&aside, suffix))?;
        }
        Ok(aside)
    }

    fn free_name(&self) -> Result<PathBuf> {
        let name = format!("{DATABASE}.corrupt-{}", stamp(SystemTime::now()));
        for number in 1..1000 {
            let suffix = if number == 1 { String::new() } else { format!(".{number}") };
            let aside = self.folder.join(format!("{name}{suffix}"));
            let taken = |place: &Path| fs::symlink_metadata(place).is_ok();
            if !taken(&aside) && !COMPANIONS.iter().any(|suffix| taken(&self.companion(&aside, suffix))) {
                return Ok(aside);
            }
        }
        Err(StoreError::io(&self.database, io::Error::from(io::ErrorKind::AlreadyExists)))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        match fs::rename(from, to) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.cannot_write(error)),
            _ => Ok(()),
        }
    }

    fn companion(&self, database: &Path, suffix: &str) -> PathBuf {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        name.into()
    }

    /// Puts an answer of the kernel's about a file in the data directory into our words.
    pub fn cannot_write(&self, error: io::Error) -> StoreError {
        match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                StoreError::ReadOnly { place: self.database.clone(), cause: error.to_string() }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StoreError::Full(self.database.clone())
            }
            _ => StoreError::io(&self.database, error),
        }
    }
}

fn belongs_to_us(place: &Path, is: &Metadata) -> Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if is.uid() == user {
        return Ok(());
    }
    Err(StoreError::Owner { place: place.to_owned(), owner: is.uid(), user })
}

fn other_than_file(is: &Metadata) -> Option<&'static str> {
    let kind = is.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_symlink() => Some("a link"),
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_socket() => Some("a socket"),
        () if kind.is_fifo() => Some("a pipe"),
        () => Some("a device"),
    }
}

/// A time in UTC as it stands in file names: `20260131T235959Z`.
fn stamp(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    crate::time::utc(i64::try_from(seconds).unwrap_or(i64::MAX)).replace(['-', ':'], "")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn stamps_are_dates() {
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (951_868_800, "20000301T000000Z"),
            (1_798_761_599, "20261231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(stamp(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }
}
