//! Commands: run to their end, with one answer or with events as they come; once, if the caller says so.

use std::sync::Arc;

use axum::response::Response;
use bytes::Bytes;
use futures_util::Stream;
use moltis_runtime::answer::{Answer, text_or_base64};
use moltis_runtime::store::{Finished, Gone, LostCommand};
use moltis_runtime::{Capped, OpenSession, Opened, Overrides, Runtime, SessionRequest};
use moltis_sandbox::exec::{ExecControl, ExecEvent, ExecEvents, Outcome};
use moltis_sandbox::{
    BackendName, BuildProgress, BuildSink, Diagnosis, Error, Exec, ExecRequest, NotEnforced, Sandbox,
    SandboxId, SessionKey,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::words;
use crate::ask::{Ask, MAX_BODY};
use crate::call::{Call, failed};
use crate::carry::{carry, unheard};
use crate::live::{self, EVENTS, Event, LINES};
use crate::metrics::Ended;
use crate::once;
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::named;
use crate::state::State;

/// Forms of the answer.
const FORMS: [&str; 3] = ["application/json", EVENTS, LINES];

/// Bytes of standard input that are sent at once.
const PIECE: usize = 64 << 10;

/// The routes.
pub fn routes() -> Vec<Route> {
    let both = |route: Route| {
        let route = route
            .with([once::param()])
            .json(named("ExecRequest"))
            .at_most(MAX_BODY)
            .runs()
            .fails(&[406])
            .answers_in(
                200,
                "How it ended; or what happens, as it happens",
                vec![
                    (FORMS[0], named("ExecAnswer")),
                    (EVENTS, crate::schema::text()),
                    (LINES, crate::schema::text()),
                ],
            );
        once::told(route).more(
                "With `Accept: text/event-stream` or `application/x-ndjson` the events are `progress`, `started`, \
                 `stdout`, `stderr` and at the end `exit` (an `ExecAnswer` without output) or `error` (a `Problem`). A \
                 caller that goes away takes the command with it.",
            )
    };
    vec![
        both(Route::new(
            axum::http::Method::POST,
            "/api/v1/exec",
            "exec",
            Rule::write(Bound::Never),
            |call| run(call, None),
        ))
        .about("Commands", "Run a command in a sandbox of its own"),
        both(
            Route::new(
                axum::http::Method::POST,
                "/api/v1/sessions/{session}/exec",
                "execInSession",
                Rule::write(Bound::Session),
                |call| async move {
                    let key = call.session()?;
                    run(call, Some(key)).await
                },
            )
            .part("session", words::SESSION, words::session()),
        )
        .about("Commands", "Run a command in a session, which is made if it is missing"),
    ]
}

/// Where a command runs.
pub enum Place {
    /// A sandbox that ends with it.
    Command(Option<Opened>),
    /// A session's, which stays.
    Session(Box<OpenSession>),
}

impl Place {
    /// Opens it. An opening that has begun is carried to its end, and put away if its caller is gone by then.
    ///
    /// # Errors
    /// Those of opening.
    pub async fn open(
        runtime: Runtime,
        settings: Overrides,
        session: Option<SessionRequest>,
        progress: BuildSink,
    ) -> Result<Self, Problem> {
        carry(async move {
            Ok(match session {
                None => Self::Command(Some(runtime.open_with(&settings, &progress).await?)),
                Some(request) => {
                    Self::Session(Box::new(runtime.open_session_with(&request, &progress).await?))
                }
            })
        })
        .await
    }

    /// Opens it for somebody who does not hear how it goes on.
    ///
    /// # Errors
    /// Those of opening.
    pub async fn open_unheard(
        runtime: Runtime,
        settings: Overrides,
        session: Option<SessionRequest>,
    ) -> Result<Self, Problem> {
        let (sink, progress) = BuildSink::channel();
        unheard(Self::open(runtime, settings, session, sink), progress).await
    }

    /// Starts a command.
    ///
    /// # Errors
    /// Those of starting it.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec, Error> {
        match self {
            Self::Command(opened) => match opened {
                Some(opened) => opened.sandbox.exec(request).await,
                None => Err(moltis_runtime::error::ended_without_exit()),
            },
            Self::Session(open) => open.exec(request).await,
        }
    }

    /// What is told of it.
    pub fn told(&self) -> Option<Told> {
        let (sandbox, backend, not_enforced, notes) = match self {
            Self::Command(opened) => {
                let opened = opened.as_ref()?;
                (&opened.sandbox, opened.backend, &opened.not_enforced, &opened.notes)
            }
            Self::Session(open) => (&open.sandbox, open.backend, &open.not_enforced, &open.notes),
        };
        let (session, restarted, lost) = match self {
            Self::Command(_) => (None, None, Vec::new()),
            Self::Session(open) => (Some(open.key().clone()), open.restarted, open.lost.clone()),
        };
        Some(Told {
            session,
            backend,
            sandbox_id: sandbox.id().clone(),
            not_enforced: not_enforced.clone(),
            notes: notes.clone(),
            restarted,
            lost,
        })
    }

    /// The same, as a link tells it.
    pub fn place(&self) -> Option<moltis_runtime::link::Where> {
        let Told { session, backend, sandbox_id, not_enforced, notes, restarted, lost } = self.told()?;
        Some(moltis_runtime::link::Where {
            session,
            backend,
            sandbox_id,
            not_enforced,
            notes,
            restarted,
            lost,
        })
    }

    /// The sandbox.
    pub fn sandbox(&self) -> Option<Arc<dyn Sandbox>> {
        match self {
            Self::Command(opened) => opened.as_ref().map(|opened| Arc::clone(&opened.sandbox)),
            Self::Session(open) => Some(Arc::clone(&open.sandbox)),
        }
    }

    /// Under which key its connections are judged.
    pub fn key(&self) -> Option<SessionKey> {
        match self {
            Self::Command(opened) => opened.as_ref().map(|opened| opened.spec.key.clone()),
            Self::Session(open) => Some(open.key().clone()),
        }
    }

    /// Ends what does not stay.
    pub async fn put_away(&mut self) {
        self.end().await;
    }

    /// The same, and says what of it did not end.
    pub async fn end(&mut self) -> Option<Diagnosis> {
        let Self::Command(opened) = self else { return None };
        let error = opened.take()?.sandbox.close().await.err()?;
        tracing::warn!(%error, "a sandbox of one command does not end");
        Some(error.diagnosis().clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Self::Command(opened) = self else { return };
        let Some(opened) = opened.take() else { return };
        // Its caller went away.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { close(&*opened.sandbox).await });
        }
    }
}

