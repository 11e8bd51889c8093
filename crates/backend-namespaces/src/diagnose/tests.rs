//! Each cause by the facts that tell it, and one for real.

use std::process::Command;

use super::*;

/// A machine on which everything is as it should be, for an ordinary user.
fn fine() -> Facts {
    Facts {
        privileged: false,
        has_user_namespaces: true,
        zero_limits: Vec::new(),
        unprivileged_userns_clone: None,
        apparmor_restrict_userns: None,
        apparmor_profile: None,
        seccomp: false,
        chrooted: false,
        container: None,
        kernel: (6, 1),
        kernel_release: "6.1.0".to_owned(),
        program: "/usr/bin/moltis".to_owned(),
    }
}

fn code(stage: Stage, errno: i32, facts: &Facts) -> Diagnosis {
    diagnose(&Fault { stage, what: b"thing".to_vec().into(), errno }, facts)
}

#[test]
fn every_cause_has_its_code_and_fix() {
    let with = |change: fn(&mut Facts)| {
        let mut facts = fine();
        change(&mut facts);
        facts
    };
    let docker = |f: &mut Facts| (f.container, f.seccomp) = (Some(Container::Docker), true);
    let cases: Vec<(&str, &str, Stage, i32, Facts)> = vec![
        (
            "userns-max-zero",
            "sysctl -w user.max_user_namespaces=15000",
            Stage::Namespaces,
            libc::ENOSPC,
            with(|f| f.zero_limits = vec!["max_user_namespaces".to_owned()]),
        ),
        (
            "namespaces-max-zero",
            "user.max_net_namespaces=15000",
            Stage::Namespaces,
            libc::ENOSPC,
            with(|f| f.zero_limits = vec!["max_net_namespaces".to_owned()]),
        ),
        ("namespaces-exhausted", "max_user_namespaces", Stage::Namespaces, libc::ENOSPC, fine()),
        (
            "userns-unprivileged-off",
            "kernel.unprivileged_userns_clone=1",
            Stage::Namespaces,
            libc::EPERM,
            with(|f| f.unprivileged_userns_clone = Some(0)),
        ),
        (
            "userns-apparmor",
            "profile moltis \"/usr/bin/moltis\" flags=(unconfined)",
            Stage::Namespaces,
            libc::EACCES,
            with(|f| f.apparmor_restrict_userns = Some(1)),
        ),
        (
            "userns-apparmor",
            "apparmor_restrict_unprivileged_userns=0",
            Stage::Network,
            libc::EPERM,
            with(|f| f.apparmor_restrict_userns = Some(1)),
        ),
        ("seccomp-blocks-clone", "seccomp=unconfined", Stage::Namespaces, libc::EPERM, with(docker)),
        ("seccomp-blocks-clone", "systempaths=unconfined", Stage::Root, libc::EPERM, with(docker)),
        ("seccomp-blocks-clone", "seccomp=unconfined", Stage::Mount, libc::ENOSYS, with(docker)),
        (
            "seccomp-blocks-clone",
            "RestrictNamespaces=no",
            Stage::Namespaces,
            libc::EPERM,
            with(|f| f.seccomp = true),
        ),
        (
            "apparmor-profile",
            "apparmor=unconfined",
            Stage::Mount,
            libc::EACCES,
            with(|f| {
                f.container = Some(Container::Docker);
                f.apparmor_profile = Some("docker-default".to_owned());
            }),
        ),
        ("proc-masked", "systempaths=unconfined", Stage::Proc, libc::EPERM, with(docker)),
        (
            "proc-masked",
            "unmask=ALL",
            Stage::Proc,
            libc::EPERM,
            with(|f| f.container = Some(Container::Podman)),
        ),
        (
            "proc-masked",
            "procMount: Unmasked",
            Stage::Proc,
            libc::EPERM,
            with(|f| f.container = Some(Container::Kubernetes)),
        ),
        ("userns-in-chroot", "chroot", Stage::Namespaces, libc::EPERM, with(|f| f.chrooted = true)),
        (
            "userns-not-built",
            "another kernel",
            Stage::Namespaces,
            libc::EINVAL,
            with(|f| f.has_user_namespaces = false),
        ),
        ("userns-forbidden", "security module", Stage::Namespaces, libc::EPERM, fine()),
        ("kernel-too-old", "Linux 5.12", Stage::Root, libc::ENOSYS, with(|f| f.kernel = (5, 10))),
        ("processes-exhausted", "ulimit -u", Stage::Namespaces, libc::EAGAIN, fine()),
        ("memory-exhausted", "memory.max", Stage::Mount, libc::ENOMEM, fine()),
        ("descriptors-exhausted", "ulimit -n", Stage::Handed, libc::EMFILE, fine()),
        ("seccomp-missing", "another kernel", Stage::Seccomp, libc::EINVAL, fine()),
    ];
    for (expected, fix, stage, errno, facts) in cases {
        let found = code(stage, errno, &facts);
        assert_eq!(found.code, expected, "{stage:?} {errno}: {found:?}");
        assert!(found.fix.as_deref().is_some_and(|text| text.contains(fix)), "{found:?}");
        assert!(found.cause.as_deref().is_some_and(|text| text.starts_with("thing: ")), "{found:?}");
    }
}

#[test]
fn privilege_is_not_held_up_by_what_binds_ordinary_users() {
    let facts = Facts {
        privileged: true,
        unprivileged_userns_clone: Some(0),
        apparmor_restrict_userns: Some(1),
        ..fine()
    };
    assert_eq!(code(Stage::Namespaces, libc::EPERM, &facts).code, "userns-forbidden");
}

#[test]
fn what_is_not_known_keeps_its_own_words() {
    let found = code(Stage::Target, libc::ENOTDIR, &fine());
    assert_eq!(found.code, "launch-failed");
    assert!(found.message.contains("Target"));
    assert_eq!(found.cause.as_deref(), Some("thing: Not a directory (os error 20)"));
    assert_eq!(code(Stage::Plan, 0, &fine()).cause.as_deref(), Some("thing"));
}

/// The real answer of a kernel whose `user.max_user_namespaces` is 0: in a user namespace of its own, whose sysctl
/// binds nobody else.
#[test]
fn a_machine_without_user_namespaces_is_recognised() {
    const INSIDE: &str = "MOLTIS_TEST_NO_USERNS";
    if std::env::var_os(INSIDE).is_some() {
        let errno = unshare_errno();
        let found = code(Stage::Namespaces, errno, &Facts::gather());
        println!("found {} after {errno}; {}", found.code, found.fix.unwrap_or_default());
        return;
    }
    assert_eq!(unshare_errno(), 0, "the control: here a user namespace can be made");
    let test = std::env::current_exe().unwrap();
    let name = "diagnose::tests::a_machine_without_user_namespaces_is_recognised";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c"])
        .arg("echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"")
        .arg("sh")
        .arg(test)
        .args(["--exact", name, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let expected = format!(
        "found userns-max-zero after {}; sudo sysctl -w user.max_user_namespaces=15000",
        libc::ENOSPC
    );
    assert!(text.contains(&expected), "{output:?}");
    assert_ne!(std::fs::read_to_string("/proc/sys/user/max_user_namespaces").unwrap().trim(), "0");
}

/// What the kernel says to a new user namespace, asked in a child.
fn unshare_errno() -> i32 {
    // SAFETY: the child makes system calls only and leaves by `_exit`.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let code = if libc::unshare(libc::CLONE_NEWUSER) == 0 { 0 } else { *libc::__errno_location() };
            libc::_exit(code);
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        libc::WEXITSTATUS(status)
    }
}
