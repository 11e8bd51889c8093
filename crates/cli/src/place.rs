//! Where a command of the program runs: a sandbox of its own, or a session's.

use std::sync::Arc;

use moltis_runtime::store::{Gone, LostCommand};
use moltis_runtime::{OpenSession, Opened, Overrides, Runtime, SessionRequest};
use moltis_sandbox::{BackendName, Exec, ExecRequest, NotEnforced, Result, Sandbox, SessionKey};

use crate::args::SessionFlags;
use crate::failure::Failure;
use crate::signals::Signals;
use crate::{flags, render};

/// An open sandbox, and whose it is.
pub enum Place {
    /// It ends with the command.
    Ephemeral(Opened),
    /// It stays.
    Session(Box<OpenSession>),
}

/// What came of opening one.
pub enum Opening {
    /// It is open.
    Open(Place),
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

impl Place {
    /// Opens it. A signal does not break an opening off: it is waited for, and what it made is put away.
    pub async fn open(
        runtime: &Runtime,
        settings: Overrides,
        session: Option<SessionRequest>,
        signals: &mut Signals,
    ) -> std::result::Result<Opening, Failure> {
        let opening = async {
            match &session {
                None => Ok::<_, moltis_sandbox::Error>(Self::Ephemeral(runtime.open(&settings).await?)),
                Some(request) => Ok(Self::Session(Box::new(runtime.open_session(request).await?))),
            }
        };
        let mut opening = std::pin::pin!(opening);
        let number = tokio::select! {
            opened = &mut opening => return Ok(Opening::Open(opened?)),
            number = signals.next() => number,
        };
        opening.await?.put_away().await;
        Ok(Opening::Told(number))
    }

    /// The sandbox.
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        match self {
            Self::Ephemeral(opened) => &opened.sandbox,
            Self::Session(open) => &open.sandbox,
        }
    }

    /// What holds it.
    pub fn backend(&self) -> BackendName {
        match self {
            Self::Ephemeral(opened) => opened.backend,
            Self::Session(open) => open.backend,
        }
    }

    /// Built-in defaults that are not kept.
    pub fn not_enforced(&self) -> &[NotEnforced] {
        match self {
            Self::Ephemeral(opened) => &opened.not_enforced,
            Self::Session(open) => &open.not_enforced,
        }
    }

    /// What else a person should know.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Ephemeral(opened) => &opened.notes,
            Self::Session(open) => &open.notes,
        }
    }

    /// Whose it is, if it stays.
    pub fn session(&self) -> Option<&SessionKey> {
        match self {
            Self::Ephemeral(_) => None,
            Self::Session(open) => Some(open.key()),
        }
    }

    /// Why the session's sandbox before this one ended, if this one is new.
    pub fn restarted(&self) -> Option<Gone> {
        match self {
            Self::Ephemeral(_) => None,
            Self::Session(open) => open.restarted,
        }
    }

    /// The session's commands whose outcome is not known, told once.
    pub fn lost(&self) -> &[LostCommand] {
        match self {
            Self::Ephemeral(_) => &[],
            Self::Session(open) => &open.lost,
        }
    }

    /// Notes that it is used without a command, which notes its own use.
    pub async fn note_use(&self) {
        if let Self::Session(open) = self {
            open.note_use().await;
        }
    }

    /// Starts a command.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec> {
        match self {
            Self::Ephemeral(opened) => opened.sandbox.exec(request).await,
            Self::Session(open) => open.exec(request).await,
        }
    }

    /// Ends what does not stay.
    pub async fn put_away(self) {
        let Self::Ephemeral(opened) = self else { return };
        if let Err(error) = opened.sandbox.close().await {
            // The command is over and has its status; what is left of the sandbox is swept by the next start.
            render::warning(error.diagnosis());
        }
    }

    /// Says, before any output, what is not as one might think.
    pub fn warn(&self) {
        for promise in self.not_enforced() {
            crate::say!("moltis: not enforced: {} ({})", promise.key, render::one_line(&promise.reason));
        }
        for note in self.notes() {
            crate::say!("moltis: {}", render::one_line(note));
        }
        self.tell_news();
    }

    /// Says what has become of the session since it was last used.
    pub fn tell_news(&self) {
        if let Some(gone) = self.restarted() {
            crate::say!("moltis: this is a new sandbox: {}", why(gone));
        }
        for lost in self.lost() {
            let command = render::one_line(&lost.command);
            crate::say!("moltis: lost: how command {} ended is not known: {command}", lost.number);
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
