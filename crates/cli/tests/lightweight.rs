//! The program that was built without the in-process shell, what serves, and what is at a provider.

use crate::support::Place;

#[test]
fn what_was_not_built_is_an_error_that_says_how_to_get_it() {
    let place = Place::new();
    let told = |stderr: &str| {
        let all = ["backend-not-built", "feature `wasm`", "--no-default-features"];
        all.iter().all(|word| stderr.contains(word))
    };
    let ran = place.run(["exec", "--backend", "wasm", "true"]);
    assert!(ran.status == Some(125) && told(&ran.stderr), "{ran:?}");
    let ran = place.run(["session", "set", "s", "--backend", "wasm"]);
    assert!(ran.status == Some(1) && told(&ran.stderr), "{ran:?}");
    std::fs::write(place.config().join("moltis.toml"), "[tools.exec.sandbox]\nbackend = \"wasm\"\n").unwrap();
    let ran = place.run(["exec", "true"]);
    assert!(ran.status == Some(125) && told(&ran.stderr), "{ran:?}");
    // Nothing fell back to another one.
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn what_serves_and_what_is_remote_say_so_too() {
    let place = Place::new();
    for command in ["gateway", "mcp"] {
        let ran = place.run([command]);
        let told = ["command-not-built", "feature `serve`", "--no-default-features"];
        assert!(ran.status == Some(1) && told.iter().all(|word| ran.stderr.contains(word)), "{ran:?}");
    }
    let ran = place.run(["exec", "--backend", "vercel", "true"]);
    let told = ["backend-not-built", "feature `remote`", "--no-default-features"];
    assert!(ran.status == Some(125) && told.iter().all(|word| ran.stderr.contains(word)), "{ran:?}");
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn the_rest_works() {
    let place = Place::new();
    place.exec(["echo works"]).is(0, "works\n", "");
}
