//! Where a command of the program runs: a sandbox of its own, or a session's; opened by this process, or by the gateway
//! that holds the data directory.

use std::cell::Cell;
use std::io::{IsTerminal, Write};
use std::ops::Deref;
use std::sync::Arc;

use moltis_runtime::link::{AskedPlace, Link, Linked, Listener, Question, Stopper};
use moltis_runtime::store::{Gone, LostCommand, now_millis};
use moltis_runtime::{OpenSession, Opened, Overrides, Runtime, SessionRequest};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    BackendName, BuildSink, Exec, ExecRequest, NotEnforced, Result, Sandbox, SandboxId, SessionKey,
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

use crate::args::SessionFlags;
use crate::building::{Show, watched};
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{flags, output, render};

/// An open sandbox, and whose it is.
pub struct Place {
    runtime: Runtime,
    owner: Owner,
    /// Whether the session's news was told.
    is_told: Cell<bool>,
}

enum Owner {
    /// It ends with the command.
    Command(Opened),
    /// It stays.
    Session(Box<OpenSession>),
    /// The gateway has opened it.
    Gateway(Box<Linked>),
}

/// A place that this process itself has opened.
pub struct Here {
    place: Place,
    sandbox: Arc<dyn Sandbox>,
}

impl Deref for Here {
    type Target = Place;

    fn deref(&self) -> &Place {
        &self.place
    }
}

impl Here {
    /// The sandbox.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        &self.sandbox
    }

    /// As [`Place::put_away`].
    pub async fn put_away(self) {
        self.place.put_away().await;
    }
}

/// What ends the command of a place.
pub enum Stop {
    /// By the sandbox.
    Sandbox(Arc<dyn Sandbox>),
    /// By the gateway.
    Gateway(Stopper),
}

impl Stop {
    /// Ends it, by a connection of its own: the command's may be full of input that nobody reads. If it cannot be reached
    /// its events say so.
    pub async fn command(&self, process: ProcessId) {
        match self {
            Self::Sandbox(sandbox) => drop(sandbox.stop(process).await),
            Self::Gateway(stopper) => stopper.stop().await,
        }
    }
}

/// What came of opening one.
pub enum Opening<T = Place> {
    /// It is open.
    Open(T),
    /// A signal of this number was heard meanwhile; what was opened has been put away.
    Told(i32),
}

/// What the flags say of the session; nothing for a sandbox of its own.
pub fn session(
    args: &SessionFlags,
    settings: Overrides,
) -> std::result::Result<Option<SessionRequest>, Failure> {
    let Some(key) = &args.session else { return Ok(None) };
    let key = flags::session_key(key)?;
    Ok(Some(SessionRequest { settings, recreate: args.recreate, ..SessionRequest::new(key) }))
}

/// Says on standard error when a program waits for somebody to let a host through. `is_raw`: on a terminal that is raw.
pub fn questions(is_raw: bool) -> Listener {
    Arc::new(move |question: &Question| {
        let (id, port) = (question.id, question.port);
        let host = render::one_line(&question.host);
        let secs = question.expires_millis.saturating_sub(now_millis()) / 1000;
        let line = format!(
            "a program waits for {host}:{port}, {secs} s at most: `moltis network allow {id}` or `deny {id}`"
        );
        // Whoever reads it may be slow, and what the command does goes on meanwhile.
        tokio::task::spawn_blocking(move || tell(&mut std::io::stderr().lock(), &[line], is_raw));
    })
}

/// Says nothing of them: an answer in JSON is the only thing that is printed.
pub fn no_questions() -> Listener {
    Arc::new(|_| {})
}

/// Has this process tell them.
pub fn tell_questions(runtime: &Runtime, listener: Listener) {
    runtime.on_question(Arc::new(move |question| listener(&question.into())));
}

/// Writes lines of our own. A raw terminal goes down a line and no more.
fn tell(stderr: &mut (impl Write + IsTerminal), lines: &[String], is_raw: bool) {
    let end = if is_raw && stderr.is_terminal() { "\r\n" } else { "\n" };
    for line in lines {
        // A reader that is gone cannot be told.
        let _ = write!(stderr, "moltis: {line}{end}");
    }
}

