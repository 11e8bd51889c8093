//! What every mode does before anything else: no dumps and no tracing, no inherited descriptor but those that were
//! named, no inherited signal dispositions.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::fs::{Mode, OFlags};

/// Keeps processes of the same user from tracing this one and from reading its memory, descriptors and environment.
///
/// # Errors
/// When the kernel refuses, which it does not.
pub fn forbid_inspection() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)?)
}

/// Makes descriptors 0 to 2 `/dev/null`. Called again once a new root is in place, so that no descriptor leads to a
/// device outside.
///
/// # Errors
/// When `/dev/null` cannot be opened.
pub fn null_stdio() -> io::Result<()> {
    for (target, access) in [(0, OFlags::RDONLY), (1, OFlags::WRONLY), (2, OFlags::WRONLY)] {
        let null = rustix::fs::open("/dev/null", access | OFlags::CLOEXEC, Mode::empty())?;
        if null.as_raw_fd() == target {
            rustix::io::fcntl_setfd(&null, rustix::io::FdFlags::empty())?;
            std::mem::forget(null);
            continue;
        }
        // SAFETY: dup2 onto a standard descriptor; nothing in this program owns those three.
        if unsafe { libc::dup2(null.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// As [`null_stdio`], and where there is no `/dev/null`, makes descriptors 0 to 2 the ends of pipes whose other ends are
/// closed.
///
/// # Errors
/// When descriptors run out.
pub fn quiet_stdio() -> io::Result<()> {
    if null_stdio().is_ok() {
        return Ok(());
    }
    let (empty, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let (_, deaf) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    for (target, end) in [(0, &empty), (1, &deaf), (2, &deaf)] {
        // SAFETY: dup2 onto a standard descriptor; nothing in this program owns those three.
        if unsafe { libc::dup2(end.as_raw_fd(), target) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Closes every descriptor above 2 that is not in `keep`, and marks those close-on-exec.
///
/// # Errors
/// When one of `keep` is not open, or the kernel has no `close_range` (Linux 5.9).
pub fn close_all_but(keep: &[RawFd]) -> io::Result<()> {
    let mut sorted = keep.to_vec();
    sorted.sort_unstable();
    for fd in sorted.iter().filter(|fd| **fd > 2) {
        // SAFETY: fcntl on a number sets a flag only; a number that is not open is an error.
        if unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    close_gaps(&sorted)
}

/// Closes every descriptor above 2 that is not in `keep`, which is in ascending order.
///
/// # Errors
/// When the kernel has no `close_range` (Linux 5.9).
pub fn close_gaps(keep: &[RawFd]) -> io::Result<()> {
    let mut first = 3;
    for fd in keep.iter().copied().filter(|fd| *fd > 2) {
        if fd > first {
            close_range(first as u32, fd as u32 - 1)?;
        }
        first = first.max(fd + 1);
    }
    close_range(first as u32, u32::MAX)
}

/// Closes the descriptors from `first` to `last`, both included.
///
/// # Errors
/// When the kernel has no `close_range` (Linux 5.9).
pub fn close_range(first: u32, last: u32) -> io::Result<()> {
    // SAFETY: called only where no owner of these descriptors is left: at the start, and in a process just forked
    // that never returns to the code which owned them.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Gives every signal its default disposition and blocks them all: they are read from [`signals`], or not at all.
/// Commands get an empty mask back and thereby an environment of defaults.
pub fn reset_signals() {
    // All zero: the default disposition, no flags, an empty mask. Asked of the kernel itself, since the C library hides
    // the signals that it uses.
    let default = [0_u64; 4];
    let mask_bytes = size_of::<u64>();
    for signal in 1..=64 {
        // SAFETY: installs no handler. Numbers that cannot be changed are refused.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                std::ptr::null_mut::<u64>(),
                mask_bytes,
            )
        };
    }
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `all` is filled by sigfillset before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// A non-blocking descriptor that is readable when `SIGCHLD` or `SIGTERM` is pending for the process that polls it.
///
/// # Errors
/// When descriptors or memory run out.
pub fn signals() -> io::Result<OwnedFd> {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `set` is initialised by sigemptyset before it is used; the new descriptor is owned by nobody else.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGCHLD);
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTERM);
        let fd = libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// Takes what is pending off a descriptor of [`signals`]: who sent a `SIGTERM`, if one came; 0 for a process outside
/// this pid namespace.
pub fn drain(signals: &OwnedFd) -> Option<u32> {
    // Pending signals of one number are one, and there are two numbers.
    let mut infos = [const { std::mem::MaybeUninit::<libc::signalfd_siginfo>::uninit() }; 2];
    // SAFETY: the kernel writes whole records, at most as many as there is room for.
    let count = unsafe { libc::read(signals.as_raw_fd(), infos.as_mut_ptr().cast(), size_of_val(&infos)) };
    let records = usize::try_from(count).unwrap_or(0) / size_of::<libc::signalfd_siginfo>();
    // SAFETY: the kernel filled that many.
    let mut filled = infos.iter().take(records).map(|info| unsafe { info.assume_init_ref() });
    filled.find(|info| info.ssi_signo == libc::SIGTERM as u32).map(|info| info.ssi_pid)
}

/// Raises the OOM score adjustment of this process, and thereby of everything it starts from now on.
///
/// # Errors
/// When `/proc` cannot be read or the kernel refuses.
pub fn raise_oom_score(adjustment: i32) -> io::Result<()> {
    let path = "/proc/self/oom_score_adj";
    let now: i32 = std::fs::read_to_string(path)?.trim().parse().map_err(io::Error::other)?;
    if now >= adjustment {
        return Ok(());
    }
    // A process that may not be inspected does not own its own files in /proc. Nothing that could inspect it has been
    // started yet.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::Dumpable)?;
    let raised = std::fs::write(path, adjustment.to_string());
    forbid_inspection()?;
    raised
}

/// Makes the allocator give large blocks back to the kernel as soon as they are freed.
pub fn keep_memory_small() {
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of glibc's allocator; no other thread allocates now.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024);
    }
}
