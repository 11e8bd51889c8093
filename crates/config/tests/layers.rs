//! Which source wins, and how the environment is read.

use moltis_config::BackendChoice;
use moltis_config::value::secret::Secret;
use moltis_sandbox::{BackendName, Network, Origin, Setting};

use crate::World;

const BACKEND: &str = "MOLTIS_TOOLS__EXEC__SANDBOX__BACKEND";
const NETWORK: &str = "MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK";

fn backend(world: &World) -> Setting<BackendChoice> {
    world.config().tools.exec.sandbox.backend
}

#[test]
fn nothing_is_the_defaults() {
    let world = World::new();
    let loaded = world.load().unwrap();
    assert_eq!(loaded.config, world.defaults());
    assert!(loaded.files_read.is_empty() && loaded.places.is_empty() && loaded.warnings.is_empty());
}

#[test]
fn the_environment_wins_over_the_file() {
    let world = World::with("[tools.exec.sandbox]\nbackend = 'docker'\n");
    assert_eq!(backend(&world), Setting::new(BackendChoice::Named(BackendName::Docker), Origin::File));
    let world = world.env(BACKEND, "podman");
    assert_eq!(backend(&world), Setting::new(BackendChoice::Named(BackendName::Podman), Origin::Env));
}

#[test]
fn every_override_that_there_is() {
    let prefix = "MOLTIS_TOOLS__EXEC__SANDBOX__";
    let sandbox = [
        ("BACKEND", "docker"),
        ("IMAGE", "debian:12"),
        ("HOST_DATA_DIR", "/srv"),
        ("NETWORK", "open"),
        ("RESOURCE_LIMITS__MEMORY_LIMIT", "512M"),
        ("RESOURCE_LIMITS__CPU_QUOTA", "1.5"),
        ("RESOURCE_LIMITS__PIDS_MAX", "100"),
        ("VERCEL_TOKEN", "t"),
        ("VERCEL_PROJECT_ID", "p"),
        ("VERCEL_TEAM_ID", "t"),
        ("VERCEL_API_URL", "https://x/api"),
        ("DAYTONA_API_KEY", "k"),
        ("DAYTONA_API_URL", "https://x/api"),
        ("DAYTONA_TARGET", "eu"),
        ("DAYTONA_IMAGE", "i"),
    ];
    let mut world = World::new();
    let mut set = vec!["data_dir".to_owned()];
    for (name, value) in sandbox {
        world = world.env(format!("{prefix}{name}"), value);
        set.push(format!("tools.exec.sandbox.{}", name.to_lowercase().replace("__", ".")));
    }
    for (name, value) in [("BIND", "0.0.0.0"), ("PORT", "80"), ("LOG", "debug")] {
        world = world.env(format!("MOLTIS_GATEWAY__{name}"), value);
        set.push(format!("gateway.{}", name.to_lowercase()));
    }
    world = world.env("MOLTIS_DATA_DIR", "/d");
    let loaded = world.load().unwrap();
    set.sort();
    assert_eq!(loaded.places.keys().map(|key| key.to_string()).collect::<Vec<_>>(), set);
    let allowed: Vec<_> =
        moltis_config::schema::keys().filter(|key| key.over.env).map(|key| key.path).collect();
    assert_eq!(allowed.len(), set.len());
    assert_eq!(
        loaded.config.tools.exec.sandbox.resource_limits.cpu_quota,
        Some(Setting::new(1.5, Origin::Env))
    );
    assert_eq!(loaded.config.gateway.port, Setting::new(80, Origin::Env));
}

#[test]
fn only_names_with_two_underscores_are_overrides() {
    let world = World::new()
        .env("MOLTIS_CONFIG_DIR", "")
        .env("MOLTIS_FILES_DIR", "/home/sandbox/files")
        .env("MOLTIS_WHATEVER", "x")
        .env("OTHER__NAME", "x");
    assert_eq!(world.config(), world.defaults());
}

