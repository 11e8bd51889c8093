//! What a container is to be, in the words of Docker's API and of Podman's own.

use serde_json::{Map, Value, json};

use crate::engine::{Bind, ContainerSpec, EngineError, EngineKind, Gpus, NetworkMode, Relabel, Result};

/// Microseconds over which a processor limit is counted.
const PERIOD: u64 = 100_000;

/// Bytes of the log of a first process that are kept.
const LOG_SIZE: u64 = 1 << 20;

/// The body of Docker's `POST /containers/create`.
pub(super) fn docker(spec: &ContainerSpec) -> Result<Value> {
    let mut host = Map::new();
    host.insert("AutoRemove".into(), json!(spec.auto_remove));
    host.insert("RestartPolicy".into(), json!({"Name": "no"}));
    host.insert("Init".into(), json!(false));
    host.insert("IpcMode".into(), json!("private"));
    host.insert("CgroupnsMode".into(), json!("private"));
    host.insert("NetworkMode".into(), json!(docker_network(spec.network)));
    host.insert("ReadonlyRootfs".into(), json!(spec.read_only_root));
    host.insert("Privileged".into(), json!(spec.privileged));
    host.insert("CapDrop".into(), json!(if drops(spec) { vec!["ALL"] } else { Vec::new() }));
    host.insert("SecurityOpt".into(), json!(security(spec)));
    host.insert(
        "LogConfig".into(),
        if spec.keep_logs {
            json!({"Type": "json-file", "Config": {"max-size": LOG_SIZE.to_string(), "max-file": "1"}})
        } else {
            json!({"Type": "none"})
        },
    );
    if let Some(memory) = spec.memory {
        host.insert("Memory".into(), json!(memory));
        host.insert("MemorySwap".into(), json!(memory));
    }
    if let Some(quota) = quota(spec) {
        host.insert("CpuPeriod".into(), json!(PERIOD));
        host.insert("CpuQuota".into(), json!(quota));
    }
    if let Some(pids) = spec.pids {
        host.insert("PidsLimit".into(), json!(pids));
    }
    if let Some(nproc) = spec.nproc {
        host.insert("Ulimits".into(), json!([{"Name": "nproc", "Soft": nproc, "Hard": nproc}]));
    }
    if let Some(runtime) = &spec.runtime {
        host.insert("Runtime".into(), json!(runtime));
    }
    if let Some(userns) = &spec.userns {
        host.insert("UsernsMode".into(), json!(userns));
    }
    let tmpfs: Map<String, Value> =
        spec.tmpfs.iter().map(|mount| (mount.target.clone(), json!(mount.options))).collect();
    host.insert("Tmpfs".into(), Value::Object(tmpfs));
    // Only the older form of a bind mount knows SELinux; only the newer one refuses a source that is not there.
    let (labelled, plain): (Vec<&Bind>, Vec<&Bind>) =
        spec.binds.iter().partition(|bind| bind.relabel != Relabel::Not);
    let mounts: Result<Vec<Value>> = plain.into_iter().map(docker_mount).collect();
    host.insert("Mounts".into(), json!(mounts?));
    let binds: Result<Vec<String>> = labelled.into_iter().map(docker_bind).collect();
    host.insert("Binds".into(), json!(binds?));
    let devices: Vec<Value> = spec
        .devices
        .iter()
        .map(|path| json!({"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"}))
        .collect();
    host.insert("Devices".into(), json!(devices));
    if !spec.sysctls.is_empty() {
        host.insert("Sysctls".into(), json!(spec.sysctls));
    }
    match &spec.gpus {
        None => {}
        Some(Gpus::All) => {
            host.insert("DeviceRequests".into(), json!([{"Count": -1, "Capabilities": [["gpu"]]}]));
        }
        Some(Gpus::Ids(ids)) => {
            host.insert("DeviceRequests".into(), json!([{"DeviceIDs": ids, "Capabilities": [["gpu"]]}]));
        }
    }
    let volumes: Map<String, Value> = spec.volumes.iter().map(|path| (path.clone(), json!({}))).collect();
    Ok(json!({
        "Image": spec.image,
        "Hostname": spec.hostname,
        "User": format!("{}:{}", spec.user.0, spec.user.1),
        "Entrypoint": spec.argv,
        "Cmd": [],
        "WorkingDir": spec.directory,
        "Env": spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        "Labels": spec.labels,
        "Volumes": volumes,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": host,
    }))
}

