//! Every key read from a file, compared whole.

use std::collections::BTreeMap;
use std::time::Duration;

use moltis_config::BackendChoice;
use moltis_config::schema::{Config, default_memory_limit};
use moltis_config::value::flag::parse_image;
use moltis_config::value::glob::Glob;
use moltis_config::value::secret::Secret;
use moltis_config::value::structure::Gpus;
use moltis_config::words::{Failover, HomePersistence, Mode, MountAccess, OnUnknown, VercelRuntime};
use moltis_sandbox::{
    BackendName, DomainPattern, HostPattern, Limits, Mount, MountMode, Network, Origin, Setting,
};

use crate::World;

const EVERY_KEY: &str = r#"
data_dir = "~/state"

[tools.exec]
default_timeout_secs = 60
max_output_bytes = 1000

[tools.fs]
allow_paths = ["/workspace/**"]
deny_paths = ["**/.ssh/**"]

[tools.exec.sandbox]
mode = "off"
backend = "podman"
failover = "isolated"
allow_unenforced = true
image = "debian:12"
allowed_images = ["docker.io/*/*"]
packages = ["@python", "ffmpeg"]
container_prefix = "mine"
runtime = "runsc"
gpus = "0,GPU-1"
allow_host_podman = true
allow_nested_podman = false
host_data_dir = "/srv/moltis"
selinux_relabel = true
home_persistence = "session"
shared_home_dir = "homes/all"
home_quota = "5G"
workspace = "/srv/code"
workspace_mount = "rw"
workspace_protect = [".git/*"]
workspace_upload = [".env.example"]
managed_files_mount = "none"
mounts = [{ source = "/srv/data", target = "/data" }, { source = "~/bin", target = "/opt/bin/", mode = "rw" }]
rootfs = "/srv/root"
sandbox_uid = 4000
network = "trusted"
no_network = true
trusted_domains = ["*.Example.com:443", "10.0.0.0/8"]
denied_domains = ["bad.example.com"]
on_unknown = "ask"
approval_timeout = "1m30s"
idle_ttl = "2h"
max_sandboxes = 10
pool = 2
wasm_fuel_limit = 5
wasm_epoch_interval_ms = 50
wasm_commands = { python = "/opt/python.wasm" }
vercel_token = "vt"
vercel_project_id = "prj_1"
vercel_team_id = "team_1"
vercel_api_url = "http://127.0.0.1:9/api/"
vercel_runtime = "python3.13"
vercel_timeout_ms = 1000
vercel_vcpus = 4
vercel_snapshot_id = "snap_1"
daytona_api_key = "dk"
daytona_api_url = "https://daytona.example/api"
daytona_target = "us"
daytona_image = "img"
firecracker_bin = "/f/bin"
firecracker_kernel = "/f/kernel"
firecracker_rootfs = "/f/rootfs"
firecracker_ssh_key = "/f/key"
firecracker_vcpus = 1
firecracker_memory_mb = 128

[tools.exec.sandbox.resource_limits]
memory_limit = "512M"
cpu_quota = 1.5
pids_max = 256

[gateway]
bind = "::1"
port = 0
tls_cert = "/tls/cert"
tls_key = "/tls/key"
hosts = ["moltis.example.com"]
workspace_roots = ["/srv/code"]
log = "warn,moltis=debug"
"#;

fn set<T>(value: T) -> Setting<T> {
    Setting::new(value, Origin::File)
}

fn globs(texts: &[&str]) -> Setting<Vec<Glob>> {
    set(texts.iter().map(|text| Glob::new(text).unwrap()).collect())
}

