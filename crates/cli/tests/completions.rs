//! What shells are told to complete.

use std::process::{Command, Stdio};

use crate::support::Place;

#[test]
fn bash_completes_what_it_is_told_to() {
    let place = Place::new();
    if moltis_testkit::need::program("bash").is_none() {
        return moltis_testkit::need::skip("completions in bash", "bash is not installed");
    }
    let script = place.path("completions");
    let to = std::fs::File::create(&script).unwrap();
    assert!(place.moltis(["completions", "bash"]).stdout(to).status().unwrap().success());
    let asked = "source \"$1\"; COMP_WORDS=(moltis sh); COMP_CWORD=1; _moltis moltis sh moltis; echo \"${COMPREPLY[@]}\"";
    let output = Command::new("bash")
        .args(["--norc", "-euc", asked, "bash"])
        .arg(&script)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ),
        (Some(0), "shell\n".into(), "".into())
    );
}

#[test]
fn other_shells_are_known_by_name() {
    let place = Place::new();
    assert!(place.run(["completions", "zsh"]).stdout.starts_with("#compdef moltis"));
    assert!(place.run(["completions", "fish"]).stdout.contains("complete -c moltis"));
    assert_eq!(place.run(["completions", "tcsh"]).status, Some(2));
}
