//! `moltis session snapshot` and what goes with it: what is printed, what is refused, what a hostile tree can do, and
//! what is left when a caller is killed.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::Place;

/// A place where each session has a home of its own.
fn place() -> Place {
    let place = Place::new();
    std::fs::write(
        place.config().join("moltis.toml"),
        "[tools.exec.sandbox]\nhome_persistence = \"session\"\n",
    )
    .unwrap();
    place
}

/// Runs a command of `moltis session`, which succeeds; what it printed.
#[track_caller]
fn session(place: &Place, words: &[&str]) -> String {
    let ran = place.run([&["session"], words].concat());
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""), "{words:?}: {ran:?}");
    ran.stdout
}

/// Goes back to a snapshot after somebody was killed, whose last operation the agent may not have ended yet.
fn back_to(place: &Place, snapshot: &str) {
    until("what the killed one did is over", || {
        let ran = place.run(["session", "restore", "s", snapshot]);
        let busy = ran.status == Some(1) && ran.stderr.starts_with("error[sandbox-busy]");
        assert!(busy || ran.status == Some(0), "{ran:?}");
        !busy
    });
}

#[track_caller]
fn told(place: &Place, words: &[&str]) -> Value {
    serde_json::from_str(&session(place, &[words, &["--json"]].concat())).unwrap()
}

/// The ids of the snapshots that are listed.
fn listed(place: &Place) -> BTreeSet<String> {
    let all = told(place, &["snapshots"])["snapshots"].clone();
    all.as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn folder(place: &Place) -> PathBuf {
    place.data().join("sandbox/snapshots")
}

/// The ids of which archives lie on the disk.
fn kept(place: &Place) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(folder(place)) else { return BTreeSet::new() };
    entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
}

