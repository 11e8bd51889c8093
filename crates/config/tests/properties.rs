//! Properties that hold for any input.

use std::time::Duration;

use moltis_config::value::glob::Glob;
use moltis_config::value::number::{write_duration, write_size};
use moltis_config::{load, parse_duration, parse_size, schema, suggest};
use proptest::prelude::*;

use crate::World;

/// Lines that look like configuration, so that more than the parser is reached.
fn line() -> impl Strategy<Value = String> {
    let names: Vec<&'static str> = schema::keys().map(|key| key.name()).collect();
    let tables: Vec<&'static str> = schema::SECTIONS.iter().map(|section| section.path).collect();
    let value = prop_oneof![
        any::<i64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| format!("{number:?}")),
        any::<bool>().prop_map(|flag| flag.to_string()),
        any::<String>().prop_map(|text| format!("{text:?}")),
        "[a-z0-9*/:.~@-]{0,12}".prop_map(|text| format!("'{text}'")),
        "\\[('[a-z*./-]{0,6}', ?){0,3}\\]",
        "\\{ ?(source|target|mode|a) = '[a-z/.]{0,8}' ?\\}",
        "\\[\\{ source = '/[a-z/.]{0,4}', target = '/[a-z/.]{0,8}' \\}\\]",
        Just("1979-05-27".to_owned()),
    ];
    prop_oneof![
        4 => (prop::sample::select(names), value).prop_map(|(name, value)| format!("{name} = {value}")),
        2 => prop::sample::select(tables).prop_map(|table| format!("[{table}]")),
        1 => prop::sample::select(vec!["[[tools.exec.sandbox.mounts]]", "[tools.exec.sandbox.wasm_commands]"])
            .prop_map(str::to_owned),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        if let Err(error) = World::with(&bytes).load() {
            prop_assert!(!error.problems().is_empty());
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn lines_never_panic(lines in prop::collection::vec(line(), 0..12)) {
        let world = World::with(lines.join("\n"));
        match world.load() {
            Ok(loaded) => {
                moltis_config::show::text(&loaded);
            }
            Err(error) => {
                prop_assert!(!error.problems().is_empty());
                prop_assert!(error.diagnoses().iter().all(|d| !d.message.contains(char::is_control)));
            }
        }
    }

    #[test]
    fn the_environment_never_panics(name in "MOLTIS_[A-Z_]{0,24}", value in any::<String>()) {
        let world = World::new().env(name, value);
        let _ = load(&world.options);
    }

    #[test]
    fn overrides_never_panic(nth in 0usize..64, value in any::<String>()) {
        let names: Vec<_> = schema::keys().filter_map(|key| key.variable()).collect();
        let world = World::new().env(names[nth % names.len()].clone(), value);
        let _ = load(&world.options);
    }

    #[test]
    fn sizes_come_back(bytes in any::<u64>()) {
        prop_assert_eq!(parse_size(&write_size(bytes)), Ok(bytes));
    }

    #[test]
    fn durations_come_back(millis in any::<u64>()) {
        let span = Duration::from_millis(millis);
        prop_assert_eq!(parse_duration(&write_duration(span)), Ok(span));
    }

    #[test]
    fn parsers_never_panic(text in any::<String>()) {
        let _ = (parse_size(&text), parse_duration(&text), moltis_config::parse_timeout(&text));
        let _ = (moltis_config::parse_cores(&text), moltis_config::parse_image(&text));
        let _ = suggest(&text, ["docker", "podman"]);
        let _ = moltis_config::parse_workspace_flag(text.as_ref());
    }

    #[test]
    fn globs_never_panic(glob in "[a-z*?\\[\\]!/\\\\-]{0,16}", path in any::<Vec<u8>>()) {
        if let Ok(glob) = Glob::new(&glob) {
            let _ = glob.is_match_bytes(&path);
        }
    }

    #[test]
    fn a_glob_of_plain_text_matches_itself_only(text in "[a-zé/.]{1,12}", other in "[a-zé/.]{1,12}") {
        let glob = Glob::new(&text).unwrap();
        prop_assert!(glob.is_match(&text));
        prop_assert_eq!(glob.is_match(&other), text == other);
    }
}
