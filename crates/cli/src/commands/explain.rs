//! `moltis sandbox explain`: what would happen to a command, and why.

use std::fmt::Write as _;

use moltis_runtime::explain::{Explanation, Fate};
use moltis_runtime::{ExplainRequest, Runtime};
use moltis_sandbox::MountMode;

use crate::args;
use crate::failure::Failure;
use crate::{flags, output, render};

/// Runs it; gives the exit status: 1 when the command would be refused.
pub async fn run(runtime: &Runtime, args: &args::Explain) -> Result<i32, Failure> {
    let settings = flags::overrides(&args.flags)?;
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    let explanation = runtime.explain(&ExplainRequest { session, settings }).await?;
    if args.json {
        let printed = output::print_json(&explanation)?;
        return Ok(if printed == 0 { i32::from(explanation.refusal.is_some()) } else { printed });
    }
    let printed = output::print(&text(&explanation))?;
    match explanation.refusal {
        Some(error) if printed == 0 => {
            let mut refusal = String::new();
            render::diagnosis(&mut refusal, error.diagnosis(), render::colours(&std::io::stderr()));
            crate::say!("{}", refusal.trim_end());
            Ok(1)
        }
        _ => Ok(printed),
    }
}

fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let backend = explanation.backend.map_or("none", |backend| backend.as_str());
    let because = if explanation.backend.is_some() { &explanation.because } else { "see the refusal" };
    let _ = writeln!(text, "backend: {backend} ({because})");
    let fate = match explanation.sandbox {
        Fate::New => "a new one",
        Fate::Used => "the session's, which runs",
        Fate::MadeAnew => "the session's is made anew, because what it is to be has changed",
    };
    if explanation.refusal.is_none() {
        let _ = writeln!(text, "sandbox: {fate}");
    }
    passed_over(&mut text, explanation);
    let settings: Vec<_> = explanation
        .settings
        .iter()
        .map(|setting| {
            let value = setting.value.as_deref().map_or("not set".to_owned(), render::one_line);
            vec![format!("  {}", setting.key), setting.origin.to_string(), value]
        })
        .collect();
    let _ = write!(text, "settings, who set them, and their values:\n{}", render::table(&settings));
    if !explanation.mounts.is_empty() {
        let path = |path: &std::path::Path| render::name(&path.to_string_lossy());
        let mounts: Vec<_> = explanation
            .mounts
            .iter()
            .map(|mount| {
                let mode = if mount.mode == MountMode::Rw { "rw" } else { "ro" };
                vec![format!("  {}", path(&mount.target)), mode.to_owned(), path(&mount.source)]
            })
            .collect();
        let _ = write!(text, "mounts:\n{}", render::table(&mounts));
    }
    if !explanation.not_enforced.is_empty() {
        let _ = writeln!(text, "not enforced:");
        for left in &explanation.not_enforced {
            let _ = writeln!(text, "  {}: {}", left.key, render::one_line(&left.reason));
        }
    }
    for note in &explanation.notes {
        let _ = writeln!(text, "note: {}", render::one_line(note));
    }
    text
}

/// The backends before the one that is taken, a line each; those that this program does not have share one.
fn passed_over(text: &mut String, explanation: &Explanation) {
    let (absent, asked): (Vec<_>, Vec<_>) =
        explanation.passed_over.iter().partition(|passed| passed.why.code == "backend-not-built");
    if explanation.passed_over.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = writeln!(text, "passed over:");
    if !absent.is_empty() {
        let names: Vec<_> = absent.iter().map(|passed| passed.backend.as_str()).collect();
        let _ = writeln!(text, "  {}: not part of this version [backend-not-built]", names.join(", "));
    }
    for passed in asked {
        let why = render::one_line(&passed.why.to_string());
        let _ = writeln!(text, "  {}: {why} [{}]", passed.backend, passed.why.code);
    }
}
