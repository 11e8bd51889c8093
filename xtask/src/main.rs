//! What developers of Moltis run: tests, the contract's matrix, attacks, real programs, benches.

mod bench;
mod blocks;
mod cargo;
mod clients;
mod command;
mod contract;
mod engines;
mod firecracker;
mod http;
mod install;
mod json;
mod lab;
mod marker;
mod mcp;
mod outside;
mod page;
mod real;
mod sdk;
mod served;
mod suites;
mod tally;
mod tests;
mod user;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  test [--all] [--long] [--only NAME] [--user] [-- ARGUMENTS]
                                       run every test this machine can run, and say what it could not
                                         --all   install what is missing (apt-get, as root); a skip is a failure
                                         --long  the long forms of the long suites
                                         --only  of the test programs, those with this in their names, and no more
                                         --user  the ordinary user's half alone (as root)
                                         --      arguments for the test programs: which of their tests, say
  contract [--backend NAME] [--case PREFIX] [--user]
                                       hold every backend against the contract, print the matrix and write
                                       docs/guarantees.md (only whole runs are written)
  attack [--backend NAME] [--case PREFIX] [--full]
                                       try to break out; --full also repeats each attack
  engines up|down                      install and start Docker and Podman and make the images of the tests (as root, on
                                       Debian); stop what was started
  real [--long] [--only NAME]          run real programs in `moltis exec`
  suites [--only NAME] [--case PART] [--long] [--write] [--verbose]
                                       other people's test cases, and our own modules, on the in-process shell; --long
                                       runs all of HumanEval; --write puts the table into docs/backends/wasm.md and takes
                                       off the lists what passes
  bench exec [--short] [--long] [--dev] [--write]
                                       measure against baselines; --write puts the table into docs/performance.md
  bench egress [--short] [--all] [--dev] [--write]
                                       the proxy beside tinyproxy and squid, where they are installed; --all installs
                                       them (apt-get, as root)
  bench wasm [--short] [--long] [--dev] [--write] [--python=MODULE]
                                       the in-process shell beside the host's, modules, many idle sessions
  bench http [--short] [--long] [--dev] [--write]
                                       commands over HTTP beside the same in-process, the gateway's memory and start
  blocks                               run the shell blocks of README.md and docs, and start what docs/clients
                                       tells MCP clients to start
  http [--long] [--program PATH]       schemathesis against the gateway; --long asks for far more; --program takes a
                                       `moltis` that is built already
  mcp [--program PATH]                 the MCP client for Python on a real task, the inspector and the conformance
                                       suite, against `moltis mcp` and the gateway
  sdk                                  the providers' own clients (npm's and Python's) against the stand-ins for them
  page [--write] [--program PATH] [--only NAME]
                                       the web page in Chromium against a real gateway; --only runs the tests with this in
                                       their names; --write draws the pictures of docs/page anew
  firecracker                          fetches the Firecracker that tests use, and says where it is
  lab [--short] [--only NAME] [--shell] [--keep] [--program PATH]
                                       Debian with systemd and cgroup v2 in QEMU: the units of deploy/, limits, rootless
                                       Podman, Firecracker; --shell opens a shell in it; --keep leaves it running
                                       until the input ends
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match words.split_first() {
        Some((&"test", rest)) => tests::run(rest),
        Some((&"contract", rest)) => contract::contract(rest),
        Some((&"attack", rest)) => contract::attack(rest),
        Some((&"engines", rest)) => engines::run(rest),
        Some((&"real", rest)) => real::run(rest),
        Some((&"suites", rest)) => suites::run(rest),
        Some((&"bench", rest)) => bench::run(rest),
        Some((&"blocks", rest)) => blocks::run(rest),
        Some((&"http", rest)) => http::run(rest),
        Some((&"mcp", rest)) => mcp::run(rest),
        Some((&"sdk", rest)) => sdk::run(rest),
        Some((&"page", rest)) => page::run(rest),
        Some((&"lab", rest)) => lab::run(rest),
        Some((&"firecracker", rest)) => firecracker::run(rest),
        Some((&("help" | "--help" | "-h"), _)) => {
            print!("{USAGE}");
            Ok(true)
        }
        _ => Err(format!("what to do?\n\n{USAGE}")),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("xtask: {text}");
            ExitCode::from(2)
        }
    }
}

/// What every command gives: whether all was well, or why it could not be done.
type Outcome = Result<bool, String>;
