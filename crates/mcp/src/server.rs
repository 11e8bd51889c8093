//! What answers a client: who it is, which tools there are, one call after another or all at once.

use std::sync::Arc;
use std::time::Duration;

use moltis_runtime::Runtime;
use moltis_runtime::store::Caller;
use moltis_sandbox::{BuildProgress, BuildSink, Result};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{RoleServer, ServerHandler};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::answer::failed;
use crate::error::ToolError;
use crate::place::{Lasting, Open, Own, Place, Where};
use crate::progress::Progress;
use crate::tools;

/// Characters that are remembered of what a client calls itself.
const NAME: usize = 64;

/// What a model is told before it calls anything.
const INSTRUCTIONS: &str = "\
These tools run commands and work on files in one sandbox of Moltis, not on the user's machine. `exec` runs a shell \
command and waits for it; `process_start` starts one that goes on, such as a server. A path may be relative to the \
directory in which commands run. Before you rely on the network, on a folder of the user's or on a limit, ask \
`sandbox_info`: by default nothing outside can be reached. An error has a code, a cause and a fix: do what the fix says \
instead of trying the same again.";

/// The tools of one place. Clones share it; each client may have its own clone.
#[derive(Clone)]
pub struct Server(Arc<Shared>);

struct Shared {
    runtime: Runtime,
    whose: Whose,
    /// From now on commands end, and no call begins.
    closing: CancellationToken,
    calls: TaskTracker,
}

enum Whose {
    Fixed(Where),
    #[cfg(feature = "http")]
    OfRequest,
}

impl Server {
    /// A server for one place. Nothing is opened yet.
    pub fn new(runtime: Runtime, place: Place) -> Self {
        let place = match place {
            Place::Own(settings) => Where::Own(Arc::new(Own::new(settings))),
            Place::Session(request) => Where::Session(Arc::new(Lasting::new(request))),
        };
        Self::of(runtime, Whose::Fixed(place))
    }

    /// A server whose place is in each request ([`Access`](crate::Access)).
    #[cfg(feature = "http")]
    pub(crate) fn of_requests(runtime: Runtime) -> Self {
        Self::of(runtime, Whose::OfRequest)
    }

    fn of(runtime: Runtime, whose: Whose) -> Self {
        let (closing, calls) = (CancellationToken::new(), TaskTracker::new());
        Self(Arc::new(Shared { runtime, whose, closing, calls }))
    }

    /// Waits until no call runs, for this long at most; whether none does.
    pub(crate) async fn quiet(&self, patience: Duration) -> bool {
        self.0.calls.close();
        tokio::time::timeout(patience, self.0.calls.wait()).await.is_ok()
    }

    /// Ends every command that a client waits for. No call begins after this.
    pub fn end_calls(&self) {
        self.0.closing.cancel();
    }

    /// Ends every command that a client waits for, and a sandbox of the server's own with all that runs in it. A
    /// session's sandbox and what runs there in the background stay.
    ///
    /// # Errors
    /// The sandbox's own cannot be ended. What is left of it is swept by the next start.
    pub async fn close(&self) -> Result<()> {
        self.end_calls();
        self.quiet(GRACE).await;
        match &self.0.whose {
            Whose::Fixed(Where::Own(own)) => own.close().await,
            _ => Ok(()),
        }
    }

    fn place(&self, context: &RequestContext<RoleServer>) -> Result<(Runtime, Where, Caller)> {
        let client = client(context);
        match &self.0.whose {
            Whose::Fixed(place) => Ok((self.0.runtime.clone(), place.clone(), Caller::Mcp { client })),
            #[cfg(feature = "http")]
            Whose::OfRequest => {
                let access = crate::http::access(context).ok_or(ToolError::NoSession)?;
                let place = Where::Session(Arc::new(Lasting::new(access.session)));
                Ok((
                    access.runtime.unwrap_or_else(|| self.0.runtime.clone()),
                    place,
                    Caller::Mcp { client: format!("{}/{client}", access.who) },
                ))
            }
        }
    }
}

/// Time that commands have to end.
pub(crate) const GRACE: Duration = Duration::from_secs(10);

/// What a client calls itself, fit to be shown in a line.
fn client(context: &RequestContext<RoleServer>) -> String {
    let Some(Implementation { name, version, .. }) = context.client_info() else { return String::new() };
    let said = format!("{name} {version}");
    said.chars().filter(|c| !c.is_control()).take(NAME).collect::<String>().trim().to_owned()
}

/// One call of a tool.
pub(crate) struct Call {
    server: Server,
    runtime: Runtime,
    place: Where,
    caller: Caller,
    context: RequestContext<RoleServer>,
}

impl Call {
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub fn place(&self) -> &Where {
        &self.place
    }

    /// Opens the place that the call is for. A client that wants to know is told how its image comes along.
    pub async fn open(&self) -> Result<Open> {
        let progress = self.progress(None);
        let opened = self.open_telling(progress.as_ref()).await;
        if let Some(progress) = progress {
            progress.finish().await;
        }
        opened
    }

    /// The same, with the progress of what follows. An image that nobody waits for any more is given up.
    pub async fn open_telling(&self, progress: Option<&Progress>) -> Result<Open> {
        let Some(progress) = progress else {
            return self.place.open(self.runtime(), &self.caller, BuildSink::ignore()).await;
        };
        let (sink, mut told) = BuildSink::channel();
        let mut opening = std::pin::pin!(self.place.open(self.runtime(), &self.caller, sink));
        loop {
            tokio::select! {
                opened = &mut opening => return opened,
                Some(BuildProgress::Step(line) | BuildProgress::Log(line)) = told.recv() => {
                    progress.printed(format!("{line}\n").as_bytes());
                }
            }
        }
    }

    /// Waits until the client takes the call back, or goes.
    pub async fn ended(&self) {
        tokio::select! {
            () = self.context.ct.cancelled() => {}
            () = self.server.0.closing.cancelled() => {}
        }
    }

    /// What tells the client how it goes on, if the client wants to know.
    pub fn progress(&self, total: Option<Duration>) -> Option<Progress> {
        let token = self.context.meta.get_progress_token()?;
        Some(Progress::new(self.context.peer.clone(), token, total))
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let mut own = Implementation::new("moltis", env!("CARGO_PKG_VERSION"));
        own.title = Some("Moltis".to_owned());
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(own)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::all().to_vec()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::all().iter().find(|tool| tool.name == name).cloned()
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::all().iter().find(|tool| tool.name == request.name) else {
            let names: Vec<_> = tools::all().iter().map(|tool| tool.name.as_ref()).collect();
            let message = format!("there is no tool {:?}: there are {}", request.name, names.join(", "));
            return Err(ErrorData::invalid_params(message, None));
        };
        if self.0.closing.is_cancelled() {
            return Ok(failed(&ToolError::Closing.into(), &[]).into());
        }
        let (runtime, place, caller) = match self.place(&context) {
            Ok(place) => place,
            Err(error) => return Ok(failed(&error, &[]).into()),
        };
        let call = Call { server: self.clone(), runtime, place, caller, context };
        let result = self.0.calls.track_future(tools::run(&call, tool, request.arguments)).await;
        Ok(CallToolResult::into(result))
    }
}