async fn close(sandbox: &dyn Sandbox) {
    if let Err(error) = sandbox.close().await {
        tracing::warn!(%error, "a sandbox of one command does not end");
    }
}

/// What is told of where a command runs.
#[derive(Clone, Debug)]
pub struct Told {
    session: Option<SessionKey>,
    /// What holds the sandbox.
    pub backend: BackendName,
    sandbox_id: SandboxId,
    not_enforced: Vec<NotEnforced>,
    notes: Vec<String>,
    restarted: Option<Gone>,
    lost: Vec<LostCommand>,
}

impl Told {
    /// What is told of a command that has started.
    pub fn started(&self, process: u32) -> Value {
        let mut data = json!({
            "process": process, "backend": self.backend, "sandboxId": self.sandbox_id,
            "notEnforced": self.not_enforced, "notes": self.notes, "lost": self.lost,
        });
        if let Some(session) = &self.session {
            data["session"] = json!(session);
        }
        if let Some(restarted) = self.restarted {
            data["restarted"] = json!(restarted);
        }
        data
    }

    /// The answer of a command that ran there.
    pub fn answer(self, outcome: Outcome, stdout: Capped, stderr: Capped) -> Answer {
        Answer {
            session: self.session,
            backend: self.backend,
            sandbox_id: self.sandbox_id,
            exit_code: outcome.exit_code(),
            outcome,
            stdout: stdout.into(),
            stderr: stderr.into(),
            not_enforced: self.not_enforced,
            notes: self.notes,
            restarted: self.restarted,
            lost: self.lost,
        }
    }
}

/// A command that is to run.
struct Job {
    state: Arc<State>,
    runtime: Runtime,
    settings: Overrides,
    session: Option<SessionRequest>,
    request: ExecRequest,
    input: Option<Bytes>,
    cap: usize,
}

