//! A server on a data directory of its own, and a client of it.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use moltis_config::{BackendChoice, Config};
use moltis_mcp::{Place, Server, stdio};
use moltis_runtime::{Overrides, Runtime, SessionRequest};
use moltis_sandbox::{BackendName, SessionKey};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    ProgressNotificationParam,
};
use rmcp::service::{NotificationContext, RunningService};
use rmcp::{ClientHandler, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The backends that the same promises are held against.
pub const BACKENDS: [BackendName; 2] = [BackendName::Namespaces, BackendName::RestrictedHost];

/// How long a test waits for what has to come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A data directory of its own.
pub struct Here {
    temp: tempfile::TempDir,
    pub backend: BackendName,
}

impl Here {
    pub fn new(backend: BackendName) -> Self {
        Self { temp: tempfile::tempdir().unwrap(), backend }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.temp.path().canonicalize().unwrap().join(name)
    }

    pub fn runtime_with(&self, change: impl FnOnce(&mut Config)) -> Runtime {
        let mut config = Config::default();
        config.data_dir.value = self.path("data");
        config.tools.exec.sandbox.backend.value = BackendChoice::Named(self.backend);
        change(&mut config);
        Runtime::new(config, None, Vec::new())
    }

    pub fn runtime(&self) -> Runtime {
        self.runtime_with(|_| {})
    }

    /// A client of a server with a sandbox of its own.
    pub async fn client(&self) -> Client {
        Client::new(Server::new(self.runtime(), Place::Own(Overrides::default()))).await
    }

    /// A client of a server for a session.
    pub async fn client_of(&self, key: &str) -> Client {
        let request = SessionRequest::new(SessionKey::new(key).unwrap());
        Client::new(Server::new(self.runtime(), Place::Session(request))).await
    }

    /// Names of what is left of sandboxes.
    pub fn remains(&self) -> Vec<String> {
        let mut names = Vec::new();
        for folder in ["run", "run-host"] {
            let Ok(entries) = std::fs::read_dir(self.path("data").join(folder)) else { continue };
            let there = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
            names.extend(there.filter(|name| moltis_sandbox::SandboxId::parse(name).is_some()));
        }
        names
    }

    /// Ends all there is and sees that nothing is left.
    pub async fn end(self) {
        let runtime = self.runtime();
        for info in runtime.sandboxes().await.unwrap() {
            runtime.remove_sandbox(&info.id).await.unwrap();
        }
        assert_eq!(self.remains(), Vec::<String>::new());
    }
}

/// What a client does with progress: it keeps it.
#[derive(Clone, Default)]
pub struct Keeps(pub Arc<Mutex<Vec<ProgressNotificationParam>>>);

impl ClientHandler for Keeps {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("tester", "1.2"))
    }

    async fn on_progress(&self, param: ProgressNotificationParam, _: NotificationContext<RoleClient>) {
        self.0.lock().unwrap().push(param);
    }
}

/// A client and the server that it speaks to.
pub struct Client {
    pub service: RunningService<RoleClient, Keeps>,
    pub progress: Keeps,
    serving: JoinHandle<()>,
    stop: CancellationToken,
}

impl Client {
    pub async fn new(server: Server) -> Self {
        let (near, far) = tokio::io::duplex(64 * 1024);
        let (read, write) = tokio::io::split(far);
        let stop = CancellationToken::new();
        let (served, stopped) = (server.clone(), stop.clone());
        let serving = tokio::spawn(async move {
            stdio::serve(&served, read, write, stopped.cancelled_owned()).await.unwrap();
            served.close().await.unwrap();
        });
        let progress = Keeps::default();
        let service = progress.clone().serve(near).await.unwrap();
        Self { service, progress, serving, stop }
    }

    pub fn params(name: &str, arguments: Value) -> CallToolRequestParams {
        let Value::Object(arguments) = arguments else { panic!("{arguments}") };
        CallToolRequestParams::new(name.to_owned()).with_arguments(arguments)
    }

    pub async fn call(&self, name: &str, arguments: Value) -> CallToolResult {
        self.service.call_tool(Self::params(name, arguments)).await.unwrap()
    }

    /// Calls it; gives the data of an answer that is none of an error, and fits the tool's output schema.
    pub async fn good(&self, name: &'static str, arguments: Value) -> Value {
        let result = self.call(name, arguments.clone()).await;
        assert_eq!(result.is_error, Some(false), "{name} {arguments}: {result:?}");
        let data = result.structured_content.clone().unwrap();
        let tools = self.service.list_all_tools().await.unwrap();
        let tool = tools.iter().find(|tool| tool.name == name).unwrap();
        let schema = Value::Object(tool.output_schema.as_ref().unwrap().as_ref().clone());
        fits(&data, &schema, name);
        data
    }

    /// Calls it; gives the code of its error.
    pub async fn bad(&self, name: &str, arguments: Value) -> String {
        let result = self.call(name, arguments).await;
        assert_eq!((result.is_error, &result.structured_content), (Some(true), &None), "{result:?}");
        let code = result.meta.as_ref().unwrap().0["error"]["code"].as_str().unwrap().to_owned();
        assert!(text(&result).starts_with(&format!("error[{code}]: ")), "{result:?}");
        code
    }

    /// Runs a line; gives its standard output.
    pub async fn sh(&self, line: &str) -> String {
        let data = self.good("exec", json!({ "command": line })).await;
        assert_eq!(data["exitCode"], 0, "{line}: {data}");
        data["stdout"].as_str().unwrap().to_owned()
    }

    /// Closes the client's end, and waits until the server has ended.
    pub async fn leave(self) {
        self.service.cancel().await.unwrap();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap();
    }

    /// Tells the server to stop, as a signal does, and waits until it has ended.
    pub async fn stop(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.serving).await.unwrap().unwrap();
    }
}

/// The text of an answer.
pub fn text(result: &CallToolResult) -> &str {
    &result.content[0].as_text().unwrap().text
}

/// Sees that a value is as a schema says, as far as our own schemas go. What it does not name is not there.
#[track_caller]
pub fn fits(value: &Value, schema: &Value, place: &str) {
    let is = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        other => panic!("{place}: {other:?}"),
    };
    assert!(is, "{place}: {value} is not as {schema}");
    if let Some(words) = schema["enum"].as_array() {
        assert!(words.contains(value), "{place}: {value} is not in {words:?}");
    }
    for item in value.as_array().into_iter().flatten() {
        fits(item, &schema["items"], place);
    }
    let (Some(fields), Some(known)) = (value.as_object(), schema["properties"].as_object()) else { return };
    for name in schema["required"].as_array().unwrap() {
        assert!(fields.contains_key(name.as_str().unwrap()), "{place}: no {name} in {value}");
    }
    for (name, value) in fields {
        // A process has fields of its own, of which the schema names the most telling.
        let Some(known) = known.get(name) else {
            assert!(place.contains("processes"), "{place}: {name} is not in the schema");
            continue;
        };
        fits(value, known, &format!("{place}.{name}"));
    }
}

/// Waits until it is so.
pub async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Processes of this machine whose command line holds a text.
pub fn processes_with(mark: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(mark) {
            found.push(line);
        }
    }
    found
}

/// A number for `sleep` by which a test's processes are known.
pub fn mark() -> String {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("4{}.{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}
