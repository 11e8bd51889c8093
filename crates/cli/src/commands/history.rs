//! `moltis history`: what a session ran.

use std::fmt::Write as _;
use std::time::Duration;

use moltis_runtime::json::Remembered;
use moltis_runtime::store::{HistoryCursor, HistoryEntry, HistoryPage, HistoryResult, Kept};
use moltis_sandbox::{Ending, Status};

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::{flags, output, render, signal_name};

/// Runs it; gives the exit status.
pub async fn run(global: &Global, args: &args::History) -> Result<i32, Failure> {
    let runtime = super::runtime(global)?;
    let key = flags::session_key(&args.key)?;
    let limit = usize::try_from(args.limit).unwrap_or(usize::MAX);
    let HistoryPage { entries, next } = runtime.history(&key, args.before.map(HistoryCursor), limit).await?;
    if args.json {
        let told: Vec<_> = entries.iter().map(|entry| Remembered::new(entry, args.output)).collect();
        return output::print_json(&output::present(
            serde_json::json!({ "session": key, "entries": told, "next": next }),
        ));
    }
    if entries.is_empty() {
        return output::print("No commands.\n");
    }
    let mut text = if args.output { with_output(&entries) } else { table(&entries) };
    if let Some(HistoryCursor(before)) = next {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "There are more: --before {before}");
    }
    output::print(&text)
}

fn table(entries: &[HistoryEntry]) -> String {
    let heads = ["NUMBER", "STARTED", "CALLER", "BACKEND", "RESULT", "TOOK", "COMMAND"];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    rows.extend(entries.iter().map(|entry| cells(entry).to_vec()));
    render::table(&rows)
}

fn cells(entry: &HistoryEntry) -> [String; 7] {
    let (result, took) = result(entry);
    [
        entry.number.to_string(),
        render::age(entry.started_millis),
        render::one_line(&entry.caller.to_string()),
        entry.backend.to_string(),
        result,
        took,
        render::one_line(&entry.command),
    ]
}

fn result(entry: &HistoryEntry) -> (String, String) {
    match &entry.result {
        HistoryResult::Running => ("running".to_owned(), "-".to_owned()),
        HistoryResult::Lost => ("lost".to_owned(), "-".to_owned()),
        HistoryResult::Ended { status, ending, micros, .. } => {
            let how = match status {
                Status::Code(code) => format!("exit {code}"),
                Status::Signal(signal) => format!("signal {}", signal_name::show(*signal)),
            };
            let how = match ending {
                Ending::Exited => how,
                Ending::TimedOut => "time was up".to_owned(),
                Ending::Cancelled => format!("stopped, {how}"),
            };
            (how, render::took(Duration::from_micros(*micros)))
        }
    }
}

fn with_output(entries: &[HistoryEntry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let [number, age, caller, backend, result, took, command] = cells(entry);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{number}  {age}  {caller}  {backend}  {result}  {took}  {command}");
        if let HistoryResult::Ended { stdout, stderr, .. } = &entry.result {
            stream(&mut text, "stdout", stdout);
            stream(&mut text, "stderr", stderr);
        }
    }
    text
}

/// What is remembered of a stream, each line behind its name, so that none can pose as another.
fn stream(text: &mut String, name: &str, kept: &Kept) {
    lines(text, name, &kept.head);
    if kept.cut() > 0 {
        // As above.
        let _ = writeln!(text, "    {name}… {} bytes are not remembered", kept.cut());
    }
    lines(text, name, &kept.tail);
}

fn lines(text: &mut String, name: &str, bytes: &[u8]) {
    for line in String::from_utf8_lossy(bytes).lines() {
        // As above.
        let _ = writeln!(text, "    {name}: {}", render::one_line(line));
    }
}