async fn run(mut call: Call, key: Option<SessionKey>) -> Answered {
    let kind = call.wants(&FORMS)?;
    let (ask, body): (Ask, Bytes) = call.json_and_bytes().await?;
    let runtime = call.runtime();
    let job = job(&call, &ask, key.clone(), runtime).await?;
    let name = call.header(once::HEADER).map(str::to_owned);
    let Some(name) = name else {
        return match kind {
            "application/json" => {
                let answer = job.collect().await?;
                crate::call::ok(&answer)
            }
            kind => job.stream(kind).await,
        };
    };
    let session = key.as_ref().map_or("", SessionKey::as_str);
    let request = once::request(&call.who, name, &[session.as_bytes(), &body]);
    if let Some(finished) = once::begin(&call.runtime(), &request, "exec-lost").await? {
        return Ok(replayed(finished, kind));
    }
    // From here on it is carried to its end, so that its answer is written down whatever becomes of its caller, whose
    // going away ends the command.
    let state = Arc::clone(&call.state);
    let (tell, told) = oneshot::channel();
    let (_here, gone) = oneshot::channel::<()>();
    tokio::spawn(async move {
        let answered = job.collect_until(gone).await;
        let finished = once::finish(&state.runtime(), request, 200, &answered).await;
        let _ = tell.send(answered.and_then(|answer| finished.map(|()| answer)));
    });
    let answered = told.await.map_err(|_| failed("exec-broke", "running the command broke off"))?;
    let answer = answered?;
    if kind == FORMS[0] {
        // Byte for byte what was written down.
        return crate::call::ok(&answer);
    }
    let value = serde_json::to_value(&answer)
        .map_err(|error| failed("answer-failed", "the answer cannot be written").cause(error))?;
    Ok(live::answer(kind, futures_util::stream::iter(as_events(value))))
}

async fn job(call: &Call, ask: &Ask, key: Option<SessionKey>, runtime: Runtime) -> Result<Job, Problem> {
    let settings = ask.settings.overrides(&runtime, &call.who).await?;
    if key.is_none() && (ask.recreate || ask.must_exist) {
        return Err(Problem::invalid(
            "session-missing-in-path",
            "`recreate` and `mustExist` are about a session",
        )
        .fix("use /api/v1/sessions/{session}/exec"));
    }
    let request = ask.request(&runtime, false)?;
    let (input, cap) = (ask.input()?, ask.cap(&runtime)?);
    let session = key.map(|key| ask.session(key, &call.who, settings.clone()));
    Ok(Job { state: Arc::clone(&call.state), runtime, settings, session, request, input, cap })
}

/// An answer that was written down, in the form that is asked for now.
fn replayed(finished: Finished, kind: &'static str) -> Response {
    if finished.status != 200 || kind == FORMS[0] {
        return once::replayed(finished);
    }
    let value = serde_json::from_slice(&finished.answer).unwrap_or_default();
    once::mark(live::answer(kind, futures_util::stream::iter(as_events(value))))
}

/// A whole answer as events.
fn as_events(mut answer: Value) -> Vec<Event> {
    let mut events = Vec::new();
    if let Value::Object(fields) = &mut answer {
        for name in ["stdout", "stderr"] {
            let data = fields.remove(name).unwrap_or_default();
            let encoding = fields.remove(&format!("{name}Encoding"));
            if data.as_str().is_none_or(str::is_empty) {
                continue;
            }
            let mut event = json!({ "data": data });
            if let Some(encoding) = encoding {
                event["encoding"] = encoding;
            }
            events.push(Event::new(name, event));
        }
    }
    events.push(Event::new("exit", answer));
    events
}

impl Job {
    fn count(&self, backend: BackendName, ended: Ended) {
        self.state.metrics.command(backend, ended);
    }

    /// Runs it to its end.
    async fn collect(self) -> Result<Answer, Problem> {
        let (_here, gone) = oneshot::channel();
        self.collect_until(gone).await
    }

    /// Runs it to its end, or to the moment that its caller is gone: then it is ended, and what it did until then told.
    async fn collect_until(mut self, mut gone: oneshot::Receiver<()>) -> Result<Answer, Problem> {
        let (runtime, settings) = (self.runtime.clone(), self.settings.clone());
        let mut place = Place::open_unheard(runtime, settings, self.session.take()).await?;
        if gone.try_recv() == Err(oneshot::error::TryRecvError::Closed) {
            place.put_away().await;
            return Err(failed("caller-gone", "whoever asked went away before the command started"));
        }
        let request = self.request.clone();
        let exec = match place.exec(request).await {
            Ok(exec) => exec,
            Err(error) => {
                if let Some(told) = place.told() {
                    let lost = matches!(error, Error::Lost(_));
                    self.count(told.backend, if lost { Ended::Lost } else { Ended::Failed });
                }
                place.put_away().await;
                return Err(error.into());
            }
        };
        let told = place.told().ok_or_else(moltis_runtime::error::ended_without_exit)?;
        let backend = told.backend;
        let collected = collect(exec, self.input.take(), self.cap, gone).await;
        place.put_away().await;
        match collected {
            Ok((outcome, stdout, stderr)) => {
                self.count(backend, of(&outcome));
                Ok(told.answer(outcome, stdout, stderr))
            }
            Err(error) => {
                self.count(backend, Ended::Lost);
                Err(error.into())
            }
        }
    }

