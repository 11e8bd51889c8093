//! Commands: what runs, where, with what environment, and how it is said that something cannot run.

use std::path::Path;
use std::time::Duration;

use moltis_sandbox::{Command, Ending, Error, ExecEvent, ExecRequest, GuestPath, MountMode, Status};

use crate::run::{argv, shell};
use crate::{Case, Ctx, Fail, Place, Verdict, case, ensure, ensure_eq, fail};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!("exec.exit-code", exit_code),
        case!("exec.signal", signal),
        case!("exec.shell", shell_line),
        case!("exec.argv", arguments),
        case!("exec.program-missing", program_missing),
        case!("exec.program-not-executable", program_not_executable),
        case!("exec.empty", empty).law(6),
        case!("exec.nul-bytes", nul_bytes),
        case!("exec.long-argument", long_argument),
        case!("exec.too-long", too_long).law(6),
        case!("exec.cwd-default", cwd_default),
        case!("exec.cwd", cwd),
        case!("exec.cwd-missing", cwd_missing).law(6),
        case!("exec.environment", environment),
        case!("exec.environment-is-that-alone", environment_alone).needs(|promised| &promised.environment),
        case!("exec.environment-bad-name", environment_bad_name),
        case!("exec.identity", identity).needs(|promised| &promised.filesystem),
        case!("exec.duration", duration),
        case!("exec.events-in-order", events_in_order),
        case!("exec.runs-once", runs_once).law(6),
        case!("exec.sessions-apart", sessions_apart).law(7),
        case!("exec.sessions-processes-apart", sessions_processes_apart)
            .law(7)
            .needs(|promised| &promised.filesystem),
        case!("exec.tools", tools),
    ]
}

async fn exit_code(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for code in [0, 1, 2, 42, 126, 127, 128, 255] {
        let ran = place.sh(format!("exit {code}")).await?;
        ensure_eq!(ran.outcome.status, Status::Code(code), "status of exit {code}");
        ensure_eq!(ran.outcome.ending, Ending::Exited, "ending of exit {code}");
        ensure_eq!(ran.outcome.exit_code(), code, "exit code of exit {code}");
    }
    Ok(Verdict::Pass)
}

async fn signal(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for signal in [9, 15, 11] {
        let ran = place.sh(format!("kill -{signal} $$; sleep 5")).await?;
        ensure_eq!(ran.outcome.status, Status::Signal(signal), "status");
        ensure_eq!(ran.outcome.ending, Ending::Exited, "ending: the signal was not ours");
        ensure_eq!(ran.outcome.exit_code(), 128 + signal, "exit code");
    }
    Ok(Verdict::Pass)
}

async fn shell_line(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let text = place.out("a=\"x  y\"; printf '%s|' \"$a\" 'q\"q' $((6*7)); echo b a | tr ' ' '\\n' | sort; false || echo or").await?;
    ensure_eq!(text, "x  y|q\"q|42|a\nb\nor\n", "output");
    let long = format!("{} echo end", ":;".repeat(20_000));
    ensure_eq!(place.out(long).await?, "end\n", "a line of 40 kB");
    ensure_eq!(place.out("set -- 1 2\necho $#\n# comment\necho l3").await?, "2\nl3\n", "several lines");
    Ok(Verdict::Pass)
}

async fn arguments(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let given: &[&[u8]] = &[
        b"printf",
        b"<%s>",
        b"",
        b"a b",
        b"$HOME",
        b"*",
        b"'",
        b"\"",
        b"\n",
        b"\\",
        b"-n",
        b"\xff\xfe",
        "ж".as_bytes(),
        b";id",
    ];
    let ran = place.run(argv(given)).await?.good()?;
    let mut expected = Vec::new();
    for argument in &given[2..] {
        expected.extend_from_slice(b"<");
        expected.extend_from_slice(argument);
        expected.extend_from_slice(b">");
    }
    ensure_eq!(ran.stdout, expected, "arguments as they arrive");
    ensure_eq!(ran.stderr, b"", "stderr");
    Ok(Verdict::Pass)
}