/// Waits until `so` holds.
#[track_caller]
fn until(what: &str, mut so: impl FnMut() -> bool) {
    let since = Instant::now();
    while !so() {
        assert!(since.elapsed() < Duration::from_secs(30), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn start(place: &Place, words: &[&str]) -> Child {
    place.moltis(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

const NOTES: &str = "  processes and memory are not in it, nor are /run, FIFOs and sockets\n  folders of the host are \
                     not in it: /home/sandbox/files\n";

#[test]
fn each_command_says_what_it_did_as_text() {
    let place = place();
    place.in_session("s", "echo one > /tmp/x; echo one > ~/x");
    assert_eq!(session(&place, &["snapshots"]), "no snapshots\n");
    let taken = session(&place, &["snapshot", "s", "--name", "first"]);
    let [id] = Vec::from_iter(listed(&place)).try_into().unwrap();
    let id: &str = &id;
    let (line, notes) = taken.split_at(taken.find('\n').unwrap() + 1);
    assert_eq!(notes, NOTES);
    assert!(line.starts_with(&format!("{id} first (namespaces, ")), "{line}");
    assert!(line.ends_with(", with the home)\n"), "{line}");
    assert_eq!(session(&place, &["snapshots", "s"]), line);
    assert_eq!(session(&place, &["snapshots"]), format!("s: {line}"));
    assert_eq!(session(&place, &["snapshots", "other"]), "no snapshots\n");

    place.in_session("s", "echo two > /tmp/x; echo two > ~/x");
    assert_eq!(
        session(&place, &["restore", "s", "first"]),
        format!("s begins from {id} with its next command\n")
    );
    assert!(
        session(&place, &["show", "s"]).contains(&format!("from the snapshot {id}, each time")),
        "it says where it begins"
    );
    assert_eq!(place.in_session("s", "cat /tmp/x ~/x"), "one\none\n");

    assert_eq!(
        session(&place, &["fork", "s", "t", "--snapshot", id]),
        format!("made t, which begins from {id}\n")
    );
    assert_eq!(place.in_session("t", "cat /tmp/x ~/x"), "one\none\n");
    let forked = session(&place, &["fork", "s", "u"]);
    let new = Vec::from_iter(listed(&place)).into_iter().find(|one| one != id).unwrap();
    assert_eq!(forked, format!("made u, which begins from {new}\n{NOTES}"));

    assert_eq!(session(&place, &["restore", "s", "--none"]), "s begins from no snapshot any more\n");
    assert_eq!(place.in_session("s", "ls /tmp; cat ~/x"), "one\n");
    session(&place, &["rm", "t", "--purge"]);
    assert_eq!(session(&place, &["rm-snapshot", "s", "first"]), format!("removed {id}\n"));
    // What another session begins from stays, and says so.
    let purged = session(&place, &["rm", "s", "--purge"]);
    assert!(purged.contains("1 of its snapshots stay: moltis session snapshots s\n"), "{purged}");
    session(&place, &["rm", "u", "--purge"]);
    assert_eq!(session(&place, &["rm-snapshot", "s", &new]), format!("removed {new}\n"));
    assert_eq!((listed(&place), kept(&place)), (BTreeSet::new(), BTreeSet::new()));
}

#[test]
fn each_command_tells_all_of_it_as_json() {
    let place = place();
    place.in_session("s", "echo one > /tmp/x");
    let mut taken = told(&place, &["snapshot", "s", "--name", "first"]);
    let fields = taken.as_object_mut().unwrap();
    let notes = fields.remove("notes").unwrap();
    assert_eq!(notes.as_array().unwrap().len(), 2, "{notes}");
    let id = fields["id"].as_str().unwrap().to_owned();
    let (created, bytes) = (fields["createdMillis"].clone(), fields["bytes"].clone());
    assert!(created.is_u64() && bytes.as_u64() > Some(1024), "{taken}");
    let whole = json!({
        "id": id, "session": "s", "name": "first", "backend": "namespaces", "createdMillis": created,
        "createdBy": {"kind": "cli", "uid": rustix::process::geteuid().as_raw()}, "bytes": bytes, "home": "copied",
    });
    assert_eq!(taken, whole);
    for words in [&["snapshots", "s"][..], &["snapshots"]] {
        assert_eq!(told(&place, words), json!({ "snapshots": [whole] }));
    }
    let restored = told(&place, &["restore", "s", &id]);
    let begins = json!({"snapshot": id, "backend": "namespaces", "home": true, "homeWaits": true});
    assert_eq!((&restored["session"], &restored["begins"]), (&json!("s"), &begins));
    let forked = told(&place, &["fork", "s", "t"]);
    assert_eq!((&forked["session"], &forked["notes"]), (&json!("t"), &notes));
    let new = forked["begins"]["snapshot"].as_str().unwrap();
    assert_eq!(listed(&place), BTreeSet::from([id.clone(), new.to_owned()]));
    place.in_session("t", "true");
    assert_eq!(told(&place, &["show", "t"])["begins"]["homeWaits"], json!(false));
    assert_eq!(told(&place, &["restore", "s", "--none"])["begins"], Value::Null);
    assert_eq!(told(&place, &["rm-snapshot", "s", "first"]), json!({ "removed": [id] }));
    assert_eq!(
        told(&place, &["rm", "s", "t", "--purge"]),
        json!({"removed": [
            {"session": "s", "homeRemoved": true, "snapshotsRemoved": 0, "snapshotsKept": 1},
            {"session": "t", "homeRemoved": true, "snapshotsRemoved": 0, "snapshotsKept": 0},
        ]})
    );
}

#[test]
fn status_says_which_backends_take_snapshots() {
    let place = place();
    let all = place.run(["sandbox", "status", "--json"]).json()["backends"].clone();
    let able: Vec<_> = all
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|backend| Some((backend["backend"].as_str()?, backend.get("snapshots")?.as_str()?)))
        .collect();
    // Whether or not they are usable here.
    let files = "fileSystem";
    assert_eq!(able, [("podman", files), ("docker", files), ("namespaces", files)]);
    let text = place.run(["sandbox", "status"]).stdout;
    let said = |backend: &str| {
        let from =
            text.find(&format!("● {backend}  usable")).unwrap_or_else(|| panic!("no {backend}: {text}"));
        let line = text[from..].lines().find(|line| line.trim_start().starts_with("snapshots ")).unwrap();
        line.trim_start().trim_start_matches("snapshots").trim().to_owned()
    };
    assert_eq!(
        (said("namespaces"), said("restricted-host")),
        ("of what was written".to_owned(), "none".to_owned())
    );
}

#[test]
fn what_cannot_be_done_with_snapshots_is_refused_and_changes_nothing() {
    let place = place();
    place.in_session("s", "true");
    let long = "x".repeat(65);
    let id = told(&place, &["snapshot", "s", "--name", "first"])["id"].as_str().unwrap().to_owned();
    session(&place, &["fork", "s", "t", "--snapshot", "first"]);
    place.run(["session", "set", "host", "--backend", "restricted-host"]);
    // What there is, without the times and the use of memory that go on.
    let sessions = || {
        let mut all = told(&place, &["list"]);
        for one in all["sessions"].as_array_mut().unwrap() {
            if let Some(sandbox) = one.get_mut("sandbox") {
                *sandbox = sandbox["running"].clone();
            }
        }
        all
    };
    let before = sessions();
    for (words, status, code) in [
        (&["snapshot", "none"][..], 1, "session-missing"),
        (&["snapshot", ""], 2, "session-key-invalid"),
        (&["snapshot", "s", "--name", ""], 2, "snapshot-name-invalid"),
        (&["snapshot", "s", "--name", "../x"], 2, "snapshot-name-invalid"),
        (&["snapshot", "s", "--name=-x"], 2, "snapshot-name-invalid"),
        (&["snapshot", "s", "--name", &long], 2, "snapshot-name-invalid"),
        (&["snapshot", "s", "--name", "snap-0123456789abcdef"], 2, "snapshot-name-invalid"),
        (&["snapshot", "s", "--name", "first"], 1, "snapshot-name-taken"),
        (&["snapshot", "host"], 1, "snapshot-unsupported"),
        (&["snapshots", ""], 2, "session-key-invalid"),
        (&["restore", "none", "first"], 1, "session-missing"),
        (&["restore", "s", "fisrt"], 1, "snapshot-missing"),
        (&["restore", "s", "../../etc"], 1, "snapshot-missing"),
        (&["restore", "host", &id], 1, "snapshot-missing"),
        (&["fork", "none", "new"], 1, "session-missing"),
        (&["fork", "s", ""], 2, "session-key-invalid"),
        (&["fork", "s", "t"], 1, "session-exists"),
        (&["fork", "s", "s"], 1, "session-exists"),
        (&["fork", "s", "new", "--snapshot", "other"], 1, "snapshot-missing"),
        (&["rm-snapshot", "s", "other"], 1, "snapshot-missing"),
        (&["rm-snapshot", "none", "first"], 1, "snapshot-missing"),
        // The fork begins from it.
        (&["rm-snapshot", "t", &id], 1, "snapshot-missing"),
        (&["rm-snapshot", "s", "first"], 1, "snapshot-in-use"),
    ] {
        let words = [&["session"], words].concat();
        place.run(&words).fails(status, code);
        place.run([&words[..], &["--json"]].concat()).fails_in_json(status, code);
    }
    for words in [
        &["snapshot"][..],
        &["restore", "s"],
        &["restore", "s", "first", "--none"],
        &["fork", "s"],
        &["rm-snapshot", "s"],
        &["snapshots", "s", "--name", "x"],
    ] {
        assert_eq!(place.run([&["session"], words].concat()).status, Some(2), "{words:?}");
    }
    assert_eq!((listed(&place), kept(&place)), (BTreeSet::from([id.clone()]), BTreeSet::from([id])));
    assert_eq!(sessions(), before);
}

#[test]
fn a_command_that_runs_keeps_its_sandbox_unless_it_was_said_otherwise() {
    let place = place();
    place.in_session("s", "echo one > /tmp/x");
    let mut running = start(&place, &["exec", "--session", "s", "touch /tmp/begun; sleep 1000"]);
    until("it runs", || place.in_session("s", "ls /tmp").contains("begun"));
    // It does not keep anybody from taking a snapshot.
    session(&place, &["snapshot", "s", "--name", "first"]);
    place.in_session("s", "echo two > /tmp/x");
    place.run(["session", "restore", "s", "first"]).fails(1, "sandbox-busy");
    assert_eq!(place.in_session("s", "cat /tmp/x; pgrep -c sleep"), "two\n1\n");
    assert_eq!(told(&place, &["show", "s"])["begins"], Value::Null);
    session(&place, &["restore", "s", "first", "--recreate"]);
    assert!(!running.wait().unwrap().success());
    assert_eq!(place.in_session("s", "cat /tmp/x; pgrep -c sleep || true"), "one\n0\n");
}

#[test]
fn names_links_and_special_files_stay_what_they_are_and_lead_nowhere_else() {
    let place = place();
    let outside = place.path("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "the host's").unwrap();
    let make = format!(
        "cd ~; ln -s {outside} out; ln -s {outside}/file out-file; ln -s ../../../../../../.. up; ln -s /etc etc; \
         ln -s nowhere broken; mkdir d; echo in > d/file; ln d/file hard; mkfifo fifo; \
         python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'; \
         echo a > '-rf'; echo b > \"$(printf 'new\\nline')\"; echo c > \"$(printf 'raw\\377')\"; echo d > '...'; \
         echo e > 'back\\slash'; mkdir 'd/ x '; chmod 700 d; chmod 400 d/file; touch -d @1000 d/file; \
         mknod null c 1 3 2> /dev/null && echo made",
        outside = outside.display()
    );
    let ran = place.run(["exec", "--session", "s", &make]);
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "no device is made: {ran:?}");
    // Deeper than a path can be long.
    let down = |each: &str, then: &str| {
        format!(
            "cd ~; python3 -c \"\nimport os\nfor _ in range(400):\n  {each}; os.chdir('deep-down-there')\n{then}\""
        )
    };
    place.in_session("s", &down("os.mkdir('deep-down-there')", "open('bottom', 'w').write('here')"));
    let look = "cd ~; LC_ALL=C ls -A | grep -v ^files$; readlink out out-file up etc broken; cat d/file hard ./-rf \
                new* raw* ... back*; stat -c '%a %F %Y' d/file; stat -c '%a %F' d 'd/ x '";
    let before = place.in_session("s", look);
    assert!(before.contains("fifo\n") && before.contains("socket\n"), "{before}");
    session(&place, &["snapshot", "s", "--name", "first"]);
    place.in_session("s", "cd ~; chmod -R u+w d; rm -rf ./* ...; ln -s /tmp d; echo new > /tmp/file");
    session(&place, &["restore", "s", "first"]);
    let after = place.in_session("s", look);
    assert_eq!(after, before.replace("fifo\n", "").replace("socket\n", ""));
    assert_eq!(place.in_session("s", &down("pass", "print(open('bottom').read())")), "here\n");
    // A hard link is a file of its own from then on.
    assert_eq!(place.in_session("s", "stat -c %h ~/hard; ls /tmp"), "1\n");
    let entries: Vec<_> =
        std::fs::read_dir(&outside).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(
        (entries, std::fs::read(outside.join("file")).unwrap()),
        (vec!["file".into()], b"the host's".to_vec())
    );
}

#[test]
fn a_file_that_the_sandbox_cannot_read_stops_the_snapshot_and_is_named() {
    let place = place();
    for closed in ["/tmp/closed", "/home/sandbox/d/closed"] {
        place.in_session("s", &format!("mkdir -p ~/d; echo x > {closed}; chmod 000 {closed}"));
        let ran = place.run(["session", "snapshot", "s"]);
        assert_eq!((ran.status, ran.stdout.as_str()), (Some(1), ""), "{ran:?}");
        assert!(ran.stderr.contains(&format!("`{closed}` cannot be read")), "{ran:?}");
        // Nothing is left of it.
        assert_eq!((listed(&place), kept(&place)), (BTreeSet::new(), BTreeSet::new()));
        place.in_session("s", &format!("chmod 400 {closed}"));
    }
    session(&place, &["snapshot", "s"]);
}

/// An archive of one entry.
fn archive(kind: u8, name: &[u8], target: &[u8]) -> Vec<u8> {
    let mut header = [0u8; 512];
    header[..name.len()].copy_from_slice(name);
    header[100..108].copy_from_slice(b"0000666\0");
    header[108..116].copy_from_slice(b"0001750\0");
    header[116..124].copy_from_slice(b"0001750\0");
    header[124..136].copy_from_slice(b"00000000000\0");
    header[136..148].copy_from_slice(b"00000000000\0");
    header[148..156].copy_from_slice(b"        ");
    header[156] = kind;
    header[157..157 + target.len()].copy_from_slice(target);
    header[257..265].copy_from_slice(b"ustar\x0000");
    header[329..337].copy_from_slice(b"0000001\0");
    header[337..345].copy_from_slice(b"0000003\0");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut all = header.to_vec();
    all.resize(512 * 3, 0);
    all
}

#[test]
fn an_archive_that_was_tampered_with_makes_no_sandbox_and_nothing_outside_of_its_place() {
    let place = place();
    let outside = place.path("outside");
    place.in_session("s", "echo kept > ~/x; head -c 5000 /dev/zero > /tmp/x");
    let id = told(&place, &["snapshot", "s"])["id"].as_str().unwrap().to_owned();
    session(&place, &["restore", "s", &id]);
    let file = folder(&place).join(&id).join("tmp.tar");
    let good = std::fs::read(&file).unwrap();
    place.in_session("s", "echo newer > ~/x; rm /tmp/x");
    session(&place, &["restore", "s", &id]);
    let link = archive(b'2', b"link", outside.as_os_str().as_bytes());
    let through = [&link[..512], &archive(b'0', b"link/file", b"")].concat();
    for (what, mut bytes, code) in [
        ("a name that leads up", archive(b'0', b"../home/sandbox/evil", b""), "archive-escapes"),
        ("a name that leads up later", archive(b'0', b"a/../../evil", b""), "archive-escapes"),
        ("an absolute name", archive(b'0', b"/home/sandbox/evil", b""), "archive-escapes"),
        ("a name through a link", through, "archive-escapes"),
        ("a device", archive(b'3', b"null", b""), "file-wrong-kind"),
        ("a block device", archive(b'4', b"disk", b""), "file-wrong-kind"),
        ("a FIFO", archive(b'6', b"fifo", b""), "file-wrong-kind"),
        ("a hard link to another file", archive(b'1', b"hard", b"/etc/passwd"), "file-wrong-kind"),
        ("half of it", good[..1536].to_vec(), "snapshot-unusable"),
        ("nothing", Vec::new(), "snapshot-unusable"),
    ] {
        if code != "snapshot-unusable" {
            // As long as it was: that alone is seen before the agent sees it.
            bytes.resize(good.len(), 0);
        }
        std::fs::write(&file, &bytes).unwrap();
        let ran = place.run(["exec", "--session", "s", "--json", "ls -A /tmp ~"]);
        let said = format!("{what}: {ran:?}");
        assert_eq!(ran.status, Some(125), "{said}");
        assert_eq!(ran.json()["error"]["code"], code, "{said}");
        assert!(!outside.exists(), "{said}");
        assert_eq!(place.left_running(), Vec::<String>::new(), "{said}");
    }
    std::fs::write(&file, &good).unwrap();
    assert_eq!(place.in_session("s", "ls -A /tmp; ls ~; cat ~/x"), "x\nfiles\nx\nkept\n");
}

/// Fills the home and tells what is in it.
const FILL: &str = "cd ~; rm -rf many; mkdir many; for i in $(seq 200); do echo $i > many/$i; done; \
                    head -c 24000000 /dev/urandom > big";
const SUM: &str =
    "cd ~; find . -type f -not -path './files/*' -print0 | sort -z | xargs -0 sha256sum | sha256sum";

#[test]
fn a_snapshot_whose_taker_was_killed_is_never_listed_and_the_next_one_clears_it_away() {
    let place = place();
    place.in_session("s", FILL);
    let sum = place.in_session("s", SUM);
    let mut half = 0;
    for round in 0..8u32 {
        let before = kept(&place);
        let mut taker = start(&place, &["session", "snapshot", "s"]);
        // From the first file on, somewhat later each time.
        let mut made = BTreeSet::new();
        until("something of it is there", || {
            made = kept(&place).difference(&before).cloned().collect();
            !made.is_empty() || taker.try_wait().unwrap().is_some()
        });
        std::thread::sleep(Duration::from_millis(u64::from(round) * 10));
        taker.kill().unwrap();
        taker.wait().unwrap();
        if !made.is_subset(&listed(&place)) {
            half += 1;
        }
        let which = made.first().map(String::as_str).unwrap_or_default();
        if !listed(&place).contains(which) {
            place.run(["session", "restore", "s", which]).fails(1, "snapshot-missing");
        }
    }
    assert!(half > 0, "none was killed half-way");
    let last = told(&place, &["snapshot", "s", "--name", "last"]);
    assert_eq!(kept(&place), listed(&place));
    // Each that is listed is whole.
    place.in_session("s", "rm -rf ~/big ~/many");
    for id in listed(&place) {
        back_to(&place, &id);
        assert_eq!(place.in_session("s", SUM), sum, "{id}");
    }
    assert_eq!(last["name"], "last");
}

#[test]
fn a_restore_that_was_killed_is_whole_with_the_next_command() {
    let place = place();
    place.in_session("s", FILL);
    let sum = place.in_session("s", SUM);
    session(&place, &["snapshot", "s", "--name", "first"]);
    let mut half = 0;
    for round in 0..8u64 {
        place.in_session(
            "s",
            "cd ~; rm -rf many; mkdir -p other; head -c 1000 /dev/zero > big; echo > other/x",
        );
        // While it is asked for: it begins there, or where it did, and can be asked again.
        let mut caller = start(&place, &["session", "restore", "s", "first"]);
        std::thread::sleep(Duration::from_millis(round * 5));
        caller.kill().unwrap();
        caller.wait().unwrap();
        back_to(&place, "first");
        assert_eq!(told(&place, &["show", "s"])["begins"]["homeWaits"], json!(true));
        // While the home gives way to the one in the snapshot.
        let mut caller = start(&place, &["exec", "--session", "s", "true"]);
        let home = place.data().join("sandbox/home/session");
        let other = std::fs::read_dir(&home).unwrap().next().unwrap().unwrap().path().join("other");
        until("it is being unpacked", || !other.exists() || caller.try_wait().unwrap().is_some());
        std::thread::sleep(Duration::from_millis(round * 5));
        caller.kill().unwrap();
        caller.wait().unwrap();
        if told(&place, &["show", "s"])["begins"]["homeWaits"] == json!(true) {
            half += 1;
        }
        assert_eq!(place.in_session("s", SUM), sum, "round {round}");
        assert_eq!(told(&place, &["show", "s"])["begins"]["homeWaits"], json!(false));
    }
    assert!(half > 0, "none was killed half-way");
    let running = place.run(["sandbox", "ps", "--json"]).json()["sandboxes"].clone();
    assert_eq!(running.as_array().unwrap().len(), 1, "{running}");
}
