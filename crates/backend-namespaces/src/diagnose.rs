//! Why a sandbox cannot be launched here, and the exact fix: a pure judgement of the stage that failed, its error
//! number and the facts of the machine.

mod facts;
#[cfg(test)]
mod tests;

pub use facts::{Container, Facts};

use std::io;

use moltis_agent_protocol::launch::{Fault, Stage};
use moltis_sandbox::Diagnosis;

/// Oldest kernel with what a launch needs (`mount_setattr`), and what it is called for.
const OLDEST_KERNEL: (u32, u32) = (5, 12);

/// Names the cause of a failed launch and what mends it.
pub fn diagnose(fault: &Fault, facts: &Facts) -> Diagnosis {
    let what = String::from_utf8_lossy(&fault.what);
    let answer = answer(&what, fault.errno);
    judge(fault.stage, fault.errno, facts).unwrap_or_else(|| unknown(fault.stage)).cause(answer)
}

/// What is said where there is no Linux.
pub fn not_linux() -> Diagnosis {
    Diagnosis::new("not-linux", "the `namespaces` backend needs Linux")
        .fix("use another backend, see `moltis sandbox status`")
}

/// The kernel's own words about a thing.
fn answer(what: &str, errno: i32) -> String {
    match errno {
        0 => what.to_owned(),
        _ => format!("{what}: {}", io::Error::from_raw_os_error(errno)),
    }
}

fn unknown(stage: Stage) -> Diagnosis {
    let message = format!("a sandbox cannot be launched here (stage `{stage:?}`)");
    Diagnosis::new("launch-failed", message)
}

/// The causes that are known by name.
fn judge(stage: Stage, errno: i32, facts: &Facts) -> Option<Diagnosis> {
    match errno {
        libc::EAGAIN if stage == Stage::Namespaces => return Some(too_many_processes()),
        libc::ENOMEM => return Some(out_of_memory()),
        libc::EMFILE | libc::ENFILE => return Some(out_of_descriptors()),
        _ => {}
    }
    if stage == Stage::Plan || stage == Stage::Go || stage == Stage::Listen {
        return None;
    }
    if errno == libc::ENOSYS && facts.kernel < OLDEST_KERNEL {
        return Some(kernel_too_old(facts));
    }
    match stage {
        Stage::Namespaces => no_namespaces(errno, facts),
        Stage::Seccomp if matches!(errno, libc::EINVAL | libc::ENOSYS) => Some(
            Diagnosis::new(
                "seccomp-missing",
                "this kernel cannot filter system calls (CONFIG_SECCOMP_FILTER is off)",
            )
            .fix("use another kernel or another backend"),
        ),
        _ if refused(errno) && ubuntu_restricts(facts) => Some(apparmor_userns(facts)),
        Stage::Proc if refused(errno) => Some(proc_masked(facts)),
        _ if refused(errno) || errno == libc::ENOSYS => held_back(facts),
        _ => None,
    }
}

/// The namespaces themselves could not be made.
fn no_namespaces(errno: i32, facts: &Facts) -> Option<Diagnosis> {
    match errno {
        // EUSERS is what kernels before 4.9 said.
        libc::ENOSPC | libc::EUSERS => Some(no_room_for_namespaces(facts)),
        libc::EINVAL if !facts.has_user_namespaces => Some(Diagnosis::new(
            "userns-not-built",
            "this kernel is built without user namespaces (CONFIG_USER_NS is off)",
        )
        .fix("use another kernel or another backend")),
        _ if !refused(errno) && errno != libc::ENOSYS => None,
        _ if facts.chrooted => Some(Diagnosis::new(
            "userns-in-chroot",
            "Moltis runs in a chroot, where the kernel makes no user namespaces",
        )
        .fix("run it outside of the chroot, or enter the tree by pivot_root (systemd-nspawn, unshare) instead")),
        _ if facts.unprivileged_userns_clone == Some(0) && !facts.privileged => Some(Diagnosis::new(
            "userns-unprivileged-off",
            "user namespaces are turned off for ordinary users (kernel.unprivileged_userns_clone = 0)",
        )
        .fix(sysctl("kernel.unprivileged_userns_clone=1"))),
        _ if facts.seccomp => Some(seccomp_blocks(facts)),
        _ if ubuntu_restricts(facts) => Some(apparmor_userns(facts)),
        _ => Some(Diagnosis::new("userns-forbidden", "this machine does not let Moltis make user namespaces").fix(
            "a security module (SELinux, AppArmor) or a policy of the machine forbids them: allow `user_namespace \
             create` for Moltis, or use another backend",
        )),
    }
}

fn refused(errno: i32) -> bool {
    matches!(errno, libc::EPERM | libc::EACCES)
}

fn ubuntu_restricts(facts: &Facts) -> bool {
    facts.apparmor_restrict_userns.is_some_and(|value| value != 0) && !facts.privileged
}

fn sysctl(setting: &str) -> String {
    format!("sudo sysctl -w {setting}; to keep it: echo {setting} | sudo tee /etc/sysctl.d/60-moltis.conf")
}

