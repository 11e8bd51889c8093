//! What is mounted where, and what of it may not be shown: a source is shown with everything mounted beneath it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `mountinfo` (`proc_pid_mountinfo(5)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The file system's device, `major:minor`.
    device: String,
    /// Which directory of the file system is mounted.
    root: PathBuf,
    /// Where.
    point: PathBuf,
    /// The file system's type.
    kind: String,
}

/// The mounts that the calling thread sees, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Mounts(Vec<Mount>);

/// A directory as its file system names it, wherever it is mounted.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    device: String,
    path: PathBuf,
}

impl Mounts {
    /// Reads them.
    ///
    /// # Errors
    /// When there is no `/proc`.
    pub fn read() -> std::io::Result<Self> {
        // The thread's: a thread can have a mount namespace of its own, and what it starts has the same.
        fs::read("/proc/thread-self/mountinfo").map(|text| Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        Self(text.split(|byte| *byte == b'\n').filter_map(parse_line).collect())
    }

    /// What is mounted beneath a path, but not on it.
    pub fn beneath<'m>(&'m self, path: &'m Path) -> impl Iterator<Item = &'m Mount> {
        self.0.iter().filter(move |mount| mount.point != path && mount.point.starts_with(path))
    }

    /// A real path as its file system names it.
    pub fn place(&self, path: &Path) -> Option<Place> {
        let depth = |mount: &&Mount| mount.point.components().count();
        // Of several at one place the last one covers the others.
        let mount = self.0.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(depth)?;
        let rest = path.strip_prefix(&mount.point).ok()?;
        Some(Place { device: mount.device.clone(), path: mount.root.join(rest) })
    }
}

impl Mount {
    /// Where it is mounted.
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// The mounted directory as its file system names it.
    pub fn place(&self) -> Place {
        Place { device: self.device.clone(), path: self.root.clone() }
    }

    /// What it is, if it is a file system of the kernel's own.
    pub fn kernel_file_system(&self) -> Option<&'static str> {
        Some(match self.kind.as_str() {
            "proc" => "the kernel's process files (a proc file system)",
            "sysfs" => "the kernel's device files (a sysfs)",
            "cgroup" | "cgroup2" => "the kernel's control groups (a cgroup file system)",
            "devtmpfs" | "devpts" => "the host's devices",
            "debugfs" | "tracefs" | "securityfs" | "bpf" | "configfs" | "pstore" | "efivarfs" | "mqueue"
            | "binfmt_misc" | "fusectl" | "selinuxfs" | "smackfs" | "nsfs" | "nfsd" | "rpc_pipefs"
            | "resctrl" | "binder" => "a file system of the kernel's own",
            _ => return None,
        })
    }
}

impl Place {
    /// Whether it is `other`, or lies in it.
    pub fn is_within(&self, other: &Self) -> bool {
        self.device == other.device && self.path.starts_with(&other.path)
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = text(fields.nth(2)?);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let kind = text(fields.skip_while(|field| *field != b"-").nth(1)?);
    Some(Mount { device, root, point, kind })
}

/// Blanks, line ends and backslashes are written as three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                path.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
                rest = after;
            }
            _ => {
                path.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_names() {
        let text = b"22 1 8:1 / / rw,relatime shared:1 master:2 - ext4 /dev/sda1 rw\n\
            23 22 0:20 / /w\\040x/proc rw - proc proc rw\n\
            24 22 8:1 /home/u /w\\040x/b\\134 rw - ext4 /dev/sda1 rw\n";
        let mounts = Mounts::parse(text);
        let points: Vec<_> = mounts.beneath(Path::new("/w x")).map(Mount::point).collect();
        assert_eq!(points, [Path::new("/w x/proc"), Path::new("/w x/b\\")]);
        assert!(mounts.0[1].kernel_file_system().is_some() && mounts.0[2].kernel_file_system().is_none());
        let home = mounts.place(Path::new("/home")).unwrap();
        assert!(mounts.0[2].place().is_within(&home) && !home.is_within(&mounts.0[2].place()));
        assert!(!mounts.0[1].place().is_within(&home));
        assert_eq!(mounts.place(Path::new("/w x/b\\/c")), mounts.place(Path::new("/home/u/c")));
    }
}
