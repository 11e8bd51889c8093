//! Where the tools work: a sandbox of the server's own, or a session's.

use std::sync::Arc;

use moltis_runtime::store::{Caller, Gone, LostCommand};
use moltis_runtime::{FileRules, OpenSession, Opened, Overrides, RuledFiles, Runtime, SessionRequest};
use moltis_sandbox::{
    BackendName, BuildSink, Exec, ExecRequest, GuestPath, NotEnforced, Result, Sandbox, SandboxSpec,
    SessionKey,
};
use tokio::sync::Mutex;

use crate::error::ToolError;

/// Where the tools of a server work. Nothing is opened before a tool needs it.
#[derive(Clone, Debug)]
pub enum Place {
    /// A sandbox that ends with the server and of which nothing is stored. These settings go over the configuration.
    Own(Overrides),
    /// A session, made if it is missing. The request's caller is replaced by what the client calls itself.
    Session(SessionRequest),
}

/// Which session a request over HTTP is for, and on whose behalf: whoever checks the request's credentials puts it
/// among its extensions. A request without one is refused.
#[derive(Clone)]
pub struct Access {
    /// The runtime under the configuration that holds now, if it is another than the service's.
    pub runtime: Option<Runtime>,
    /// The session, with what a new one stores.
    pub session: SessionRequest,
    /// Who calls, such as the name of an API key. The history shows it before the client's own name.
    pub who: String,
}

/// A sandbox of a server's own.
pub(crate) struct Own {
    settings: Overrides,
    opened: Mutex<Option<Arc<Opened>>>,
}

impl Own {
    pub fn new(settings: Overrides) -> Self {
        Self { settings, opened: Mutex::new(None) }
    }

    /// The sandbox, opened if it is not there yet, or not there any more.
    async fn open(&self, runtime: &Runtime, progress: &BuildSink) -> Result<Open> {
        let mut held = self.opened.lock().await;
        let mut restarted = None;
        if let Some(opened) = &*held {
            if opened.sandbox.activity().await.is_ok() {
                return Ok(Open::Own { opened: Arc::clone(opened), restarted: None });
            }
            // What is left of it goes, before another one comes.
            let _ = opened.sandbox.close().await;
            *held = None;
            restarted = Some(Gone::Crash);
        }
        let opened = Arc::new(runtime.open_with(&self.settings, progress).await?);
        *held = Some(Arc::clone(&opened));
        Ok(Open::Own { opened, restarted })
    }

    /// The sandbox if it is open.
    pub async fn found(&self) -> Option<Arc<dyn Sandbox>> {
        self.opened.lock().await.as_ref().map(|opened| Arc::clone(&opened.sandbox))
    }

    /// Ends it, after an opening that is under way.
    pub async fn close(&self) -> Result<()> {
        match self.opened.lock().await.take() {
            Some(opened) => opened.sandbox.close().await,
            None => Ok(()),
        }
    }
}

/// A session, as a server was told to use it.
pub(crate) struct Lasting {
    request: SessionRequest,
    /// Whether its sandbox is still to be ended first, as the request asks.
    recreate: Mutex<bool>,
}

impl Lasting {
    pub fn new(mut request: SessionRequest) -> Self {
        let recreate = std::mem::take(&mut request.recreate);
        Self { request, recreate: Mutex::new(recreate) }
    }

    pub fn key(&self) -> &SessionKey {
        &self.request.key
    }

    async fn open(&self, runtime: &Runtime, caller: Caller, progress: &BuildSink) -> Result<Open> {
        let mut request = SessionRequest { caller, ..self.request.clone() };
        let mut recreate = self.recreate.lock().await;
        let open = if *recreate {
            // Nobody else goes in before it is made anew.
            request.recreate = true;
            let open = runtime.open_session_with(&request, progress).await?;
            *recreate = false;
            open
        } else {
            drop(recreate);
            runtime.open_session_with(&request, progress).await?
        };
        Ok(Open::Session(Box::new(open)))
    }
}

/// Where one call works.
#[derive(Clone)]
pub(crate) enum Where {
    Own(Arc<Own>),
    Session(Arc<Lasting>),
}

impl Where {
    /// Opens it. An opening that has begun is carried to its end, though whoever asked for it goes away: half of one
    /// would have to be swept by the next.
    pub async fn open(&self, runtime: &Runtime, caller: &Caller, progress: BuildSink) -> Result<Open> {
        let (place, runtime, caller) = (self.clone(), runtime.clone(), caller.clone());
        let opening = tokio::spawn(async move {
            match place {
                Self::Own(own) => own.open(&runtime, &progress).await,
                Self::Session(session) => session.open(&runtime, caller, &progress).await,
            }
        });
        opening.await.unwrap_or_else(|error| Err(ToolError::Broke(error.to_string()).into()))
    }