    /// Runs it, and tells what happens. Before anything is told its failure has a status of its own.
    async fn stream(self, kind: &'static str) -> Answered {
        let (sink, mut progress) = BuildSink::channel();
        let Self { state, runtime, settings, session, request, input, cap: _ } = self;
        let starting = async move {
            let mut place = Place::open(runtime, settings, session, sink).await?;
            match place.exec(request).await {
                Ok(exec) => Ok((place, exec)),
                Err(error) => {
                    place.put_away().await;
                    Err(error.into())
                }
            }
        };
        let mut starting: Starting = Box::pin(starting);
        let first = tokio::select! {
            biased;
            started = &mut starting => Ok(started),
            Some(told) = progress.recv() => Err(told),
        };
        let stage = match first {
            Ok(Ok((place, exec))) => Stage::Runs(Box::new(Running::new(place, exec, input))),
            Ok(Err(problem)) => return Err(problem),
            Err(told) => Stage::Starts { starting, progress, told: Some(told), input },
        };
        Ok(live::answer(kind, events(state, stage)))
    }
}

type Starting = futures_util::future::BoxFuture<'static, Result<(Place, Exec), Problem>>;

/// A command whose events are told.
enum Stage {
    Starts {
        starting: Starting,
        progress: mpsc::Receiver<BuildProgress>,
        told: Option<BuildProgress>,
        input: Option<Bytes>,
    },
    Runs(Box<Running>),
    Over,
}

struct Running {
    place: Place,
    events: ExecEvents,
    _feeder: Feeder,
}

impl Running {
    fn new(place: Place, exec: Exec, input: Option<Bytes>) -> Self {
        Self { place, events: exec.events, _feeder: Feeder::new(exec.control, input) }
    }
}

/// Events of a command, one at a time: whoever reads slowly holds it back, and whoever goes away ends it.
fn events(state: Arc<State>, stage: Stage) -> impl Stream<Item = Event> + Send {
    futures_util::stream::unfold((state, stage), |(state, stage)| async move {
        let (event, stage) = step(&state, stage).await?;
        Some((event, (state, stage)))
    })
}

async fn step(state: &State, stage: Stage) -> Option<(Event, Stage)> {
    match stage {
        Stage::Over => None,
        Stage::Starts { mut starting, mut progress, told, input } => {
            if let Some(told) = told {
                let stage = Stage::Starts { starting, progress, told: None, input };
                return Some((progressed(told), stage));
            }
            tokio::select! {
                biased;
                Some(told) = progress.recv() => {
                    Some((progressed(told), Stage::Starts { starting, progress, told: None, input }))
                }
                started = &mut starting => match started {
                    Ok((place, exec)) => {
                        Box::pin(step(state, Stage::Runs(Box::new(Running::new(place, exec, input))))).await
                    }
                    Err(problem) => Some((Event::new("error", problem.document()), Stage::Over)),
                },
            }
        }
        Stage::Runs(mut running) => {
            let backend = running.place.told().map(|told| told.backend);
            let count = |ended| backend.into_iter().for_each(|backend| state.metrics.command(backend, ended));
            loop {
                let event = match running.events.next().await {
                    Some(Ok(event)) => event,
                    Some(Err(error)) => {
                        count(Ended::Lost);
                        running.place.put_away().await;
                        return Some((error_event(error), Stage::Over));
                    }
                    None => {
                        count(Ended::Lost);
                        running.place.put_away().await;
                        return Some((error_event(moltis_runtime::error::ended_without_exit()), Stage::Over));
                    }
                };
                let event = match event {
                    ExecEvent::Started(process) => {
                        let told = running.place.told();
                        Event::new("started", told.map_or(json!({}), |told| told.started(process.0)))
                    }
                    ExecEvent::Stdout(bytes) => output("stdout", &bytes),
                    ExecEvent::Stderr(bytes) => output("stderr", &bytes),
                    ExecEvent::Missed { .. } => continue,
                    ExecEvent::Exit(outcome) => {
                        count(of(&outcome));
                        let told = running.place.told();
                        running.place.put_away().await;
                        return Some((exit(told, outcome), Stage::Over));
                    }
                };
                return Some((event, Stage::Runs(running)));
            }
        }
    }
}

