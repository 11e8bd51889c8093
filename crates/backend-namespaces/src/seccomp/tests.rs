//! The filters against the real kernel: each call is made once without them (the control) and once under them.

use std::io::Read;
use std::os::fd::FromRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;

use super::*;

/// Installs the filters in the calling process.
fn install(programs: &[Program]) -> std::io::Result<()> {
    // SAFETY: plain prctl with constant arguments.
    if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    for program in programs {
        let filter = libc::sock_fprog {
            len: u16::try_from(program.len() / 8).unwrap(),
            filter: program.as_ptr().cast_mut().cast(),
        };
        // SAFETY: `filter` points to `len` instructions that outlive the call.
        let done =
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

/// How a call ended in a forked child: its error number (0 for success), or the signal it died of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Errno(i32),
    Signal(i32),
}

/// Makes one call in a forked child, under the filters or not.
fn call(filtered: bool, number: i64, arguments: [u64; 6]) -> Ended {
    run(filtered, || {
        let [a, b, c, d, e, f] = arguments;
        // SAFETY: the cases pass null or invalid pointers only, or values without pointers.
        unsafe { libc::syscall(number, a, b, c, d, e, f) }
    })
}

fn run(filtered: bool, body: impl FnOnce() -> i64) -> Ended {
    let programs = programs().unwrap();
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for two descriptors.
    assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
    // SAFETY: the child makes system calls only and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; `number` lives on the stack.
        unsafe {
            let ready = !filtered || install(programs).is_ok();
            let number: i32 = match (ready, body()) {
                (false, _) => -1,
                (true, -1) => *libc::__errno_location(),
                (true, _) => 0,
            };
            libc::write(ends[1], (&raw const number).cast(), 4);
            libc::_exit(0)
        }
    }
    // SAFETY: both descriptors are ours and used once.
    let mut reader = unsafe {
        libc::close(ends[1]);
        std::fs::File::from_raw_fd(ends[0])
    };
    let mut answer = Vec::new();
    reader.read_to_end(&mut answer).unwrap();
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    match std::process::ExitStatus::from_raw(status).signal() {
        Some(signal) => Ended::Signal(signal),
        None => Ended::Errno(i32::from_ne_bytes(answer.try_into().unwrap())),
    }
}

const RUBBISH: u64 = 0xdead_beef_0000_0000;

