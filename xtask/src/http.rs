//! `cargo xtask http`: `schemathesis` makes requests of all kinds from the gateway's own OpenAPI document, and looks at each
//! answer: none may be a server's error, and none may be another than the document says.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::command::kept;
use crate::outside::Clients;
use crate::real::Trouble;
use crate::served::Gateway;
use crate::tally::Tally;
use crate::{Outcome, mcp};

/// What each answer is held to.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";

/// Streams that end only when their caller leaves: there is no whole answer to look at.
const ENDLESS: [&str; 3] = ["followEvents", "followNetwork", "followSession"];

/// 503 is what the document gives for an engine that does not answer, and no engine is in reach.
const CONFIG: &str = r#"
hooks = "hooks.py"

[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]
"#;

const HOOKS: &str = include_str!("http/hooks.py");

const LIMIT: Duration = Duration::from_secs(40 * 60);

/// `cargo xtask http`.
pub fn run(arguments: &[&str]) -> Outcome {
    let (long, moltis) = mcp::arguments(arguments)?;
    let mut counted = Tally::default();
    tally(&mut counted, &moltis, long)?;
    Ok(counted.close(false))
}

/// Runs it and counts it; the long form makes far more requests, and strings of them.
pub fn tally(tally: &mut Tally, moltis: &Path, long: bool) -> Result<(), String> {
    mcp::count(tally, "http schemathesis", check(moltis, long));
    Ok(())
}

fn check(moltis: &Path, long: bool) -> Result<(), Trouble> {
    let clients = Clients::new()?;
    let gateway = Gateway::start(moltis)?;
    let key = gateway.key()?;
    let folder = gateway.folder();
    std::fs::write(folder.join("schemathesis.toml"), CONFIG)?;
    std::fs::write(folder.join("hooks.py"), HOOKS)?;
    let mut command = Command::new(clients.schemathesis());
    command.current_dir(folder).env("HOME", folder.join("home"));
    command.args(["run", &format!("{}/api/v1/openapi.json", gateway.url)]);
    command.args(["--header", &format!("Authorization: Bearer {key}"), "--checks", CHECKS]);
    command.args(ENDLESS.into_iter().flat_map(|id| ["--exclude-operation-id", id]));
    command.args(["--continue-on-failure", "--no-shrink", "--no-color"]);
    command.args(["--warnings", "off", "--request-timeout", "60"]);
    // The short form always asks the same, so that it fails only for what was changed.
    if long {
        command.args([
            "--phases",
            "examples,coverage,fuzzing,stateful",
            "--max-examples",
            "50",
            "--generation-database",
            "none",
        ]);
    } else {
        command.args(["--phases", "fuzzing", "--max-examples", "8", "--generation-deterministic"]);
    }
    let ended = kept(&mut command, None, LIMIT)?;
    let closed = gateway.close();
    if !ended.good() {
        return Err(Trouble::Failed(ended.all()));
    }
    let counted = ended.text();
    match counted.lines().find(|line| line.contains(" generated")) {
        Some(line) => println!("      {}", line.trim()),
        None => return Err(Trouble::Failed(format!("it counted no requests: {counted}"))),
    }
    Ok(closed?)
}