/// How a program that cannot be run is said: as a shell would, or as an error before anything ran.
async fn cannot_run(place: &Place, request: ExecRequest, code: i32) -> Result<(), Fail> {
    match place.sandbox.exec(request).await {
        Err(Error::Invalid(d)) => ensure!(!d.message.is_empty(), "an error without a message"),
        Err(e) => fail!("should be Invalid: {} {e}", e.kind()),
        Ok(exec) => {
            let mut exec = exec;
            let mut seen = Vec::new();
            while let Some(event) = exec.events.next().await {
                match event {
                    Err(Error::Invalid(_)) => return Ok(()),
                    Err(e) => fail!("should be Invalid: {} {e}", e.kind()),
                    Ok(ExecEvent::Exit(outcome)) => {
                        ensure_eq!(outcome.status, Status::Code(code), "status");
                        return Ok(());
                    }
                    Ok(event) => seen.push(event),
                }
            }
            fail!("ended without a word: {seen:?}");
        }
    }
    Ok(())
}

async fn program_missing(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    cannot_run(&place, argv(&["no-such-program-here"]), 127).await?;
    cannot_run(&place, argv(&["/no/such/program"]), 127).await?;
    ensure_eq!(place.sh("no-such-program-here").await?.outcome.status, Status::Code(127), "by the shell");
    Ok(Verdict::Pass)
}

async fn program_not_executable(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let plain = place.path("plain");
    place.out(format!("echo echo hi >{plain}")).await?;
    cannot_run(&place, argv(&[&plain]), 126).await?;
    cannot_run(&place, argv(&[&place.tmp]), 126).await?;
    ensure_eq!(place.sh(plain.as_str()).await?.outcome.status, Status::Code(126), "by the shell");
    // An executable script without an interpreter line is run by the shell, as `execvp` does.
    ensure_eq!(
        place.out(format!("chmod +x {plain}; {plain}")).await?,
        "hi\n",
        "a script of the sandbox's own"
    );
    Ok(Verdict::Pass)
}

async fn must_be_invalid(place: &Place, request: ExecRequest, what: &str) -> Result<(), Fail> {
    match place.sandbox.exec(request).await {
        Err(Error::Invalid(_)) => Ok(()),
        Err(e) => fail!("{what}: {} instead of invalid: {e}", e.kind()),
        Ok(mut exec) => match exec.events.next().await {
            Some(Err(Error::Invalid(_))) => Ok(()),
            other => fail!("{what}: accepted: {other:?}"),
        },
    }
}

async fn empty(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    must_be_invalid(&place, argv::<&[u8]>(&[]), "no arguments at all").await?;
    must_be_invalid(&place, argv(&[""]), "an empty program name").await?;
    Ok(Verdict::Pass)
}

async fn nul_bytes(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    must_be_invalid(&place, shell("echo a\0b"), "in a line").await?;
    must_be_invalid(&place, argv(&["echo", "a\0b"]), "in an argument").await?;
    let mut request = shell("env");
    request.env.push(("A".into(), "x\0y".into()));
    must_be_invalid(&place, request, "in a value").await?;
    Ok(Verdict::Pass)
}

async fn long_argument(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    // The kernel takes 128 KiB an argument and 2 MiB in all, with the usual stack.
    let long = "x".repeat(131_000);
    let mut given = vec!["printf", "%s"];
    given.resize(12, long.as_str());
    let ran = place.run(argv(&given)).await?.good()?;
    ensure_eq!(ran.stdout.len(), 131_000 * 10, "bytes printed");
    ensure_eq!(ran.outcome.stdout_bytes, 1_310_000, "bytes counted");
    Ok(Verdict::Pass)
}

