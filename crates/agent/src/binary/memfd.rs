//! The guest binary in memory: one sealed file for the whole process, shared by all its launches.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;

use super::GUEST;

/// Lowest number of the descriptor: above those that launched programs are given.
const LOWEST: i32 = 10;

/// A sealed memory file that holds the guest binary: nobody can change it, whoever inherits it. Made at the first
/// call; takes about a millisecond then.
///
/// # Errors
/// When the kernel makes no such file, or no guest binary is built in.
pub fn memfd() -> io::Result<BorrowedFd<'static>> {
    static MEMFD: OnceLock<OwnedFd> = OnceLock::new();
    if let Some(file) = MEMFD.get() {
        return Ok(file.as_fd());
    }
    let file = make()?;
    // Of two threads that come here at once, one wins; the other's file is closed.
    Ok(MEMFD.get_or_init(|| file).as_fd())
}

fn make() -> io::Result<OwnedFd> {
    if GUEST.is_empty() {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "no guest binary is built into this program"));
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = match rustix::fs::memfd_create("moltis-guest", flags | MemfdFlags::EXEC) {
        // Kernels before 6.3 do not know the flag, and need none.
        Err(Errno::INVAL) => rustix::fs::memfd_create("moltis-guest", flags),
        other => other,
    }?;
    let mut file = File::from(file);
    file.write_all(GUEST)?;
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    // The last seal keeps its mode, too; kernels before 6.3 do not know it.
    match rustix::fs::fcntl_add_seals(&file, seals | SealFlags::EXEC) {
        Err(Errno::INVAL) => rustix::fs::fcntl_add_seals(&file, seals),
        other => other,
    }?;
    // A low number may be one that is given to another file on the way to the program, which is then gone.
    Ok(rustix::io::fcntl_dupfd_cloexec(&file, LOWEST)?)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn it_is_one_file_that_nobody_can_change() {
        let file = memfd().unwrap();
        assert_eq!(file.as_raw_fd(), memfd().unwrap().as_raw_fd());
        assert!(file.as_raw_fd() >= LOWEST);
        assert!(rustix::io::fcntl_getfd(file).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
        assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::PERM));
        assert_eq!(rustix::fs::ftruncate(file, 0), Err(Errno::PERM));
        let mut start = [0; 4];
        assert_eq!(rustix::io::pread(file, &mut start[..], 0), Ok(4));
        assert_eq!(&start, b"\x7fELF");
    }
}