    /// The sandbox if it runs. Nothing is started.
    pub async fn found(&self, runtime: &Runtime) -> Result<Option<Arc<dyn Sandbox>>> {
        match self {
            Self::Own(own) => Ok(own.found().await),
            Self::Session(session) => {
                let Some(_) = runtime.session(session.key()).await? else { return Ok(None) };
                Ok(runtime.find_sandbox(session.key()).await?.map(|(_, sandbox)| sandbox))
            }
        }
    }
}

/// An open sandbox.
pub(crate) enum Open {
    Own { opened: Arc<Opened>, restarted: Option<Gone> },
    Session(Box<OpenSession>),
}

impl Open {
    pub fn sandbox(&self) -> &Arc<dyn Sandbox> {
        match self {
            Self::Own { opened, .. } => &opened.sandbox,
            Self::Session(open) => &open.sandbox,
        }
    }

    pub fn backend(&self) -> BackendName {
        match self {
            Self::Own { opened, .. } => opened.backend,
            Self::Session(open) => open.backend,
        }
    }

    pub fn spec(&self) -> &SandboxSpec {
        match self {
            Self::Own { opened, .. } => &opened.spec,
            Self::Session(open) => open.spec(),
        }
    }

    pub fn not_enforced(&self) -> &[NotEnforced] {
        match self {
            Self::Own { opened, .. } => &opened.not_enforced,
            Self::Session(open) => &open.not_enforced,
        }
    }

    pub fn notes(&self) -> &[String] {
        match self {
            Self::Own { opened, .. } => &opened.notes,
            Self::Session(open) => &open.notes,
        }
    }

    pub fn session(&self) -> Option<&SessionKey> {
        match self {
            Self::Own { .. } => None,
            Self::Session(open) => Some(open.key()),
        }
    }

    pub fn restarted(&self) -> Option<Gone> {
        match self {
            Self::Own { restarted, .. } => *restarted,
            Self::Session(open) => open.restarted,
        }
    }

    pub fn lost(&self) -> &[LostCommand] {
        match self {
            Self::Own { .. } => &[],
            Self::Session(open) => &open.lost,
        }
    }

    /// Where commands run that name no directory.
    pub fn directory(&self) -> GuestPath {
        let known = self.sandbox().directory();
        known.or_else(|| GuestPath::new("/home/sandbox")).unwrap_or_else(|| unreachable!("it is absolute"))
    }

    /// Starts a command.
    pub async fn exec(&mut self, request: ExecRequest) -> Result<Exec> {
        match self {
            Self::Own { opened, .. } => opened.sandbox.exec(request).await,
            Self::Session(open) => open.exec(request).await,
        }
    }

    /// Its files, under the rules of the configuration, for one use of them.
    pub async fn files(&self, runtime: &Runtime) -> RuledFiles<'_> {
        if let Self::Session(open) = self {
            open.note_use().await;
        }
        RuledFiles::new(self.sandbox().files(), FileRules::new(runtime.config()))
    }

    /// A path as a model writes it: from the root, or from where commands run.
    ///
    /// # Errors
    /// `path-invalid`.
    pub fn path(&self, text: &str) -> Result<GuestPath> {
        let bytes = match text {
            "" | "." => self.directory().as_bytes().to_vec(),
            text if text.starts_with('/') => text.as_bytes().to_vec(),
            text => {
                let text = text.strip_prefix("./").unwrap_or(text);
                [self.directory().as_bytes(), b"/", text.as_bytes()].concat()
            }
        };
        GuestPath::new(bytes).ok_or_else(|| ToolError::Path(text.to_owned()).into())
    }

    /// What has become of the place since it was last used, in lines.
    pub fn news(&self) -> Vec<String> {
        let restarted = self.restarted().map(|gone| format!("[this is a new sandbox: {}]", why(gone)));
        let lost = self
            .lost()
            .iter()
            .map(|lost| format!("[lost: how command {} ended is not known: {}]", lost.number, lost.command));
        restarted.into_iter().chain(lost).collect()
    }
}

/// Why there is a new sandbox, in words.
fn why(gone: Gone) -> &'static str {
    match gone {
        Gone::Idle => "the last one was unused for its time; what was outside of the home is gone",
        Gone::Spec => "what it is to be has changed; what was outside of the home is gone",
        Gone::Crash => "the last one had died; what was outside of the home is gone",
        Gone::Failover => "the backend of the last one failed",
        Gone::Stopped => "the last one was stopped; what was outside of the home is gone",
        Gone::Evicted => "the last one made room for another; what was outside of the home is gone",
        Gone::Recreated => "the last one was ended, as asked",
        Gone::FilesMount => "in the last one the managed files were taken away",
    }
}
