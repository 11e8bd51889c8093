//! Who runs Moltis, and who the sandbox's user is outside because of that.

use std::ffi::{CStr, CString, OsStr};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use moltis_agent_protocol::launch::Identity;

use crate::error::{Error, Result};

/// User and group id of the sandbox's user, inside.
pub const INSIDE_ID: u32 = 1000;

/// Host uid behind the sandbox's user of a privileged caller without subordinate ids.
const DEFAULT_SANDBOX_UID: u32 = 100_000;

/// What is known of the calling user.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Login name, if the user database knows one.
    pub name: Option<CString>,
    /// Home folders that count as the caller's: the user database's and `$HOME`.
    pub homes: Vec<PathBuf>,
}

impl Caller {
    /// Asks the kernel, the user database and the environment. Blocks on small files.
    pub fn now() -> Self {
        let uid = rustix::process::geteuid().as_raw();
        let (name, home) = passwd(uid);
        let mut homes: Vec<PathBuf> = home.into_iter().collect();
        homes.extend(std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()));
        homes.dedup();
        Self { uid, gid: rustix::process::getegid().as_raw(), name, homes }
    }

    /// Who the sandbox's user is outside. Host uid 0 never is.
    ///
    /// # Errors
    /// [`Error::SandboxUid`] when `asked` is 0 or not an id that this process can give.
    pub fn identity(&self, asked: Option<u32>) -> Result<Identity> {
        let ranges = own_ids();
        let alone = ranges.iter().map(|(_, count)| *count).sum::<u64>() <= 1;
        if self.uid != 0 || (alone && !is_host_root()) {
            return Ok(Identity {
                inside_uid: INSIDE_ID,
                inside_gid: INSIDE_ID,
                outside_uid: self.uid,
                outside_gid: self.gid,
                privileged: false,
            });
        }
        let known =
            |id: u32| ranges.iter().any(|(first, count)| (*first..first + count).contains(&u64::from(id)));
        let outside = match asked {
            Some(id) if id == 0 || !known(id) => return Err(Error::SandboxUid { uid: id }),
            Some(id) => id,
            None => {
                let first = fs::read("/etc/subuid")
                    .ok()
                    .and_then(|text| first_subid(&text, self.name.as_deref(), self.uid));
                [first, Some(DEFAULT_SANDBOX_UID)]
                    .into_iter()
                    .flatten()
                    .find(|id| *id != 0 && known(*id))
                    // In a container with few ids of its own: the last of them.
                    .or_else(|| {
                        let last = ranges.iter().map(|(first, count)| first + count - 1).max()?;
                        u32::try_from(last).ok().filter(|id| *id != 0)
                    })
                    .ok_or(Error::SandboxUid { uid: DEFAULT_SANDBOX_UID })?
            }
        };
        Ok(Identity {
            inside_uid: INSIDE_ID,
            inside_gid: INSIDE_ID,
            outside_uid: outside,
            outside_gid: outside,
            privileged: true,
        })
    }
}

/// User id that the caller's connections show inside the sandbox.
pub fn owner_inside(identity: &Identity) -> u32 {
    if !identity.privileged {
        return identity.inside_uid;
    }
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534)
}

/// Name and home of the user database.
fn passwd(uid: u32) -> (Option<CString>, Option<PathBuf>) {
    let mut buffer = vec![0; 16 * 1024];
    let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: the entry and the buffer outlive the call and the reading below; `found` is set only when they are filled.
    let (name, home) = unsafe {
        let answer =
            libc::getpwuid_r(uid, entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found);
        if answer != 0 || found.is_null() {
            return (None, None);
        }
        (CStr::from_ptr((*found).pw_name).to_owned(), CStr::from_ptr((*found).pw_dir).to_owned())
    };
    let home = PathBuf::from(std::ffi::OsString::from_vec(home.into_bytes()));
    (Some(name), Some(home).filter(|home| home.is_absolute()))
}

