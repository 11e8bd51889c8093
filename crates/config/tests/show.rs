//! `config show` and that secrets show nowhere.

use moltis_config::show::{Row, rows, text};
use moltis_sandbox::Origin;

use crate::World;

#[test]
fn every_key_has_a_row() {
    let world = World::with("[tools.exec.sandbox]\nbackend = 'docker'\ndaytona_api_key = 'hunter2'\n")
        .env("MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK", "open")
        .env("VERCEL_TOKEN", "hunter3");
    let loaded = world.load().unwrap();
    let rows = rows(&loaded);
    assert_eq!(rows.len(), moltis_config::schema::keys().count());
    let row =
        |key: &str| rows.iter().find(|row| row.key == format!("tools.exec.sandbox.{key}")).unwrap().clone();
    let file = world.path(".config/moltis/moltis.toml").display().to_string();
    assert_eq!(
        row("backend"),
        Row {
            key: "tools.exec.sandbox.backend",
            value: Some("\"docker\"".into()),
            origin: Origin::File,
            place: Some(format!("{file}:2:11")),
            default: Some("\"auto\"".into()),
            help: "What holds the sandbox; `auto` is the strongest that is usable",
        }
    );
    assert_eq!(row("network").place.as_deref(), Some("MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK"));
    assert_eq!((row("vercel_token").value, row("vercel_token").origin), (Some("set".into()), Origin::Alias));
    assert_eq!(row("daytona_api_key").value.as_deref(), Some("set"));
    assert_eq!(row("workspace").value, None);
    assert_eq!(row("mode").origin, Origin::Default);

    let shown = format!("{} {loaded:?} {rows:?}", text(&loaded));
    assert!(!shown.contains("hunter"), "{shown}");

    let empty = World::new().load().unwrap();
    let rows = moltis_config::show::rows(&empty);
    let token = rows.iter().find(|row| row.key.ends_with("vercel_token")).unwrap();
    assert_eq!(token.value.as_deref(), Some("not set"));
}

#[test]
fn the_text_says_where_a_value_came_from() {
    let world = World::with("gateway.port = 80\n");
    let text = crate::tidy(&text(&world.load().unwrap()), world.dir.path());
    let expected =
        "gateway.port = 80  (moltis.toml:1:16; default: 13131)\n    Port that it listens on; 0 is any\n";
    assert!(text.contains(expected), "{text}");
    assert!(text.contains("gateway.bind = \"127.0.0.1\"  (default)\n"), "{text}");
}

#[test]
fn every_key_that_can_be_set_is_used() {
    let world = World::with(
        "gateway.port = 80\n[tools.exec.sandbox]\nfirecracker_ssh_key = '/k'\nfailover = 'off'\nnetwork = 'blocked'\nselinux_relabel = true\n",
    )
    .env("VERCEL_TOKEN", "hunter3")
    .env("MOLTIS_TOOLS__EXEC__SANDBOX__DAYTONA_TARGET", "p");
    let loaded = world.load().unwrap();
    assert_eq!(loaded.unused(), []);
    assert!(loaded.warnings.is_empty(), "commands say nothing of it");
    assert_eq!(World::with(moltis_config::init::text()).load().unwrap().unused(), []);
}
