//! What is made from the table of keys: the file of `config init` and the reference page.

use std::fs;
use std::path::Path;

use moltis_config::key::Fallback;
use moltis_config::{init, reference, schema};
use moltis_sandbox::{Origin, Setting};

use crate::World;

#[test]
fn the_written_file_is_the_defaults() {
    let world = World::with(init::text());
    let loaded = world.load().unwrap();
    assert_eq!(loaded.config, world.defaults());
    assert!(loaded.places.is_empty());
}

#[test]
fn every_line_of_the_written_file_can_be_uncommented() {
    let text = init::text();
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(key) if !key.starts_with(' ') => key,
        _ => line,
    });
    let world = World::with(lines.map(|line| format!("{line}\n")).collect::<String>());
    let loaded = world.load().unwrap_or_else(|error| panic!("{error}"));
    // Every key is there, and those with a fixed default have it.
    let defaults = World::new();
    let rows = moltis_config::show::rows(&loaded);
    for (key, row) in schema::keys().zip(&rows) {
        assert_eq!(row.origin, Origin::File, "{}", key.path);
        if matches!(key.default, Fallback::Value(_)) && !["data_dir", "shared_home_dir"].contains(&key.name())
        {
            assert_eq!(row.value, key.default_value(), "{}", key.path);
        }
    }
    assert_eq!(loaded.config.data_dir, Setting::new(world.path(".moltis"), Origin::File));
    assert_eq!(defaults.config().data_dir.origin, Origin::Default);
}

#[test]
fn help_is_one_line_without_a_full_stop() {
    for key in schema::keys() {
        assert!(!key.help.is_empty() && !key.help.ends_with('.') && !key.help.contains('\n'), "{}", key.path);
        assert!(key.help.chars().next().unwrap().is_uppercase(), "{}", key.path);
    }
}

#[test]
fn key_paths_are_unique() {
    let mut paths: Vec<_> = schema::keys().map(|key| key.path).collect();
    let count = paths.len();
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), count);
}

#[test]
fn the_reference_page_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let page = reference::page();
    if std::env::var_os("MOLTIS_BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == page,
        "docs/configuration.md is out of date: run MOLTIS_BLESS=1 cargo test -p moltis-config"
    );
}
