//! `moltis network audit`.

use std::ops::ControlFlow;

use moltis_egress::Entry;
use moltis_egress::audit::{Filter, Snapshot, Tally};
use moltis_runtime::Runtime;
use moltis_sandbox::Error;
use serde_json::json;

use super::entries;
use super::filters::filter;
use super::watch::watch;
use crate::args;
use crate::failure::Failure;
use crate::{output, render};

/// Entries that are shown where nobody says how many.
const SHOWN: u32 = 100;

/// Bytes that are gathered before they are printed.
const GATHER: usize = 64 << 10;

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Audit) -> Result<i32, Failure> {
    let filter = filter(&args.filters)?;
    let most = usize::try_from(args.limit.unwrap_or(SHOWN)).unwrap_or(usize::MAX);
    if args.follow {
        return follow(runtime, &filter, most, args.json).await;
    }
    let (latest, tally) = match super::snapshot(runtime)? {
        // One more tells whether there are more.
        Some(snapshot) => snapshot.last(&filter, most.saturating_add(1)).map_err(Error::from)?,
        None => Default::default(),
    };
    let more = latest.len() > most;
    let latest = &latest[latest.len().saturating_sub(most)..];
    let warnings = entries::warnings(tally);
    if args.json {
        let told = json!({ "entries": latest, "more": more, "droppedEntries": tally.dropped,
                           "unreadableLines": tally.unreadable, "warnings": warnings });
        return output::print_json(&told);
    }
    warnings.iter().for_each(render::warning);
    if latest.is_empty() && !more {
        return output::print("No entries.\n");
    }
    let text: String = latest.iter().map(entries::line).collect();
    let printed = output::print(&text)?;
    if more && printed == 0 && args.limit.is_none() {
        crate::say!("moltis: there are more: --limit, or `moltis network export`");
    }
    Ok(printed)
}

async fn follow(runtime: &Runtime, filter: &Filter, most: usize, json: bool) -> Result<i32, Failure> {
    // The folder must be there to see what comes into it.
    runtime.store().run(|_| Ok(())).await.map_err(Error::from)?;
    let snapshot = Snapshot::take(&runtime.config().data_dir.value).map_err(Error::from)?;
    let (latest, tally) = snapshot.last(filter, most).map_err(Error::from)?;
    let show = |entry: &Entry| if json { output::json_line(entry) } else { Ok(entries::line(entry)) };
    let before = latest.iter().map(show).collect::<Result<String, _>>()?;
    warn(tally);
    let status = output::print(&before)?;
    let mut follow = snapshot.follow();
    watch(async || {
        if status != 0 {
            return Ok(status);
        }
        let (mut text, mut printed) = (String::new(), Ok(0));
        let tally = follow.poll(filter, |entry| {
            printed = show(&entry).and_then(|line| {
                text.push_str(&line);
                if text.len() < GATHER { Ok(0) } else { output::print(&std::mem::take(&mut text)) }
            });
            if matches!(printed, Ok(0)) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        warn(tally.map_err(Error::from)?);
        match printed? {
            0 => output::print(&text),
            gone => Ok(gone),
        }
    })
    .await
}

fn warn(tally: Tally) {
    entries::warnings(tally).iter().for_each(render::warning);
}
