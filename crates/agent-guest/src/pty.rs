//! Pseudo-terminals.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pty::OpenptFlags;
use rustix::termios::{SpecialCodeIndex, Winsize};

/// A new terminal: the master, which does not block, and the slave.
///
/// # Errors
/// What the kernel says: without a `devpts` there is none.
pub fn open(rows: u16, columns: u16) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = rustix::pty::openpt(flags)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let slave = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
    rustix::fs::fcntl_setfl(&master, OFlags::RDWR | OFlags::NONBLOCK)?;
    resize(&master, rows, columns)?;
    Ok((master, slave))
}

/// Sets the size; whoever is in the foreground hears of it.
///
/// # Errors
/// What the kernel says.
pub fn resize(master: impl AsFd, rows: u16, columns: u16) -> Result<(), Errno> {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    rustix::termios::tcsetwinsize(master, size)
}

/// The character that ends input, Ctrl-D unless a program chose another.
pub fn eof_character(master: impl AsFd) -> u8 {
    rustix::termios::tcgetattr(master).map_or(4, |termios| termios.special_codes[SpecialCodeIndex::VEOF])
}