/// Calls that need privilege answer EPERM without the filter too; only root can tell the two apart.
fn root() -> bool {
    // SAFETY: no arguments.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn what_is_taken_away_answers_eperm_and_would_work_without() {
    // Arguments are chosen so that even root's control does nothing: invalid flags, null pointers, bad descriptors.
    let bad = u64::MAX;
    let cases: &[(&str, i64, [u64; 6], bool)] = &[
        ("unshare user", libc::SYS_unshare, [0x1000_0000, 0, 0, 0, 0, 0], false),
        ("setns", libc::SYS_setns, [bad, 0, 0, 0, 0, 0], false),
        ("mount", libc::SYS_mount, [0, 0, 0, 0, 0, 0], false),
        ("umount2", libc::SYS_umount2, [0, bad, 0, 0, 0, 0], true),
        ("pivot_root", libc::SYS_pivot_root, [0, 0, 0, 0, 0, 0], true),
        ("chroot", libc::SYS_chroot, [0, 0, 0, 0, 0, 0], false),
        ("fsopen", libc::SYS_fsopen, [0, bad, 0, 0, 0, 0], true),
        ("open_tree", libc::SYS_open_tree, [bad, 0, bad, 0, 0, 0], false),
        ("move_mount", libc::SYS_move_mount, [bad, 0, bad, 0, bad, 0], true),
        ("mount_setattr", libc::SYS_mount_setattr, [bad, 0, bad, 0, 0, 0], false),
        ("bpf", libc::SYS_bpf, [bad, 0, 0, 0, 0, 0], false),
        ("perf_event_open", libc::SYS_perf_event_open, [0, 0, 0, 0, 0, 0], false),
        ("userfaultfd", libc::SYS_userfaultfd, [bad, 0, 0, 0, 0, 0], true),
        ("io_uring_setup", libc::SYS_io_uring_setup, [1, 0, 0, 0, 0, 0], false),
        ("io_uring_enter", libc::SYS_io_uring_enter, [bad, 0, 0, 0, 0, 0], false),
        ("io_uring_register", libc::SYS_io_uring_register, [bad, 0, 0, 0, 0, 0], false),
        ("add_key", libc::SYS_add_key, [0, 0, 0, 0, 0, 0], false),
        ("request_key", libc::SYS_request_key, [0, 0, 0, 0, 0, 0], false),
        ("keyctl", libc::SYS_keyctl, [bad, 0, 0, 0, 0, 0], false),
        ("init_module", libc::SYS_init_module, [0, 0, 0, 0, 0, 0], true),
        ("finit_module", libc::SYS_finit_module, [bad, 0, 0, 0, 0, 0], true),
        ("delete_module", libc::SYS_delete_module, [0, 0, 0, 0, 0, 0], true),
        ("kexec_load", libc::SYS_kexec_load, [0, 0, 0, bad, 0, 0], true),
        ("reboot", libc::SYS_reboot, [0, 0, 0, 0, 0, 0], true),
        ("swapon", libc::SYS_swapon, [0, 0, 0, 0, 0, 0], true),
        ("swapoff", libc::SYS_swapoff, [0, 0, 0, 0, 0, 0], true),
        ("open_by_handle_at", libc::SYS_open_by_handle_at, [bad, 0, 0, 0, 0, 0], true),
        ("acct", libc::SYS_acct, [1, 0, 0, 0, 0, 0], true),
        ("settimeofday", libc::SYS_settimeofday, [1, 0, 0, 0, 0, 0], false),
        ("clock_settime", libc::SYS_clock_settime, [99, 0, 0, 0, 0, 0], false),
        ("syslog", libc::SYS_syslog, [bad, 0, 0, 0, 0, 0], true),
        ("sethostname", libc::SYS_sethostname, [0, bad, 0, 0, 0, 0], true),
        ("quotactl", libc::SYS_quotactl, [0, 0, 0, 0, 0, 0], false),
        ("fanotify_init", libc::SYS_fanotify_init, [bad, 0, 0, 0, 0, 0], true),
        ("kcmp", libc::SYS_kcmp, [0, 0, 0, 0, 0, 0], false),
        ("pidfd_getfd", libc::SYS_pidfd_getfd, [bad, 0, 0, 0, 0, 0], false),
        ("process_madvise", libc::SYS_process_madvise, [bad, 0, 0, 0, 0, 0], false),
        ("AF_VSOCK", libc::SYS_socket, [40, 1, 0, 0, 0, 0], false),
        ("AF_VSOCK, upper half", libc::SYS_socket, [RUBBISH | 40, 1, 0, 0, 0, 0], false),
        ("AF_ALG", libc::SYS_socket, [38, 5, 0, 0, 0, 0], false),
        ("AF_PACKET", libc::SYS_socket, [17, 3, 0, 0, 0, 0], true),
        ("AF_TIPC pair", libc::SYS_socketpair, [30, 5, 0, 0, 0, 0], false),
        ("TIOCSTI", libc::SYS_ioctl, [bad, 0x5412, 0, 0, 0, 0], false),
        ("TIOCSTI, upper half", libc::SYS_ioctl, [bad, RUBBISH | 0x5412, 0, 0, 0, 0], false),
        ("TIOCLINUX", libc::SYS_ioctl, [bad, 0x541c, 0, 0, 0, 0], false),
        ("TIOCLINUX, upper half", libc::SYS_ioctl, [bad, RUBBISH | 0x541c, 0, 0, 0, 0], false),
        ("fchmod u+s", libc::SYS_fchmod, [bad, 0o4755, 0, 0, 0, 0], false),
        ("fchmod g+s, upper half", libc::SYS_fchmod, [bad, RUBBISH | 0o2755, 0, 0, 0, 0], false),
        ("fchmodat u+s", libc::SYS_fchmodat, [bad, 0, 0o4755, 0, 0, 0], false),
        ("fchmodat2 u+s", 452, [bad, 0, 0o4755, 0, 0, 0], false),
        ("chmod u+s", libc::SYS_chmod, [0, 0o4755, 0, 0, 0, 0], false),
        ("creat u+s", libc::SYS_creat, [0, 0o4755, 0, 0, 0, 0], false),
        ("mknod u+s", libc::SYS_mknod, [0, 0o104_755, 0, 0, 0, 0], false),
        ("mknodat u+s", libc::SYS_mknodat, [bad, 0, 0o104_755, 0, 0, 0], false),
        ("open O_CREAT u+s", libc::SYS_open, [0, 0o100, 0o4755, 0, 0, 0], false),
        ("openat O_CREAT u+s", libc::SYS_openat, [bad, 0, 0o100, 0o4755, 0, 0], false),
        ("openat O_TMPFILE g+s", libc::SYS_openat, [bad, 0, 0o20_200_002, 0o2755, 0, 0], false),
        ("prlimit of PID 1", libc::SYS_prlimit64, [1, 99, 0, 0, 0, 0], false),
        ("scheduler of PID 1", libc::SYS_sched_setscheduler, [1, 99, 0, 0, 0, 0], false),
        ("priority of PID 1", libc::SYS_setpriority, [9, 1, 0, 0, 0, 0], false),
        ("priority of a user", libc::SYS_setpriority, [2, u64::from(u32::MAX), 0, 0, 0, 0], false),
        ("io priority of PID 1", libc::SYS_ioprio_set, [9, 1, 0, 0, 0, 0], false),
        ("personality", libc::SYS_personality, [0x0040_0000, 0, 0, 0, 0, 0], false),
    ];
    for &(name, number, arguments, privileged) in cases {
        assert_eq!(call(true, number, arguments), Ended::Errno(libc::EPERM), "{name}");
        if !privileged || root() {
            assert_ne!(call(false, number, arguments), Ended::Errno(libc::EPERM), "control of {name}");
        }
    }
}

