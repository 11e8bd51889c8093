//! `moltis sandbox`: the backends and what they keep.

use std::fmt::Write as _;

use moltis_runtime::BackendStatus;
use moltis_sandbox::{Guarantees, Promise};

use crate::args::Global;
use crate::failure::Failure;
use crate::output;
use crate::render;

/// `moltis sandbox status`.
pub async fn status(global: &Global, json: bool) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let backends = runtime.backends().await;
    if json {
        return output::print_json(&serde_json::json!({ "backends": backends }));
    }
    let mut text = String::new();
    let is_absent =
        |status: &&BackendStatus| status.reason.as_ref().is_some_and(|r| r.code == "backend-not-built");
    for backend in backends.iter().filter(|status| !is_absent(status)) {
        describe(&mut text, backend);
    }
    let absent: Vec<_> = backends.iter().filter(is_absent).map(|status| status.backend.as_str()).collect();
    if !absent.is_empty() {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "○ not part of this version: {}", absent.join(", "));
    }
    output::print(&text)
}

fn describe(text: &mut String, status: &BackendStatus) {
    // Writing to a String cannot fail.
    if let Some(details) = &status.details {
        let _ = writeln!(text, "● {}  usable  {}", status.backend, render::one_line(&details.version));
        for note in &details.notes {
            let _ = writeln!(text, "  {}", render::one_line(note));
        }
        let rows: Vec<_> = promises(&details.guarantees)
            .map(|(name, promise)| match promise {
                Promise::Held => vec![format!("  {name}"), "held".to_owned()],
                Promise::NotEnforced(reason) => {
                    vec![format!("  {name}"), format!("not enforced: {}", render::one_line(reason))]
                }
            })
            .collect();
        text.push_str(&render::table(&rows));
    }
    if let Some(reason) = &status.reason {
        let _ = writeln!(text, "○ {}  not usable  [{}]", status.backend, reason.code);
        let _ = writeln!(text, "  {}", render::one_line(&reason.message));
        for (label, line) in [("cause", &reason.cause), ("fix", &reason.fix)] {
            if let Some(line) = line {
                let _ = writeln!(text, "  {label}: {}", render::one_line(line));
            }
        }
    }
}

/// The promises by the names that people read.
fn promises(guarantees: &Guarantees) -> impl Iterator<Item = (&'static str, &Promise)> {
    let Guarantees {
        filesystem,
        kernel,
        environment,
        network_blocked,
        network_trusted,
        network_open,
        memory,
        cpus,
        pids,
        terminal,
        background,
        forward,
        workspace,
        home,
        managed_files,
        adopt,
        images,
    } = guarantees;
    [
        ("files isolated", filesystem),
        ("own kernel", kernel),
        ("environment cleared", environment),
        ("network blocked", network_blocked),
        ("network trusted", network_trusted),
        ("network open", network_open),
        ("memory limit", memory),
        ("cpu limit", cpus),
        ("process limit", pids),
        ("terminal", terminal),
        ("background commands", background),
        ("port forwarding", forward),
        ("workspace", workspace),
        ("lasting home", home),
        ("managed files", managed_files),
        ("found again after a restart", adopt),
        ("images", images),
    ]
    .into_iter()
}
