//! The guest agent: PID 1 of a sandbox, the helper that launches one, and the supervisor of every command in it.
//!
//! ```text
//! moltis-guest launch …
//! moltis-guest serve --listener FD [--lifeline FD] [--idle MILLIS] [--ready FD] [--cwd DIR] [--owner UID]
//!                    [--rlimit NAME=VALUE]… [--pids COUNT] [--cpu-quota CORES] [--root ro:DIR | rw:DIR]…
//!                    [--egress]
//! moltis-guest container --socket PATH --owner UID …
//! moltis-guest relay --socket PATH
//! moltis-guest login --socket PATH [--cwd DIR] [--lifetime held] [--egress] …
//! moltis-guest uplink UID GID PROGRAM ARGUMENT…
//! /init, as the first process of a virtual machine's kernel
//! ```

mod agent;
mod confine;
mod connection;
mod container;
mod control;
mod descent;
mod egress;
mod failure;
mod files;
mod filter;
mod forward;
mod guarded;
mod input;
mod launch;
mod login;
mod machine;
mod peer;
mod pending;
mod poll;
mod process;
mod pty;
mod registry;
mod relay;
mod ring;
mod rlimits;
mod serve;
mod spawn;
mod startup;
mod stream;
mod trust;
mod uplink;
mod usage;
mod watch;

use std::ffi::OsString;

fn main() {
    // Nothing can be said if this fails: standard error may be anybody's.
    if startup::forbid_inspection().is_err() {
        std::process::exit(1);
    }
    let mut args = std::env::args_os();
    if machine::is_first(args.next().as_deref()) {
        machine::run()
    }
    let mode = args.next().unwrap_or_default();
    let rest: Vec<OsString> = args.collect();
    let code = match mode.as_encoded_bytes() {
        b"launch" => launch::run(),
        b"uplink" => uplink::run(rest),
        b"serve" => match serve::ServeConfig::from_args(&rest) {
            Ok(config) => serve::run(config),
            Err(problem) => misused(&problem),
        },
        b"container" => match container::ContainerConfig::from_args(&rest) {
            Ok(config) => container::run(config),
            Err(problem) => misused(&problem),
        },
        b"relay" => relay::run(&rest),
        b"login" => match login::LoginConfig::from_args(&rest) {
            Ok(config) => login::run(config),
            Err(problem) => misused(&problem),
        },
        _ => misused(
            "the first argument is none of `launch`, `serve`, `container`, `relay`, `login`, `uplink`",
        ),
    };
    std::process::exit(code);
}

fn misused(problem: &str) -> i32 {
    eprintln!("moltis-guest: {problem}");
    2
}
