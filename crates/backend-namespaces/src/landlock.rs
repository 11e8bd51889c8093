//! Landlock: a second wall behind the mounts, with the rights that the kernel here knows.

use std::sync::OnceLock;

use moltis_agent_protocol::launch::{Landlock, LandlockRule};

// Rights of `<linux/landlock.h>`.
const EXECUTE: u64 = 1 << 0;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_BLOCK: u64 = 1 << 11;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// Rights that mean something for a file; the kernel refuses others in a file's rule.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;

/// `LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | LANDLOCK_SCOPE_SIGNAL`, of ABI 6.
const SCOPES: u64 = 0b11;

/// What may be done beneath a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// List the names; nothing else.
    List,
    /// Read and run.
    Read,
    /// Everything but making device nodes and talking to devices.
    Write,
    /// Read, write and control what is there; make nothing.
    Devices,
    /// Read and write what is there; make and run nothing.
    Settings,
}

/// Rules as they are collected while the root is planned.
#[derive(Debug)]
pub struct Rules {
    handled: u64,
    scoped: u64,
    rules: Vec<LandlockRule>,
}

impl Rules {
    /// Rules for this kernel; `None` where Landlock is absent or so old that it forbids every rename and link between
    /// directories (ABI 1), on which git and others depend.
    pub fn new() -> Option<Self> {
        let abi = abi();
        (abi >= 2).then(|| Self {
            handled: handled(abi),
            scoped: if abi >= 6 { SCOPES } else { 0 },
            rules: Vec::new(),
        })
    }

    /// Allows something beneath a guest path.
    pub fn allow(&mut self, path: &[u8], directory: bool, access: Access) {
        let rights = match access {
            Access::List => READ_DIR,
            Access::Read => READ_DIR | READ_FILE | EXECUTE,
            Access::Write => self.handled & !(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV),
            Access::Devices => READ_DIR | READ_FILE | WRITE_FILE | TRUNCATE | IOCTL_DEV,
            Access::Settings => READ_DIR | READ_FILE | WRITE_FILE | TRUNCATE,
        };
        let rights = rights & self.handled & if directory { u64::MAX } else { OF_FILES };
        self.rules.push(LandlockRule { path: path.to_vec().into(), rights });
    }

    /// The ruleset for the plan.
    pub fn finish(self) -> Landlock {
        Landlock { handled: self.handled, scoped: self.scoped, rules: self.rules }
    }
}

/// File system rights of an ABI.
fn handled(abi: i32) -> u64 {
    let count = match abi {
        ..=1 => 13,
        2 => 14,
        3 | 4 => 15,
        _ => 16,
    };
    (1 << count) - 1
}

/// The kernel's Landlock ABI; 0 where it has none or it is switched off.
pub fn abi() -> i32 {
    static ABI: OnceLock<i32> = OnceLock::new();
    *ABI.get_or_init(|| {
        const VERSION: u32 = 1; // LANDLOCK_CREATE_RULESET_VERSION
        // SAFETY: with this flag the kernel takes no struct and only answers a number.
        let abi = unsafe {
            libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0, VERSION)
        };
        i32::try_from(abi).unwrap_or(0).max(0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_follow_the_kernel_and_the_kind_of_object() {
        let mut rules = Rules { handled: handled(3), scoped: 0, rules: Vec::new() };
        rules.allow(b"/dev", true, Access::Devices);
        rules.allow(b"/f", false, Access::Write);
        let landlock = rules.finish();
        assert_eq!(landlock.rules[0].rights, READ_DIR | READ_FILE | WRITE_FILE | TRUNCATE);
        assert_eq!(landlock.rules[1].rights, READ_FILE | WRITE_FILE | EXECUTE | TRUNCATE);
        assert_eq!(handled(7), 0xffff);
    }
}