/// Docker's word for a network.
fn docker_network(network: NetworkMode) -> &'static str {
    match network {
        NetworkMode::None => "none",
        NetworkMode::Engine => "bridge",
    }
}

/// Whether capabilities are dropped.
fn drops(spec: &ContainerSpec) -> bool {
    spec.drop_capabilities && !spec.privileged
}

fn security(spec: &ContainerSpec) -> Vec<&'static str> {
    let mut options = Vec::new();
    if spec.no_new_privileges && !spec.privileged {
        options.push("no-new-privileges");
    }
    if spec.disable_labels {
        options.push("label=disable");
    }
    options
}

/// Microseconds of processor time in each period.
fn quota(spec: &ContainerSpec) -> Option<u64> {
    // The kernel takes no quota under a millisecond.
    spec.cpus.map(|cpus| ((cpus * PERIOD as f64).round() as u64).max(1_000))
}

/// A path of the host's as an engine reads it.
fn source(engine: EngineKind, bind: &Bind) -> Result<&str> {
    bind.source.to_str().ok_or_else(|| EngineError::Refused {
        engine,
        message: format!("{} is not UTF-8, and cannot be told to it", bind.source.display()),
    })
}

fn docker_mount(bind: &Bind) -> Result<Value> {
    let mut mount = json!({
        "Type": "bind",
        "Source": source(EngineKind::Docker, bind)?,
        "Target": bind.target,
        "ReadOnly": bind.read_only,
    });
    if bind.read_only {
        // What is mounted beneath would stay writable.
        mount["BindOptions"] = json!({"NonRecursive": true});
    }
    Ok(mount)
}

fn docker_bind(bind: &Bind) -> Result<String> {
    let source = source(EngineKind::Docker, bind)?;
    if source.contains(':') || bind.target.contains(':') {
        return Err(EngineError::Refused {
            engine: EngineKind::Docker,
            message: format!("{source} cannot get an SELinux label: its path holds a colon"),
        });
    }
    let mode = if bind.read_only { "ro" } else { "rw" };
    let label = if bind.relabel == Relabel::Private { "Z" } else { "z" };
    Ok(format!("{source}:{}:{mode},{label}", bind.target))
}

