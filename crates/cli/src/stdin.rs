//! Our standard input, read on a thread of its own and handed over piece by piece.

use std::io::{self, IsTerminal, Read};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Bytes read at once.
const PIECE: usize = 64 * 1024;

/// Whether there is an input to pass on: anything but a terminal that the command does not run on, and but
/// `/dev/null`, which the command reads without us.
pub fn wanted(on_terminal: bool) -> bool {
    on_terminal || !(io::stdin().is_terminal() || is_null())
}

fn is_null() -> bool {
    let null = || rustix::fs::stat("/dev/null").ok();
    rustix::fs::fstat(io::stdin()).ok().zip(null()).is_some_and(|(stdin, null)| {
        rustix::fs::FileType::from_raw_mode(stdin.st_mode) == rustix::fs::FileType::CharacterDevice
            && stdin.st_rdev == null.st_rdev
    })
}

/// Pieces of standard input; the channel closes at its end. The thread is not waited for when the program ends.
pub fn pieces() -> mpsc::Receiver<Bytes> {
    let (send, receive) = mpsc::channel(2);
    std::thread::spawn(move || {
        let mut buffer = vec![0; PIECE];
        let mut stdin = io::stdin().lock();
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    if send.blocking_send(Bytes::copy_from_slice(&buffer[..n])).is_err() {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A closed or unreadable input is an empty one.
                Err(_) => break,
            }
        }
    });
    receive
}