/// Ids that exist in this process's user namespace, as (first, count).
fn own_ids() -> Vec<(u64, u64)> {
    let text = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut ranges = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().and_then(|word| word.parse().ok());
        if let (Some(first), Some(count)) = (first, words.nth(1).and_then(|word| word.parse().ok())) {
            ranges.push((first, count));
        }
    }
    ranges
}

/// Whether uid 0 of this process's user namespace is uid 0 of the one around it.
fn is_host_root() -> bool {
    let text = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    text.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("0") && words.next() == Some("0")
    })
}

/// First id of the first range that `/etc/subuid` gives to the user.
fn first_subid(text: &[u8], name: Option<&CStr>, uid: u32) -> Option<u32> {
    let number = uid.to_string();
    text.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let who = fields.next()?;
        if who != number.as_bytes() && Some(who) != name.map(CStr::to_bytes) {
            return None;
        }
        let first = std::str::from_utf8(fields.next()?).ok()?.trim().parse().ok()?;
        let count: u32 = std::str::from_utf8(fields.next()?).ok()?.trim().parse().ok()?;
        (count > 0).then_some(first)
    })
}

/// The time zone's name, for `TZ` inside: the environment's, `/etc/timezone`'s, or that of `/etc/localtime`'s target.
pub fn time_zone() -> Option<std::ffi::OsString> {
    let named = |zone: &OsStr| {
        let bytes = zone.as_bytes();
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/_+-,.:<>".contains(b);
        !bytes.is_empty()
            && bytes.len() <= 128
            && bytes.iter().all(plain)
            // A path to a file of the host says nothing inside.
            && !bytes.starts_with(b"/")
            && !bytes.starts_with(b":")
    };
    if let Some(zone) = std::env::var_os("TZ").filter(|zone| named(zone)) {
        return Some(zone);
    }
    if let Ok(text) = fs::read_to_string("/etc/timezone") {
        let zone = OsStr::new(text.trim());
        if named(zone) {
            return Some(zone.to_owned());
        }
    }
    let target = fs::canonicalize("/etc/localtime").ok()?;
    let zone = target.to_str()?.split_once("/zoneinfo/")?.1;
    Some(zone.into()).filter(|zone: &std::ffi::OsString| named(zone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_range_of_the_user_counts() {
        let text = b"# comment\nother:1:2\nroot:200000:0\nroot:300000:65536\n0:400000:1\n";
        assert_eq!(first_subid(text, Some(c"root"), 0), Some(300_000));
        assert_eq!(first_subid(text, None, 0), Some(400_000));
        assert_eq!(first_subid(text, Some(c"nobody"), 7), None);
    }

    #[test]
    fn the_user_databases_home_counts_whatever_the_environment_says() {
        let named = std::env::var_os("HOME").map(PathBuf::from);
        let homes = Caller::now().homes;
        assert!(named.is_none_or(|named| homes.contains(&named)));
        let line = format!(":{}:", rustix::process::geteuid().as_raw());
        let database = fs::read_to_string("/etc/passwd").unwrap();
        let own = database.lines().find(|entry| entry.contains(&format!(":x{line}")));
        let own = own.and_then(|entry| entry.split(':').nth(5)).map(PathBuf::from);
        assert!(own.is_none_or(|own| homes.contains(&own)), "{homes:?}");
    }

    #[test]
    fn host_root_is_never_given() {
        let root = Caller { uid: 0, gid: 0, name: None, homes: Vec::new() };
        assert!(root.identity(Some(0)).is_err());
        let identity = root.identity(None).unwrap();
        assert!(identity.outside_uid != 0 && identity.outside_gid != 0);
        let user = Caller { uid: 61234, gid: 61235, name: None, homes: Vec::new() };
        let identity = user.identity(Some(5)).unwrap();
        assert_eq!((identity.outside_uid, identity.outside_gid, identity.privileged), (61234, 61235, false));
    }
}
