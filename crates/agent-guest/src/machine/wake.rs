//! What makes the machine one of its own: the time, its number, random numbers that no other one has.

use std::os::fd::{AsRawFd, OwnedFd};

use moltis_agent_protocol::machine::{AWAKE, WAKE_BYTES, Wake};
use rustix::io::Errno;

/// `RNDADDENTROPY` and `RNDRESEEDCRNG` of `<linux/random.h>`.
const ADD_ENTROPY: libc::Ioctl = 0x4008_5203;
const RESEED: libc::Ioctl = 0x5207;

/// `struct rand_pool_info` with room for a seed.
#[repr(C)]
struct Pool {
    bits: libc::c_int,
    bytes: libc::c_int,
    seed: [u8; 32],
}

/// Does what a [`Wake`] says.
pub struct Waker {
    random: Option<OwnedFd>,
}

impl Waker {
    /// By this handle of the kernel's random numbers, taken from where the keeper can still open it.
    pub fn new(random: Option<OwnedFd>) -> Self {
        Self { random }
    }

    /// The answer to what the host has said so far; `None` when nothing of ours begins so, or it could not be done.
    pub fn hear(&self, said: &[u8; WAKE_BYTES]) -> Option<[u8; 8]> {
        let wake = Wake::decode(said)?;
        self.wake(&wake).ok()?;
        Some(AWAKE)
    }

    fn wake(&self, wake: &Wake) -> Result<(), Errno> {
        self.stir(&wake.seed)?;
        set_clock(wake.nanos)?;
        let number: String = wake.machine.iter().map(|byte| format!("{byte:02x}")).collect();
        super::root::write("/etc/machine-id", &format!("{number}\n")).map_err(|problem| problem.errno)
    }

    fn stir(&self, seed: &[u8; 32]) -> Result<(), Errno> {
        let random = self.random.as_ref().ok_or(Errno::NODEV)?;
        let pool = Pool { bits: 256, bytes: 32, seed: *seed };
        // SAFETY: the descriptor is open and the struct is what the first code takes; the second takes nothing.
        let stirred = unsafe {
            libc::ioctl(random.as_raw_fd(), ADD_ENTROPY, &raw const pool) == 0
                && libc::ioctl(random.as_raw_fd(), RESEED, 0) == 0
        };
        if stirred { Ok(()) } else { Err(last()) }
    }
}

fn set_clock(nanos: u64) -> Result<(), Errno> {
    const SECOND: u64 = 1_000_000_000;
    let time = libc::timespec {
        tv_sec: (nanos / SECOND) as libc::time_t,
        tv_nsec: (nanos % SECOND) as libc::c_long,
    };
    // SAFETY: the struct outlives the call.
    if unsafe { libc::clock_settime(libc::CLOCK_REALTIME, &raw const time) } == 0 {
        Ok(())
    } else {
        Err(last())
    }
}

fn last() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)
}
