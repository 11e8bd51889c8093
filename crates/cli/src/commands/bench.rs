//! `moltis bench`: what each backend takes, beside what the machine itself offers in the same run.

mod baseline;
mod figure;
mod measure;

use std::cell::Cell;
use std::io::IsTerminal;

use baseline::Plain;
use figure::Figure;
use measure::Measured;
use moltis_config::BackendChoice;
use moltis_runtime::{Overrides, Runtime};
use moltis_sandbox::{BackendName, Diagnosis, Error, Origin, Setting};
use serde_json::{Map, Value, json};

use crate::args::{self, Global};
use crate::building::{Show, watched};
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{flags, output, render};

/// What came of one backend.
struct Row {
    backend: BackendName,
    measured: Result<Measured, Error>,
}

/// Runs it; gives the exit status.
pub async fn run(global: &Global, args: args::Bench) -> Result<i32, Failure> {
    let named = named(&args.backend)?;
    let runtime = super::runtime(global)?;
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    let stop = Cell::new(false);
    let starts = Plain::for_starts();
    let work = all(&runtime, &named, starts, &stop);
    let rows = match signals.race(work, || !stop.replace(true)).await {
        Ok(rows) => rows?,
        Err(number) => return Ok(128 + number),
    };
    if let Some(number) = signals.ended_by {
        return Ok(128 + number);
    }
    if args.json { output::print_json(&told(&rows, starts)) } else { output::print(&text(&rows, starts)) }
}

/// The backends that were named, each once.
fn named(words: &[String]) -> Result<Vec<BackendName>, Failure> {
    let mut named = Vec::new();
    for word in words {
        let choice = flags::flag("--backend", Some(word), moltis_config::parse_backend)?;
        match choice {
            Some(BackendChoice::Named(name)) if !named.contains(&name) => named.push(name),
            Some(BackendChoice::Auto) => {
                return Err(Failure::usage(
                    Diagnosis::new("backend-auto", "`auto` is no backend that could be measured")
                        .fix("name one, or leave --backend out for all that are usable"),
                ));
            }
            _ => {}
        }
    }
    Ok(named)
}

/// Measures those that were named, else all that are usable here without an account. One that is named and cannot be
/// measured is a failure.
async fn all(
    runtime: &Runtime,
    named: &[BackendName],
    starts: Plain,
    stop: &Cell<bool>,
) -> Result<Vec<Row>, Failure> {
    let wanted = match named {
        [] => usable(runtime).await,
        named => named.to_vec(),
    };
    let mut rows = Vec::new();
    for backend in wanted {
        if stop.get() {
            break;
        }
        let measured = one(runtime, backend, !named.is_empty(), starts, stop).await;
        match measured {
            Err(error) if !named.is_empty() => return Err(error.into()),
            measured => rows.push(Row { backend, measured }),
        }
    }
    Ok(rows)
}

/// Those that are usable here, but for the ones that cost money.
async fn usable(runtime: &Runtime) -> Vec<BackendName> {
    let backends = runtime.backends().await.into_iter();
    let is_remote = |name| matches!(name, BackendName::Vercel | BackendName::Daytona);
    backends
        .filter(|status| status.usable && !is_remote(status.backend))
        .map(|status| status.backend)
        .collect()
}

/// Measures one. An image that is not there yet is built only for one that was named.
async fn one(
    runtime: &Runtime,
    backend: BackendName,
    build: bool,
    starts: Plain,
    stop: &Cell<bool>,
) -> Result<Measured, Error> {
    let choice = Setting::new(BackendChoice::Named(backend), Origin::Flag);
    let overrides = Overrides { backend: Some(choice), ..Overrides::default() };
    if !build && !runtime.is_image_ready(&overrides).await? {
        return Err(Error::Unavailable(
            Diagnosis::new("image-not-ready", format!("the image for {backend} is not there yet"))
                .fix(format!("`moltis sandbox build --backend {backend}` makes it")),
        ));
    }
    if std::io::stderr().is_terminal() {
        crate::say!("moltis: measuring {backend}");
    }
    watched(Show::Steps, std::future::pending(), async |sink| {
        measure::backend(runtime, &overrides, sink, starts, stop).await
    })
    .await
}

/// The parts of a row: what it is called, what it was measured against, and the figure.
fn parts(measured: &Measured, starts: Plain) -> [(&'static str, &'static str, Option<&Figure>); 3] {
    let Measured { start, exec, output } = measured;
    [
        ("start", starts.name(), start.as_ref()),
        ("exec", Plain::Sh.name(), exec.as_ref()),
        ("output", "a plain pipe", output.as_ref()),
    ]
}

fn told(rows: &[Row], starts: Plain) -> Value {
    let (mut backends, mut left) = (Vec::new(), Vec::new());
    for Row { backend, measured } in rows {
        match measured {
            Ok(measured) => {
                let mut told = Map::new();
                told.insert("backend".to_owned(), json!(backend));
                for (name, against, figure) in parts(measured, starts) {
                    if let Some(figure) = figure {
                        told.insert(name.to_owned(), figure.json(against));
                    }
                }
                backends.push(Value::Object(told));
            }
            Err(error) => {
                left.push(json!({ "backend": backend, "kind": error.kind(), "error": error.diagnosis() }))
            }
        }
    }
    json!({ "backends": backends, "leftOut": left })
}

fn text(rows: &[Row], starts: Plain) -> String {
    let mut lines = vec![["BACKEND", "WHAT", "MEDIAN", "BASELINE", "", "RATIO"].map(str::to_owned).to_vec()];
    let mut left = String::new();
    for Row { backend, measured } in rows {
        match measured {
            Ok(measured) => {
                for (name, against, figure) in parts(measured, starts) {
                    let Some(figure) = figure else { continue };
                    let [ours, baseline] = figure.shown();
                    let ratio = format!("{:.2}", figure.ratio());
                    let what = match name {
                        "start" => "start of a sandbox",
                        "exec" => "warm exec of true",
                        _ => "output",
                    };
                    let cells = [backend.as_str(), what, &ours, &baseline, against, &ratio];
                    lines.push(cells.map(str::to_owned).to_vec());
                }
            }
            Err(error) => {
                let Diagnosis { message, fix, .. } = error.diagnosis();
                let fix = fix.as_ref().map(|fix| format!(" ({fix})")).unwrap_or_default();
                left.push_str(&format!(
                    "{backend} was left out: {}\n",
                    render::one_line(&format!("{message}{fix}"))
                ));
            }
        }
    }
    let table = if lines.len() > 1 { render::table(&lines) } else { String::new() };
    match (table.is_empty(), left.is_empty()) {
        (true, true) => "There is no backend to measure.\n".to_owned(),
        _ => format!("{table}{left}"),
    }
}
