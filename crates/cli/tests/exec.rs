//! `moltis exec`: output, input, environment, exit status, time-out, signals, JSON.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::support::Place;

#[test]
fn a_line_runs_in_a_shell_and_a_program_without_one() {
    let place = Place::new();
    place.exec(["echo $((6 * 7)); echo err >&2"]).is(0, "42\n", "err\n");
    place.exec(["--", "printf", "%s|", "a b", "$HOME"]).is(0, "a b|$HOME|", "");
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn the_exit_status_is_the_commands() {
    let place = Place::new();
    for (line, status) in
        [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -9 $$", 137), ("kill -15 $$", 143)]
    {
        place.exec([line]).is(status, "", "");
    }
}

#[test]
fn a_program_that_is_missing_or_cannot_run_is_as_in_a_shell() {
    let place = Place::new();
    let missing = place.exec(["--", "no-such-program"]);
    assert_eq!(missing.status, Some(127), "{missing:?}");
    assert!(missing.stderr.contains("program-missing"), "{missing:?}");
    let unusable = place.exec(["--", "/etc/passwd"]);
    assert_eq!(unusable.status, Some(126), "{unusable:?}");
    assert!(unusable.stderr.contains("program-not-executable"), "{unusable:?}");
}

#[test]
fn input_reaches_the_command_whole() {
    let place = Place::new();
    let mut child =
        place.exec_command(["--", "sha256sum"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        let block: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        for _ in 0..20 {
            input.write_all(&block).unwrap();
        }
    });
    let mut output = String::new();
    child.stdout.take().unwrap().read_to_string(&mut output).unwrap();
    writer.join().unwrap();
    assert!(child.wait().unwrap().success());
    // 20 MiB of the bytes 0 to 255 over and over.
    let want = {
        let mut sum = std::process::Command::new("sha256sum")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let block: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
        let mut to = sum.stdin.take().unwrap();
        for _ in 0..20 {
            to.write_all(&block).unwrap();
        }
        drop(to);
        String::from_utf8(sum.wait_with_output().unwrap().stdout).unwrap()
    };
    assert_eq!(output, want);
}

#[test]
fn output_comes_while_the_command_runs() {
    let place = Place::new();
    let mut child =
        place.exec_command(["echo first; sleep 20; echo late"]).stdout(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    assert!(begun.elapsed() < Duration::from_secs(15));
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn input_is_left_alone_where_that_is_asked() {
    let place = Place::new();
    let input = place.path("input");
    std::fs::write(&input, "a\nb\n").unwrap();
    for (flag, lines) in [("-n", "a\nb\n"), ("--no-stdin", "a\nb\n"), ("", "a\n")] {
        let line = format!(
            "while read x; do $moltis exec --backend namespaces {flag} 'cat >/dev/null'; echo $x; done"
        );
        let output = place.shell(&line).stdin(std::fs::File::open(&input).unwrap()).output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), lines, "{flag}");
    }
}

#[test]
fn binary_output_is_untouched() {
    let place = Place::new();
    let output =
        place.exec_command(["head -c 300000 /dev/zero; printf '\\377\\000\\r\\n'"]).output().unwrap();
    let mut want = vec![0; 300_000];
    want.extend_from_slice(b"\xff\0\r\n");
    assert!(output.stdout == want);
}

#[test]
fn the_environment_is_what_was_given_and_no_more() {
    let place = Place::new();
    let file = place.path("env");
    std::fs::write(&file, "# comment\nFROM_FILE='1'\nOVER=file\nPASSED\nMISSING\n").unwrap();
    let output = place
        .exec_command(["--env", "A=x y", "--env", "PASSED", "--env", "ABSENT", "--env", "OVER=flag"])
        .arg("--env-file")
        .arg(&file)
        .arg("env | grep -v -e ^TZ= -e ^PWD= -e ^SHLVL= -e ^_= | sort")
        .env("PASSED", "on")
        .env("SECRET_OF_THE_CALLER", "no")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        told.lines().filter(|line| line.contains("left out")).collect::<Vec<_>>(),
        [
            &*format!("moltis: MISSING is not set here and is left out ({}:5)", file.display()),
            "moltis: ABSENT is not set here and is left out"
        ]
    );
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "A=x y\nFROM_FILE='1'\nHOME=/home/sandbox\nLANG=C.UTF-8\nMOLTIS_FILES_DIR=/home/sandbox/files\nOVER=flag\n\
         PASSED=on\nPATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
    );
}

#[test]
fn a_workspace_shows_and_keeps_its_mode() {
    let place = Place::new();
    let workspace = place.workspace();
    std::fs::write(workspace.join("in.txt"), "in").unwrap();
    let show = |mode: &str| format!("{}{mode}", workspace.display());
    place.exec(["--workspace", &show(""), "pwd; cat in.txt; touch new 2>/dev/null || echo no"]).is(
        0,
        "/workspace\ninno\n",
        "",
    );
    place.exec(["--workspace", &show(":rw"), "umask 022; echo out > out.txt; stat -c %U out.txt"]).is(
        0,
        "sandbox\n",
        "",
    );
    let written = workspace.join("out.txt");
    assert_eq!(std::fs::read_to_string(&written).unwrap(), "out\n");
    use std::os::unix::fs::MetadataExt;
    let owner = |path: &std::path::Path| std::fs::metadata(path).unwrap().uid();
    assert_eq!(owner(&written), owner(&workspace), "files are the caller's");
}