#[test]
fn every_key_is_read() {
    let world = World::with(EVERY_KEY);
    let mut expected = Config { data_dir: set(world.path("state")), ..Config::default() };
    expected.tools.exec.default_timeout_secs = set(60);
    expected.tools.exec.max_output_bytes = set(1000);
    expected.tools.fs.allow_paths = globs(&["/workspace/**"]);
    expected.tools.fs.deny_paths = globs(&["**/.ssh/**"]);
    let sandbox = &mut expected.tools.exec.sandbox;
    sandbox.mode = set(Mode::Off);
    sandbox.backend = set(BackendChoice::Named(BackendName::Podman));
    sandbox.failover = set(Failover::Isolated);
    sandbox.allow_unenforced = set(true);
    sandbox.image = set(parse_image("debian:12").unwrap());
    sandbox.allowed_images = globs(&["docker.io/*/*"]);
    sandbox.packages = set(vec!["@python".into(), "ffmpeg".into()]);
    sandbox.container_prefix = set("mine".into());
    sandbox.runtime = Some(set("runsc".into()));
    sandbox.gpus = Some(set(Gpus::Ids(vec!["0".into(), "GPU-1".into()])));
    sandbox.allow_host_podman = set(true);
    sandbox.allow_nested_podman = set(false);
    sandbox.host_data_dir = Some(set("/srv/moltis".into()));
    sandbox.selinux_relabel = set(true);
    sandbox.home_persistence = set(HomePersistence::Session);
    sandbox.shared_home_dir = set(world.path("state/homes/all"));
    sandbox.home_quota = Some(set(5 << 30));
    sandbox.workspace = Some(set("/srv/code".into()));
    sandbox.workspace_mount = set(MountAccess::Rw);
    sandbox.workspace_protect = globs(&[".git/*"]);
    sandbox.workspace_upload = globs(&[".env.example"]);
    sandbox.managed_files_mount = set(MountAccess::None);
    sandbox.mounts = set(vec![
        Mount { source: "/srv/data".into(), target: "/data".into(), mode: MountMode::Ro },
        Mount { source: world.path("bin"), target: "/opt/bin".into(), mode: MountMode::Rw },
    ]);
    sandbox.rootfs = Some(set("/srv/root".into()));
    sandbox.sandbox_uid = Some(set(4000));
    sandbox.network = set(Network::Trusted);
    sandbox.no_network = Some(set(true));
    sandbox.trusted_domains = set(vec![
        DomainPattern { host: HostPattern::Below("example.com".into()), port: Some(443) },
        DomainPattern { host: HostPattern::Block("10.0.0.0".parse().unwrap(), 8), port: None },
    ]);
    sandbox.denied_domains =
        set(vec![DomainPattern { host: HostPattern::Name("bad.example.com".into()), port: None }]);
    sandbox.on_unknown = set(OnUnknown::Ask);
    sandbox.approval_timeout = set(Duration::from_secs(90));
    sandbox.idle_ttl = set(Duration::from_secs(7200));
    sandbox.max_sandboxes = set(10);
    sandbox.pool = set(2);
    sandbox.wasm_fuel_limit = set(5);
    sandbox.wasm_epoch_interval_ms = set(50);
    sandbox.wasm_commands = set(BTreeMap::from([("python".into(), "/opt/python.wasm".into())]));
    sandbox.vercel_token = Some(set(Secret::new("vt")));
    sandbox.vercel_project_id = Some(set("prj_1".into()));
    sandbox.vercel_team_id = Some(set("team_1".into()));
    sandbox.vercel_api_url = set("http://127.0.0.1:9/api".into());
    sandbox.vercel_runtime = set(VercelRuntime::Python313);
    sandbox.vercel_timeout_ms = set(1000);
    sandbox.vercel_vcpus = set(4);
    sandbox.vercel_snapshot_id = Some(set("snap_1".into()));
    sandbox.daytona_api_key = Some(set(Secret::new("dk")));
    sandbox.daytona_api_url = set("https://daytona.example/api".into());
    sandbox.daytona_target = Some(set("us".into()));
    sandbox.daytona_image = Some(set("img".into()));
    sandbox.firecracker_bin = set("/f/bin".into());
    sandbox.firecracker_kernel = set("/f/kernel".into());
    sandbox.firecracker_rootfs = set("/f/rootfs".into());
    sandbox.firecracker_ssh_key = set("/f/key".into());
    sandbox.firecracker_vcpus = set(1);
    sandbox.firecracker_memory_mb = set(128);
    sandbox.resource_limits.memory_limit = Some(set(512 << 20));
    sandbox.resource_limits.cpu_quota = Some(set(1.5));
    sandbox.resource_limits.pids_max = Some(set(256));
    expected.gateway.bind = set("::1".parse().unwrap());
    expected.gateway.port = set(0);
    expected.gateway.tls_cert = Some(set("/tls/cert".into()));
    expected.gateway.tls_key = Some(set("/tls/key".into()));
    expected.gateway.hosts = set(vec!["moltis.example.com".into()]);
    expected.gateway.workspace_roots = set(vec!["/srv/code".into()]);
    expected.gateway.log = set("warn,moltis=debug".into());

    let loaded = world.load().unwrap();
    assert_eq!(loaded.config, expected);
    // The file above leaves no key out.
    let all: Vec<_> = moltis_config::schema::keys().map(|key| key.path).collect();
    for key in &all {
        assert!(loaded.places.contains_key(key), "{key} is not in the test");
    }
    assert_eq!(loaded.places.len(), all.len());
}

#[test]
fn mounts_and_commands_may_be_tables() {
    let world = World::with(
        "[[tools.exec.sandbox.mounts]]\nsource = '/a'\ntarget = '/b'\nmode = 'rw'\n\
         [tools.exec.sandbox.wasm_commands]\npython = '/p.wasm'\n",
    );
    let sandbox = world.config().tools.exec.sandbox;
    let mount = Mount { source: "/a".into(), target: "/b".into(), mode: MountMode::Rw };
    assert_eq!(sandbox.mounts, set(vec![mount]));
    assert_eq!(sandbox.wasm_commands, set(BTreeMap::from([("python".into(), "/p.wasm".into())])));
}

#[test]
fn limits_depend_on_the_machine_and_the_backend() {
    const GIB: u64 = 1 << 30;
    assert_eq!(default_memory_limit(16 * GIB), 2 * GIB);
    assert_eq!(default_memory_limit(3 * GIB), 3 * GIB / 2);

    let built_in = |memory: Option<u64>, pids: Option<u64>| Limits {
        memory: memory.map(Setting::built_in),
        cpus: None,
        pids: pids.map(Setting::built_in),
    };
    let cases = [
        (BackendName::Docker, built_in(Some(GIB), Some(1024))),
        (BackendName::Podman, built_in(Some(GIB), Some(1024))),
        (BackendName::Namespaces, built_in(Some(GIB), Some(1024))),
        (BackendName::AppleContainer, built_in(None, Some(1024))),
        (BackendName::Wasm, built_in(Some(GIB / 2), None)),
        (BackendName::RestrictedHost, built_in(None, Some(256))),
        (BackendName::Vercel, built_in(None, None)),
        (BackendName::Daytona, built_in(None, None)),
        (BackendName::Firecracker, built_in(None, None)),
        (BackendName::None, built_in(None, None)),
    ];
    let mut limits = Config::default().tools.exec.sandbox.resource_limits;
    for (backend, expected) in cases {
        assert_eq!(limits.on(backend, 2 * GIB), expected, "{backend}");
    }
    limits.memory_limit = Some(set(7));
    limits.cpu_quota = Some(set(0.5));
    limits.pids_max = Some(set(9));
    let expected = Limits { memory: Some(set(7)), cpus: Some(set(0.5)), pids: Some(set(9)) };
    assert_eq!(limits.on(BackendName::Namespaces, GIB), expected);
}
