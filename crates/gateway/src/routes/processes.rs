//! Background commands: started, watched, fed, told signals, ended.

use axum::http::Method;
use moltis_runtime::answer::text_or_base64;
use moltis_runtime::json::{Ended, Process};
use moltis_runtime::store::now_millis;
use moltis_sandbox::exec::{ExecEvent, ProcessId};
use moltis_sandbox::{Diagnosis, Error, Exec, ProcessInfo, Sandbox};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

use super::exec::{Place, error_event, output};
use super::words;
use crate::ask::{Ask, MAX_BODY};
use crate::call::{Call, json as json_answer, ok};
use crate::live::{self, EVENTS, Event, LINES};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule, query};
use crate::schema::{count, flag, list, named, object, text};

/// Offsets of a watcher who wants no output.
const NO_OUTPUT: u64 = u64::MAX;

/// Forms of what a background command printed.
const FORMS: [&str; 3] = ["application/json", EVENTS, LINES];

/// The routes.
pub fn routes() -> Vec<Route> {
    let of = |route: Route| route.part("session", words::SESSION, words::session()).runs();
    let one = |route: Route| of(route).part("process", "Its number in the sandbox", words::process());
    vec![
        of(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/processes",
            "startProcess",
            Rule::write(Bound::Session),
            start,
        ))
        .about("Processes", "Start a background command, which goes on without its caller")
        .json(named("ExecRequest"))
        .at_most(MAX_BODY)
        .answers(201, "It runs", named("StartedProcess")),
        of(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/processes",
            "listProcesses",
            Rule::read(Bound::Session),
            list_all,
        ))
        .about("Processes", "Background commands that the session's sandbox knows, oldest first")
        .answers(200, "Those that there are", object("", [crate::schema::has("processes", "", list(named("Process")))])),
        one(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/processes/{process}",
            "getProcess",
            Rule::read(Bound::Session),
            show,
        ))
        .about("Processes", "One background command")
        .answers(200, "What is known of it", named("Process")),
        one(Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/processes/{process}/output",
            "getProcessOutput",
            Rule::read(Bound::Session),
            printed,
        ))
        .about("Processes", "What it printed, from any offset on")
        .more(
            "With `Accept: text/event-stream` or `application/x-ndjson` and `follow=true` the events go on until it ends: \
             `stdout`, `stderr`, `missed`, and at the end `exit` or `error`.",
        )
        .with([
            query("stdoutFrom", "Offset in standard output to begin at", count()),
            query("stderrFrom", "Offset in standard error to begin at", count()),
            query("follow", "Go on until it ends; only for events", flag()),
        ])
        .fails(&[406])
        .streaming()
        .answers_in(
            200,
            "What there is",
            vec![(FORMS[0], named("ProcessOutput")), (EVENTS, text()), (LINES, text())],
        ),
        one(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/processes/{process}/input",
            "sendProcessInput",
            Rule::write(Bound::Session),
            feed,
        ))
        .about("Processes", "Send bytes to its standard input")
        .with([query("close", "End its standard input after them", flag())])
        .bytes("application/octet-stream")
        .answers(200, "They were sent", object("", [crate::schema::has("bytes", "How many", count()),
            crate::schema::has("closed", "Whether its input has ended", flag())])),
        one(Route::new(
            Method::POST,
            "/api/v1/sessions/{session}/processes/{process}/signal",
            "signalProcess",
            Rule::write(Bound::Session),
            signal,
        ))
        .about("Processes", "Send a signal to its process group")
        .json(object("", [crate::schema::has("signal", "Its number", crate::schema::number(1, 64))]))
        .answers(200, "It was sent", object("", [crate::schema::has("sent", "Its number", count())])),
        one(Route::new(
            Method::DELETE,
            "/api/v1/sessions/{session}/processes/{process}",
            "stopProcess",
            Rule::write(Bound::Session),
            stop,
        ))
        .about("Processes", "End it with all that it started")
        .answers(200, "How it ended", named("Ended")),
    ]
}

