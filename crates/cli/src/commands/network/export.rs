//! `moltis network export`: the log for other programs, as it is read, whatever its size.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use moltis_egress::audit::Tally;
use moltis_runtime::{Runtime, audit_csv};
use moltis_sandbox::{Diagnosis, Error};
use serde_json::json;

use super::entries;
use super::filters::{filter, one_of};
use crate::args;
use crate::failure::Failure;
use crate::flags::flag;
use crate::output::BROKEN_PIPE;
use crate::{output, render};

/// Bytes that are gathered before they are written.
const GATHER: usize = 64 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Lines,
    Csv,
}

/// Runs it; gives the exit status.
pub fn run(runtime: &Runtime, args: &args::Export) -> Result<i32, Failure> {
    let filter = filter(&args.filters)?;
    let format = flag("--format", Some(&args.format), |word| {
        one_of(word, &[("jsonl", Format::Lines), ("csv", Format::Csv)])
    })?;
    let format = format.unwrap_or(Format::Lines);
    let snapshot = super::snapshot(runtime)?;
    let mut to: Box<dyn Write> = match &args.output {
        Some(place) => Box::new(create(place)?),
        None => Box::new(output::Raw),
    };
    let mut gathered =
        if format == Format::Csv { audit_csv::COLUMNS.as_bytes().to_vec() } else { Vec::new() };
    let (mut count, mut failed, mut tally) = (0_u64, None, Tally::default());
    if let Some(snapshot) = snapshot {
        let read = snapshot.read(&filter, |entry| {
            match format {
                Format::Lines => entry.write_line(&mut gathered),
                Format::Csv => gathered.extend_from_slice(audit_csv::row(&entry).as_bytes()),
            }
            count += 1;
            if gathered.len() >= GATHER {
                failed = to.write_all(&gathered).err();
                gathered.clear();
            }
            if failed.is_none() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        tally = read.map_err(Error::from)?;
    }
    match failed.map_or_else(|| to.write_all(&gathered).and_then(|()| to.flush()), Err) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(BROKEN_PIPE),
        Err(error) => return Err(Failure::output(error)),
    }
    let warnings = entries::warnings(tally);
    let Some(place) = &args.output else {
        warnings.iter().for_each(render::warning);
        return Ok(0);
    };
    if args.json {
        return output::print_json(&json!({
            "output": place, "entries": count, "droppedEntries": tally.dropped,
            "unreadableLines": tally.unreadable, "warnings": warnings,
        }));
    }
    warnings.iter().for_each(render::warning);
    output::print(&format!("wrote {count} entries to {}\n", render::name(&place.to_string_lossy())))
}

/// A file of its owner alone: the log tells who spoke to whom.
fn create(place: &Path) -> Result<std::fs::File, Failure> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(place).map_err(|error| {
        let name = place.display();
        if error.kind() == io::ErrorKind::AlreadyExists {
            return Failure::invalid(
                Diagnosis::new("output-exists", format!("{name} is there already"))
                    .fix("remove it, or name another file by --output"),
            );
        }
        Failure::invalid(
            Diagnosis::new("output-failed", format!("cannot write {name}"))
                .cause(error)
                .fix("name a file in a directory that you can write to"),
        )
    })
}