/// The body of Podman's `POST /libpod/containers/create`. Its own API is used because the one that it copies from
/// Docker adds writable file systems to a read-only container, and knows neither all kinds of user namespaces nor when
/// not to copy an image's files into a tmpfs.
pub(super) fn podman(spec: &ContainerSpec) -> Result<Value> {
    let mut mounts: Vec<Value> = Vec::new();
    for bind in &spec.binds {
        // What is mounted beneath a read-only one would stay writable.
        let (recursion, mode) = if bind.read_only { ("bind", "ro") } else { ("rbind", "rw") };
        let mut options = vec![recursion, "rprivate", mode];
        match bind.relabel {
            Relabel::Not => {}
            Relabel::Shared => options.push("z"),
            Relabel::Private => options.push("Z"),
        }
        mounts.push(json!({
            "type": "bind",
            "source": source(EngineKind::Podman, bind)?,
            "destination": bind.target,
            "options": options,
        }));
    }
    for tmpfs in &spec.tmpfs {
        let mut options: Vec<&str> = tmpfs.options.split(',').filter(|option| !option.is_empty()).collect();
        options.push("notmpcopyup");
        mounts.push(json!({
            "type": "tmpfs",
            "source": "tmpfs",
            "destination": tmpfs.target,
            "options": options,
        }));
    }
    let volumes: Vec<Value> =
        spec.volumes.iter().map(|path| json!({"Name": "", "Dest": path, "Options": []})).collect();
    let mut limits = Map::new();
    if let Some(memory) = spec.memory {
        limits.insert("memory".into(), json!({"limit": memory, "swap": memory}));
    }
    if let Some(quota) = quota(spec) {
        limits.insert("cpu".into(), json!({"quota": quota, "period": PERIOD}));
    }
    if let Some(pids) = spec.pids {
        limits.insert("pids".into(), json!({"limit": pids}));
    }
    let mut devices: Vec<Value> = spec.devices.iter().map(|path| json!({"path": path})).collect();
    match &spec.gpus {
        None => {}
        Some(Gpus::All) => devices.push(json!({"path": "nvidia.com/gpu=all"})),
        Some(Gpus::Ids(ids)) => {
            devices.extend(ids.iter().map(|id| json!({"path": format!("nvidia.com/gpu={id}")})));
        }
    }
    let env: Map<String, Value> = spec.env.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    let mut body = json!({
        "name": spec.name,
        "image": spec.image,
        "hostname": spec.hostname,
        "user": format!("{}:{}", spec.user.0, spec.user.1),
        "entrypoint": spec.argv,
        "command": [],
        "work_dir": spec.directory,
        "env": env,
        // Podman would hand on the proxies of its own environment, which may hold passwords.
        "httpproxy": false,
        "labels": spec.labels,
        "mounts": mounts,
        "volumes": volumes,
        // Volumes that the image declares, as Docker makes them.
        "image_volume_mode": "anonymous",
        "devices": devices,
        "resource_limits": limits,
        "read_only_filesystem": spec.read_only_root,
        "read_write_tmpfs": false,
        "privileged": spec.privileged,
        "cap_drop": if drops(spec) { vec!["ALL"] } else { Vec::new() },
        "no_new_privileges": spec.no_new_privileges && !spec.privileged,
        "selinux_opts": if spec.disable_labels { vec!["disable"] } else { Vec::new() },
        "netns": {"nsmode": if spec.network == NetworkMode::None { "none" } else { "private" }},
        "ipcns": {"nsmode": "private"},
        "cgroupns": {"nsmode": "private"},
        "healthconfig": {"Test": ["NONE"]},
        "log_configuration": if spec.keep_logs {
            json!({"driver": "k8s-file", "size": LOG_SIZE})
        } else {
            json!({"driver": "none"})
        },
        "restart_policy": "no",
        "init": false,
        "systemd": "false",
        "remove": spec.auto_remove,
    });
    if !spec.sysctls.is_empty() {
        body["sysctl"] = json!(spec.sysctls);
    }
    if let Some(nproc) = spec.nproc {
        body["r_limits"] = json!([{"type": "RLIMIT_NPROC", "soft": nproc, "hard": nproc}]);
    }
    if let Some(userns) = &spec.userns {
        let (mode, value) = userns.split_once(':').unwrap_or((userns, ""));
        body["userns"] = json!({"nsmode": mode, "value": value});
    }
    if let Some(runtime) = &spec.runtime {
        body["oci_runtime"] = json!(runtime);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Tmpfs;

    fn spec() -> ContainerSpec {
        ContainerSpec {
            name: "n".to_owned(),
            image: "sha256:1".to_owned(),
            hostname: "sandbox".to_owned(),
            user: (1000, 1001),
            argv: vec!["/a".to_owned(), "b".to_owned()],
            directory: "/d".to_owned(),
            env: vec![("X".to_owned(), "1=2".to_owned())],
            labels: [("l".to_owned(), "v".to_owned())].into(),
            binds: vec![
                Bind { source: "/s".into(), target: "/t".to_owned(), read_only: true, relabel: Relabel::Not },
                Bind {
                    source: "/u".into(),
                    target: "/v".to_owned(),
                    read_only: false,
                    relabel: Relabel::Private,
                },
            ],
            volumes: vec!["/vol".to_owned()],
            tmpfs: vec![Tmpfs { target: "/tmp".to_owned(), options: "rw,exec".to_owned() }],
            read_only_root: true,
            drop_capabilities: true,
            no_new_privileges: true,
            memory: Some(1 << 30),
            cpus: Some(0.5),
            pids: Some(64),
            auto_remove: true,
            ..ContainerSpec::default()
        }
    }

    #[test]
    fn docker_is_told_everything() {
        let want = json!({
            "Image": "sha256:1", "Hostname": "sandbox", "User": "1000:1001", "Entrypoint": ["/a", "b"], "Cmd": [],
            "WorkingDir": "/d", "Env": ["X=1=2"], "Labels": {"l": "v"}, "Volumes": {"/vol": {}},
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                "AutoRemove": true, "RestartPolicy": {"Name": "no"}, "Init": false, "IpcMode": "private",
                "CgroupnsMode": "private", "NetworkMode": "none", "ReadonlyRootfs": true, "Privileged": false,
                "CapDrop": ["ALL"], "SecurityOpt": ["no-new-privileges"], "LogConfig": {"Type": "none"},
                "Memory": 1 << 30, "MemorySwap": 1 << 30, "CpuPeriod": 100_000, "CpuQuota": 50_000,
                "PidsLimit": 64, "Tmpfs": {"/tmp": "rw,exec"}, "Devices": [],
                "Mounts": [{"Type": "bind", "Source": "/s", "Target": "/t", "ReadOnly": true,
                            "BindOptions": {"NonRecursive": true}}],
                "Binds": ["/u:/v:rw,Z"],
            },
        });
        assert_eq!(docker(&spec()).unwrap(), want);
    }

    #[test]
    fn privileges_override_what_takes_them_away() {
        let all = ContainerSpec {
            privileged: true,
            disable_labels: true,
            gpus: Some(Gpus::Ids(vec!["0".to_owned()])),
            devices: vec!["/dev/fuse".to_owned()],
            runtime: Some("runsc".to_owned()),
            userns: Some("keep-id:uid=1000,gid=1000".to_owned()),
            nproc: Some(64),
            network: NetworkMode::Engine,
            ..spec()
        };
        let host = &docker(&all).unwrap()["HostConfig"];
        assert_eq!(host["CapDrop"], json!([]));
        assert_eq!(host["SecurityOpt"], json!(["label=disable"]));
        assert_eq!(host["DeviceRequests"], json!([{"DeviceIDs": ["0"], "Capabilities": [["gpu"]]}]));
        assert_eq!(host["NetworkMode"], json!("bridge"));
        assert_eq!(host["Runtime"], json!("runsc"));
        assert_eq!(host["Ulimits"], json!([{"Name": "nproc", "Soft": 64, "Hard": 64}]));
        let body = podman(&all).unwrap();
        assert_eq!(body["cap_drop"], json!([]));
        assert_eq!(body["no_new_privileges"], json!(false));
        assert_eq!(body["devices"], json!([{"path": "/dev/fuse"}, {"path": "nvidia.com/gpu=0"}]));
        assert_eq!(body["userns"], json!({"nsmode": "keep-id", "value": "uid=1000,gid=1000"}));
        assert_eq!(body["netns"], json!({"nsmode": "private"}));
        assert_eq!(body["r_limits"], json!([{"type": "RLIMIT_NPROC", "soft": 64, "hard": 64}]));
        assert_eq!(body["oci_runtime"], json!("runsc"));
    }

    #[test]
    fn a_colon_and_a_label_do_not_go_together() {
        let bind = Bind {
            source: "/a:b".into(),
            target: "/t".to_owned(),
            read_only: true,
            relabel: Relabel::Shared,
        };
        let labelled = ContainerSpec { binds: vec![bind.clone()], ..spec() };
        assert!(matches!(docker(&labelled), Err(EngineError::Refused { .. })));
        let plain = ContainerSpec { binds: vec![Bind { relabel: Relabel::Not, ..bind }], ..spec() };
        assert_eq!(docker(&plain).unwrap()["HostConfig"]["Mounts"][0]["Source"], json!("/a:b"));
    }
}
