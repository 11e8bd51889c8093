//! The network `trusted`, from the command in the sandbox to a server on this machine.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Place, Ran};

const SOON: Duration = Duration::from_secs(20);

/// A server on an address of loopback that is in nobody's `NO_PROXY`: it answers each request with `served`, and what
/// begins with no request with its own bytes.
fn server() -> SocketAddr {
    server_on("127.0.0.2")
}

fn server_on(host: &str) -> SocketAddr {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = stream.read(&mut buffer) {
                    let answer = match buffer.starts_with(b"GET ") {
                        true => &b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nserved\n"[..],
                        false => &buffer[..count],
                    };
                    if stream.write_all(answer).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// A place whose configuration says `trusted`, with these further lines.
fn place(lines: &str) -> Place {
    let place = Place::new();
    let text = format!("[tools.exec.sandbox]\nbackend = \"namespaces\"\nnetwork = \"trusted\"\n{lines}\n");
    std::fs::write(place.config().join("moltis.toml"), text).unwrap();
    place
}

/// Python that fetches a URL by the variables that it finds, and prints the answer's status and body.
fn fetch(url: &str) -> String {
    format!(
        "python3 -c \"\nimport urllib.request as r, urllib.error as e\ntry: a = r.urlopen('{url}', timeout=20)\nexcept e.HTTPError as x: a = x\nprint(a.status, a.read().decode())\""
    )
}

fn audit(place: &Place) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(place.data().join("network-audit.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What an entry says, but for what is never the same twice.
fn said(entry: &serde_json::Value) -> String {
    let word = |key: &str| entry[key].as_str().unwrap_or("-").to_owned();
    format!(
        "{} {} {} {} {} {}",
        word("event"),
        word("protocol"),
        word("domain"),
        entry["port"],
        word("action"),
        word("source")
    )
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    line
}

fn within(what: &str, mut check: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !check() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn commands_reach_what_is_listed_and_nothing_else_and_all_of_it_is_written_down() {
    let server = server();
    let place = place(&format!("trusted_domains = [\"{server}\"]"));
    let port = server.port();
    let ran = place.run(["exec", &fetch(&format!("http://{server}/secret?token=1"))]).without_promises();
    assert_eq!(ran, Ran { status: Some(0), stdout: "200 served\n\n".into(), stderr: String::new() });
    let ran = place.run(["exec", &fetch("http://example.com/")]);
    assert!(
        ran.stdout.starts_with("403 ") && ran.stdout.contains("moltis network allow example.com"),
        "{ran:?}"
    );
    // The same server by another port, and straight, past the proxy.
    let ran = place.run(["exec", &fetch("http://127.0.0.2:1/")]);
    assert!(ran.stdout.starts_with("403 "), "{ran:?}");
    let straight =
        format!("python3 -c \"import socket; socket.create_connection(('127.0.0.2', {port}), 5)\"");
    let ran = place.run(["exec", &straight]);
    assert!(ran.status == Some(1) && ran.stderr.contains("ConnectionRefusedError"), "{ran:?}");

    let entries = audit(&place);
    let told: Vec<_> = entries.iter().map(said).collect();
    assert_eq!(
        told,
        [
            format!("open http 127.0.0.2 {port} allowed config"),
            format!("close http 127.0.0.2 {port} allowed config"),
            "open http example.com 80 denied unknown".to_owned(),
            "open http 127.0.0.2 1 denied address".to_owned(),
        ]
    );
    let text = serde_json::to_string(&entries).unwrap();
    assert!(!text.contains("secret") && !text.contains("token"), "{text}");
}

#[test]
fn an_empty_list_allows_nothing_and_says_so() {
    let place = place("");
    let ran = place.run(["exec", &fetch("http://example.com/")]);
    assert!(ran.stdout.starts_with("403 "), "{ran:?}");
    assert!(
        ran.stderr.contains("network `trusted` with no trusted domains: nothing can be reached"),
        "{ran:?}"
    );
    let told = place.run(["exec", "--json", "true"]).json();
    assert!(told["notes"][0].as_str().unwrap().contains("no trusted domains"), "{told}");
}

#[test]
fn a_session_is_told_of_the_proxy_and_its_own_variables_win() {
    let place = place("");
    let ran = place.run([
        "exec",
        "--env",
        "http_proxy=mine",
        "echo $http_proxy $HTTPS_PROXY $no_proxy $MOLTIS_SOCKS_PROXY",
    ]);
    let told = "mine http://127.0.0.1:3128 localhost,127.0.0.1,::1 socks5h://127.0.0.1:3128\n";
    assert_eq!((ran.status, &*ran.stdout), (Some(0), told), "{ran:?}");
    let blocked = place.run(["exec", "--network", "blocked", "env"]);
    assert!(!blocked.stdout.to_lowercase().contains("proxy"), "{blocked:?}");
}

/// Opens a tunnel to a host and port, says `open`, and then says what comes of each line of its input.
const TUNNEL: &str = "
import os, socket, sys
host = sys.argv[1]
s = socket.create_connection(('127.0.0.1', int(os.environ['http_proxy'].rsplit(':', 1)[1])))
s.sendall(f'CONNECT {host} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n'.encode())
answer = s.recv(4096)
print('open' if b' 200 ' in answer else answer, flush=True)
for line in sys.stdin:
    s.sendall(line.encode())
    print(s.recv(4096) or 'cut', flush=True)
s.settimeout(15)
try: print('end', s.recv(4096) or 'cut', flush=True)
except OSError as e: print('end', type(e).__name__, flush=True)
";

#[test]
fn what_is_taken_back_is_cut_at_once_and_what_is_added_holds_at_once() {
    let server = server().to_string();
    let place = place("");
    let tunnel = |stdin: Stdio| {
        place
            .moltis(["exec", "--session", "s", "--timeout", "60s", "--", "python3", "-c", TUNNEL, &server])
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut refused = tunnel(Stdio::null());
    assert!(first_line(&mut refused).contains("403"), "nothing is listed yet");
    refused.wait().unwrap();

    // While a command of the session runs, by another process.
    let mut waiting = place
        .moltis(["exec", "--session", "s", "--timeout", "60s", "read a; exec python3 -c \"$TUNNEL\" $a"])
        .args(["--env", &format!("TUNNEL={TUNNEL}")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(place.run(["session", "set", "s", "--trusted-domain", &server]).status, Some(0));
    thread::sleep(Duration::from_millis(600));
    let mut input = waiting.stdin.take().unwrap();
    writeln!(input, "{server}").unwrap();
    let mut output = BufReader::new(waiting.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "open");
    writeln!(input, "ping").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "b'ping\\n'");
    assert_eq!(place.run(["session", "set", "s", "--unset", "trusted-domains"]).status, Some(0));
    drop(input);
    let end = output.next().unwrap().unwrap();
    assert!(end == "end cut" || end == "end ConnectionResetError", "{end}");
    assert!(waiting.wait().unwrap().success());
    within("its end is not written down", || {
        audit(&place).iter().map(said).any(|line| line.starts_with("close connect 127.0.0.2 "))
    });
}

#[test]
fn the_end_of_one_command_is_the_end_of_no_other_s_connections() {
    let server = server().to_string();
    let place = place(&format!("trusted_domains = [\"{server}\"]"));
    let mut first = place
        .moltis(["exec", "--session", "s", "echo up; read a"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    assert_eq!(first_line(&mut first), "up\n");
    let mut second = place
        .moltis(["exec", "--session", "s", "--timeout", "60s", "--", "python3", "-c", TUNNEL, &server])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = second.stdin.take().unwrap();
    let mut output = BufReader::new(second.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "open");
    drop(first.stdin.take());
    first.wait().unwrap();
    thread::sleep(Duration::from_millis(300));
    writeln!(input, "ping").unwrap();
    assert_eq!(output.next().unwrap().unwrap(), "b'ping\\n'");
    second.kill().unwrap();
    second.wait().unwrap();
}

#[test]
fn blocked_and_trusted_change_live_in_the_same_sandbox() {
    let server = server();
    let place = place(&format!("trusted_domains = [\"{server}\"]"));
    let get = fetch(&format!("http://{server}/"));
    place.in_session("s", "echo here > /tmp/mark");
    assert_eq!(place.run(["session", "set", "s", "--network", "blocked"]).status, Some(0));
    let ran = place.run([
        "exec",
        "--session",
        "s",
        "cat /tmp/mark; env; curl -s -m 5 http://127.0.0.1:3128 || true",
    ]);
    assert!(ran.stdout.starts_with("here\n") && !ran.stdout.to_lowercase().contains("proxy="), "{ran:?}");
    // The port is there, and nobody stands behind it.
    let by_hand = format!("http_proxy=http://127.0.0.1:3128 {get}");
    let ran = place.run(["exec", "--session", "s", &by_hand]);
    assert!(ran.stdout.starts_with("503 "), "{ran:?}");
    assert_eq!(place.run(["session", "set", "s", "--network", "trusted"]).status, Some(0));
    let ran = place.run(["exec", "--session", "s", &format!("cat /tmp/mark; {get}")]);
    assert_eq!((ran.status, &*ran.stdout), (Some(0), "here\n200 served\n\n"), "{ran:?}");
}

#[test]
fn a_network_that_a_session_sets_no_more_is_that_of_the_configuration_at_once() {
    let server = server().to_string();
    let place = Place::new();
    let text = format!("[tools.exec.sandbox]\nbackend = \"namespaces\"\ntrusted_domains = [\"{server}\"]\n");
    std::fs::write(place.config().join("moltis.toml"), text).unwrap();
    let mut tunnel = place
        .moltis(["exec", "--session", "s", "--network", "trusted", "--", "python3", "-c", TUNNEL, &server])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(tunnel.stdout.take().unwrap()).lines();
    assert_eq!(output.next().unwrap().unwrap(), "open");
    assert_eq!(place.run(["session", "set", "s", "--unset", "network"]).status, Some(0));
    drop(tunnel.stdin.take());
    let end = output.next().unwrap().unwrap();
    assert!(end == "end cut" || end == "end ConnectionResetError", "{end}");
    assert!(tunnel.wait().unwrap().success());
}

#[test]
fn a_program_waits_until_somebody_answers_from_another_terminal() {
    let port = server_on("127.0.0.1").port();
    // A private address is never asked about, only a name: what it stands for must be listed besides.
    let place = place("on_unknown = \"ask\"\ntrusted_domains = [\"127.0.0.0/8\"]");
    let get = format!("export no_proxy= NO_PROXY=; {}", fetch(&format!("http://localhost:{port}/")));
    let asking = |key: &str| {
        place
            .moltis(["exec", "--session", key, &get])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let question = |child: &mut Child| {
        let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines();
        let line =
            lines.find(|line| line.as_ref().unwrap().contains("a program waits for")).unwrap().unwrap();
        assert!(line.starts_with(&format!("moltis: a program waits for localhost:{port}, ")), "{line}");
        line.split("allow ").nth(1).unwrap().split('`').next().unwrap().to_owned()
    };
    let mut waiting = asking("s");
    let id = question(&mut waiting);
    assert_eq!(place.run(["network", "deny", &id]).status, Some(0));
    let said = String::from_utf8(waiting.wait_with_output().unwrap().stdout).unwrap();
    assert!(said.starts_with("403 "), "{said}");

    let mut waiting = asking("s");
    let id = question(&mut waiting);
    assert_eq!(place.run(["network", "allow", &id, "--session"]).status, Some(0));
    let said = String::from_utf8(waiting.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(said, "200 served\n\n");
    assert_eq!(place.in_session("s", &get), "200 served\n\n");
}

#[test]
fn a_background_command_is_told_when_it_has_the_network() {
    let server = server();
    let place = place(&format!("trusted_domains = [\"{server}\"]"));
    let get = fetch(&format!("http://{server}/"));
    let ran = place.run(["exec", "--session", "s", "--background", &format!("read a; {get}")]);
    assert!(ran.status == Some(0) && ran.stderr.contains("reaches it only while another command"), "{ran:?}");
    let number = ran.stdout.trim();
    assert_eq!(place.fed(["process", "input", "s", number], b"now\n").status, Some(0));
    within("it is over", || place.run(["process", "list", "s"]).stdout.contains("exit"));
    let said = place.run(["process", "output", "s", number]).stdout;
    assert!(said.starts_with("503 "), "{said}");
}

#[test]
fn a_pattern_that_can_match_nothing_is_refused_and_not_passed_over() {
    let place = place("denied_domains = [\"xn--a.example\"]");
    let ran = place.run(["exec", "true"]);
    ran.fails(125, "domain-unusable");
    assert!(ran.stderr.contains("`xn--a.example` of the configuration"), "{ran:?}");
}

#[test]
fn a_demand_that_is_not_kept_is_refused() {
    let place = Place::new();
    place
        .run(["exec", "--backend", "restricted-host", "--network", "trusted", "true"])
        .fails(125, "demand-not-kept");
}

#[test]
fn what_cannot_be_written_down_is_said() {
    let place = place("");
    place.run(["session", "list"]);
    std::fs::create_dir_all(place.data().join("network-audit.jsonl")).unwrap();
    let ran = place.run(["exec", &fetch("http://example.com/")]);
    assert!(ran.status == Some(0) && ran.stdout.starts_with("403 "), "{ran:?}");
    assert!(ran.stderr.contains("not written to the network's log: one entry"), "{ran:?}");
}

#[test]
fn the_proxy_in_front_is_named_without_its_password() {
    let place = place("");
    let mut command = place.moltis(["sandbox", "status", "--json"]);
    let ran = Ran::from(command.env("HTTPS_PROXY", "http://user:pw@proxy.example:3128").output().unwrap());
    assert_eq!(ran.json()["upstream"], "http://proxy.example:3128");
    let mut command = place.moltis(["sandbox", "status"]);
    let ran = Ran::from(command.env("HTTPS_PROXY", "socks5://proxy.example:1").output().unwrap());
    assert!(ran.status == Some(0) && ran.stderr.contains("a SOCKS proxy is not supported"), "{ran:?}");
}

#[test]
fn a_proxy_of_the_environment_that_is_none_is_said_before_anything_runs() {
    let place = place("");
    let mut command = place.moltis(["exec", "true"]);
    let ran = Ran::from(command.env("HTTPS_PROXY", "socks5://user:pw@127.0.0.1:1").output().unwrap());
    ran.fails(125, "upstream-invalid");
    assert!(!ran.stderr.contains("pw"), "{ran:?}");
}
