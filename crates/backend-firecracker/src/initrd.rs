//! What the kernel unpacks and starts: our agent as its first process, and the modules that it needs. It is made anew from
//! this program, so that a root file system needs nothing of ours in it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use moltis_agent::binary;
use rustix::fs::OFlags;

use crate::disk::Store;
use crate::error::{Error, Result};

/// Where the kernel finds the agent.
pub const INIT: &str = "/init";

/// Bytes of modules, at most.
const MAX_MODULES: u64 = 256 << 20;

const DIRECTORY: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;
const DEVICE: u32 = 0o020_600;

/// The archive, in the store: its name says what is in it. `modules` is a cpio archive (`newc`, as kernels unpack it) with
/// `/modules/*.ko`, loaded in the order of their names; it may be missing where the kernel has everything built in. Blocks.
///
/// # Errors
/// [`Error::Folder`].
pub fn keep(store: &Store, modules: &Path) -> Result<PathBuf> {
    let flags = (OFlags::NONBLOCK | OFlags::CLOEXEC).bits() as i32;
    let mut options = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(options.read(true), flags);
    let found = match options.open(modules) {
        Ok(_) => Some(store.import("modules", modules)?),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
        Err(cause) => return Err(Error::Folder(modules.to_owned(), cause)),
    };
    let theirs = found.as_ref().map_or("none", |imported| imported.name.as_str());
    let name = format!("initrd-{}-{theirs}", &binary::guest_hash()[..24]);
    store.keep(&name, |file| {
        write(file, binary::guest_bytes())?;
        if let Some(imported) = &found {
            let modules = File::open(&imported.path)?;
            if modules.metadata()?.len() > MAX_MODULES {
                return Err(io::Error::other("the modules are too large"));
            }
            io::copy(&mut modules.take(MAX_MODULES), file)?;
        }
        Ok(())
    })
}

/// A cpio archive as kernels unpack it.
pub struct Archive<W> {
    to: W,
    inode: u32,
}

impl<W: Write> Archive<W> {
    /// An empty one.
    pub fn new(to: W) -> Self {
        Self { to, inode: 0 }
    }

    /// Adds a file.
    ///
    /// # Errors
    /// Those of writing.
    pub fn file(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.entry(name, PLAIN, (0, 0), content)
    }

    /// Nothing follows.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end(&mut self) -> io::Result<()> {
        self.entry("TRAILER!!!", 0, (0, 0), b"")?;
        self.to.flush()
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) -> io::Result<()> {
        self.inode += 1;
        let fields = [
            self.inode,
            mode,
            0,
            0,
            1,
            0,
            u32::try_from(content.len()).map_err(io::Error::other)?,
            0,
            0,
            device.0,
            device.1,
            u32::try_from(name.len() + 1).map_err(io::Error::other)?,
            0,
        ];
        let header: String = fields.iter().map(|field| format!("{field:08x}")).collect();
        write!(self.to, "070701{header}{name}\0")?;
        // The header is 110 bytes; name and content end at a multiple of four.
        self.to.write_all(&[0; 3][..(4 - (110 + name.len() + 1) % 4) % 4])?;
        self.to.write_all(content)?;
        self.to.write_all(&[0; 3][..(4 - content.len() % 4) % 4])
    }
}

/// Folders, `/dev/console`, and the agent.
fn write(to: &mut impl Write, agent: &[u8]) -> io::Result<()> {
    let mut archive = Archive::new(to);
    for folder in ["dev", "proc", "sys", "modules", "lower", "upper", "root"] {
        archive.entry(folder, DIRECTORY, (0, 0), b"")?;
    }
    // Without it the first process has no standard streams.
    archive.entry("dev/console", DEVICE, (5, 1), b"")?;
    archive.entry(&INIT[1..], PROGRAM, (0, 0), agent)?;
    archive.end()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn cpio_reads_what_is_written() {
        let mut archive = Vec::new();
        write(&mut archive, b"agent").unwrap();
        assert!(archive.len().is_multiple_of(4));
        let Ok(mut child) = Command::new("busybox")
            .args(["cpio", "-t"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
        else {
            return moltis_testkit::need::skip("cpio_reads_what_is_written", "there is no busybox");
        };
        child.stdin.take().unwrap().write_all(&archive).unwrap();
        let said = child.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8(said.stdout).unwrap(),
            "dev\nproc\nsys\nmodules\nlower\nupper\nroot\ndev/console\ninit\n"
        );
    }

    #[test]
    fn other_modules_are_another_archive() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::make(temp.path()).unwrap();
        let modules = temp.path().join("modules");
        let without = keep(&store, &modules).unwrap();
        std::fs::write(&modules, "070701…").unwrap();
        let with = keep(&store, &modules).unwrap();
        assert_ne!(without, with);
        let length = |path: &Path| std::fs::metadata(path).unwrap().len();
        assert_eq!(length(&with), length(&without) + 9);
        assert_eq!(keep(&store, &modules).unwrap(), with);
    }
}