fn no_room_for_namespaces(facts: &Facts) -> Diagnosis {
    if let Some(name) = facts.zero_limits.first() {
        let code = if name == "max_user_namespaces" { "userns-max-zero" } else { "namespaces-max-zero" };
        return Diagnosis::new(code, format!("namespaces are turned off (user.{name} = 0)"))
            .fix(sysctl(&format!("user.{name}=15000")));
    }
    Diagnosis::new("namespaces-exhausted", "there are as many namespaces as this machine allows").fix(
        "end some sandboxes, or raise the limit: sudo sysctl -w user.max_user_namespaces=65536 (in a container: the \
         host's limits count too)",
    )
}

fn too_many_processes() -> Diagnosis {
    Diagnosis::new(
        "processes-exhausted",
        "there are as many processes as this user or this control group may have",
    )
    .fix("end some processes, or raise the limit: see `ulimit -u` and pids.max of the control group")
}

fn out_of_memory() -> Diagnosis {
    Diagnosis::new("memory-exhausted", "there is not enough memory to launch a sandbox")
        .fix("free some memory, or raise memory.max of the control group that Moltis runs in")
}

fn out_of_descriptors() -> Diagnosis {
    Diagnosis::new("descriptors-exhausted", "there are as many open files as this process may have")
        .fix("raise the limit: ulimit -n 65536, or LimitNOFILE= of the service")
}

fn kernel_too_old(facts: &Facts) -> Diagnosis {
    let (major, minor) = OLDEST_KERNEL;
    Diagnosis::new(
        "kernel-too-old",
        format!("Linux {} is older than {major}.{minor}, which has mount_setattr", facts.kernel_release),
    )
    .fix(format!("use Linux {major}.{minor} or later, or another backend"))
}

/// A step after the namespaces was refused by something that watches this process.
fn held_back(facts: &Facts) -> Option<Diagnosis> {
    if let Some(profile) = &facts.apparmor_profile {
        let fix = match facts.container {
            Some(Container::Kubernetes) => {
                "set appArmorProfile: {type: Unconfined} in the securityContext".to_owned()
            }
            Some(_) => container_flags(facts),
            None => format!(
                "allow mounts in the profile, or put it into complain mode: sudo aa-complain {profile}"
            ),
        };
        let message = format!("the AppArmor profile `{profile}` forbids what a launch needs");
        return Some(Diagnosis::new("apparmor-profile", message).fix(fix));
    }
    facts.seccomp.then(|| seccomp_blocks(facts))
}

fn seccomp_blocks(facts: &Facts) -> Diagnosis {
    let fix = match facts.container {
        Some(Container::Kubernetes) => {
            "set seccompProfile: {type: Unconfined} and procMount: Unmasked in the securityContext".to_owned()
        }
        Some(_) => container_flags(facts),
        None => "run Moltis without the seccomp filter that it was started under (in a systemd unit: \
                 RestrictNamespaces=no and no SystemCallFilter=)"
            .to_owned(),
    };
    Diagnosis::new("seccomp-blocks-clone", "a seccomp filter forbids Moltis to make namespaces").fix(fix)
}

/// Everything that a container needs, so that mending one refusal does not lead into the next.
fn container_flags(facts: &Facts) -> String {
    let apparmor = if facts.apparmor_profile.is_some() { " --security-opt apparmor=unconfined" } else { "" };
    match facts.container {
        Some(Container::Podman) => {
            "start the container with: podman run --security-opt seccomp=unconfined --security-opt unmask=ALL"
                .to_owned()
                + apparmor
        }
        _ => {
            "start the container with: docker run --security-opt seccomp=unconfined --security-opt \
             systempaths=unconfined"
                .to_owned()
                + apparmor
        }
    }
}

fn proc_masked(facts: &Facts) -> Diagnosis {
    let fix = match facts.container {
        Some(Container::Podman) => "start the container with: podman run --security-opt unmask=ALL",
        Some(Container::Kubernetes) => {
            "set procMount: Unmasked in the securityContext (and hostUsers: false)"
        }
        Some(Container::Docker) => {
            "start the container with: docker run --security-opt systempaths=unconfined"
        }
        None => "unmount what covers parts of /proc, see `grep ' /proc/' /proc/self/mountinfo`",
    };
    Diagnosis::new(
        "proc-masked",
        "parts of /proc are covered, so the kernel refuses a sandbox a /proc of its own",
    )
    .fix(fix)
}

fn apparmor_userns(facts: &Facts) -> Diagnosis {
    let program = &facts.program;
    let profile = format!(
        "abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile moltis \"{program}\" flags=(unconfined) {{\\n  userns,\\n}}\\n"
    );
    Diagnosis::new(
        "userns-apparmor",
        "AppArmor restricts user namespaces to programs with a profile (kernel.apparmor_restrict_unprivileged_userns = 1)",
    )
    .fix(format!(
        "give Moltis a profile: printf '{profile}' | sudo tee /etc/apparmor.d/moltis && sudo apparmor_parser -r \
         /etc/apparmor.d/moltis (or, for every program: {})",
        sysctl("kernel.apparmor_restrict_unprivileged_userns=0")
    ))
}