async fn start(mut call: Call) -> Answered {
    let key = call.session()?;
    let ask: Ask = call.json().await?;
    let runtime = call.runtime();
    let settings = ask.settings.overrides(&runtime, &call.who).await?;
    let request = ask.request(&runtime, true)?;
    let input = ask.input()?;
    let session = ask.session(key, &call.who, settings.clone());
    let mut place = Place::open_unheard(runtime, settings, Some(session)).await?;
    let Exec { mut events, mut control } = place.exec(request).await?;
    let process = loop {
        match events.next().await {
            Some(Ok(ExecEvent::Started(process))) => break process,
            Some(Ok(_)) => {}
            Some(Err(error)) => return Err(error.into()),
            None => return Err(moltis_runtime::error::ended_without_exit().into()),
        }
    };
    if let Some(input) = input {
        control.stdin(input).await?;
        control.close_stdin().await?;
    }
    let told = place.told().ok_or_else(moltis_runtime::error::ended_without_exit)?;
    json_answer(201, &told.started(process.0))
}

async fn sandbox(call: &Call) -> Result<Arc<dyn Sandbox>, Problem> {
    let key = call.session()?;
    Ok(call.runtime().running_sandbox(&key).await?.1)
}

fn process(call: &Call) -> ProcessId {
    ProcessId(call.part("process").parse().unwrap_or(u32::MAX))
}

async fn list_all(call: Call) -> Answered {
    let key = call.session()?;
    let processes = match call.runtime().find_sandbox(&key).await? {
        Some((_, sandbox)) => sandbox.processes().await?,
        None => Vec::new(),
    };
    let told: Vec<_> = processes.iter().map(Process::from).collect();
    ok(&json!({ "processes": told }))
}

async fn info(sandbox: &dyn Sandbox, id: ProcessId) -> Result<ProcessInfo, Problem> {
    let all = sandbox.processes().await?;
    all.into_iter().find(|process| process.id == id).ok_or_else(|| missing(id))
}

fn missing(id: ProcessId) -> Problem {
    Problem::missing("process-missing", format!("there is no background command {id}"))
        .fix("GET /api/v1/sessions/{session}/processes lists those that there are")
}

async fn see_running(sandbox: &dyn Sandbox, id: ProcessId) -> Result<(), Problem> {
    match info(sandbox, id).await?.outcome {
        None => Ok(()),
        Some(_) => Err(Error::Invalid(
            Diagnosis::new("process-ended", format!("the background command {id} is over"))
                .fix("its output says what it printed"),
        )
        .into()),
    }
}

async fn show(call: Call) -> Answered {
    let info = info(&*sandbox(&call).await?, process(&call)).await?;
    ok(&Process::from(&info))
}