#[test]
fn ordinary_modes_and_own_limits_pass() {
    let bad = u64::from(u32::MAX);
    for (name, number, arguments) in [
        ("fchmod", libc::SYS_fchmod, [bad, 0o1777, 0, 0, 0, 0]),
        ("open without O_CREAT and rubbish for a mode", libc::SYS_open, [0, 0, bad, 0, 0, 0]),
        ("openat O_CREAT", libc::SYS_openat, [bad, 0, 0o100, 0o1777, 0, 0]),
        ("prlimit", libc::SYS_prlimit64, [0, 99, 0, 0, 0, 0]),
        ("setpriority", libc::SYS_setpriority, [0, 0, 0, 0, 0, 0]),
        ("ioprio_set", libc::SYS_ioprio_set, [1, 0, 0, 0, 0, 0]),
    ] {
        assert_ne!(call(true, number, arguments), Ended::Errno(libc::EPERM), "{name}");
        assert_eq!(call(true, number, arguments), call(false, number, arguments), "{name}");
    }
    assert_eq!(call(true, libc::SYS_openat2, [bad, 0, 0, 0, 0, 0]), Ended::Errno(libc::ENOSYS));
}

#[test]
fn no_namespace_flag_passes_clone() {
    for flag in [0x2_0000_u64, 0x200_0000, 0x400_0000, 0x800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000] {
        for high in [0, RUBBISH] {
            // Thread without a shared address space: invalid, so the control makes no process either.
            let arguments = [high | flag | 0x1_0000, 0, 0, 0, 0, 0];
            assert_eq!(call(true, libc::SYS_clone, arguments), Ended::Errno(libc::EPERM), "{flag:#x}");
            assert_eq!(call(false, libc::SYS_clone, arguments), Ended::Errno(libc::EINVAL), "{flag:#x}");
        }
    }
    assert_eq!(call(true, libc::SYS_clone, [0x1_0000, 0, 0, 0, 0, 0]), Ended::Errno(libc::EINVAL));
}

#[test]
fn clone3_and_unknown_calls_do_not_exist() {
    assert_eq!(call(true, libc::SYS_clone3, [0; 6]), Ended::Errno(libc::ENOSYS));
    assert_eq!(call(false, libc::SYS_clone3, [0; 6]), Ended::Errno(libc::EINVAL));
    for number in [470, 500, 511] {
        assert_eq!(call(true, number, [0; 6]), Ended::Errno(libc::ENOSYS), "{number}");
    }
}