impl Place {
    /// Opens it, in the gateway if there is one that would do as this process does, and shows what happens while its image
    /// is built or fetched. The first signal gives up an image, but does not break an opening off: that is waited for,
    /// and what it made is put away. The second one leaves at once; what is half made then is swept by the next start.
    pub async fn open(
        runtime: &Runtime,
        settings: Overrides,
        session: Option<SessionRequest>,
        questions: Listener,
        signals: &mut Signals,
    ) -> std::result::Result<Opening, Failure> {
        let work = async |sink: &BuildSink| {
            if let Some(asked) = AskedPlace::new(&settings, session.as_ref())
                && let Some(link) = Link::connect(runtime).await
                && let Some(linked) = link.open(asked, sink, Arc::clone(&questions)).await?
            {
                return Ok(Owner::Gateway(Box::new(linked)));
            }
            tell_questions(runtime, Arc::clone(&questions));
            Owner::open(runtime, &settings, session.as_ref(), sink).await
        };
        Self::opened(runtime, signals, work).await
    }

    /// The same in this process, for what needs the sandbox itself.
    pub async fn open_here(
        runtime: &Runtime,
        session: SessionRequest,
        signals: &mut Signals,
    ) -> std::result::Result<Opening<Here>, Failure> {
        let settings = Overrides::default();
        let mut sandbox = None;
        let work = async |sink: &BuildSink| {
            let owner = Owner::open(runtime, &settings, Some(&session), sink).await?;
            sandbox = owner.sandbox().cloned();
            Ok(owner)
        };
        Ok(match (Self::opened(runtime, signals, work).await?, sandbox) {
            (Opening::Open(place), Some(sandbox)) => Opening::Open(Here { place, sandbox }),
            (Opening::Open(_), None) => return Err(moltis_runtime::error::ended_without_exit().into()),
            (Opening::Told(number), _) => Opening::Told(number),
        })
    }

    async fn opened(
        runtime: &Runtime,
        signals: &mut Signals,
        work: impl AsyncFnOnce(&BuildSink) -> Result<Owner>,
    ) -> std::result::Result<Opening, Failure> {
        let leave = Notify::new();
        let opening = watched(Show::Steps, leave.notified(), work);
        let mut opening = std::pin::pin!(opening);
        let number = tokio::select! {
            opened = &mut opening => {
                let (runtime, is_told) = (runtime.clone(), Cell::new(false));
                return Ok(Opening::Open(Self { runtime, owner: opened?, is_told }));
            }
            number = signals.next() => number,
        };
        leave.notify_one();
        let ending = async {
            match opening.await {
                Ok(owner) => owner.put_away().await,
                Err(error) if error.code() == "image-build-cancelled" => {}
                Err(error) => return Err(error.into()),
            }
            Ok(Opening::Told(number))
        };
        tokio::select! {
            ended = ending => ended,
            number = signals.next() => Ok(Opening::Told(number)),
        }
    }

    /// What ends its command.
    pub fn stop(&self) -> Stop {
        match &self.owner {
            Owner::Command(opened) => Stop::Sandbox(Arc::clone(&opened.sandbox)),
            Owner::Session(open) => Stop::Sandbox(Arc::clone(&open.sandbox)),
            Owner::Gateway(linked) => Stop::Gateway(linked.stopper()),
        }
    }

    /// The sandbox's id.
    pub fn sandbox_id(&self) -> &SandboxId {
        match &self.owner {
            Owner::Command(opened) => opened.sandbox.id(),
            Owner::Session(open) => open.sandbox.id(),
            Owner::Gateway(linked) => &linked.place().sandbox_id,
        }
    }

    /// What holds it.
    pub fn backend(&self) -> BackendName {
        match &self.owner {
            Owner::Command(opened) => opened.backend,
            Owner::Session(open) => open.backend,
            Owner::Gateway(linked) => linked.place().backend,
        }
    }

    /// Built-in defaults that are not kept.
    pub fn not_enforced(&self) -> &[NotEnforced] {
        match &self.owner {
            Owner::Command(opened) => &opened.not_enforced,
            Owner::Session(open) => &open.not_enforced,
            Owner::Gateway(linked) => &linked.place().not_enforced,
        }
    }

    /// What else a person should know.
    pub fn notes(&self) -> &[String] {
        match &self.owner {
            Owner::Command(opened) => &opened.notes,
            Owner::Session(open) => &open.notes,
            Owner::Gateway(linked) => &linked.place().notes,
        }
    }

    /// Whose it is, if it stays.
    pub fn session(&self) -> Option<&SessionKey> {
        match &self.owner {
            Owner::Command(_) => None,
            Owner::Session(open) => Some(open.key()),
            Owner::Gateway(linked) => linked.place().session.as_ref(),
        }
    }

    /// Why the session's sandbox before this one ended, if this one is new.
    pub fn restarted(&self) -> Option<Gone> {
        match &self.owner {
            Owner::Command(_) => None,
            Owner::Session(open) => open.restarted,
            Owner::Gateway(linked) => linked.place().restarted,
        }
    }