async fn too_long(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let touch = format!("touch {}", place.path("ran"));
    must_be_invalid(&place, shell(format!("{touch}; # {}", "x".repeat(4 << 20))), "4 MiB").await?;
    must_be_invalid(&place, shell(format!("{touch}; # {}", "x".repeat(200_000))), "200 kB in one argument")
        .await?;
    let mut request = shell(touch);
    request.env.push(("A".into(), "x".repeat(4 << 20).into()));
    must_be_invalid(&place, request, "4 MiB of environment").await?;
    place.is_empty().await?;
    Ok(Verdict::Pass)
}

async fn cwd_default(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    ensure!(place.cwd.starts_with('/'), "commands start in {:?}", place.cwd);
    if ctx.guarantees.home.is_held() {
        ensure_eq!(place.cwd, place.home, "where commands start");
    }
    // A folder of its own: empty, writable, and not where another session's commands start.
    ensure_eq!(place.out("ls -A").await?, "", "what lies there at first");
    ensure_eq!(place.out("echo mine >f; cat f").await?, "mine\n", "what was written there");
    let other = ctx.place().await?;
    ensure_eq!(other.out("ls -A").await?, "", "what lies where another session's commands start");
    let source = ctx.folder("work")?;
    std::fs::write(source.join("f"), "of the workspace")?;
    let spec = ctx.spec_with_workspace(&source, MountMode::Rw)?;
    // What shows nothing of the host's folders says so before anything runs.
    if ctx.guarantees.filesystem.is_held()
        && ctx.refused(&ctx.guarantees.workspace, &spec, "workspace")?.is_some()
    {
        return Ok(Verdict::Pass);
    }
    let place = ctx.open(&spec).await?;
    ensure_eq!(place.out("cat f").await?, "of the workspace", "in the workspace");
    if ctx.guarantees.workspace.is_held() {
        ensure_eq!(place.cwd.as_str(), "/workspace", "where the workspace is");
    } else {
        // At its own path, then.
        ensure_eq!(Path::new(&place.cwd), source.canonicalize()?, "where the workspace is");
    }
    Ok(Verdict::Pass)
}

async fn cwd(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let odd = [place.tmp.as_bytes(), b"/a b/\xff"].concat();
    place.out([b"mkdir -p '", odd.as_slice(), b"'"].concat()).await?;
    for path in [b"/".as_slice(), place.tmp.as_bytes(), &odd, b"/usr/bin"] {
        let mut request = argv(&["pwd"]);
        request.cwd = GuestPath::new(path);
        let mut expected = path.to_vec();
        expected.push(b'\n');
        ensure_eq!(place.run(request).await?.good()?.stdout, expected, "working directory");
    }
    Ok(Verdict::Pass)
}

async fn cwd_missing(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for path in ["/no/such/folder", "/etc/passwd"] {
        let mut request = shell(format!("touch {}", place.path("ran")));
        request.cwd = GuestPath::new(path);
        must_be_invalid(&place, request, path).await?;
    }
    place.is_empty().await?;
    Ok(Verdict::Pass)
}

async fn environment(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.run(with_variables()).await?.good()?;
    let text = ran.text();
    let all: Vec<(&str, &str)> = text.split_terminator('\0').filter_map(|v| v.split_once('=')).collect();
    for (name, value) in
        [("A", "last"), ("B", "with space\nand line"), ("EMPTY", ""), ("LANG", "de_DE.UTF-8")]
    {
        let found: Vec<&str> = all.iter().filter(|(n, _)| *n == name).map(|(_, value)| *value).collect();
        ensure_eq!(found, [value], "{name}");
    }
    ensure!(all.iter().any(|(name, value)| *name == "HOME" && value.starts_with('/')), "no HOME in {all:?}");
    Ok(Verdict::Pass)
}

/// Prints its environment, which was asked for in part.
fn with_variables() -> ExecRequest {
    let mut request = argv(&["env", "-0"]);
    for (name, value) in
        [("A", "first"), ("B", "with space\nand line"), ("EMPTY", ""), ("A", "last"), ("LANG", "de_DE.UTF-8")]
    {
        request.env.push((name.into(), value.into()));
    }
    request
}

