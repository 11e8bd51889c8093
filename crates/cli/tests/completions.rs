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
    std::fs::create_dir(place.path("here")).unwrap();
    std::fs::create_dir(place.path("here/folder")).unwrap();
    std::fs::write(place.path("here/file"), "").unwrap();
    for (line, answer) in [
        ("sh", "shell\n"),
        ("exec --backend nam", "namespaces\n"),
        ("exec --network b", "blocked\n"),
        ("session set key --on-unknown a", "ask\n"),
        ("session set key --sandbox of", "off\n"),
        ("network audit --protocol so", "socks5\n"),
        ("exec --workspace fo", "folder\n"),
        ("--config fi", "file\n"),
    ] {
        // As bash does it where it is typed, but that folders, which bash adds itself, come from here.
        let asked = "compopt() { [[ $* != *plusdirs ]] || folders=$(compgen -d -- \"$cur\"); }; folders=; source \"$1\"; shift; COMP_WORDS=(moltis \"$@\"); COMP_CWORD=$#; \
                     _moltis moltis \"${@: -1}\" \"${COMP_WORDS[$# - 1]}\"; echo \"${COMPREPLY[*]}$folders\"";
        let output = Command::new("bash")
            .args(["--norc", "-euc", asked, "bash"])
            .arg(&script)
            .args(line.split(' '))
            .current_dir(place.path("here"))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
        assert_eq!((output.status.code(), texts), (Some(0), [answer.into(), "".into()]), "moltis {line}");
    }
}

#[test]
fn other_shells_are_known_by_name() {
    let place = Place::new();
    assert!(place.run(["completions", "zsh"]).stdout.starts_with("#compdef moltis"));
    assert!(place.run(["completions", "fish"]).stdout.contains("complete -c moltis"));
    assert_eq!(place.run(["completions", "tcsh"]).status, Some(2));
}

#[test]
fn help_names_words_and_what_every_command_takes() {
    let place = Place::new();
    for command in [&["exec"][..], &["shell"], &["session", "set"], &["cp"], &["files", "put"], &[]] {
        let help = place.run(command.iter().chain(&["--help"])).stdout;
        let (own, global) = help.split_once("\nGlobal options:\n").unwrap_or_else(|| panic!("{help}"));
        assert!(!own.contains("--data-dir") && global.contains("--config"), "{help}");
        assert!(global.contains("MOLTIS_DATA_DIR"), "{help}");
    }
    let help = place.run(["exec", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(help.contains("blocked, trusted, open") && help.contains("[possible values: auto,"), "{help}");
}
