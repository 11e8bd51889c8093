//! `moltis files` and `moltis cp`.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Stdio;

use serde_json::json;

use crate::support::{Place, Ran};

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn refused(ran: &Ran, status: i32, code: &str, names: &str) {
    assert_eq!(ran.status, Some(status), "{ran:?}");
    assert!(ran.stderr.contains(&format!("error[{code}]: ")), "wanted {code}: {ran:?}");
    assert!(ran.stderr.contains(names), "wanted {names}: {ran:?}");
}

fn piped(place: &Place, args: &[&str], input: &[u8]) -> Ran {
    let mut child = place
        .moltis(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It may refuse before it reads.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// A session whose sandbox runs, ended with the test.
struct Session<'a> {
    place: &'a Place,
    key: &'static str,
}

impl<'a> Session<'a> {
    fn start(place: &'a Place, key: &'static str) -> Self {
        let ran = place.exec(["--session", key, "true"]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        Self { place, key }
    }

    #[track_caller]
    fn sh(&self, script: &str) -> String {
        let ran = self.place.exec(["--session", self.key, script]);
        assert_eq!(ran.status, Some(0), "{ran:?}");
        ran.stdout
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let empty = self.place.path("empty.toml");
        fs::write(&empty, "").unwrap();
        let options = moltis_config::Options {
            config_path: Some(empty),
            data_dir: Some(self.place.data()),
            ..moltis_config::Options::of_process()
        };
        let loaded = moltis_config::load(&options).unwrap();
        let runtime = moltis_runtime::Runtime::new(loaded.config, None, Vec::new());
        let key = moltis_sandbox::SessionKey::new(self.key).unwrap();
        let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio.block_on(runtime.stop_sandbox(&key)).unwrap();
    }
}

#[test]
fn managed_files_go_in_and_come_out() {
    let place = Place::new();
    place.run(["files", "list"]).is(0, "", "");
    let local = place.path("note.txt");
    fs::write(&local, "hello\n").unwrap();
    let local = local.to_str().unwrap();
    place.run(["files", "put", local]).is(0, "", "");
    let again = place.run(["files", "put", local]);
    refused(&again, 1, "file-exists", "note.txt");
    place.run(["files", "put", "--overwrite", local, "/"]).is(0, "", "");
    place.run(["files", "show", "note.txt"]).is(0, "hello\n", "");
    let shown = place.run(["files", "show", "--json", "/note.txt"]).json();
    assert_eq!(shown, json!({ "path": "/note.txt", "size": 6, "content": "hello\n" }));
    refused(&place.run(["files", "mkdir", "a/b"]), 1, "file-missing", "a/b");
    place.run(["files", "mkdir", "-p", "a/b"]).is(0, "", "");
    piped(&place, &["files", "put", "-", "a/b/raw"], b"\xff\x00").is(0, "", "");
    let shown = place.run(["files", "show", "--json", "a/b/raw"]).json();
    assert_eq!(
        (shown["content"].as_str(), shown["contentEncoding"].as_str()),
        (Some("/wA="), Some("base64"))
    );
    place.run(["files", "move", "note.txt", "a"]).is(0, "", "");
    let mut listed = place.run(["files", "list", "--json", "a"]).json();
    for entry in listed["entries"].as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().remove("modifiedMillis").unwrap();
    }
    assert_eq!(
        listed,
        json!({ "path": "/a", "entries": [
            { "name": "b", "kind": "directory", "size": listed["entries"][0]["size"], "mode": "0755" },
            { "name": "note.txt", "kind": "file", "size": 6, "mode": "0644" },
        ] })
    );
    let text = place.run(["files", "list", "a"]).stdout;
    assert!(text.contains("drwxr-xr-x") && text.contains(" b/\n") && text.contains("-rw-r--r--"), "{text}");

    let out = place.path("out");
    let got = place.run(["files", "get", "--json", "a", out.to_str().unwrap()]).json();
    assert_eq!((got["entries"].as_u64(), got["bytes"].as_u64()), (Some(3), Some(8)));
    assert_eq!(fs::read(out.join("b/raw")).unwrap(), b"\xff\x00");
    place.run(["files", "get", "a/note.txt", "-"]).is(0, "hello\n", "");
    refused(&place.run(["files", "get", "a", "-"]), 1, "tree-to-stream", "/a");
    place.run(["files", "put", out.to_str().unwrap(), "again"]).is(0, "", "");
    assert_eq!(names(&place.data().join("files/again")), ["b", "note.txt"]);

    let kept = place.run(["files", "remove", "a"]);
    refused(&kept, 1, "file-wrong-kind", "-r");
    let gone = place.run(["files", "remove", "-r", "--json", "a", "again"]).json();
    assert_eq!(gone, json!({ "removed": ["/a", "/again"] }));
    assert_eq!(names(&place.data().join("files")), Vec::<String>::new());
}

#[test]
fn a_killed_write_leaves_the_old_file_and_is_cleaned_up() {
    let place = Place::new();
    piped(&place, &["files", "put", "-", "a"], b"old").is(0, "", "");
    let folder = place.data().join("files");
    let mut child =
        place.moltis(["files", "put", "--overwrite", "-", "a"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&[b'n'; 100_000]).unwrap();
    for _ in 0..500 {
        if names(&folder).len() == 2 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(names(&folder).len(), 2, "the control: it was under way");
    assert_eq!(fs::read(folder.join("a")).unwrap(), b"old");
    piped(&place, &["files", "put", "-", "b"], b"b").is(0, "", "");
    assert_eq!(names(&folder), ["a", "b"]);
}

#[test]
fn errors_of_files_have_codes_and_statuses() {
    let place = Place::new();
    refused(&place.run(["files", "show", "none"]), 1, "file-missing", "none");
    refused(&place.run(["files", "show", "../x"]), 1, "request-invalid", "..");
    refused(&place.run(["files", "list", "--session", "none"]), 1, "session-missing", "none");
    refused(&place.run(["files", "show", "--session", "s", "x"]), 2, "path-not-absolute", "x");
    refused(&place.run(["files", "put", "/nowhere/x"]), 1, "file-missing", "/nowhere/x");
    refused(&place.run(["files", "put", "/dev/zero"]), 1, "file-wrong-kind", "/dev/zero");
    assert_eq!(place.run(["files", "put", "-"]).status, Some(2));
    assert_eq!(place.run(["files", "nonsense"]).status, Some(2));
    let json = place.run(["files", "show", "--json", "none"]);
    assert_eq!((json.status, json.json()["error"]["code"].as_str()), (Some(1), Some("file-missing")));
    let folder = place.data().join("files");
    symlink("/etc/passwd", folder.join("link")).unwrap();
    refused(&place.run(["files", "show", "link"]), 1, "file-wrong-kind", "link");
    let listed = place.run(["files", "list"]).stdout;
    assert!(listed.starts_with('l') && listed.contains("link -> /etc/passwd"), "{listed}");
    fs::write(folder.join("a\x1b]0;evil\x07\nb"), "").unwrap();
    let listed = place.run(["files", "list"]).stdout;
    assert!(listed.contains("a\\u{1b}]0;evil\\u{7}\\nb") && !listed.contains('\x1b'), "{listed}");
}

#[test]
fn rules_of_file_tools_hold() {
    let place = Place::new();
    fs::write(place.config().join("moltis.toml"), "[tools.fs]\ndeny_paths = [\"**/secret\"]\n").unwrap();
    piped(&place, &["files", "put", "-", "open"], b"x").is(0, "", "");
    refused(&piped(&place, &["files", "put", "-", "secret"], b"x"), 1, "path-denied", "deny_paths");
    fs::write(place.data().join("files/secret"), "x").unwrap();
    refused(&place.run(["files", "show", "secret"]), 1, "path-denied", "secret");
    assert!(!place.run(["files", "list"]).stdout.contains("secret"));
    let out = place.path("out");
    place.run(["files", "get", "/", out.to_str().unwrap()]).is(0, "", "");
    assert_eq!(names(&out), ["open"]);
}

#[test]
fn a_copy_goes_both_ways() {
    let place = Place::new();
    let session = Session::start(&place, "team/a:b");
    let from = place.path("tree");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/big"), vec![b'x'; 3_000_000]).unwrap();
    fs::write(from.join("run"), "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(from.join("run"), fs::Permissions::from_mode(0o4750)).unwrap();
    fs::set_permissions(from.join("sub"), fs::Permissions::from_mode(0o710)).unwrap();
    symlink("../run", from.join("sub/link")).unwrap();
    let tree = from.to_str().unwrap();
    let cp = |from: &str, to: &str| place.run(["cp", from, to]).without_promises();
    cp(tree, "team/a:b:/tmp").is(0, "", "");
    let inside =
        session.sh("cd /tmp/tree; stat -c '%a %n' run sub; readlink sub/link; wc -c < sub/big; ./run");
    assert_eq!(inside, "750 run\n710 sub\n../run\n3000000\nran\n");
    refused(&cp(tree, "team/a:b:/tmp"), 1, "file-exists", "/tmp/tree");
    place.run(["cp", "--overwrite", tree, "team/a:b:/tmp"]).without_promises().is(0, "", "");
    cp(tree, "team/a:b:/tmp/new").is(0, "", "");
    assert_eq!(session.sh("ls /tmp/new"), "run\nsub\n");
    refused(&cp(tree, "team/a:b:/tmp/no/new"), 1, "file-missing", "/tmp/no");
    let one = from.join("run");
    cp(one.to_str().unwrap(), "team/a:b:/tmp").is(0, "", "");
    refused(&cp(one.to_str().unwrap(), "team/a:b:/tmp"), 1, "file-exists", "/tmp/run");
    piped(&place, &["cp", "-", "team/a:b:/tmp/in"], b"from here").without_promises().is(0, "", "");
    cp("team/a:b:/tmp/in", "-").is(0, "from here", "");

    let out = place.path("out");
    cp("team/a:b:/tmp/tree", out.to_str().unwrap()).is(0, "", "");
    assert_eq!(names(&out), ["run", "sub"]);
    assert_eq!(fs::metadata(out.join("run")).unwrap().mode() & 0o7777, 0o750);
    assert_eq!(fs::metadata(out.join("sub")).unwrap().mode() & 0o7777, 0o710);
    assert_eq!(fs::metadata(out.join("sub/big")).unwrap().len(), 3_000_000);
    assert_eq!(fs::read_link(out.join("sub/link")).unwrap(), Path::new("../run"));
    cp("team/a:b:/tmp/tree", out.to_str().unwrap()).is(0, "", "");
    assert_eq!(names(&out), ["run", "sub", "tree"], "a folder receives it by its name");
    refused(&cp("team/a:b:/tmp/tree", out.to_str().unwrap()), 1, "file-exists", "tree");
    refused(&cp("team/a:b:/tmp/tree/.", out.to_str().unwrap()), 1, "file-exists", "not empty");
    let all = ["cp", "--overwrite", "--json", "--session", "team/a:b", ":/tmp/tree/.", out.to_str().unwrap()];
    let copied = place.run(all).json();
    assert_eq!((copied["entries"].as_u64(), copied["bytes"].as_u64()), (Some(4), Some(3_000_019)));
    let single = place.path("single");
    cp("team/a:b:/tmp/in", single.to_str().unwrap()).is(0, "", "");
    refused(&cp("team/a:b:/tmp/in", single.to_str().unwrap()), 1, "file-exists", "single");
    assert_eq!(fs::read(&single).unwrap(), b"from here");

    // The sandbox's own files by the other command.
    let listed = place.run(["files", "list", "--session", "team/a:b", "/tmp"]).stdout;
    assert!(listed.contains(" tree/\n") && listed.contains(" in\n"), "{listed}");
    place
        .run(["files", "remove", "-r", "--session", "team/a:b", "/tmp/tree"])
        .without_promises()
        .is(0, "", "");
    assert_eq!(session.sh("ls /tmp"), "in\nnew\nrun\n");
}

#[test]
fn work_with_files_counts_as_use_of_the_session() {
    let place = Place::new();
    let _session = Session::start(&place, "used");
    let used = || place.run(["session", "show", "used", "--json"]).json()["lastUsedMillis"].as_u64().unwrap();
    let mut last = used();
    for args in [&["files", "list", "--session", "used"][..], &["cp", "/dev/null", "used:/tmp/x"]] {
        std::thread::sleep(std::time::Duration::from_millis(2));
        place.run(args);
        let now = used();
        assert!(now > last, "{args:?}");
        last = now;
    }
}

#[test]
fn a_hostile_tree_stays_where_it_is_copied_to() {
    let place = Place::new();
    let session = Session::start(&place, "evil");
    let outside = place.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    let target = outside.display();
    session.sh(&format!(
        "mkdir /tmp/t; cd /tmp/t; ln -s {target} out; ln -s {target}/kept f; mkfifo fifo; \
             touch \"$(printf 'n\\033]0;evil\\007\\nmoltis: forged')\"; echo x > file; chmod 777 file; \
             mkdir d; ln -s {target}/new d/l"
    ));
    let to = place.path("to");
    let ran = place.run(["cp", "evil:/tmp/t", to.to_str().unwrap()]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stderr.contains("3 of the copied links lead out"), "{ran:?}");
    assert!(!ran.stderr.contains('\x1b') && !ran.stderr.contains("\nmoltis: forged"), "{ran:?}");
    assert!(!names(&to).contains(&"fifo".to_owned()));
    assert!(ran.stderr.contains("1 left out") && ran.stderr.contains("copied: fifo\n"), "{ran:?}");
    assert_eq!(fs::metadata(to.join("file")).unwrap().mode() & 0o7777, 0o777);
    // Through links that are there now, nothing gets out either.
    session.sh("cd /tmp/t; rm out f d/l; mkdir out; echo bad > out/kept; echo bad > f; echo bad > d/l");
    for over in [&["cp", "--overwrite"][..], &["cp"]] {
        let args = over.iter().copied().chain(["evil:/tmp/t/.", to.to_str().unwrap()]);
        assert_eq!(place.run(args).status, Some(1));
    }
    assert_eq!(
        (names(&outside), fs::read(outside.join("kept")).unwrap()),
        (vec!["kept".into()], b"kept".to_vec())
    );
}

#[test]
fn a_copy_that_is_broken_off_leaves_nothing() {
    let place = Place::new();
    let session = Session::start(&place, "slow");
    let to = place.path("to");
    fs::create_dir(&to).unwrap();
    session.sh("truncate -s 40G /tmp/../home/sandbox/huge || truncate -s 200M /tmp/huge");
    let mut child = place
        .moltis(["cp", "slow:/home/sandbox/huge", to.to_str().unwrap()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..500 {
        if names(&to).len() == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(names(&to).len(), 1, "the control: it is under way");
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(143));
    assert_eq!(names(&to), Vec::<String>::new());
}

#[test]
fn a_link_that_is_named_is_copied_as_a_link_unless_followed() {
    let place = Place::new();
    let session = Session::start(&place, "links");
    session.sh("mkdir -p /tmp/d/sub; echo in > /tmp/d/sub/f; cd /tmp/d; ln -s sub/f l; ln -s sub dir; ln -s no broken");
    let out = place.path("out");
    fs::create_dir(&out).unwrap();
    let cp = |args: &[&str]| place.run(["cp"].iter().chain(args)).without_promises();
    let to = out.to_str().unwrap();
    for name in ["l", "dir", "broken"] {
        cp(&[&format!("links:/tmp/d/{name}"), to]).is(0, "", "");
    }
    assert_eq!(fs::read_link(out.join("l")).unwrap(), Path::new("sub/f"));
    assert_eq!(fs::read_link(out.join("broken")).unwrap(), Path::new("no"));
    let again = cp(&["links:/tmp/d/l", to]);
    refused(&again, 1, "file-exists", "--overwrite");
    cp(&["--overwrite", "links:/tmp/d/l", to]).is(0, "", "");
    cp(&["-L", "links:/tmp/d/l", out.join("followed").to_str().unwrap()]).is(0, "", "");
    assert!(!out.join("followed").is_symlink() && fs::read(out.join("followed")).unwrap() == b"in\n");
    cp(&["links:/tmp/d/dir/", out.join("folder").to_str().unwrap()]).is(0, "", "");
    assert_eq!(names(&out.join("folder")), ["f"]);
    cp(&["links:/tmp/d/l", "-"]).is(0, "in\n", "");

    let link = place.path("here");
    symlink("/etc/passwd", &link).unwrap();
    let link = link.to_str().unwrap();
    let json = place.run(["cp", "--json", link, "links:/tmp"]).json();
    assert_eq!((json["to"].as_str(), json["entries"].as_u64()), (Some("/tmp/here"), Some(1)));
    assert_eq!(session.sh("readlink /tmp/here"), "/etc/passwd\n");
    refused(&cp(&[link, "links:/tmp"]), 1, "file-exists", "--overwrite");
    refused(&cp(&[link, "links:/tmp/no/x"]), 1, "file-missing", "/tmp/no");
    cp(&["--follow", link, "links:/tmp/followed"]).is(0, "", "");
    assert_eq!(session.sh("[ -L /tmp/followed ] || grep -c root: /tmp/followed"), "1\n");
}

#[test]
fn what_is_allowed_can_be_reached_and_filled() {
    let place = Place::new();
    let session = Session::start(&place, "rules");
    fs::write(
        place.config().join("moltis.toml"),
        "[tools.fs]\nallow_paths = [\"/tmp/**\"]\ndeny_paths = [\"*.key\"]\n",
    )
    .unwrap();
    session.sh("mkdir /tmp/d; touch /tmp/d/a.key /tmp/d/b");
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "a").unwrap();
    place.run(["cp", tree.to_str().unwrap(), "rules:/tmp"]).without_promises().is(0, "", "");
    place.run(["cp", tree.join("a").to_str().unwrap(), "rules:/tmp"]).without_promises().is(0, "", "");
    let listed = place.run(["files", "list", "--session", "rules", "/tmp"]).stdout;
    assert!(listed.contains(" tree/\n") && listed.contains(" a\n"), "{listed}");
    let top = place.run(["files", "list", "--session", "rules", "/"]).stdout;
    assert!(top.ends_with(" tmp/\n") && top.lines().count() == 1, "{top}");
    let out = place.path("out");
    place.run(["cp", "rules:/tmp/d", out.to_str().unwrap()]).without_promises().is(0, "", "");
    assert_eq!(names(&out), ["b"]);
    for refused_path in ["rules:/tmp/d/a.key", "rules:/etc", "rules:/tmp"] {
        refused(&place.run(["cp", refused_path, out.to_str().unwrap()]), 1, "path-denied", "tools.fs");
    }
}

#[test]
fn what_a_copied_tree_goes_without_is_said() {
    let place = Place::new();
    let _session = Session::start(&place, "skips");
    let tree = place.path("tree");
    fs::create_dir_all(tree.join("sub")).unwrap();
    for at in 0..7 {
        let name = tree.join(format!("sub/f\x1b{at}"));
        rustix::fs::mknodat(rustix::fs::CWD, &name, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let ran = place.run(["cp", tree.to_str().unwrap(), "skips:/tmp"]);
    assert!(ran.stderr.contains("7 left out") && ran.stderr.contains("sub/f\\u{1b}"), "{ran:?}");
    assert!(ran.stderr.contains(", …") && !ran.stderr.contains('\x1b'), "{ran:?}");
    let json = place.run(["cp", "--json", tree.to_str().unwrap(), "skips:/tmp/again"]).json();
    assert_eq!(json["skipped"]["count"], 7);
    assert_eq!(json["skipped"]["names"].as_array().map(Vec::len), Some(5));
    assert_eq!(json["skipped"]["perhapsMore"], false);
}

#[test]
fn what_to_do_can_be_done() {
    let place = Place::new();
    let session = Session::start(&place, "fixes");
    place.run(["files", "mkdir", "notes"]).is(0, "", "");
    let again = place.run(["files", "mkdir", "notes"]);
    refused(&again, 1, "file-exists", "-p");
    assert!(!again.stderr.contains("--overwrite"), "{again:?}");
    let missing = place.run(["files", "put", "/nonexist"]);
    refused(&missing, 1, "file-missing", "that is here");
    assert!(!missing.stderr.contains("KEY"), "{missing:?}");
    refused(
        &place.run(["files", "show", "/nope"]),
        1,
        "file-missing",
        "`/nope` of the managed files cannot be read",
    );
    let tree = place.path("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("a"), "a").unwrap();
    symlink("a", tree.join("l")).unwrap();
    let linked = place.run(["files", "put", tree.to_str().unwrap()]);
    refused(&linked, 1, "file-wrong-kind", "tree/l is a link");
    assert!(!linked.stderr.contains("archive"), "{linked:?}");
    assert_eq!(names(&place.data().join("files")), ["notes"]);
    session.sh("touch /tmp/a");
    let local = tree.join("a");
    let local = local.to_str().unwrap();
    refused(&place.run(["cp", local, "fixes:/tmp"]), 1, "file-exists", "--overwrite");
    refused(&place.run(["cp", local, "fixes:/usr/bin"]), 1, "file-read-only", "a place that can be written");
    refused(&place.run(["cp", "fixes:/nope", "x"]), 1, "file-missing", "inside the sandbox");
    refused(&place.run(["cp", "fixes:/tmp/a", "/proc/n2"]), 1, "file-missing", "`/proc/n2` here");
}

#[test]
fn without_a_path_the_folder_of_the_commands_is_meant() {
    let place = Place::new();
    let local = place.path("note.txt");
    fs::write(&local, "hello\n").unwrap();
    for backend in ["namespaces", "restricted-host"] {
        let sh = |line: &str| place.run(["exec", "--backend", backend, "--session", backend, line]);
        let ran = sh("touch here");
        assert_eq!(ran.status, Some(0), "{ran:?}");
        let put = place.run(["files", "put", "--session", backend, local.to_str().unwrap()]);
        assert_eq!(put.status, Some(0), "{put:?}");
        assert_eq!(sh("cat note.txt").stdout, "hello\n");
        let listed = place.run(["files", "list", "--session", backend]).stdout;
        assert!(listed.contains(" here\n") && listed.contains(" note.txt\n"), "{listed}");
        assert_eq!(place.run(["session", "rm", backend]).status, Some(0));
    }
}

#[test]
fn folders_that_are_closed_to_their_owner_are_removed() {
    let place = Place::new();
    let session = Session::start(&place, "closed");
    session.sh("cd /tmp; mkdir -p t/a/b t/c/d; touch t/a/b/f t/c/d/f; chmod 0 t/a/b t/a; chmod 500 t/c/d t");
    let ran = place.run(["files", "remove", "-r", "--session", "closed", "/tmp/t"]);
    ran.without_promises().is(0, "", "");
    assert_eq!(session.sh("ls -A /tmp"), "");
}

#[test]
fn copies_that_cannot_be() {
    let place = Place::new();
    refused(&place.run(["cp", "a", "b"]), 2, "usage", "neither end");
    refused(&place.run(["cp", "a:/b", "c:/d"]), 2, "usage", "both ends");
    refused(&place.run(["cp", ":/b", "d"]), 2, "usage", "session");
    refused(&place.run(["cp", "none:/b", "d"]), 1, "session-missing", "none");
    assert_eq!(place.run(["cp", "a"]).status, Some(2));
    let json = place.run(["cp", "--json", "none:/b", "d"]);
    assert_eq!((json.status, json.json()["error"]["code"].as_str()), (Some(1), Some("session-missing")));
}