#[test]
fn what_programs_need_passes() {
    let cases: &[(&str, i64, [u64; 6], i32)] = &[
        ("getpid", libc::SYS_getpid, [0; 6], 0),
        ("AF_UNIX", libc::SYS_socket, [1, 1, 0, 0, 0, 0], 0),
        ("AF_INET", libc::SYS_socket, [2, 1, 0, 0, 0, 0], 0),
        ("AF_INET, upper half", libc::SYS_socket, [RUBBISH | 2, 1, 0, 0, 0, 0], 0),
        ("AF_INET6", libc::SYS_socket, [10, 2, 0, 0, 0, 0], 0),
        ("AF_NETLINK", libc::SYS_socket, [16, 3, 0, 0, 0, 0], 0),
        ("TCGETS", libc::SYS_ioctl, [u64::MAX, 0x5401, 0, 0, 0, 0], libc::EBADF),
        ("personality query", libc::SYS_personality, [0xffff_ffff, 0, 0, 0, 0, 0], 0),
        ("close_range", libc::SYS_close_range, [1 << 20, 1 << 21, 0, 0, 0, 0], 0),
        ("renameat2", libc::SYS_renameat2, [0, 0, 0, 0, u64::MAX, 0], libc::EINVAL),
        ("faccessat2", libc::SYS_faccessat2, [0, 0, 0, u64::MAX, 0, 0], libc::EINVAL),
        ("fchmodat2", 452, [0, 0, 0, u64::MAX, 0, 0], libc::EINVAL),
        ("memfd_create", libc::SYS_memfd_create, [0, 0, 0, 0, 0, 0], libc::EFAULT),
        ("pidfd_open", libc::SYS_pidfd_open, [0, 0, 0, 0, 0, 0], libc::EINVAL),
        ("signalfd4", libc::SYS_signalfd4, [0, 0, 0, 0, 0, 0], libc::EINVAL),
        ("epoll_create1", libc::SYS_epoll_create1, [0; 6], 0),
        ("landlock", libc::SYS_landlock_create_ruleset, [0, 0, 99, 0, 0, 0], libc::EINVAL),
        ("futex_waitv", libc::SYS_futex_waitv, [0, 0, 0, 0, 0, 0], libc::EINVAL),
        ("mseal", 462, [1, 0, 0, 0, 0, 0], libc::EINVAL),
        ("cachestat", 451, [u64::MAX, 0, 0, 0, 0, 0], libc::EBADF),
        ("ptrace", libc::SYS_ptrace, [u64::MAX, 0, 0, 0, 0, 0], libc::ESRCH),
        ("prctl", libc::SYS_prctl, [38, 1, 0, 0, 0, 0], 0),
    ];
    for &(name, number, arguments, expected) in cases {
        assert_eq!(call(true, number, arguments), call(false, number, arguments), "{name}");
        let ended = call(true, number, arguments);
        // A kernel older than the call says so by itself.
        assert!([Ended::Errno(expected), Ended::Errno(libc::ENOSYS)].contains(&ended), "{name}: {ended:?}");
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn other_abis_do_not_pass() {
    // getpid by the 32-bit entry; the number of i386 is 20.
    let int80 = || {
        let result: i64;
        // SAFETY: a call without arguments; the kernel may clobber r8 to r11.
        unsafe {
            std::arch::asm!("int 0x80", inlateout("rax") 20_i64 => result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
        }
        if result > 0 { 0 } else { -1 }
    };
    assert_eq!(run(true, int80), Ended::Signal(libc::SIGSYS));
    let control = run(false, int80);
    eprintln!("control of int 0x80: {control:?}");
    // x32: the same numbers with bit 30 set, under the native architecture's name.
    for number in [libc::SYS_getpid, libc::SYS_unshare, libc::SYS_clone, libc::SYS_ioctl] {
        assert_eq!(call(true, number | 0x4000_0000, [0; 6]), Ended::Errno(libc::EPERM), "{number}");
    }
}

#[test]
fn programs_fit_the_kernel_and_are_compiled_once() {
    let first = programs().unwrap();
    assert_eq!(first.len(), 1);
    for program in first {
        assert_eq!(program.len() % 8, 0);
        // Short enough to be installed in a fraction of a launch.
        assert!(program.len() / 8 <= 512, "{}", program.len() / 8);
    }
    assert!(std::ptr::eq(first, programs().unwrap()));
}

/// Ordinary programs, threads included, under the filters.
#[test]
fn ordinary_programs_run() {
    let python = "import threading,socket,subprocess,multiprocessing,tempfile,os,select,time\n\
        t=threading.Thread(target=lambda:None);t.start();t.join()\n\
        assert subprocess.run(['true']).returncode==0\n\
        a,b=socket.socketpair();a.send(b'x');assert b.recv(1)==b'x'\n\
        s=socket.socket();s.bind(('127.0.0.1',0));s.listen()\n\
        p=multiprocessing.get_context('fork').Pool(2);assert p.map(abs,[-1,-2])==[1,2];p.close()\n\
        m,sl=os.openpty();os.write(m,b'x\\n');assert os.read(sl,2)==b'x\\n'\n\
        print('fine')";
    let scripts: &[(&str, &[&str])] = &[
        ("sh", &["-c", "x=$(echo fine | cat); (sleep 0 &); wait; echo $x"]),
        ("python3", &["-c", python]),
        ("node", &["-e", "require('fs').readFile('/etc/passwd',()=>console.log('fine'))"]),
        ("perl", &["-e", "print `echo fine`"]),
    ];
    for (program, arguments) in scripts {
        let mut command = Command::new(program);
        command.args(*arguments);
        let filters = programs().unwrap();
        // SAFETY: `install` makes system calls only.
        unsafe { command.pre_exec(move || install(filters)) };
        match command.output() {
            Ok(output) => {
                assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "fine", "{program}: {output:?}")
            }
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{program}"),
        }
    }
}
