//! `moltis exec` and `moltis shell` beside a gateway, which then runs their commands: all is as without one.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::gateway::Gateway;
use crate::support::{Place, Ran};

/// A gateway, and how many commands it has run.
struct Beside {
    place: Place,
    token: String,
    // The gateway ends before its place does.
    gateway: Option<Gateway>,
}

impl Beside {
    fn new() -> Self {
        let place = Place::new();
        let gateway = Gateway::start(&place);
        let token = gateway.token();
        Self { place, token, gateway: Some(gateway) }
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    /// Commands that the gateway has seen to their end.
    fn ran(&self) -> u64 {
        let (status, text) = self.gateway().ask(&self.token, "GET", "/metrics", "");
        assert_eq!(status, 200, "{text}");
        let counts = text.lines().filter(|line| line.starts_with("moltis_commands_total{"));
        counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
    }

    /// Runs something that the gateway runs.
    #[track_caller]
    fn linked(&self, run: impl FnOnce(&Place) -> Ran) -> Ran {
        let before = self.ran();
        let ran = run(&self.place);
        assert_eq!(self.ran(), before + 1, "the gateway ran it: {ran:?}");
        ran
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(gateway) = self.gateway.take() {
            let code = gateway.end();
            assert!(std::thread::panicking() || code == Some(0), "{code:?}");
        }
    }
}

#[test]
fn a_command_is_as_without_a_gateway() {
    let beside = Beside::new();
    let alone = Place::new();
    let lines: [&[&str]; 6] = [
        &["echo out; echo err >&2; exit 3"],
        &["printf 'a\\377b\\000c'; printf '\\376' >&2"],
        &["--cwd", "/usr", "--env", "A=b c", "pwd; echo \"$A\""],
        &["--max-output", "16", "seq 1000"],
        &["kill -9 $$"],
        &["--", "printf", "%s|", "a b", "*", ""],
    ];
    for line in lines {
        let linked = beside.linked(|place| place.exec(line));
        assert_eq!(linked, alone.exec(line), "{line:?}");
    }
    let json = |ran: Ran| {
        let mut answer = ran.json();
        for field in ["durationMs", "sandboxId", "notEnforced"] {
            answer.as_object_mut().unwrap().remove(field);
        }
        (ran.status, answer)
    };
    let line = ["--json", "--session", "s", "echo out; echo err >&2; exit 3"];
    assert_eq!(json(beside.linked(|place| place.exec(line))), json(alone.exec(line)));
    let failing = ["--session", "s", "--network", "open", "true"];
    let (linked, alone) = (beside.place.exec(failing), alone.exec(failing));
    assert_eq!((linked.status, linked.stderr), (Some(125), alone.stderr));
    // What it did is written down as of this user.
    let shown = beside.place.run(["history", "--json", "s"]).json();
    let first = &shown["entries"][0];
    assert_eq!((&first["exitCode"], &first["caller"]["kind"]), (&3.into(), &"cli".into()), "{shown}");
}

#[test]
fn input_goes_in_while_output_comes_out() {
    let beside = Beside::new();
    let input: Vec<u8> = (0..3_000_000u32).map(|at| (at % 251) as u8).collect();
    let before = beside.ran();
    let mut command = beside.place.exec_command(["cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut output = Vec::new();
    std::thread::scope(|scope| {
        let input = &input;
        scope.spawn(move || stdin.write_all(input).unwrap());
        child.stdout.take().unwrap().read_to_end(&mut output).unwrap();
    });
    assert!(output == input, "{} bytes of {}", output.len(), input.len());
    assert_eq!(child.wait().unwrap().code(), Some(0));
    // However small its pieces are.
    let before_small = beside.ran();
    let mut command = beside.place.exec_command(["sleep 1; wc -c"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    for _ in 0..20_000 {
        stdin.write_all(b"x").unwrap();
    }
    drop(stdin);
    let counted = child.wait_with_output().unwrap();
    assert_eq!((String::from_utf8_lossy(&counted.stdout).trim(), beside.ran()), ("20000", before_small + 1));
    // Input that nobody reads keeps nobody from ending.
    let unread = beside.place.fed(["exec", "--backend", "namespaces", "--timeout", "30s", "exit 4"], &input);
    assert_eq!((unread.status, beside.ran()), (Some(4), before + 3), "{unread:?}");
}

#[test]
fn what_ends_here_ends_there() {
    let beside = Beside::new();
    let timed_out =
        beside.linked(|place| place.exec(["--timeout", "1s", "echo begun; (setsid sleep 600 &); sleep 600"]));
    assert_eq!((timed_out.status, &*timed_out.stdout), (Some(124), "begun\n"), "{timed_out:?}");
    // Told to end while nobody reads its input: the command ends, and what it printed until then is there.
    let signalled = |name: &str| {
        let mut command = beside.place.exec_command(["--session", "s", "echo begun; exec sleep 600"]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "begun\n");
        // More than is ever under way.
        let feeding = std::thread::spawn(move || drop(stdin.write_all(&vec![0; 4 << 20])));
        assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
        let status = child.wait().unwrap();
        feeding.join().unwrap();
        status
    };
    let sleeps = |place: &Place| {
        let ran = place.exec(["--session", "s", "--json", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]);
        ran.json()["stdout"].as_str().unwrap().contains("sleep 600")
    };
    assert_eq!(signalled("-TERM").code(), Some(143));
    assert!(!sleeps(&beside.place));
    // Killed without a word, it takes its command with it.
    assert_eq!(signalled("-KILL").code(), None);
    beside.gateway().until(|_| !sleeps(&beside.place));
    // What it was in stays; what ended with its command is gone.
    let running = beside.place.run(["sandbox", "ps", "--json"]).json();
    assert_eq!(running["sandboxes"].as_array().map(Vec::len), Some(1), "{running}");
}

#[test]
fn background_commands_outlive_whoever_started_them() {
    let beside = Beside::new();
    let number = beside.place.background("s", "echo up; read line; echo $line; echo over");
    let input = beside.place.fed(["process", "input", "s", &number], b"typed\n");
    assert_eq!(input.status, Some(0), "{input:?}");
    let output = beside.place.run(["process", "output", "s", &number, "--follow"]);
    assert_eq!((output.status, &*output.stdout), (Some(0), "up\ntyped\nover\n"), "{output:?}");
}

#[test]
fn a_gateway_that_goes_away_loses_what_it_ran() {
    let mut beside = Beside::new();
    let mut command = beside.place.exec_command(["--session", "s", "echo begun; exec sleep 600"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    beside.gateway().signal("-KILL");
    drop(beside.gateway.take());
    let mut told = String::new();
    child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert_eq!((line.as_str(), child.wait().unwrap().code()), ("begun\n", Some(125)), "{told}");
    assert!(told.contains("[exec-lost]"), "{told}");
    // The next command runs without one, in the sandbox that is there, and hears of it.
    let ran = beside.place.exec(["--session", "s", "--json", "echo again"]);
    let answer = ran.json();
    assert_eq!((&answer["stdout"], answer.get("restarted")), (&"again\n".into(), None), "{answer}");
    assert_eq!(answer["lost"][0]["command"], "echo begun; exec sleep 600", "{answer}");
}

#[test]
fn whoever_would_do_otherwise_than_the_gateway_does_it_himself() {
    let beside = Beside::new();
    let before = beside.ran();
    let ran = |change: &dyn Fn(&mut Command)| {
        let mut command = beside.place.exec_command(["echo done"]);
        change(&mut command);
        let ran = Ran::from(command.output().unwrap());
        assert_eq!((ran.status, &*ran.stdout), (Some(0), "done\n"), "{ran:?}");
    };
    ran(&|command| _ = command.env("MOLTIS_TOOLS__EXEC__SANDBOX__NETWORK", "blocked"));
    ran(&|command| _ = command.env("DOCKER_HOST", "unix:///nonexistent/other.sock"));
    let other = beside.place.path("other.toml");
    std::fs::write(&other, "[tools.exec]\nmax_output_bytes = \"1M\"\n").unwrap();
    ran(&|command| _ = command.arg("--config").arg(&other));
    // Its environment is this process's own.
    let mut own = beside.place.moltis(["exec", "--backend", "none", "echo $OWN"]);
    let own = Ran::from(own.env("OWN", "mine").output().unwrap());
    assert_eq!((own.status, &*own.stdout), (Some(0), "mine\n"), "{own:?}");
    assert_eq!(beside.ran(), before);
    ran(&|_| {});
    assert_eq!(beside.ran(), before + 1);
}

#[test]
fn the_link_is_for_whoever_runs_the_gateway() {
    let beside = Beside::new();
    let (status, problem) = beside.gateway().ask(&beside.token, "GET", "/api/v1/link", "");
    let problem: Value = serde_json::from_str(&problem).unwrap();
    assert_eq!((status, &problem["code"]), (403, &"owner-only".into()), "{problem}");
    assert!(beside.place.processes().iter().all(|line| !line.contains("sleep")));
}