/// What is told of a build.
pub fn progressed(told: BuildProgress) -> Event {
    let data = match told {
        BuildProgress::Step(step) => json!({ "step": step }),
        BuildProgress::Log(line) => json!({ "log": line }),
        BuildProgress::Fetched { bytes, total: Some(total) } => {
            json!({ "fetchedBytes": bytes, "totalBytes": total })
        }
        BuildProgress::Fetched { bytes, total: None } => json!({ "fetchedBytes": bytes }),
    };
    Event::new("progress", data)
}

/// A failure as an event.
pub fn error_event(error: Error) -> Event {
    Event::new("error", Problem::from(error).document())
}

/// Bytes of a stream as an event.
pub fn output(name: &'static str, bytes: &[u8]) -> Event {
    let (text, encoding) = text_or_base64(bytes);
    let mut data = json!({ "data": text });
    if let Some(encoding) = encoding {
        data["encoding"] = encoding.into();
    }
    Event::new(name, data)
}

fn exit(told: Option<Told>, outcome: Outcome) -> Event {
    let Some(told) = told else { return Event::new("exit", json!({ "exitCode": outcome.exit_code() })) };
    let (stdout, stderr) = (outcome.stdout_bytes, outcome.stderr_bytes);
    let answer = told.answer(outcome, Capped::new(0), Capped::new(0));
    let mut value = serde_json::to_value(answer).unwrap_or_default();
    if let Value::Object(fields) = &mut value {
        for name in ["stdout", "stderr", "stdoutCut", "stderrCut"] {
            fields.remove(name);
        }
        fields.insert("stdoutBytes".to_owned(), stdout.into());
        fields.insert("stderrBytes".to_owned(), stderr.into());
    }
    Event::new("exit", value)
}

/// As what the end of a command is counted.
pub fn of(outcome: &Outcome) -> Ended {
    match outcome.ending {
        moltis_sandbox::exec::Ending::TimedOut => Ended::TimedOut,
        _ => Ended::Done,
    }
}

/// Sends standard input, until this is dropped. It holds the command's control for as long.
pub struct Feeder(AbortHandle);

impl Feeder {
    /// Begins to send.
    pub fn new(mut control: Box<dyn ExecControl>, input: Option<Bytes>) -> Self {
        let task = tokio::spawn(async move {
            if let Some(mut input) = input {
                while !input.is_empty() {
                    let piece = input.split_to(input.len().min(PIECE));
                    if control.stdin(piece).await.is_err() {
                        break;
                    }
                }
                let _ = control.close_stdin().await;
            }
            // Dropping it may be taken for the caller's going.
            std::future::pending::<()>().await;
        });
        Self(task.abort_handle())
    }
}

impl Drop for Feeder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Collects what a command prints, to its end. If its caller goes it is ended, and what it printed until then is told.
async fn collect(
    exec: Exec,
    input: Option<Bytes>,
    cap: usize,
    mut gone: oneshot::Receiver<()>,
) -> Result<(Outcome, Capped, Capped), Error> {
    let Exec { mut events, mut control } = exec;
    let (mut stdout, mut stderr) = (Capped::new(cap), Capped::new(cap));
    let feeder = async {
        let feeding = async {
            let Some(mut input) = input else { return };
            while !input.is_empty() {
                let piece = input.split_to(input.len().min(PIECE));
                if control.stdin(piece).await.is_err() {
                    // It is over, or takes no more.
                    return;
                }
            }
            let _ = control.close_stdin().await;
        };
        let is_gone = tokio::select! {
            () = feeding => false,
            _ = &mut gone => true,
        };
        if !is_gone {
            // An answer, or the sender that is dropped: either way nobody waits any more.
            let _ = gone.await;
        }
        // If it cannot be reached the events say so.
        let _ = control.cancel().await;
        std::future::pending::<()>().await;
    };
    let mut feeder = std::pin::pin!(feeder);
    loop {
        let event = tokio::select! {
            event = events.next() => event,
            () = &mut feeder => continue,
        };
        match event {
            Some(Ok(ExecEvent::Stdout(bytes))) => drop(stdout.push(&bytes)),
            Some(Ok(ExecEvent::Stderr(bytes))) => drop(stderr.push(&bytes)),
            Some(Ok(ExecEvent::Exit(outcome))) => return Ok((outcome, stdout, stderr)),
            Some(Ok(ExecEvent::Started(_) | ExecEvent::Missed { .. })) => {}
            Some(Err(error)) => return Err(error),
            None => return Err(moltis_runtime::error::ended_without_exit()),
        }
    }
}