async fn stop(call: Call) -> Answered {
    let (sandbox, id) = (sandbox(&call).await?, process(&call));
    info(&*sandbox, id).await?;
    let outcome = sandbox.stop(id).await?;
    ok(&Ended::from(&outcome))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Signal {
    signal: i32,
}

async fn signal(mut call: Call) -> Answered {
    let Signal { signal } = call.json().await?;
    if !(1..=64).contains(&signal) {
        return Err(Problem::invalid("value-out-of-range", "`signal` is out of range").fix("use 1 to 64"));
    }
    let (sandbox, id) = (sandbox(&call).await?, process(&call));
    see_running(&*sandbox, id).await?;
    let mut watch = sandbox.attach(id, NO_OUTPUT, NO_OUTPUT, true).await?;
    watch.control.signal(signal).await?;
    ok(&json!({ "sent": signal }))
}

async fn feed(mut call: Call) -> Answered {
    use futures_util::StreamExt;

    let (sandbox, id, close) = (sandbox(&call).await?, process(&call), call.says("close"));
    see_running(&*sandbox, id).await?;
    let Exec { mut events, mut control } = sandbox.attach(id, NO_OUTPUT, NO_OUTPUT, true).await?;
    let mut bytes = call.stream();
    let sending = async {
        let mut sent = 0_u64;
        while let Some(piece) = bytes.next().await {
            let piece = piece?;
            sent += piece.len() as u64;
            control.stdin(piece).await?;
        }
        if close {
            control.close_stdin().await?;
        }
        Ok::<_, Error>(sent)
    };
    tokio::pin!(sending);
    loop {
        tokio::select! {
            sent = &mut sending => {
                let sent = sent?;
                return ok(&json!({ "bytes": sent, "closed": close }));
            }
            // It may end instead of reading.
            event = events.next() => match event {
                Some(Ok(ExecEvent::Exit(_))) => {
                    return Err(Error::Invalid(Diagnosis::new(
                        "process-ended",
                        format!("the background command {id} ended before it had read all"),
                    ))
                    .into());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error.into()),
                None => return Err(moltis_runtime::error::ended_without_exit().into()),
            },
        }
    }
}

async fn printed(call: Call) -> Answered {
    let kind = call.wants(&FORMS)?;
    let from = [call.number("stdoutFrom").unwrap_or(0), call.number("stderrFrom").unwrap_or(0)];
    let (sandbox, id, follow) = (sandbox(&call).await?, process(&call), call.says("follow"));
    info(&*sandbox, id).await?;
    if kind == FORMS[0] {
        if follow {
            return Err(Problem::invalid("param-invalid", "`follow` goes with events")
                .fix("accept text/event-stream or application/x-ndjson"));
        }
        let mut watch = sandbox.attach(id, from[0], from[1], false).await?;
        let most = usize::try_from(call.runtime().max_output_bytes()).unwrap_or(usize::MAX);
        return ok(&part(&mut watch, id, from, most).await?);
    }
    let watch = sandbox.attach(id, from[0], from[1], follow).await?;
    let events = futures_util::stream::unfold(Some(watch), |watch| async {
        let mut watch = watch?;
        loop {
            let event = match watch.events.next().await? {
                Ok(ExecEvent::Started(_)) => continue,
                Ok(ExecEvent::Stdout(bytes)) => output("stdout", &bytes),
                Ok(ExecEvent::Stderr(bytes)) => output("stderr", &bytes),
                Ok(ExecEvent::Missed { stdout, stderr }) => {
                    Event::new("missed", json!({ "stdout": stdout, "stderr": stderr }))
                }
                Ok(ExecEvent::Exit(outcome)) => {
                    let ended = serde_json::to_value(Ended::from(&outcome)).unwrap_or_default();
                    return Some((Event::new("exit", ended), None));
                }
                Err(error) => return Some((error_event(error), None)),
            };
            return Some((event, Some(watch)));
        }
    });
    Ok(live::answer(kind, events))
}

struct Stream {
    from: u64,
    bytes: Vec<u8>,
    missed: u64,
    next: u64,
}

/// What is there, up to a size; what is beyond it comes with the next call.
async fn part(watch: &mut Exec, id: ProcessId, from: [u64; 2], most: usize) -> Result<Value, Problem> {
    let mut streams = from.map(|from| Stream { from, bytes: Vec::new(), missed: 0, next: from });
    let (mut ended, mut full) = (None, [false; 2]);
    while full != [true; 2] {
        let (index, bytes) = match watch.events.next().await {
            Some(Ok(ExecEvent::Stdout(bytes))) => (0, bytes),
            Some(Ok(ExecEvent::Stderr(bytes))) => (1, bytes),
            Some(Ok(ExecEvent::Missed { stdout, stderr })) => {
                for (index, missed) in [stdout, stderr].into_iter().enumerate() {
                    // A gap in the middle would not be seen in the text: the next call begins after it.
                    full[index] |= missed > 0 && !streams[index].bytes.is_empty();
                    if !full[index] {
                        streams[index].missed += missed;
                        streams[index].next += missed;
                    }
                }
                continue;
            }
            Some(Ok(ExecEvent::Exit(outcome))) => {
                ended = Some(outcome);
                break;
            }
            Some(Ok(ExecEvent::Started(_))) => continue,
            Some(Err(error)) => return Err(error.into()),
            None => break,
        };
        if full[index] {
            continue;
        }
        let stream = &mut streams[index];
        let taken = bytes.len().min(most - stream.bytes.len());
        stream.bytes.extend_from_slice(&bytes[..taken]);
        stream.next += taken as u64;
        full[index] = taken < bytes.len() || stream.bytes.len() == most;
    }
    let mut told = Map::new();
    told.insert("process".to_owned(), json!(id));
    told.insert("readMillis".to_owned(), now_millis().into());
    told.insert("running".to_owned(), ended.is_none().into());
    for (name, stream) in ["stdout", "stderr"].into_iter().zip(streams) {
        let (text, encoding) = text_or_base64(&stream.bytes);
        told.insert(name.to_owned(), text.into());
        if let Some(encoding) = encoding {
            told.insert(format!("{name}Encoding"), encoding.into());
        }
        for (suffix, number) in [("From", stream.from), ("Missed", stream.missed), ("Next", stream.next)] {
            told.insert(format!("{name}{suffix}"), number.into());
        }
    }
    if let Some(Value::Object(ended)) = ended.map(|outcome| json!(Ended::from(&outcome))) {
        told.extend(ended);
    }
    Ok(Value::Object(told))
}
