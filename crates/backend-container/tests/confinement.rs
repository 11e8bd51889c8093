//! What a command finds around it in a container: looked at from inside, on every engine that answers.

use std::collections::BTreeMap;

use moltis_backend_container::engine::EngineKind;
use moltis_backend_container::{Config, ContainerBackend};
use moltis_sandbox::{
    Backend, Command, ExecEvent, ExecRequest, ImageChoice, Lifetime, SandboxSpec, SessionKey, Setting,
};

use crate::support::{IMAGE, engines, environment, unique};

/// Everything that is looked at, each part under a heading.
const LOOK: &str = "echo '# status'; cat /proc/self/status; echo '# mounts'; cat /proc/self/mountinfo; \
                    echo '# id'; id -u; uname -n; echo '# env'; env; echo '# masked'; \
                    for f in /proc/kcore /proc/keys /proc/timer_list; do head -c1 $f 2>/dev/null | wc -c; done; \
                    ls -A /sys/firmware 2>/dev/null | wc -l; ls -A /proc/scsi 2>/dev/null | wc -l; \
                    echo '# can'; for f in /tmp /run /home/sandbox; do (: > $f/mine) 2>/dev/null && echo $f; done; \
                    echo '# writes'; for f in /x /etc/x /usr/x /proc/sys/kernel/hostname /sys/x /.moltis/x; do \
                    (: >$f) 2>/dev/null && echo wrote $f; done; :";

async fn looked_at(kind: EngineKind) -> BTreeMap<String, Vec<String>> {
    let place = tempfile::tempdir().unwrap();
    let backend = ContainerBackend::new(Config {
        kind,
        data_dir: place.path().join("data"),
        config_dir: None,
        host_data_dir: None,
        prefix: "moltis-test".to_owned(),
        environment: environment(),
    });
    std::fs::create_dir(place.path().join("data")).unwrap();
    let mut spec = SandboxSpec::new(SessionKey::new(unique("confinement")).unwrap(), Lifetime::Ephemeral);
    spec.image = Some(ImageChoice::Base {
        reference: Setting::built_in(IMAGE.to_owned()),
        packages: Setting::built_in(Vec::new()),
    });
    let sandbox = backend.open(&spec).await.unwrap();
    let mut exec = sandbox.exec(ExecRequest::new(Command::Shell(LOOK.into()))).await.unwrap();
    let mut text = Vec::new();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Stdout(piece) = event.unwrap() {
            text.extend_from_slice(&piece);
        }
    }
    sandbox.close().await.unwrap();
    let (mut parts, mut heading) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    for line in String::from_utf8(text).unwrap().lines() {
        match line.strip_prefix("# ") {
            Some(next) => heading = next.to_owned(),
            None => parts.entry(heading.clone()).or_default().push(line.to_owned()),
        }
    }
    parts
}

/// Mount points and their options, of the mount and of the file system.
fn mounts(lines: &[String]) -> BTreeMap<&str, Vec<&str>> {
    lines
        .iter()
        .filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            let (point, own, whole) = (*fields.get(4)?, fields.get(5)?, fields.last()?);
            Some((point, own.split(',').chain(whole.split(',')).collect()))
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_confined_as_the_table_says() {
    for tested in engines("a_container_is_confined_as_the_table_says").await {
        let kind = match tested.name {
            "docker" => EngineKind::Docker,
            "podman" => EngineKind::Podman,
            _ => continue,
        };
        let found = looked_at(kind).await;
        let name = tested.name;
        let fields = ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp"];
        let status: Vec<(&str, &str)> = found["status"]
            .iter()
            .filter_map(|line| line.split_once(":\t"))
            .filter(|(field, _)| fields.contains(field))
            .collect();
        let none = "0000000000000000";
        let values = [none, none, none, none, none, "1", "2"];
        let expected: Vec<(&str, &str)> = fields.into_iter().zip(values).collect();
        assert_eq!(status, expected, "{name}");

        let mounts = mounts(&found["mounts"]);
        for (point, options) in [
            ("/", &["ro"][..]),
            ("/tmp", &["rw", "nosuid", "nodev"]),
            ("/run", &["rw", "nosuid", "nodev", "noexec"]),
            ("/home/sandbox", &["rw", "nosuid", "nodev"]),
            ("/.moltis/guest", &["ro"]),
            ("/proc/sys", &["ro"]),
            ("/sys", &["ro"]),
        ] {
            let has = mounts.get(point).unwrap_or_else(|| panic!("{name}: nothing at {point}: {mounts:?}"));
            // The first is the mount's own, which decides.
            assert_eq!(has.first(), options.first(), "{name}: {point}");
            let lacking: Vec<_> = options.iter().filter(|option| !has.contains(option)).collect();
            assert!(lacking.is_empty(), "{name}: {point} has {has:?}");
        }
        for point in ["/tmp", "/home/sandbox"] {
            assert!(!mounts[point].contains(&"noexec"), "{name}: nothing runs in {point}");
        }

        assert_eq!(found["id"], ["1000", "sandbox"], "{name}");
        let mut variables: Vec<&str> =
            found["env"].iter().filter_map(|line| Some(line.split_once('=')?.0)).collect();
        variables.sort_unstable();
        variables.retain(|variable| !["PWD", "SHLVL", "OLDPWD", "TZ", "_"].contains(variable));
        assert_eq!(variables, ["HOME", "LANG", "PATH"], "{name}");
        assert_eq!(found["masked"], ["0", "0", "0", "0", "0"], "{name}: bytes and entries of what is masked");
        assert_eq!(found.get("writes"), None, "{name}");
        assert_eq!(found["can"], ["/tmp", "/run", "/home/sandbox"], "{name}");
    }
}