#[test]
fn the_older_key_is_understood_and_network_wins() {
    let network = |text: &str| {
        World::with(format!("[tools.exec.sandbox]\n{text}\n")).config().tools.exec.sandbox.network
    };
    assert_eq!(network("no_network = true"), Setting::new(Network::Blocked, Origin::File));
    assert_eq!(network("no_network = false"), Setting::new(Network::Open, Origin::File));
    assert_eq!(
        network("no_network = false\nnetwork = 'blocked'"),
        Setting::new(Network::Blocked, Origin::File)
    );
    let world = World::with("[tools.exec.sandbox]\nno_network = false\n").env(NETWORK, "trusted");
    assert_eq!(world.config().tools.exec.sandbox.network, Setting::new(Network::Trusted, Origin::Env));
}

#[test]
fn secrets_climb_from_alias_to_override() {
    let token = |world: &World| world.config().tools.exec.sandbox.vercel_token;
    let is = |secret: &str, origin| Some(Setting::new(Secret::new(secret), origin));
    let world = World::new().env("VERCEL_TOKEN", "").env("VERCEL_OIDC_TOKEN", "oidc");
    assert_eq!(token(&world), is("oidc", Origin::Alias));
    let world = world.env("VERCEL_TOKEN", "plain");
    assert_eq!(token(&world), is("plain", Origin::Alias));
    world.write(".moltis/secrets.toml", "[tools.exec.sandbox]\nvercel_token = 'kept'\n", 0o600);
    assert_eq!(token(&world), is("kept", Origin::Secrets));
    world.write(".config/moltis/moltis.toml", "[tools.exec.sandbox]\nvercel_token = 'file'\n", 0o600);
    assert_eq!(token(&world), is("file", Origin::File));
    let world = world.env("MOLTIS_TOOLS__EXEC__SANDBOX__VERCEL_TOKEN", "over");
    assert_eq!(token(&world), is("over", Origin::Env));
}

#[test]
fn the_data_directory_has_four_sources() {
    let dir = |world: &World| world.config().data_dir;
    let mut world = World::new();
    assert_eq!(dir(&world), Setting::built_in(world.path(".moltis")));
    world.write(".config/moltis/moltis.toml", "data_dir = '~/file'\n", 0o600);
    assert_eq!(dir(&world), Setting::new(world.path("file"), Origin::File));
    world = world.env("MOLTIS_DATA_DIR", "relative");
    assert_eq!(dir(&world), Setting::new(world.path("relative"), Origin::Env));
    world.options.data_dir = Some("/flag".into());
    assert_eq!(dir(&world), Setting::new("/flag".into(), Origin::Flag));
    // secrets.toml is the one of the directory that won, and the shared home lies in it.
    assert_eq!(
        world.config().tools.exec.sandbox.shared_home_dir,
        Setting::built_in("/flag/sandbox/home/shared".into())
    );
}

#[test]
fn the_configuration_file_has_four_places() {
    let write =
        |world: &World, name: &str, port: u16| world.write(name, format!("gateway.port = {port}\n"), 0o600);
    let port = |world: &World| world.config().gateway.port.value;
    let mut world = World::new();
    write(&world, ".config/moltis/moltis.toml", 1);
    assert_eq!(port(&world), 1);
    write(&world, "xdg/moltis/moltis.toml", 2);
    let xdg = world.path("xdg");
    world = world.env("XDG_CONFIG_HOME", xdg);
    assert_eq!(port(&world), 2);
    write(&world, "named/moltis.toml", 3);
    let named = world.path("named");
    world = world.env("MOLTIS_CONFIG_DIR", named);
    assert_eq!(port(&world), 3);
    let flag = write(&world, "flag.toml", 4);
    world.options.config_path = Some(flag.clone());
    assert_eq!(port(&world), 4);
    assert_eq!(world.load().unwrap().files_read, [flag]);
    // A relative XDG_CONFIG_HOME is ignored, as its specification says.
    world.options.config_path = None;
    let world = world.env("MOLTIS_CONFIG_DIR", "").env("XDG_CONFIG_HOME", "xdg");
    assert_eq!(port(&world), 1);
}
