//! What all processes that are at a sandbox count together: `<place>/count`, a page that each of them maps. A process has
//! a slot of its own, held by a lock that the kernel takes back when it dies; so what a dead one had counted is known.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// Name of the file.
pub const FILE: &str = "count";

/// Most processes at one sandbox at a time.
const SLOTS: usize = 256;

/// As it lies in the file; all zero is nothing counted.
#[repr(C)]
struct Counts {
    /// Bytes in use, by all.
    total: AtomicI64,
    /// Number of the last command.
    number: AtomicU32,
    _unused: u32,
    /// Bytes in use, by each.
    slots: [AtomicI64; SLOTS],
}

const SIZE: usize = size_of::<Counts>();

/// The mapped page, and this process's slot in it.
#[derive(Debug)]
pub struct Page {
    counts: NonNull<Counts>,
    file: File,
    slot: usize,
}

// SAFETY: what it points to is made of atomics alone, and stays mapped until it is dropped.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    /// That of the sandbox in this folder, made if it is missing.
    ///
    /// # Errors
    /// When it is none, cannot be mapped, or has no slot left.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(folder.join(FILE))?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if found.len() < SIZE as u64 {
            file.set_len(SIZE as u64)?;
        }
        let slot = (0..SLOTS).find(|slot| lock(&file, *slot, libc::F_WRLCK as libc::c_int));
        let slot = slot.ok_or(io::ErrorKind::ResourceBusy)?;
        let (prot, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), SIZE, prot, libc::MAP_SHARED, descriptor, 0) };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let counts = NonNull::new(at.cast::<Counts>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let page = Self { counts, file, slot };
        // Whoever had it before is dead.
        page.forget(slot);
        Ok(page)
    }

    fn counts(&self) -> &Counts {
        // SAFETY: it is mapped until `self` is dropped, aligned to a page, and valid whatever the bytes are.
        unsafe { self.counts.as_ref() }
    }

    /// Bytes in use, by all.
    pub fn total(&self) -> &AtomicI64 {
        &self.counts().total
    }

    /// Bytes in use, by this process.
    pub fn own(&self) -> &AtomicI64 {
        &self.counts().slots[self.slot]
    }

    /// A number that no other command of the sandbox has.
    pub fn next(&self) -> u32 {
        self.counts().number.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }

    /// How many there were.
    pub fn last(&self) -> u32 {
        self.counts().number.load(Ordering::Relaxed)
    }

    /// Takes back what processes had counted that are dead by now.
    pub fn settle(&self) {
        for slot in (0..SLOTS).filter(|slot| *slot != self.slot) {
            let used = self.counts().slots[slot].load(Ordering::Relaxed) != 0;
            if used && lock(&self.file, slot, libc::F_WRLCK as libc::c_int) {
                self.forget(slot);
                lock(&self.file, slot, libc::F_UNLCK as libc::c_int);
            }
        }
    }

    fn forget(&self, slot: usize) {
        let counted = self.counts().slots[slot].swap(0, Ordering::Relaxed);
        self.counts().total.fetch_sub(counted, Ordering::Relaxed);
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.forget(self.slot);
        // SAFETY: mapped by `open` with this length, and nothing refers to it any more.
        let _ = unsafe { libc::munmap(self.counts.as_ptr().cast(), SIZE) };
    }
}

/// Takes or gives back the lock of a slot: of this open file, so that other ones of the same process count as others.
fn lock(file: &File, slot: usize, kind: libc::c_int) -> bool {
    let range = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: slot as libc::off_t,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and the range lives as long as the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_dead_process_had_counted_is_taken_back() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (Page::open(folder.path()).unwrap(), Page::open(folder.path()).unwrap());
        for (page, bytes) in [(&one, 100), (&two, 20)] {
            page.own().fetch_add(bytes, Ordering::Relaxed);
            page.total().fetch_add(bytes, Ordering::Relaxed);
        }
        assert_eq!((one.total().load(Ordering::Relaxed), two.total().load(Ordering::Relaxed)), (120, 120));
        one.settle();
        assert_eq!(one.total().load(Ordering::Relaxed), 120);
        // Dead: its lock is gone, and nothing else of it was cleared away.
        lock(&two.file, two.slot, libc::F_UNLCK as libc::c_int);
        one.settle();
        assert_eq!(one.total().load(Ordering::Relaxed), 100);
        assert_eq!([one.next(), two.next(), one.next(), two.last()], [1, 2, 3, 3]);
    }

    #[test]
    fn what_is_no_file_is_not_mapped() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join(FILE)).unwrap();
        assert!(Page::open(folder.path()).is_err());
    }
}