async fn environment_alone(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.run(with_variables()).await?.good()?;
    let text = ran.text();
    let mut all: Vec<(&str, &str)> = text.split_terminator('\0').filter_map(|v| v.split_once('=')).collect();
    all.sort_unstable();
    let path = all.iter().find(|(name, _)| *name == "PATH").map(|(_, value)| *value);
    let Some(path) = path else { fail!("no PATH in {all:?}") };
    ensure!(
        path.split(':').any(|p| p == "/usr/bin") && path.split(':').all(|p| p.starts_with('/')),
        "PATH is {path}"
    );
    let system = path.split(':').position(|p| p == "/usr/bin");
    let home = path.split(':').position(|p| p.starts_with("/home"));
    ensure!(home.is_none() || home > system, "home folders stand before system ones in PATH: {path}");
    // The host's time zone is the only thing of the host's environment that may show.
    all.retain(|(name, _)| *name != "PATH" && *name != "TZ");
    ensure_eq!(
        all,
        [
            ("A", "last"),
            ("B", "with space\nand line"),
            ("EMPTY", ""),
            ("HOME", place.home.as_str()),
            ("LANG", "de_DE.UTF-8"),
        ],
        "the whole environment"
    );
    ensure_eq!(place.out("echo $LANG-${TERM-none}").await?, "C.UTF-8-none\n", "built-in values");
    Ok(Verdict::Pass)
}

async fn environment_bad_name(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    for name in ["", "A=B", "A\0B"] {
        let mut request = shell("env");
        request.env.push((name.into(), "x".into()));
        must_be_invalid(&place, request, name).await?;
    }
    Ok(Verdict::Pass)
}

async fn identity(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let text = place.out("id -u; uname -n; test -w ~ && test -w /tmp && echo writable").await?;
    let lines: Vec<&str> = text.lines().collect();
    ensure_eq!(lines.len(), 3, "lines of {text:?}");
    ensure_eq!(lines[1..], ["sandbox", "writable"], "host name, and what can be written");
    if ctx.shared_kernel() {
        // Which uid stands behind it outside is what counts: never root's.
        let map = place.out("cat /proc/self/uid_map").await?;
        let users = place.out("readlink /proc/self/ns/user").await?;
        let own_users = std::fs::read_link("/proc/self/ns/user")?.to_string_lossy() != users.trim();
        for line in map.lines() {
            let mut fields = line.split_whitespace().skip(1).filter_map(|n| n.parse::<u64>().ok());
            let (outside, count) = (fields.next().unwrap_or(0), fields.next().unwrap_or(0));
            // The file shows outside ids as seen by the reader, so the host looks too.
            let _ = outside;
            if own_users {
                ensure!(count < 70_000, "maps {count} ids: {line}");
            }
        }
        if !own_users {
            // In the host's user namespace the host's root has a name inside. What counts is that nobody can become it:
            // no capability is left, not to be gained either, and no program brings any.
            let status = place.out("cat /proc/self/status").await?;
            for (field, value) in [
                ("CapInh", "0000000000000000"),
                ("CapPrm", "0000000000000000"),
                ("CapEff", "0000000000000000"),
            ]
            .into_iter()
            .chain([
                ("CapBnd", "0000000000000000"),
                ("CapAmb", "0000000000000000"),
                ("NoNewPrivs", "1"),
            ]) {
                let line = format!("{field}:\t{value}");
                ensure!(status.lines().any(|l| l == line), "{field} is not {value}: {status}");
            }
        }
        let marker = ctx.marker();
        let live = place.start(shell(marker.sleep())).await?;
        marker.wait_for(&place, 1, Duration::from_secs(5)).await?;
        for pid in marker.on_host() {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            let ids = status.lines().find(|l| l.starts_with("Uid:")).unwrap_or_default();
            ensure!(
                ids.split_whitespace().skip(1).all(|id| id != "0") && !ids.is_empty(),
                "runs with the host's uid 0: {ids}"
            );
        }
        drop(live);
    }
    Ok(Verdict::Pass)
}

