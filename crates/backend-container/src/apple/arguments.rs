//! A container in the words of Apple's tool: a list of arguments, and what is refused because no argument means it.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::labels;
use super::version::Version;
use crate::engine::{Bind, ContainerSpec, NetworkMode, Relabel};

/// Longest name that every version takes: that of a DNS label. The oldest ones take 64.
pub const MAX_NAME: usize = 63;

/// Bytes of memory that the tool counts in.
const MEBIBYTE: u64 = 1 << 20;

/// Whole processor cores of a demand.
///
/// # Errors
/// With the reason, for a number that is not whole: a virtual machine has whole processors, and the tool takes no other.
pub fn whole_cores(cores: f64) -> Result<u64, String> {
    if (1.0..=1024.0).contains(&cores) && cores.fract() == 0.0 {
        return Ok(cores as u64);
    }
    Err(format!("Apple's container gives whole processor cores, 1 at least, and {cores} are demanded"))
}

/// Why this version cannot make such a container, if so. What is only left off is in
/// [`lacking`](Version::lacking) instead.
///
/// # Errors
/// With the reason, naming what is demanded.
pub fn judge(spec: &ContainerSpec, version: Version) -> Result<(), String> {
    name(&spec.name)?;
    if spec.argv.is_empty() {
        return Err("there is no program to run".to_owned());
    }
    if let Some(cores) = spec.cpus {
        whole_cores(cores)?;
    }
    if spec.memory.is_some_and(|bytes| bytes < MEBIBYTE) {
        return Err("memory is counted in whole MiB, and less than one is demanded".to_owned());
    }
    if spec.pids.is_some() {
        if let crate::engine::Support::No(reason) = version.pids() {
            return Err(reason);
        }
        if spec.user.0 == 0 {
            return Err("`pids_max` bounds a user's processes, and not root's".to_owned());
        }
    }
    if spec.network == NetworkMode::None
        && let crate::engine::Support::No(reason) = version.network_none()
    {
        return Err(reason);
    }
    let without = [
        (spec.privileged, "a privileged container"),
        (spec.runtime.is_some(), "another OCI runtime"),
        (spec.gpus.is_some(), "graphics processors"),
        (spec.userns.is_some(), "a mapping of user ids"),
        (!spec.devices.is_empty(), "devices of this machine"),
        // They would stay behind: the tool does not remove them with the container.
        (!spec.volumes.is_empty(), "volumes that go with the container"),
        (spec.binds.iter().any(|bind| bind.relabel != Relabel::Not), "SELinux labels"),
    ];
    if let Some((_, what)) = without.iter().find(|(asked, _)| *asked) {
        return Err(format!("Apple's container knows no {what}"));
    }
    for bind in &spec.binds {
        for path in [bind.source.as_os_str().as_bytes(), bind.target.as_bytes()] {
            if path.contains(&b',') || std::str::from_utf8(path).is_err() {
                let shown = String::from_utf8_lossy(path);
                return Err(format!("{shown} cannot be mounted: its name has a comma or is not UTF-8"));
            }
        }
    }
    if let Some((name, _)) = spec.env.iter().find(|(name, _)| name.is_empty() || name.contains('=')) {
        return Err(format!("{name:?} is no name of a variable"));
    }
    Ok(())
}

/// Whether the tool takes a name: letters, digits, `_`, `.` and `-`, beginning with a letter or digit, two at least.
///
/// # Errors
/// With the reason.
pub fn name(name: &str) -> Result<(), String> {
    let good = |c: u8| c.is_ascii_alphanumeric() || b"_.-".contains(&c);
    if name.len() > MAX_NAME {
        return Err(format!(
            "the name {name} has {} characters, and {MAX_NAME} at most are taken",
            name.len()
        ));
    }
    if name.len() < 2 || !name.as_bytes()[0].is_ascii_alphanumeric() || !name.bytes().all(good) {
        return Err(format!("the tool does not take the name {name:?}"));
    }
    Ok(())
}

/// `container create …` of a spec that has been judged, from this reference of its image, made at this time.
pub fn create(spec: &ContainerSpec, version: Version, reference: &str, now_secs: u64) -> Vec<String> {
    let mut list = List(vec!["create".to_owned()]);
    list.with("--name", &spec.name);
    list.with("--user", format!("{}:{}", spec.user.0, spec.user.1));
    list.with("--workdir", &spec.directory);
    if spec.auto_remove {
        list.flag("--rm");
    }
    if spec.network == NetworkMode::None {
        list.with("--network", "none");
    }
    if let Some(Ok(cores)) = spec.cpus.map(whole_cores) {
        list.with("--cpus", cores.to_string());
    }
    if let Some(bytes) = spec.memory {
        // Never more than was asked for.
        list.with("--memory", format!("{}M", bytes / MEBIBYTE));
    }
    if let Some(pids) = spec.pids {
        list.with("--ulimit", format!("nproc={pids}:{pids}"));
    }
    if spec.read_only_root && version.read_only() {
        list.flag("--read-only");
    }
    if spec.drop_capabilities && version.cap_drop() {
        list.with("--cap-drop", "ALL");
    }
    for (name, value) in &spec.env {
        // Without the sign it would be taken from this process.
        list.with("--env", format!("{name}={value}"));
    }
    for (name, value) in &spec.labels {
        list.with("--label", format!("{name}={value}"));
    }
    list.with("--label", format!("{}={}:{}", labels::USER, spec.user.0, spec.user.1));
    list.with("--label", format!("{}={now_secs}", labels::CREATED));
    for mount in mounts(spec) {
        match mount {
            Mount::Bind(bind) => list.with("--mount", self::bind(bind)),
            // Options would become part of its path.
            Mount::Tmpfs(target) => list.with("--tmpfs", target),
        }
    }
    let (program, arguments) = spec.argv.split_first().map_or(("", &[][..]), |(first, rest)| (first, rest));
    list.with("--entrypoint", program);
    list.0.push(reference.to_owned());
    list.0.extend(arguments.iter().cloned());
    list.0
}

