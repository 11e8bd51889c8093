//! Commands: where they run, what they know, what comes back.

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use moltis_sandbox::Backend as _;
use moltis_sandbox::exec::TerminalSize;
use moltis_sandbox::{Command, ExecEvent, ExecRequest, MountMode, Status};

use crate::common::*;

#[tokio::test]
async fn a_command_knows_what_it_is_told_and_nothing_else() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    assert!(sandbox.is_new());
    let mut request = shell("env");
    request.env = vec![("GIVEN".into(), "a b".into()), ("HOME".into(), "/elsewhere".into())];
    let ran = run(&*sandbox, request).await;
    let mut variables: Vec<&str> =
        ran.text().lines().filter(|line| !line.starts_with("TZ=") && !line.starts_with('_')).collect();
    variables.sort_unstable();
    let pwd = format!("PWD={}", here.data().join("sandbox/scratch").join(sandbox.id().as_str()).display());
    let expected =
        ["GIVEN=a b", "HOME=/elsewhere", "LANG=C.UTF-8", "PATH=/usr/local/bin:/usr/bin:/bin", pwd.as_str()];
    assert_eq!(variables, expected);
    assert_eq!(said(&*sandbox, "echo $HOME").await, "/tmp\n");
    close(&here, sandbox).await;
}

#[tokio::test]
async fn it_runs_in_the_workspace_or_in_a_folder_of_the_session() {
    let here = Here::new();
    let backend = here.restricted();
    let sandbox = open(&backend, &ephemeral()).await;
    let place = said(&*sandbox, "pwd; echo x >here; umask").await;
    let scratch = here.data().join("sandbox/scratch").join(sandbox.id().as_str());
    assert_eq!(place, format!("{}\n0022\n", scratch.display()));
    for private in [&scratch, &here.run(), &here.run().join(sandbox.id().as_str())] {
        assert_eq!(std::fs::metadata(private).unwrap().permissions().mode() & 0o777, 0o700, "{private:?}");
    }
    close(&here, sandbox).await;
    assert_eq!(here.scratch_folders(), Vec::<String>::new());

    let work = here.folder("work");
    let files = here.folder("files");
    let mut spec = with_workspace(lasting(), &work, MountMode::Rw);
    spec.managed_files = Some(moltis_sandbox::Mount {
        source: files.clone(),
        target: "/home/sandbox/files".into(),
        mode: MountMode::Ro,
    });
    let sandbox = open(&backend, &spec).await;
    let expected = format!("{}\n{}\n", work.display(), files.display());
    assert_eq!(said(&*sandbox, "pwd; echo $MOLTIS_FILES_DIR").await, expected);
    close(&here, sandbox).await;
    assert_eq!(here.scratch_folders().len(), 1, "a session keeps its folder");
    backend.purge(&spec.id()).await.unwrap();
    assert_eq!(here.scratch_folders(), Vec::<String>::new());
}

#[tokio::test]
async fn streams_input_and_status_come_through() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let ran = run(&*sandbox, shell("printf 'a\\377\\000b'; echo err >&2; exit 7")).await;
    assert_eq!((&ran.stdout[..], &ran.stderr[..]), (&b"a\xff\0b"[..], &b"err\n"[..]));
    assert_eq!((ran.outcome.status, ran.outcome.stdout_bytes), (Status::Code(7), 4));
    assert_eq!(run(&*sandbox, shell("kill -9 $$")).await.outcome.status, Status::Signal(9));

    let mut request = shell("cat; echo end");
    request.stdin = true;
    let mut exec = sandbox.exec(request).await.unwrap();
    exec.control.stdin("some\n".into()).await.unwrap();
    exec.control.close_stdin().await.unwrap();
    assert_eq!(finish(exec).await.text(), "some\nend\n");

    let words = ["printf", "%s.", "a b", "$HOME"].map(Into::into).to_vec();
    let mut request = ExecRequest::new(Command::Argv(words));
    request.timeout = Some(Duration::from_secs(5));
    assert_eq!(run(&*sandbox, request).await.text(), "a b.$HOME.");

    let mut request = shell("tty >/dev/null && stty size && echo $TERM");
    request.terminal = Some(TerminalSize { rows: 33, columns: 99 });
    assert_eq!(run(&*sandbox, request).await.text(), "33 99\r\nxterm-256color\r\n");

    let missing = sandbox.exec(ExecRequest::new(Command::Argv(vec!["no-such-program".into()]))).await;
    assert_eq!(missing.err().unwrap().code(), "program-missing");
    close(&here, sandbox).await;
}

#[tokio::test]
async fn a_reader_that_stalls_holds_the_command_back() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let mut exec = sandbox.exec(shell("yes")).await.unwrap();
    while !matches!(exec.events.next().await.unwrap().unwrap(), ExecEvent::Stdout(_)) {}
    tokio::time::sleep(Duration::from_millis(500)).await;
    let agent = agent_pid(&here);
    let list = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    for pid in list.split_whitespace().chain([agent.to_string().as_str()]) {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = resident.split_whitespace().next().unwrap().parse().unwrap();
        assert!(kib < 8192, "{pid} has {kib} KiB");
    }
    drop(exec);
    close(&here, sandbox).await;
}

#[tokio::test]
async fn many_at_once() {
    let here = Here::new();
    let sandbox = open(&here.restricted(), &ephemeral()).await;
    let all = (0..32).map(|n| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move { said(&*sandbox, &format!("echo {n}")).await == format!("{n}\n") })
    });
    for one in all.collect::<Vec<_>>() {
        assert!(one.await.unwrap());
    }
    close(&here, sandbox).await;
}
