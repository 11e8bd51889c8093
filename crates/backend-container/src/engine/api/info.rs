//! What an engine says of itself and of its machine.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;

use super::http::{Client, Dialect, QUESTION, Request};
use super::shapes::or_empty;
use crate::engine::endpoint::{Environment, blocking};
use crate::engine::words::{arch, clean, message};
use crate::engine::{Confinement, EngineInfo, EngineKind, Place, Result, Support};

/// Docker's `GET /info`.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Docker {
    server_version: String,
    architecture: String,
    kernel_version: String,
    operating_system: String,
    name: String,
    cgroup_version: String,
    cgroup_driver: String,
    memory_limit: bool,
    swap_limit: bool,
    cpu_cfs_quota: bool,
    pids_limit: bool,
    #[serde(deserialize_with = "or_empty")]
    security_options: Vec<String>,
    #[serde(deserialize_with = "or_empty")]
    runtimes: BTreeMap<String, Runtime>,
    #[serde(deserialize_with = "or_empty")]
    warnings: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Runtime {
    #[serde(deserialize_with = "or_empty")]
    path: String,
}

/// Podman's `GET /libpod/info`, and what `podman info` prints.
#[derive(Deserialize, Default)]
#[serde(default)]
pub(in crate::engine) struct Podman {
    host: Host,
    version: Version,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct Host {
    arch: String,
    kernel: String,
    hostname: String,
    cgroup_version: String,
    #[serde(deserialize_with = "or_empty")]
    cgroup_controllers: Vec<String>,
    oci_runtime: OciRuntime,
    security: Security,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct OciRuntime {
    name: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Security {
    rootless: bool,
    #[serde(rename = "seccompEnabled")]
    seccomp: bool,
    #[serde(rename = "selinuxEnabled")]
    selinux: bool,
    #[serde(rename = "apparmorEnabled")]
    apparmor: bool,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "PascalCase")]
struct Version {
    version: String,
}

/// Asks.
pub(super) async fn info(client: &Client, place: Place, environment: &Environment) -> Result<EngineInfo> {
    let what = "describe itself";
    let dialect = client.dialect().await?;
    let found = match dialect {
        Dialect::Docker(..) => {
            let request = Request::get(format!("{}/info", dialect.prefix()));
            let told: Docker = client
                .ask(QUESTION, what, request)
                .await
                .map_err(|failure| failure.plain(client.engine()))?;
            told.read(place)
        }
        Dialect::Podman(_) => {
            let request = Request::get(format!("{}/info", dialect.prefix()));
            let told: Podman = client
                .ask(QUESTION, what, request)
                .await
                .map_err(|failure| failure.plain(client.engine()))?;
            // Which runtimes there are, and whether swap is counted, only the answer in Docker's words says.
            let request = Request::get("/v1.40/info".to_owned());
            let beside: Docker = client
                .ask(QUESTION, what, request)
                .await
                .map_err(|failure| failure.plain(client.engine()))?;
            let runtimes = beside.runtimes.into_iter().map(|(name, runtime)| (name, runtime.path)).collect();
            told.read(place, Some(beside.swap_limit), runtimes)
        }
    };
    found.settle(client.engine(), environment, client.connector().is_unix()).await
}

/// What an engine said, and where its runtimes are, before it is compared with this machine.
pub(in crate::engine) struct Told {
    info: EngineInfo,
    runtimes: BTreeMap<String, String>,
}

impl Told {
    /// Compares with this machine, if the engine could be on it.
    pub(in crate::engine) async fn settle(
        self,
        kind: EngineKind,
        environment: &Environment,
        is_local: bool,
    ) -> Result<EngineInfo> {
        let Self { mut info, runtimes } = self;
        if is_local {
            info.place = judged(&info, environment);
        }
        let here = info.place == Place::Here;
        info.runtimes = blocking(kind, move || Ok(usable(runtimes, here))).await?;
        Ok(info)
    }
}

/// Podman lists runtimes that it would look for; those that are nowhere on this machine are left out.
fn usable(runtimes: BTreeMap<String, String>, here: bool) -> Vec<String> {
    runtimes
        .into_iter()
        .filter(|(_, path)| !here || !path.starts_with('/') || Path::new(path).exists())
        .map(|(name, _)| clean(&name, 100))
        .collect()
}

/// Where the containers of an engine run, once it has said what it runs on.
fn judged(told: &EngineInfo, environment: &Environment) -> Place {
    let other = |told: &str, ours: &str| !told.is_empty() && !ours.is_empty() && told != ours;
    if told.place == Place::Here
        && (other(&told.kernel, &environment.kernel) || other(&told.hostname, &environment.hostname))
    {
        return Place::Vm;
    }
    told.place
}

fn support(yes: bool, why_not: &str) -> Support {
    if yes { Support::Yes } else { Support::No(why_not.to_owned()) }
}

impl Docker {
    fn read(self, place: Place) -> Told {
        let option = |name: &str| {
            self.security_options
                .iter()
                .find(|option| option.split(',').any(|part| part == format!("name={name}")))
        };
        let place = if self.operating_system.contains("Docker Desktop") && place == Place::Here {
            Place::Vm
        } else {
            place
        };
        let rootless = option("rootless").is_some();
        // Without a cgroup driver limits are taken and not set.
        let cgroups = self.cgroup_driver != "none";
        let memory = if !cgroups {
            Support::No(
                "Docker has no cgroup of its own here (it runs without root, and without systemd)".to_owned(),
            )
        } else if !self.memory_limit {
            Support::No("its kernel has no memory limit for containers".to_owned())
        } else {
            support(
                self.swap_limit,
                "its kernel does not count swap, so that a container could swap beyond its limit",
            )
        };
        let no_cgroup = "Docker has no cgroup of its own here";
        let cpus = support(
            cgroups && self.cpu_cfs_quota,
            if cgroups { "its kernel has no processor quota" } else { no_cgroup },
        );
        let pids = support(
            cgroups && self.pids_limit,
            if cgroups { "its kernel has no limit of processes" } else { no_cgroup },
        );
        let info = EngineInfo {
            network_none: Support::Yes,
            version: clean(&self.server_version, 100),
            arch: arch(&self.architecture),
            kernel: clean(&self.kernel_version, 200),
            hostname: clean(&self.name, 255),
            place,
            rootless,
            userns_remap: option("userns").is_some(),
            // Docker before 20.10 knows one version only.
            cgroup_version: self.cgroup_version.parse().unwrap_or(1),
            memory,
            cpus,
            pids,
            confinement: Confinement {
                seccomp: option("seccomp").is_some_and(|option| !option.contains("profile=unconfined")),
                selinux: option("selinux").is_some(),
                apparmor: option("apparmor").is_some(),
            },
            runtimes: Vec::new(),
            warnings: self.warnings.iter().map(|warning| message(warning)).collect(),
        };
        let runtimes = self.runtimes.into_iter().map(|(name, runtime)| (name, runtime.path)).collect();
        Told { info, runtimes }
    }
}

impl Podman {
    pub(in crate::engine) fn is_rootless(&self) -> bool {
        self.host.security.rootless
    }

    /// `swap`: whether swap is counted, as far as that is known.
    pub(in crate::engine) fn read(
        self,
        place: Place,
        swap: Option<bool>,
        runtimes: BTreeMap<String, String>,
    ) -> Told {
        let host = self.host;
        let rootless = host.security.rootless;
        let cgroup_version = match host.cgroup_version.as_str() {
            "v1" => 1,
            "v2" => 2,
            _ => 0,
        };
        let limit = |controller: &str| {
            if rootless && cgroup_version == 1 {
                Support::No("Podman without root ignores limits on cgroup v1, with only a warning".to_owned())
            } else if !host.cgroup_controllers.iter().any(|name| name == controller) {
                Support::No(format!("Podman is not given the cgroup controller \"{controller}\" here"))
            } else {
                Support::Yes
            }
        };
        let mut memory = limit("memory");
        if memory.is_yes() && swap == Some(false) {
            memory = Support::No(
                "its kernel does not count swap, so that a container could swap beyond its limit".to_owned(),
            );
        }
        let info = EngineInfo {
            version: clean(&self.version.version, 100),
            arch: arch(&host.arch),
            kernel: clean(&host.kernel, 200),
            hostname: clean(&host.hostname, 255),
            place,
            rootless,
            userns_remap: false,
            cgroup_version,
            memory,
            cpus: limit("cpu"),
            pids: limit("pids"),
            network_none: Support::Yes,
            confinement: Confinement {
                seccomp: host.security.seccomp,
                selinux: host.security.selinux,
                apparmor: host.security.apparmor,
            },
            runtimes: Vec::new(),
            warnings: Vec::new(),
        };
        let runtimes =
            if runtimes.is_empty() { [(host.oci_runtime.name, String::new())].into() } else { runtimes };
        Told { info, runtimes }
    }
}