enum Mount<'a> {
    Bind(&'a Bind),
    Tmpfs(&'a str),
}

/// What is mounted, outer before inner, since one may lie in another.
fn mounts(spec: &ContainerSpec) -> Vec<Mount<'_>> {
    let binds = spec.binds.iter().map(|bind| (bind.target.as_str(), Mount::Bind(bind)));
    let tmpfs = spec.tmpfs.iter().map(|tmpfs| (tmpfs.target.as_str(), Mount::Tmpfs(&tmpfs.target)));
    let mut all: Vec<_> = binds.chain(tmpfs).collect();
    all.sort_by_key(|(target, _)| Path::new(target).components().count());
    all.into_iter().map(|(_, mount)| mount).collect()
}

fn bind(bind: &Bind) -> String {
    let read_only = if bind.read_only { ",readonly" } else { "" };
    format!("type=bind,source={},target={}{read_only}", bind.source.display(), bind.target)
}

/// A list of arguments that grows.
struct List(Vec<String>);

impl List {
    fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn with(&mut self, name: &str, value: impl Into<String>) {
        self.0.extend([name.to_owned(), value.into()]);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::engine::{Gpus, Tmpfs};

    const NEW: Version = Version { major: 1, minor: 1, patch: 0 };
    const OLD: Version = Version { major: 0, minor: 5, patch: 0 };

    fn spec() -> ContainerSpec {
        ContainerSpec {
            name: "moltis-1".to_owned(),
            user: (1000, 1000),
            argv: vec!["/.moltis/guest".to_owned(), "container".to_owned(), "--rm".to_owned()],
            directory: "/".to_owned(),
            network: NetworkMode::Engine,
            ..ContainerSpec::default()
        }
    }

    #[test]
    fn cores_are_whole() {
        assert_eq!(whole_cores(1.0), Ok(1));
        assert_eq!(whole_cores(8.0), Ok(8));
        for bad in [0.5, 1.5, 0.0, -1.0, f64::NAN, f64::INFINITY, 1e9] {
            assert!(whole_cores(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn everything_is_said_in_order() {
        let bind = |source: &str, target: &str, read_only| Bind {
            source: PathBuf::from(source),
            target: target.to_owned(),
            read_only,
            relabel: Relabel::Not,
        };
        let full = ContainerSpec {
            labels: [("a".to_owned(), "b".to_owned())].into(),
            binds: vec![bind("/w/inner", "/workspace/inner", true), bind("/w", "/workspace", false)],
            tmpfs: vec![Tmpfs { target: "/tmp".to_owned(), options: "rw,size=1m".to_owned() }],
            read_only_root: true,
            drop_capabilities: true,
            network: NetworkMode::None,
            memory: Some((512 << 20) + 5),
            cpus: Some(2.0),
            pids: Some(64),
            auto_remove: true,
            env: vec![("A".to_owned(), "x=y".to_owned())],
            ..spec()
        };
        judge(&full, NEW).unwrap();
        let said = create(&full, NEW, "docker.io/library/x:1", 7).join(" ");
        assert_eq!(
            said,
            "create --name moltis-1 --user 1000:1000 --workdir / --rm --network none --cpus 2 --memory 512M \
             --ulimit nproc=64:64 --read-only --cap-drop ALL --env A=x=y --label a=b --label \
             org.moltis.apple.user=1000:1000 --label org.moltis.apple.created=7 --mount \
             type=bind,source=/w,target=/workspace --tmpfs /tmp --mount \
             type=bind,source=/w/inner,target=/workspace/inner,readonly --entrypoint /.moltis/guest \
             docker.io/library/x:1 container --rm"
        );
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        type Change = fn(&mut ContainerSpec);
        let cases: [(Version, Change, &str); 14] = [
            (NEW, |spec| spec.cpus = Some(1.5), "1.5"),
            (NEW, |spec| spec.memory = Some(1000), "memory"),
            (OLD, |spec| spec.pids = Some(10), "pids_max"),
            (NEW, |spec| (spec.pids, spec.user) = (Some(10), (0, 0)), "root"),
            (OLD, |spec| spec.network = NetworkMode::None, "network"),
            (NEW, |spec| spec.privileged = true, "privileged"),
            (NEW, |spec| spec.runtime = Some("kata".to_owned()), "OCI runtime"),
            (NEW, |spec| spec.gpus = Some(Gpus::All), "graphics"),
            (NEW, |spec| spec.userns = Some("keep-id".to_owned()), "user ids"),
            (NEW, |spec| spec.devices.push("/dev/fuse".to_owned()), "devices"),
            (NEW, |spec| spec.volumes.push("/x".to_owned()), "volumes"),
            (NEW, |spec| spec.name = "x".repeat(64), "64 characters"),
            (NEW, |spec| spec.name = "-x".to_owned(), "name"),
            (
                NEW,
                |spec| {
                    spec.binds.push(Bind {
                        source: PathBuf::from("/a,readonly=0"),
                        target: "/b".to_owned(),
                        read_only: true,
                        relabel: Relabel::Not,
                    });
                },
                "comma",
            ),
        ];
        judge(&spec(), OLD).unwrap();
        for (version, change, word) in cases {
            let mut spec = spec();
            change(&mut spec);
            let reason = judge(&spec, version).unwrap_err();
            assert!(reason.contains(word), "{word}: {reason}");
        }
    }
}
