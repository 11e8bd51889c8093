//! A container or a program to run, as arguments of `podman`.

use crate::engine::{
    Bind, ContainerSpec, EngineError, EngineKind, ExecSpec, Gpus, NetworkMode, Relabel, Result,
};

/// Microseconds over which a processor limit is counted.
const PERIOD: u64 = 100_000;

/// The arguments that make a container.
pub(super) fn create(spec: &ContainerSpec) -> Result<Vec<String>> {
    let mut all: Vec<String> = Vec::new();
    if let Some(runtime) = &spec.runtime {
        all.push(format!("--runtime={runtime}"));
    }
    all.push("create".to_owned());
    let mut add = |name: &str, value: String| all.push(format!("--{name}={value}"));
    add("name", spec.name.clone());
    add("pull", "never".to_owned());
    add("hostname", spec.hostname.clone());
    add("user", format!("{}:{}", spec.user.0, spec.user.1));
    add("entrypoint", serde_json::json!(spec.argv).to_string());
    add("workdir", spec.directory.clone());
    for (name, value) in &spec.env {
        add("env", format!("{name}={value}"));
    }
    // Podman would hand on the proxies of its own environment, which may hold passwords.
    add("http-proxy", "false".to_owned());
    for (name, value) in &spec.labels {
        add("label", format!("{name}={value}"));
    }
    for bind in &spec.binds {
        add_bind(bind, &mut add)?;
    }
    for path in &spec.volumes {
        add("volume", path.clone());
    }
    for tmpfs in &spec.tmpfs {
        let options = if tmpfs.options.is_empty() { "rw" } else { &tmpfs.options };
        add("tmpfs", format!("{}:{options},notmpcopyup", tmpfs.target));
    }
    add("read-only", spec.read_only_root.to_string());
    if spec.read_only_root {
        add("read-only-tmpfs", "false".to_owned());
    }
    if spec.privileged {
        add("privileged", "true".to_owned());
    } else {
        if spec.drop_capabilities {
            add("cap-drop", "all".to_owned());
        }
        if spec.no_new_privileges {
            add("security-opt", "no-new-privileges".to_owned());
        }
    }
    if spec.disable_labels {
        add("security-opt", "label=disable".to_owned());
    }
    add("network", if spec.network == NetworkMode::None { "none" } else { "private" }.to_owned());
    for (name, value) in &spec.sysctls {
        add("sysctl", format!("{name}={value}"));
    }
    add("ipc", "private".to_owned());
    add("cgroupns", "private".to_owned());
    if let Some(memory) = spec.memory {
        add("memory", format!("{memory}b"));
        add("memory-swap", format!("{memory}b"));
    }
    if let Some(cpus) = spec.cpus {
        add("cpu-period", PERIOD.to_string());
        // The kernel takes no quota under a millisecond.
        add("cpu-quota", ((cpus * PERIOD as f64).round() as u64).max(1_000).to_string());
    }
    if let Some(pids) = spec.pids {
        add("pids-limit", pids.to_string());
    }
    if let Some(nproc) = spec.nproc {
        add("ulimit", format!("nproc={nproc}:{nproc}"));
    }
    if let Some(userns) = &spec.userns {
        add("userns", userns.clone());
    }
    for device in &spec.devices {
        add("device", device.clone());
    }
    match &spec.gpus {
        None => {}
        Some(Gpus::All) => add("device", "nvidia.com/gpu=all".to_owned()),
        Some(Gpus::Ids(ids)) => ids.iter().for_each(|id| add("device", format!("nvidia.com/gpu={id}"))),
    }
    add("rm", spec.auto_remove.to_string());
    if spec.keep_logs {
        add("log-driver", "k8s-file".to_owned());
        add("log-opt", "max-size=1mb".to_owned());
    } else {
        add("log-driver", "none".to_owned());
    }
    add("no-healthcheck", "true".to_owned());
    if !spec.auto_remove {
        add("restart", "no".to_owned());
    }
    add("init", "false".to_owned());
    add("systemd", "false".to_owned());
    all.push("--".to_owned());
    all.push(spec.image.clone());
    Ok(all)
}