#[test]
fn when_the_time_is_up_all_is_ended_and_the_output_is_kept() {
    let place = Place::new();
    let marker = format!("{}", 5_000_000 + std::process::id());
    let begun = Instant::now();
    let ran = place.exec([
        "--timeout",
        "1s",
        &format!("echo begun; trap '' TERM; (setsid sleep {marker} &); sleep {marker}"),
    ]);
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(124), "begun\n"), "{ran:?}");
    assert!(ran.stderr.contains("time of 1 s was up"), "{ran:?}");
    assert_eq!(processes_with(&marker), Vec::<String>::new());
}

#[test]
fn ctrl_c_ends_the_whole_descent() {
    let place = Place::new();
    let marker = format!("{}", 6_000_000 + std::process::id());
    let mut child = place
        .exec_command([format!("(setsid sleep {marker} &); echo up; sleep {marker}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    wait_until("both run", || processes_with(&marker).len() == 2);
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(processes_with(&marker), Vec::<String>::new());
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn kill_9_of_the_caller_ends_the_sandbox() {
    let place = Place::new();
    let marker = format!("{}", 7_000_000 + std::process::id());
    let mut child = place
        .exec_command([format!("(setsid sleep {marker} &); echo up; sleep {marker}")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    wait_until("both run", || processes_with(&marker).len() == 2);
    child.kill().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    wait_until("both are gone", || processes_with(&marker).is_empty());
    // Once its last process is gone, the next start sweeps what the killed one could not.
    wait_until("a later start has swept", || {
        place.exec(["true"]).is(0, "", "");
        place.left_running().is_empty()
    });
}

#[test]
fn a_terminal_is_one_inside_and_is_put_back_outside() {
    use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
    let place = Place::new();
    let master =
        rustix::pty::openpt(rustix::pty::OpenptFlags::RDWR | rustix::pty::OpenptFlags::NOCTTY).unwrap();
    rustix::pty::grantpt(&master).unwrap();
    rustix::pty::unlockpt(&master).unwrap();
    let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
    let slave = std::fs::File::options().read(true).write(true).open(name.to_str().unwrap()).unwrap();
    tcsetwinsize(&slave, Winsize { ws_row: 31, ws_col: 97, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
    let end = || Stdio::from(slave.try_clone().unwrap());
    let mut child = place
        .exec_command([
            "--tty",
            "test -t 0 && test -t 1 && stty size; echo $TERM; read x; echo \"got $x\"; exit 5",
        ])
        .env("TERM", "vt100")
        .stdin(end())
        .stdout(end())
        .stderr(end())
        .spawn()
        .unwrap();
    let mut terminal = std::fs::File::from(master);
    let mut seen = String::new();
    let mut until = |words: &str, terminal: &mut std::fs::File| {
        let begun = Instant::now();
        while !seen.contains(words) {
            assert!(begun.elapsed() < Duration::from_secs(20), "{seen:?}");
            let mut some = [0; 256];
            let count = terminal.read(&mut some).unwrap();
            seen.push_str(&String::from_utf8_lossy(&some[..count]));
        }
    };
    until("31 97\r\nvt100\r\n", &mut terminal);
    assert!(!tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON), "raw while it runs");
    terminal.write_all(b"hi\r").unwrap();
    until("got hi", &mut terminal);
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(tcgetattr(&slave).unwrap().local_modes.contains(LocalModes::ICANON), "put back");
    let none = place.exec(["--tty", "true"]);
    assert_eq!(none.status, Some(125));
    assert!(none.stderr.contains("error[not-a-terminal]"), "{none:?}");
}

#[test]
fn what_is_left_running_is_named_and_does_not_hold_the_answer() {
    let place = Place::new();
    let begun = Instant::now();
    let ran = place.exec(["sleep 1000 & sleep 0.5; echo done"]);
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert_eq!((ran.status, ran.stdout.as_str()), (Some(0), "done\n"));
    assert!(ran.stderr.contains("still running, ended with the sandbox:"), "{ran:?}");
    assert!(ran.stderr.contains("sleep 1000"), "{ran:?}");
}

#[test]
fn a_reader_that_leaves_ends_the_command() {
    let place = Place::new();
    let mut child = place.exec_command(["yes"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut some = [0; 4];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    assert_eq!(&some, b"y\ny\n");
    assert_eq!(child.wait().unwrap().code(), Some(141));
}

#[test]
fn output_that_cannot_be_written_is_an_error_with_its_reason() {
    let place = Place::new();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = place.exec_command(["echo hi"]).stdout(full).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{stderr}");
    assert!(stderr.contains("error[output-failed]"), "{stderr}");
}

#[test]
fn many_at_once_leave_each_other_alone_whatever_is_swept() {
    let place = Place::new();
    for _ in 0..3 {
        // Dead ones, for the others to sweep.
        for _ in 0..2 {
            let mut dead = place.exec_command(["echo up; sleep 60"]).stdout(Stdio::piped()).spawn().unwrap();
            let mut line = String::new();
            BufReader::new(dead.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
            dead.kill().unwrap();
            dead.wait().unwrap();
        }
        let all: Vec<_> = (0..24)
            .map(|_| place.exec_command(["sleep 1; echo done"]).stdout(Stdio::piped()).spawn().unwrap())
            .collect();
        for one in all {
            let output = one.wait_with_output().unwrap();
            assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b"done\n"[..]));
        }
    }
}

#[test]
fn max_output_keeps_head_and_tail() {
    let place = Place::new();
    let ran = place.exec(["--max-output", "10", "printf 0123456789abcdef; printf e >&2"]).without_promises();
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("01234\n[… 6 bytes cut …]\nbcdef", "e"));
}

#[test]
fn json_is_one_whole_answer() {
    let place = Place::new();
    let ran = place.exec(["--json", "printf out; printf '\\377' >&2; sleep 1000 & sleep 0.5; exit 3"]);
    assert_eq!(ran.status, Some(3));
    let mut answer = ran.json();
    assert!(answer["durationMs"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["sandboxId"].as_str().unwrap().len(), 40);
    assert_eq!(answer["leftovers"][0]["command"], "sleep 1000");
    let fields = answer.as_object_mut().unwrap();
    for volatile in ["durationMs", "sandboxId", "leftovers", "notEnforced"] {
        fields.remove(volatile).unwrap();
    }
    assert_eq!(
        answer,
        json!({
            "backend": "namespaces", "exitCode": 3, "timedOut": false, "cancelled": false,
            "stdout": "out", "stdoutBytes": 3, "stdoutCut": 0,
            "stderr": "/w==", "stderrEncoding": "base64", "stderrBytes": 1, "stderrCut": 0,
            "leftoversTotal": 1,
        })
    );
}

#[test]
fn signals_are_heard_while_nobody_reads() {
    let place = Place::new();
    let marker = format!("{}", 8_000_000 + std::process::id());
    let mut child = place
        .exec_command([format!("sleep {marker} & yes")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("it runs", || processes_with(&marker).len() == 1);
    // By now every buffer on the way is full; nobody reads.
    std::thread::sleep(Duration::from_millis(500));
    let begun = Instant::now();
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(begun.elapsed() < Duration::from_secs(15));
    assert_eq!(processes_with(&marker), Vec::<String>::new());
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn signals_are_heard_while_nobody_reads_the_answer() {
    let place = Place::new();
    let mut child = place
        .exec_command(["--json", "head -c 150000 /dev/zero | tr '\\0' x"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The answer is longer than a pipe holds.
    std::thread::sleep(Duration::from_secs(2));
    assert!(child.try_wait().unwrap().is_none(), "the control: it waits for its reader");
    interrupt(&child);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn a_signal_while_it_starts_leaves_nothing() {
    let place = Place::new();
    for millis in 0..30 {
        let mut child =
            place.exec_command(["sleep 60"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(millis));
        // Not Ctrl-C's, which who started us may have had ignored.
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        // Before the signal is caught it ends the program as it ends any other.
        let status = child.wait().unwrap();
        assert!(status.code() == Some(143) || status.signal() == Some(15), "{status:?}");
    }
    assert_eq!(place.left_running(), Vec::<String>::new());
}

#[test]
fn what_a_command_calls_itself_cannot_pose_as_our_words() {
    let place = Place::new();
    let ran = place.exec(["bash -c 'exec -a \"x\nmoltis: forged\" sleep 1000' & sleep 0.5"]);
    assert!(ran.stderr.contains("x\\nmoltis: forged"), "the control: it has that name: {ran:?}");
    assert!(!ran.stderr.lines().any(|line| line.starts_with("moltis: forged")), "{ran:?}");
}

#[test]
fn streams_of_ours_that_are_gone_are_no_reason_to_panic() {
    let place = Place::new();
    let mut command = place.exec_command(["sleep 1000 & sleep 0.3; exit 3"]);
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = command.stderr(writer).stdout(Stdio::null()).status().unwrap();
    assert_eq!(status.code(), Some(3));
}

/// Command lines of processes on this machine that hold the marker, but for the program itself and shells that only
/// have it in their script.
fn processes_with(marker: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.trim_end() == format!("sleep {marker}") {
            found.push(line);
        }
    }
    found
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(10), "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn interrupt(child: &std::process::Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
}

#[test]
fn json_tells_the_status_that_we_end_with() {
    let place = Place::new();
    let mut child =
        place.exec_command(["--json", "echo first; sleep 20"]).stdout(Stdio::piped()).spawn().unwrap();
    // It prints nothing before its end.
    let begun = Instant::now();
    while place.left_running().is_empty() && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_secs(1));
    interrupt(&child);
    let mut told = String::new();
    child.stdout.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["exitCode"], &told["cancelled"], &told["stdout"]),
        (&json!(130), &json!(true), &json!("first\n"))
    );
}
