//! Commands of the shell alone.

use std::time::Duration;

use moltis_sandbox::{Command, Ending, ExecEvent, ExecRequest, Status};

use crate::common::{World, eventually, out, path, run, sh, shell, with_input};

#[tokio::test(flavor = "multi_thread")]
async fn the_seeds_commands_and_shell_features() {
    let world = World::new();
    let sandbox = world.open().await;
    let all = "echo echo cat ls mkdir rm cp mv pwd env head tail wc sort touch which true false test basename dirname";
    for name in all.split(' ') {
        assert_eq!(
            out(&sandbox, &format!("type {name} >/dev/null && echo there")).await,
            "there\n",
            "{name}"
        );
    }
    for (line, expected) in [
        ("pwd", "/home/sandbox\n"),
        ("echo $HOME", "/home/sandbox\n"),
        ("true && echo a || echo b; false && echo c || echo d", "a\nd\n"),
        ("x='a b'; echo \"$x\" ${x%b}c", "a b a c\n"),
        ("echo a >f; echo b >>f; cat f; wc -l <f", "a\nb\n2\n"),
        ("printf 'b\\na\\n' | sort | head -1", "a\n"),
        ("echo a | tr a-z A-Z | wc -c", "2\n"),
        ("for i in 1 2 3; do echo $i; done | tail -1", "3\n"),
        ("f() { echo f $1; }; f x", "f x\n"),
        ("echo $((6*7)) $(basename /a/b.c .c) $(dirname /a/b)", "42 b /a\n"),
        ("[ 1 -lt 2 ] && test -d /tmp && echo yes", "yes\n"),
        ("mkdir -p d/e; touch d/e/g; ls d; cp d/e/g h; mv h k; rm -r d; ls", "e\nf\nk\n"),
        ("sed s/a/c/ f | awk '{print $1 NR}'", "c1\nb2\n"),
        ("echo '{\"a\":[1,2]}' | jq .a[1]", "2\n"),
        ("yes | head -2", "y\ny\n"),
        ("seq 1 100000 | tail -1", "100000\n"),
        ("cat <<E\nx\nE", "x\n"),
    ] {
        assert_eq!(out(&sandbox, line).await, expected, "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_command_is_127_and_says_where_it_was_looked_for() {
    let world = World::new();
    let sandbox = world.open().await;
    let ran = sh(&sandbox, "nosuch -x").await;
    assert_eq!((ran.code(), ran.errors().as_str()), (127, "nosuch: command not found in WASM sandbox\n"));
    let ran = sh(&sandbox, "python3 -c 'print(1)'").await;
    assert_eq!(ran.code(), 127);
    assert!(ran.errors().contains("wasm_commands"), "{}", ran.errors());
    let ran = sh(&sandbox, "command -v nosuch || which nosuch || type nosuch 2>/dev/null || echo none").await;
    assert!(ran.text().ends_with("none\n"), "{ran:?}");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_the_requests_and_state_is_one_commands() {
    let world = World::new();
    let sandbox = world.open().await;
    let mut request = shell("echo $A$B; pwd; env | sort");
    request.env = vec![("A".into(), "1".into()), ("B".into(), "x y".into()), ("A".into(), "2".into())];
    request.cwd = Some(path("/tmp"));
    let ran = run(&sandbox, request).await;
    assert!(ran.text().starts_with("2x y\n/tmp\n"), "{}", ran.text());
    let mut names: Vec<&str> = Vec::new();
    let text = ran.text();
    for line in text.lines().skip(2) {
        names.push(line.split('=').next().unwrap());
    }
    let expected = ["A", "B", "HOME", "LANG", "PATH"];
    assert!(expected.iter().all(|name| names.contains(name)), "{names:?}");
    for name in &names {
        let may = ["A", "B", "HOME", "LANG", "PATH", "TZ", "PWD", "OLDPWD", "SHLVL", "_", "USER"];
        assert!(may.contains(name), "{name} of {names:?}");
    }
    // Files last, variables and directories do not.
    out(&sandbox, "X=1; export X; cd /tmp; echo kept >/tmp/f").await;
    assert_eq!(out(&sandbox, "echo ${X-none}; pwd; cat /tmp/f").await, "none\n/home/sandbox\nkept\n");
    let mut request = shell("pwd");
    request.cwd = Some(path("/nowhere"));
    assert_eq!(sandbox.exec(request).await.map(drop).unwrap_err().code(), "cwd-missing");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn arguments_are_taken_as_they_are() {
    let world = World::new();
    let sandbox = world.open().await;
    let words = ["printf", "[%s]", "a b", "$HOME", "*", ";", "'", "é", ""];
    let request = ExecRequest::new(Command::Argv(words.iter().map(Into::into).collect()));
    assert_eq!(run(&sandbox, request).await.text(), "[a b][$HOME][*][;]['][é][]");
    let request = ExecRequest::new(Command::Argv(vec!["nosuch".into()]));
    assert_eq!(run(&sandbox, request).await.code(), 127);
    for bad in [Command::Argv(vec![]), Command::Argv(vec!["".into()]), Command::Shell("a\0b".into())] {
        let error = sandbox.exec(ExecRequest::new(bad)).await.map(drop).unwrap_err();
        assert_eq!((error.kind(), error.code()), ("invalid", "request-invalid"));
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn input_streams_and_a_command_that_reads_none_does_not_wait_for_it() {
    let world = World::new();
    let sandbox = world.open().await;
    let ran = with_input(&sandbox, shell("cat; exit 3"), &[b"a\n", b"\0\xff\n"]).await;
    assert_eq!((ran.stdout.as_slice(), ran.code()), (&b"a\n\0\xff\n"[..], 3));
    let ran = with_input(&sandbox, shell("read x; echo got $x; sort"), &[b"1\nc\n", b"b\n"]).await;
    assert_eq!(ran.text(), "got 1\nb\nc\n");
    let ran = with_input(&sandbox, shell("echo none"), &[b"x"]).await;
    assert_eq!((ran.text().as_str(), ran.code()), ("none\n", 0));
    assert_eq!(sh(&sandbox, "cat; read x || echo end").await.text(), "end\n");
    // While the caller still may send something.
    let mut request = shell("pwd; ls /tmp; mkdir d; echo on; cat; echo off");
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"on\n") {
        match exec.events.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => seen.extend_from_slice(&bytes),
            ExecEvent::Started(_) => {}
            other => panic!("{other:?} after {:?}", String::from_utf8_lossy(&seen)),
        }
    }
    exec.control.stdin("ping\n".into()).await.unwrap();
    while !seen.ends_with(b"ping\n") {
        if let ExecEvent::Stdout(bytes) = exec.events.next().await.unwrap().unwrap() {
            seen.extend_from_slice(&bytes);
        }
    }
    exec.control.close_stdin().await.unwrap();
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Stdout(bytes) = event.unwrap() {
            seen.extend_from_slice(&bytes);
        }
    }
    assert_eq!(String::from_utf8(seen).unwrap(), "/home/sandbox\non\nping\noff\n");
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_comes_as_it_is_made_and_is_held_back() {
    let world = World::new();
    let sandbox = world.open().await;
    let mut exec = sandbox.exec(shell("echo first; echo e >&2; sleep 30")).await.unwrap();
    let mut both = [false; 2];
    while both != [true; 2] {
        match exec.events.next().await.unwrap().unwrap() {
            ExecEvent::Stdout(bytes) => both[0] |= &bytes[..] == b"first\n",
            ExecEvent::Stderr(bytes) => both[1] |= &bytes[..] == b"e\n",
            _ => {}
        }
    }
    exec.control.cancel().await.unwrap();
    let mut ended = None;
    while let Some(event) = exec.events.next().await {
        if let ExecEvent::Exit(outcome) = event.unwrap() {
            ended = Some(outcome);
        }
    }
    let outcome = ended.unwrap();
    assert_eq!(
        (outcome.ending, outcome.status, outcome.stdout_bytes),
        (Ending::Cancelled, Status::Signal(15), 6)
    );
    // Nobody reads: it does not run ahead.
    let mut exec = sandbox.exec(shell("while :; do echo x; echo x >>count; done")).await.unwrap();
    exec.events.next().await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let first: u64 = out(&sandbox, "wc -l <count").await.trim().parse().unwrap();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let second: u64 = out(&sandbox, "wc -l <count").await.trim().parse().unwrap();
    assert_eq!(first, second);
    drop(exec);
    let idle = async || sandbox.activity().await.unwrap().operations == 0;
    for _ in 0..300 {
        if idle().await {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(idle().await, "a command without a caller runs on");
    sandbox.close().await.unwrap();
    eventually("the end of the folder", || {
        !world.data().join("sandbox/wasm").join(sandbox.id().as_str()).exists()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn time_outs_and_signals_end_it() {
    let world = World::new();
    let sandbox = world.open().await;
    for line in
        ["sleep 30", "while :; do :; done", "sleep 20 & sleep 30; wait", "while :; do echo x; done | sort"]
    {
        let mut request = shell(&format!("echo so far; {line}"));
        request.timeout = Some(Duration::from_millis(300));
        let ran = run(&sandbox, request).await;
        assert_eq!((ran.outcome.ending, ran.outcome.exit_code()), (Ending::TimedOut, 124), "{line}");
        assert_eq!(ran.text(), "so far\n", "{line}");
        assert!(ran.took < Duration::from_secs(4), "{line}: {:?}", ran.took);
    }
    let mut exec = sandbox.exec(shell("sleep 30")).await.unwrap();
    exec.control.signal(9).await.unwrap();
    let mut last = None;
    while let Some(event) = exec.events.next().await {
        last = Some(event.unwrap());
    }
    let Some(ExecEvent::Exit(outcome)) = last else { panic!("{last:?}") };
    assert_eq!((outcome.status, outcome.ending), (Status::Signal(9), Ending::Exited));
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_host_shows() {
    let world = World::new();
    let sandbox = world.open().await;
    let text = sh(&sandbox, "id; whoami; uname -a; hostname; cat /etc/passwd /etc/hostname /proc/version; ps; ls /; ls /proc; env")
        .await
        .text();
    let host = rustix::system::uname();
    let name = host.nodename().to_string_lossy().into_owned();
    for word in [name.as_str(), &host.release().to_string_lossy(), &std::process::id().to_string()] {
        assert!(!text.split_whitespace().any(|seen| seen == word), "{word} shows: {text}");
    }
    assert!(!text.contains("moltis-wasm") && !text.contains(world.temp.path().to_str().unwrap()), "{text}");
    assert_eq!(out(&sandbox, "hostname; whoami; id -u").await, "sandbox\nsandbox\n1000\n");
    sandbox.close().await.unwrap();
}