fn add_bind(bind: &Bind, add: &mut impl FnMut(&str, String)) -> Result<()> {
    let refused = |why: &str| EngineError::Refused {
        engine: EngineKind::Podman,
        message: format!("{} cannot be told to it: {why}", bind.source.display()),
    };
    let Some(source) = bind.source.to_str() else { return Err(refused("it is not UTF-8")) };
    // What is mounted beneath a read-only one would stay writable.
    let mode = if bind.read_only { "ro,bind" } else { "rw,rbind" };
    if !source.contains(':') && !bind.target.contains(':') {
        let label = match bind.relabel {
            Relabel::Not => "",
            Relabel::Shared => ",z",
            Relabel::Private => ",Z",
        };
        add("volume", format!("{source}:{}:{mode},rprivate{label}", bind.target));
        return Ok(());
    }
    if [source, &bind.target].iter().any(|path| path.contains([',', '"'])) {
        return Err(refused("its path holds a colon and a comma"));
    }
    let label = match bind.relabel {
        Relabel::Not => "",
        Relabel::Shared => ",relabel=shared",
        Relabel::Private => ",relabel=private",
    };
    let target = &bind.target;
    add(
        "mount",
        format!(
            "type=bind,source={source},destination={target},ro={0},bind-nonrecursive={0},\
             bind-propagation=rprivate{label}",
            bind.read_only
        ),
    );
    Ok(())
}

/// The arguments that run a program in a container.
pub(super) fn exec(id: &str, spec: &ExecSpec) -> Vec<String> {
    let mut all = vec!["exec".to_owned(), "--interactive".to_owned()];
    if spec.terminal.is_some() {
        all.push("--tty".to_owned());
    }
    if let Some((user, group)) = spec.user {
        all.push(format!("--user={user}:{group}"));
    }
    if let Some(directory) = &spec.directory {
        all.push(format!("--workdir={directory}"));
    }
    all.extend(spec.env.iter().map(|(name, value)| format!("--env={name}={value}")));
    // A container and what follows it are arguments, whatever they look like.
    all.extend(["--".to_owned(), id.to_owned()]);
    all.extend(spec.argv.iter().cloned());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_cannot_become_options() {
        let spec = ContainerSpec {
            name: "--privileged".to_owned(),
            image: "-x".to_owned(),
            argv: vec!["/a b".to_owned(), "--c".to_owned()],
            hostname: "h".to_owned(),
            directory: "/".to_owned(),
            auto_remove: true,
            read_only_root: true,
            drop_capabilities: true,
            nproc: Some(64),
            ..ContainerSpec::default()
        };
        let all = create(&spec).unwrap();
        assert_eq!(all[..2], ["create", "--name=--privileged"]);
        assert_eq!(all[all.len() - 2..], ["--", "-x"]);
        for option in [
            "--entrypoint=[\"/a b\",\"--c\"]",
            "--read-only-tmpfs=false",
            "--cap-drop=all",
            "--ulimit=nproc=64:64",
            "--rm=true",
        ] {
            assert!(all.iter().any(|argument| argument == option), "{option}: {all:?}");
        }
        let run = ExecSpec {
            argv: vec!["-v".to_owned()],
            user: Some((1, 2)),
            directory: None,
            env: vec![("A".to_owned(), "b".to_owned())],
            terminal: None,
        };
        assert_eq!(
            exec("-id", &run),
            ["exec", "--interactive", "--user=1:2", "--env=A=b", "--", "-id", "-v"]
        );
    }

    #[test]
    fn paths_go_in_whichever_form_takes_them() {
        let bind = |source: &str| Bind {
            source: source.into(),
            target: "/t".to_owned(),
            read_only: true,
            relabel: Relabel::Private,
        };
        let told = |source: &str| {
            let mut all = Vec::new();
            add_bind(&bind(source), &mut |name: &str, value: String| all.push(format!("{name} {value}")))
                .map(|()| all)
        };
        assert_eq!(told("/a,b").unwrap(), ["volume /a,b:/t:ro,bind,rprivate,Z"]);
        assert_eq!(
            told("/a:b").unwrap(),
            [
                "mount type=bind,source=/a:b,destination=/t,ro=true,bind-nonrecursive=true,bind-propagation=rprivate,relabel=private"
            ]
        );
        assert!(matches!(told("/a:b,c"), Err(EngineError::Refused { .. })));
    }
}