    /// The session's commands whose outcome is not known, told once.
    pub fn lost(&self) -> &[LostCommand] {
        match &self.owner {
            Owner::Command(_) => &[],
            Owner::Session(open) => &open.lost,
            Owner::Gateway(linked) => &linked.place().lost,
        }
    }

    /// Notes that it is used without a command, which notes its own use.
    pub async fn note_use(&self) {
        if let Owner::Session(open) = &self.owner {
            open.note_use().await;
        }
    }

    /// Starts a command.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec> {
        match &mut self.owner {
            Owner::Command(opened) => opened.sandbox.exec(request).await,
            Owner::Session(open) => open.exec(request).await,
            Owner::Gateway(linked) => linked.exec(request).await,
        }
    }

    /// Ends what does not stay, and sees that what is to be written down is.
    pub async fn put_away(self) {
        self.owner.put_away().await;
        if let Some(untold) = self.runtime.finish_network().await {
            render::warning(&untold);
        }
    }

    /// Says, before any output, what is not as one might think.
    pub fn warn(&self) {
        self.say(&self.warnings(), false);
    }

    /// The same on a terminal that is raw.
    pub fn warn_raw(&self) {
        self.say(&self.warnings(), true);
    }

    /// Says what has become of the session since it was last used.
    pub fn tell_news(&self) {
        self.say(&self.news(), false);
    }

    /// A failure of what was to run here, with what it must not hide: the news, which is told only once.
    pub fn failed(&self, failure: Failure, json: bool) -> Failure {
        if !json && !self.is_told.get() {
            self.tell_news();
        }
        failure.with(self.told())
    }

    /// Where it is and what is to be known of it, as JSON tells it.
    pub fn told(&self) -> Map<String, Value> {
        let told = json!({
            "session": self.session(),
            "backend": self.backend(),
            "sandboxId": self.sandbox_id(),
            "restarted": self.restarted(),
            "notes": Some(self.notes()).filter(|notes| !notes.is_empty()),
            "lost": Some(self.lost()).filter(|lost| !lost.is_empty()),
        });
        output::present(told)
    }

    fn say(&self, lines: &[String], is_raw: bool) {
        self.is_told.set(true);
        tell(&mut std::io::stderr().lock(), lines, is_raw);
    }

    fn warnings(&self) -> Vec<String> {
        let not_enforced = self.not_enforced().iter();
        let not_enforced = not_enforced
            .map(|left| format!("not enforced: {} ({})", left.key, render::one_line(&left.reason)));
        let notes = self.notes().iter().map(|note| render::one_line(note));
        not_enforced.chain(notes).chain(self.news()).collect()
    }

    fn news(&self) -> Vec<String> {
        let restarted = self.restarted().map(|gone| format!("this is a new sandbox: {}", why(gone)));
        let lost = self.lost().iter().map(|lost| {
            let command = render::one_line(&lost.command);
            format!("lost: how command {} ended is not known: {command}", lost.number)
        });
        restarted.into_iter().chain(lost).collect()
    }
}

impl Owner {
    async fn open(
        runtime: &Runtime,
        settings: &Overrides,
        session: Option<&SessionRequest>,
        sink: &BuildSink,
    ) -> Result<Self> {
        Ok(match session {
            None => Self::Command(runtime.open_with(settings, sink).await?),
            Some(request) => Self::Session(Box::new(runtime.open_session_with(request, sink).await?)),
        })
    }

    fn sandbox(&self) -> Option<&Arc<dyn Sandbox>> {
        match self {
            Self::Command(opened) => Some(&opened.sandbox),
            Self::Session(open) => Some(&open.sandbox),
            Self::Gateway(_) => None,
        }
    }

    async fn put_away(self) {
        let untold = match self {
            Self::Session(_) => None,
            // The command is over and has its status; what is left of the sandbox is swept by the next start.
            Self::Command(opened) => {
                opened.sandbox.close().await.err().map(|error| error.diagnosis().clone())
            }
            Self::Gateway(linked) => linked.put_away().await,
        };
        if let Some(untold) = untold {
            render::warning(&untold);
        }
    }
}

/// Why there is a new sandbox, in words.
fn why(gone: Gone) -> &'static str {
    match gone {
        Gone::Idle => "the session's last one was unused for its time (idle_ttl)",
        Gone::Spec => "what the session's sandbox is to be has changed",
        Gone::Crash => "the session's last one had died",
        Gone::Failover => "the backend of the session's last one failed",
        Gone::Stopped => "the session's last one was stopped",
        Gone::Evicted => "the session's last one made room for another (max_sandboxes)",
        Gone::Recreated => "the session's last one was ended, as asked",
        Gone::FilesMount => "in the session's last one the managed files were taken away",
    }
}