async fn duration(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let ran = place.sh("sleep 0.4").await?.good()?;
    let took = ran.outcome.duration;
    ensure!(took >= Duration::from_millis(400), "measured {took:?} for 400 ms");
    ensure!(took <= ran.took, "measured {took:?}, longer than the caller's {:?}", ran.took);
    Ok(Verdict::Pass)
}

async fn events_in_order(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let mut exec = place.sandbox.exec(shell("echo out")).await?;
    let mut kinds = Vec::new();
    while let Some(event) = exec.events.next().await {
        kinds.push(match event? {
            ExecEvent::Started(_) => "started",
            ExecEvent::Stdout(_) => "stdout",
            ExecEvent::Stderr(_) => "stderr",
            ExecEvent::Missed { .. } => "missed",
            ExecEvent::Exit(_) => "exit",
        });
    }
    ensure_eq!(kinds, ["started", "stdout", "exit"], "events");
    ensure!(exec.events.next().await.is_none(), "the stream goes on after its end");
    let first = place.sh(":").await?.process;
    let second = place.sh(":").await?.process;
    ensure!(first != second, "two commands have the number {first}");
    Ok(Verdict::Pass)
}

async fn runs_once(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let count = place.path("count");
    for _ in 0..20 {
        place.sh(format!("echo x >>{count}")).await?.good()?;
    }
    let ran = place.sh(format!("echo x >>{count}; kill -9 $$")).await?;
    ensure_eq!(ran.outcome.status, Status::Signal(9), "status");
    ensure_eq!(place.out(format!("wc -l <{count}")).await?.trim(), "21", "runs of 21 commands");
    Ok(Verdict::Pass)
}

async fn sessions_apart(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (a, b) = (ctx.place().await?, ctx.place().await?);
    ensure!(a.id() != b.id(), "two keys, one id");
    ensure!(a.is_new() && b.is_new(), "a new sandbox is not said to be new");
    for (of_a, of_b) in [(&a.tmp, &b.tmp), (&a.room, &b.room), (&a.cwd, &b.cwd)] {
        a.out(format!("echo a >{of_a}/x")).await?;
        ensure_eq!(b.out(format!("ls -A {of_b}")).await?, "", "what the other one sees");
    }
    Ok(Verdict::Pass)
}

async fn sessions_processes_apart(ctx: &Ctx) -> Result<Verdict, Fail> {
    let (a, b) = (ctx.place().await?, ctx.place().await?);
    let marker = ctx.marker();
    let live = a.start(shell(marker.sleep())).await?;
    marker.wait_for(&a, 1, Duration::from_secs(5)).await?;
    ensure_eq!(marker.inside(&b).await?, 0, "the other one's processes");
    drop(live);
    Ok(Verdict::Pass)
}

async fn tools(ctx: &Ctx) -> Result<Verdict, Fail> {
    let place = ctx.place().await?;
    let line = format!("cd {}; {TOOLS}", place.tmp);
    ensure_eq!(place.out(line).await?, "3\nc 2\nf\n./f\n4\nok\n", "what a shell needs");
    if ctx.guarantees.filesystem.is_held() {
        let entry = place.out("getent passwd $(id -u) | cut -d: -f6").await?;
        ensure_eq!(entry.trim(), place.home, "the user's home in the user database");
    }
    let request = ExecRequest::new(Command::Shell("echo no time-out".into()));
    ensure_eq!(place.run(request).await?.good()?.text(), "no time-out\n", "without a time-out");
    Ok(Verdict::Pass)
}

/// What is not there makes the line fail.
const TOOLS: &str = "set -e; printf 'b 2\\na 1\\n' >f; sort f | awk '{s+=$2} END {print s}'; \
                sed s/b/c/ f | head -1; tar cf t.tar f; tar tf t.tar; find . -name f; \
                date +%Y >/dev/null; echo ok >/dev/null; head -c 4 /dev/urandom | wc -c; \
                test -e /etc/resolv.conf -o ! -e /etc/resolv.conf && echo ok";
