//! Bad input: each gets a code, a message that names the thing, a fix, and the right exit status; nothing is done.

use std::os::unix::fs::PermissionsExt;

use crate::support::{Place, Ran};

#[track_caller]
fn refused(ran: &Ran, code: &str, names: &str) {
    assert_eq!(ran.status, Some(125), "{ran:?}");
    assert_eq!(ran.stdout, "", "{ran:?}");
    assert!(ran.stderr.starts_with(&format!("error[{code}]: ")), "wanted {code}: {ran:?}");
    assert!(ran.stderr.contains(names), "wanted {names}: {ran:?}");
    assert!(
        ran.stderr.contains("\n  fix: ") || ran.stderr.contains("\n  cause: write "),
        "no way out: {ran:?}"
    );
}

#[test]
fn commands_that_cannot_be() {
    let place = Place::new();
    refused(&place.exec([""]), "command-empty", "command");
    refused(&place.exec(["--", ""]), "command-empty", "command");
    refused(&place.exec(["--cwd", "/nowhere", "true"]), "cwd-missing", "/nowhere");
    refused(&place.exec(["--cwd", "relative", "true"]), "cwd-not-absolute", "relative");
    for (word, named) in [
        ("=secret", "--env: \"\" is no name"),
        ("B =secret", "--env: \"B \" is no name"),
        ("1A=secret", "--env: \"1A\" is no name"),
    ] {
        let ran = place.exec(["--env", word, "true"]);
        refused(&ran, "env-name-invalid", named);
        assert!(!ran.stderr.contains("secret"), "{ran:?}");
    }
    let file = place.path("env");
    for (line, fix) in [
        ("B = secret", "without spaces around"),
        ("export C=secret", "without `export`"),
        ("1A=secret", "no digit first"),
        ("secret/and+more", "write NAME=VALUE, or NAME alone"),
    ] {
        std::fs::write(&file, format!("# first\n{line}\n")).unwrap();
        let ran = place.exec(["--env-file".as_ref(), file.as_os_str(), "true".as_ref()]);
        refused(&ran, "env-name-invalid", &format!("{}:2: ", file.display()));
        assert!(ran.stderr.contains(fix) && !ran.stderr.contains("secret"), "{ran:?}");
    }
    refused(&place.exec(["--env-file", "/nowhere", "true"]), "env-file-unreadable", "/nowhere");
    refused(&place.exec(["--env-file", "/dev/zero", "true"]), "env-file-unreadable", "more than");
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn flags_that_cannot_be() {
    let place = Place::new();
    for (flag, value, code) in [
        ("--timeout", "0", "config-out-of-range"),
        ("--timeout", "99999", "config-out-of-range"),
        ("--timeout", "soon", "config-malformed"),
        ("--backend", "dokcer", "config-unknown-word"),
        ("--network", "blocke", "config-unknown-word"),
        ("--memory", "lots", "config-malformed"),
        ("--cpus", "0", "config-out-of-range"),
        ("--pids", "0", "config-out-of-range"),
        ("--max-output", "-1", "config-malformed"),
    ] {
        let ran = place.run(["exec", &format!("{flag}={value}"), "true"]);
        refused(&ran, code, flag);
        let ran = place.run(["exec", "--json", &format!("{flag}={value}"), "true"]);
        assert_eq!((ran.status, ran.json()["error"]["code"].as_str()), (Some(125), Some(code)));
    }
    assert!(place.run(["exec", "--backend", "dokcer", "true"]).stderr.contains("did you mean `docker`?"));
    assert!(!place.data().exists(), "nothing is made for a command line that cannot be right");
}

#[test]
fn usage_errors_have_the_status_of_their_command() {
    let place = Place::new();
    assert_eq!(place.run(["exec"]).status, Some(125));
    assert_eq!(place.run(["exec", "ls", "-l"]).status, Some(125));
    assert_eq!(place.run(["--data-dir", "x", "exec", "--nonsense", "ls"]).status, Some(125));
    assert_eq!(place.run(["sandbox", "nonsense"]).status, Some(2));
    assert_eq!(place.run(["nonsense"]).status, Some(2));
    assert_eq!(place.run(["--help"]).status, Some(0));
    assert!(place.run(["exec", "ls", "-l"]).stderr.contains("one quoted word"));
    let json = place.run(["exec", "--json", "--nonsense", "ls"]);
    assert_eq!((json.status, json.json()["error"]["code"].as_str()), (Some(125), Some("usage")));
}

#[test]
fn habits_from_elsewhere_are_answered() {
    let place = Place::new();
    for (line, status, first) in [
        ("exec -it name bash", 125, "there is no `-i`: `--tty` (`-t`) runs"),
        ("exec -v /a:/b true", 125, "there is no `-v`: show a directory with `--workspace DIR[:rw]`"),
        ("exec --volume=/a:/b true", 125, "there is no `--volume`: show a directory"),
        ("exec --mount x true", 125, "there is no `--mount`: show a directory"),
        ("exec -eA=1 true", 125, "there is no `-e`: set a variable with `--env"),
        ("shell -w /tmp", 125, "there is no `-w`: say where to run with `--cwd"),
        ("exec -u root id", 125, "there is no `-u`: commands run as the sandbox's own user"),
        ("exec --rm true", 125, "there is no `--rm`: a sandbox without --session goes by itself"),
        ("exec --name x true", 125, "there is no `--name`: name a sandbox that stays with `--session"),
        ("exec -d true", 125, "there is no `-d`: leave it running with `--session KEY --background`"),
        ("exec ls -l", 125, "unexpected argument '-l' found"),
        ("ps", 2, "there is no command `ps`: `moltis sandbox ps`"),
        ("--data-dir x list", 2, "there is no command `list`: `moltis sandbox ps`"),
        ("stop x", 2, "there is no command `stop`: `moltis sandbox stop`"),
        ("rm x", 2, "there is no command `rm`: `moltis sandbox rm`"),
        ("run x", 2, "there is no command `run`: `moltis exec`"),
        ("sandbox ls", 2, "there is no command `ls`: `moltis sandbox ps`"),
    ] {
        let ran = place.run(line.split(' '));
        assert_eq!((ran.status, &*ran.stdout), (Some(status), ""), "{line}: {ran:?}");
        assert!(ran.stderr.starts_with(&format!("error: {first}")), "{line}: {ran:?}");
        assert!(!ran.stderr.contains("as a value"), "{line}: {ran:?}");
        assert_eq!(ran.stderr.contains("one quoted word"), line.starts_with("exec"), "{line}: {ran:?}");
    }
    let error = &place.run(["exec", "--json", "-e", "A=1", "true"]).json()["error"];
    assert_eq!((&error["code"], &error["message"]), (&"usage".into(), &"there is no `-e`".into()));
    assert_eq!(error["fix"], "set a variable with `--env NAME[=VALUE]`");
}

#[test]
fn workspaces_that_are_refused() {
    let place = Place::new();
    let workspace = |path: &str| place.exec(["--workspace", path, "true"]);
    let file = place.path("file");
    std::fs::write(&file, "").unwrap();
    refused(&workspace("/nowhere/at/all"), "workspace-missing", "/nowhere/at/all");
    refused(&workspace(file.to_str().unwrap()), "workspace-not-directory", "file");
    refused(&workspace("/"), "workspace-refused", "/");
    refused(&workspace(place.home().to_str().unwrap()), "workspace-refused", "home");
    refused(&workspace(place.config().to_str().unwrap()), "workspace-refused", "config");
    refused(&workspace("/proc"), "workspace-refused", "/proc");
    // It holds the data directory, is it, or lies in it.
    let data = place.data();
    refused(&workspace(data.parent().unwrap().to_str().unwrap()), "workspace-refused", "data");
    refused(&workspace(data.to_str().unwrap()), "workspace-refused", "data");
    refused(&workspace(data.join("files").to_str().unwrap()), "workspace-refused", "data");
    // By way of a link.
    let link = place.path("link");
    std::os::unix::fs::symlink("/", &link).unwrap();
    refused(&workspace(link.to_str().unwrap()), "workspace-refused", "/");
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn a_workspace_that_holds_the_configuration_is_refused() {
    let place = Place::new();
    let workspace = place.workspace();
    let file = workspace.join("moltis.toml");
    std::fs::write(&file, "").unwrap();
    let ran = place.run([
        "--config",
        file.to_str().unwrap(),
        "exec",
        "--workspace",
        &format!("{}:rw", workspace.display()),
        "true",
    ]);
    refused(&ran, "workspace-refused", "moltis.toml");
}

#[test]
fn demands_that_nothing_keeps_are_refused() {
    let place = Place::new();
    for backend in ["none", "namespaces"] {
        for (flag, value) in [("--memory", "1G"), ("--cpus", "1"), ("--pids", "50")] {
            let ran = place.run(["exec", "--backend", backend, flag, value, "true"]);
            // namespaces keeps some of them, depending on who we are; what it does not keep it refuses.
            if backend == "none" || ran.status != Some(0) {
                refused(&ran, "demand-not-kept", "resource_limits");
            }
        }
    }
    let config = |text: &str| {
        std::fs::write(place.config().join("moltis.toml"), format!("[tools.exec.sandbox]\n{text}\n"))
            .unwrap();
    };
    for key in ["runtime = \"runsc\"", "packages = [\"jq\"]"] {
        config(key);
        refused(&place.exec(["true"]), "demand-not-kept", key.split_once(' ').unwrap().0);
    }
    config("mode = \"off\"\nnetwork = \"blocked\"");
    let ran = place.run(["exec", "--json", "echo $PPID"]);
    assert_eq!((ran.status, ran.json()["backend"].as_str()), (Some(0), Some("none")), "{ran:?}");
    let listed = ran.json()["notEnforced"].clone();
    let keys: Vec<_> =
        listed.as_array().unwrap().iter().map(|n| n["key"].as_str().unwrap().to_owned()).collect();
    assert_eq!(keys[..2], ["sandbox", "network"]);
}

#[test]
fn data_directories_that_cannot_be_used() {
    let place = Place::new();
    let at = |path: &str| place.run(["--data-dir", path, "exec", "--backend", "namespaces", "true"]);
    let file = place.path("file");
    std::fs::write(&file, "").unwrap();
    refused(&at(file.to_str().unwrap()), "data-dir-unusable", "file");
    refused(&at("/proc/nowhere"), "data-dir-unusable", "/proc/nowhere");
    if !rustix::process::geteuid().is_root() {
        let closed = place.path("closed");
        std::fs::create_dir(&closed).unwrap();
        std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).unwrap();
        refused(&at(closed.join("data").to_str().unwrap()), "data-dir-unusable", "closed");
    }
}

#[test]
fn a_data_directory_with_a_long_path_works() {
    let place = Place::new();
    let long = place.path(&"d".repeat(200)).join("e".repeat(200));
    let ran =
        place.run(["--data-dir", long.to_str().unwrap(), "exec", "--backend", "namespaces", "echo fine"]);
    ran.is(0, "fine\n", "");
}

#[test]
fn wrong_values_of_flags_and_keys_are_usage_errors() {
    let place = Place::new();
    for (words, code) in [
        (&["session", "set", "s", "--memory", "1K"][..], "config-out-of-range"),
        (&["session", "set", "s", "--idle-ttl", "1500ms"], "config-out-of-range"),
        (&["session", "set", "s", "--sandbox", "maybe"], "config-unknown-word"),
        (&["session", "set", "s", "--unset", "memroy"], "unset-unknown"),
        (&["session", "set", "s", "--cpus", "1", "--unset", "cpus"], "set-and-unset"),
        (&["session", "set", "s", "--env", "=x"], "env-name-invalid"),
        (&["session", "set", "s", "--wasm-fuel-limit", "0"], "config-out-of-range"),
        (&["session", "show", ""], "session-key-invalid"),
        (&["session", "rm", ""], "session-key-invalid"),
        (&["history", ""], "session-key-invalid"),
        (&["process", "list", ""], "session-key-invalid"),
        (&["process", "stop", "s", "1", "--signal", "FOO"], "signal-unknown"),
        (&["sandbox", "explain", "--network", "blocke"], "config-unknown-word"),
        (&["files", "list", "relative", "--session", "s"], "path-not-absolute"),
        (&["cp", "a", "b"], "usage"),
    ] {
        place.run(words).fails(2, code);
        place.run([words, &["--json"]].concat()).fails_in_json(2, code);
    }
    assert_eq!(place.run(["history", "s", "--limit", "0"]).status, Some(2));
    assert_eq!(place.run(["--data-dir", "", "sandbox", "ps"]).status, Some(2));
    // What may be right another time is none.
    place.run(["session", "show", "s"]).fails(1, "session-missing");
    place.run(["session", "set", "s", "--env-file", "/nowhere"]).fails(1, "env-file-unreadable");
    place.run(["sandbox", "explain", "--workspace", "/nowhere:no"]).fails(1, "workspace-missing");
    // `exec` has one status for all of it.
    place.run(["exec", "--session", "", "true"]).fails(125, "session-key-invalid");
}
