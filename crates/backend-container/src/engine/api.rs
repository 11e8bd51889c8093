//! Docker, and Podman's service, over the HTTP API that they have on a socket.
//!
//! What an engine answers is read here and not by a ready-made client, because an answer may be of any size: whole
//! answers, lines, frames and messages have limits, and no answer that is not as documented can stop a caller.

pub(super) mod build;
mod create;
mod credentials;
mod exec;
mod http;
mod images;
pub(super) mod info;
pub(super) mod shapes;
mod wire;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use self::exec::{Frames, Raw, halves};
use self::http::{Body, CHANGE, Client, Dialect, Failure, QUESTION, Refusal, Request, encoded, within};
use self::shapes::{Inspected, InspectedExec, Listed, Made, Removed, carries};
use self::wire::Connector;
use super::endpoint::{Endpoint, Environment};
use super::words::is_full;
use super::{
    BuildSpec, Bytes, Committed, Container, ContainerSpec, ContainerState, Engine, EngineError, EngineInfo,
    EngineKind, ExecSpec, Execution, Image, Place, ProgressSink, Result,
};

/// How often a list is asked for again of which something went away meanwhile.
const VANISHED: u32 = 20;

/// Seconds that an engine has to keep what was written to a container: it is read and written once.
const COMMIT: u64 = 600;

/// How often it is looked again whether something is over that cannot be waited for.
const LOOK: Duration = Duration::from_millis(100);

/// An engine behind a socket.
pub(super) struct Api {
    client: Arc<Client>,
    kind: EngineKind,
    place: Place,
    environment: Environment,
}

impl Api {
    /// Reads TLS files, if there are any. Blocks. Nothing is connected to.
    pub(super) fn new(
        kind: EngineKind,
        endpoint: Endpoint,
        place: Place,
        environment: &Environment,
    ) -> Result<Self> {
        let connector = Connector::new(kind, endpoint, environment)?;
        Ok(Self { client: Arc::new(Client::new(connector)), kind, place, environment: environment.clone() })
    }

    /// A path of the engine's own API.
    async fn path(&self, path: &str) -> Result<String> {
        Ok(format!("{}{path}", self.client.dialect().await?.prefix()))
    }

    /// A path of a container.
    async fn container_path(&self, id: &str, path: &str) -> Result<String> {
        self.path(&format!("/containers/{}{path}", encoded(id))).await
    }

    async fn is_podman(&self) -> Result<bool> {
        Ok(self.client.dialect().await?.is_podman())
    }

    /// An error of a call that names a container.
    fn of_container(&self, id: &str, failure: Failure) -> EngineError {
        if failure.is_missing() || failure.has_vanished() {
            return EngineError::NoSuchContainer { id: id.to_owned() };
        }
        failure.plain(self.kind)
    }

    async fn inspected(&self, id: &str) -> Result<Option<Inspected>> {
        let request = Request::get(self.container_path(id, "/json").await?);
        match self.client.ask::<Inspected>(QUESTION, "describe a container", request).await {
            Ok(inspected) if inspected.has_id() => Ok(Some(inspected)),
            Ok(_) => Err(self.client.nonsense(&"a container without an id")),
            Err(failure) if failure.is_missing() || failure.has_vanished() => Ok(None),
            Err(failure) => Err(failure.plain(self.kind)),
        }
    }

    /// One attempt to remove a container: whether it is gone, and else why not.
    async fn try_remove(&self, id: &str) -> Result<Result<(), Refusal>> {
        // After a fork bomb a polite end takes longer than the bomb does to grow again.
        let query = "?force=true&v=true&volumes=true&timeout=0";
        let request = Request::delete(self.container_path(id, query).await?);
        let answer = match self.client.tell(CHANGE, "remove a container", request).await {
            Ok(bytes) => bytes,
            Err(failure) if failure.is_missing() => return Ok(Ok(())),
            Err(Failure::Refused(refusal)) => return Ok(Err(refusal)),
            Err(Failure::Other(error)) => return Err(error),
        };
        // Podman answers with what became of each, and calls that a success.
        let removed: Vec<Removed> = serde_json::from_slice(&answer).unwrap_or_default();
        for one in removed {
            let text = match one.err {
                Value::Null => continue,
                Value::String(text) if text.is_empty() => continue,
                Value::String(text) => text,
                other => other.to_string(),
            };
            let message = super::words::message(&text);
            return Ok(Err(Refusal { status: 500, message, cause: String::new() }));
        }
        Ok(Ok(()))
    }
}

#[async_trait]
impl Engine for Api {
    fn kind(&self) -> EngineKind {
        self.kind
    }

    fn endpoint(&self) -> String {
        self.client.connector().name()
    }

    async fn info(&self) -> Result<EngineInfo> {
        info::info(&self.client, self.place, &self.environment).await
    }

    async fn create(&self, spec: &ContainerSpec) -> Result<String> {
        let (path, body) = match self.client.dialect().await? {
            dialect @ Dialect::Docker(..) => (
                format!("{}/containers/create?name={}", dialect.prefix(), encoded(&spec.name)),
                create::docker(spec)?,
            ),
            dialect @ Dialect::Podman(_) => {
                (format!("{}/containers/create", dialect.prefix()), create::podman(spec)?)
            }
        };
        let request = Request::post(path).json(&body);
        match self.client.ask::<Made>(CHANGE, "create a container", request).await {
            Ok(made) if made.id.is_empty() => Err(self.client.nonsense(&"a container without an id")),
            Ok(made) => Ok(made.id),
            Err(failure) => {
                let no_image = failure.is_missing()
                    || matches!(&failure, Failure::Refused(refusal) if refusal.cause == "image not known");
                if no_image {
                    return Err(EngineError::NoSuchImage { reference: spec.image.clone() });
                }
                Err(failure.plain(self.kind))
            }
        }
    }

    async fn start(&self, id: &str) -> Result<()> {
        let request = Request::post(self.container_path(id, "/start").await?);
        match self.client.tell(CHANGE, "start a container", request).await {
            Ok(_) => Ok(()),
            Err(Failure::Refused(Refusal { status: 404, message, .. })) => {
                // Docker says the same of a program that is not there, in older versions.
                if self.inspected(id).await?.is_some() {
                    return Err(EngineError::CannotStart { message });
                }
                Err(EngineError::NoSuchContainer { id: id.to_owned() })
            }
            Err(Failure::Refused(refusal))
                if !matches!(refusal.status, 502..=504) && !is_full(&refusal.message) =>
            {
                Err(EngineError::CannotStart { message: refusal.message })
            }
            Err(failure) => Err(failure.plain(self.kind)),
        }
    }

    async fn inspect(&self, id: &str) -> Result<Option<Container>> {
        Ok(self.inspected(id).await?.map(Inspected::into_container))
    }

    async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>> {
        let filters = json!({"label": filters(labels)}).to_string();
        let path = self.path(&format!("/containers/json?all=true&filters={}", encoded(&filters))).await?;
        let mut attempt = 0;
        let listed: Option<Vec<Listed>> = loop {
            match self.client.ask(QUESTION, "list containers", Request::get(path.clone())).await {
                // Others' containers come and go while they are listed.
                Err(failure) if failure.has_vanished() && attempt < VANISHED => attempt += 1,
                listed => break listed.map_err(|failure| failure.plain(self.kind))?,
            }
        };
        let containers = listed.unwrap_or_default().into_iter().map(Listed::into_container);
        Ok(containers.filter(|container| carries(&container.labels, labels)).collect())
    }

    async fn remove(&self, id: &str) -> Result<()> {
        within(self.kind, CHANGE, "remove a container", async {
            let mut attempt: u32 = 0;
            loop {
                let refusal = match self.try_remove(id).await? {
                    Ok(()) => return Ok(()),
                    Err(refusal) => refusal,
                };
                attempt += 1;
                match self.inspected(id).await? {
                    None => return Ok(()),
                    // Somebody else removes it, or the engine does: it is waited for.
                    Some(_) if refusal.status == 409 => {}
                    Some(_) if attempt < 20 && !is_full(&refusal.message) => {}
                    Some(_) => return Err(Failure::Refused(refusal).plain(self.kind)),
                }
                tokio::time::sleep(LOOK * attempt.min(10)).await;
            }
        })
        .await
    }

    async fn wait(&self, id: &str) -> Result<()> {
        let query = if self.is_podman().await? {
            "/wait?condition=stopped&condition=exited&condition=removing&interval=50ms"
        } else {
            "/wait?condition=not-running"
        };
        loop {
            // Podman would wait for one that was never started.
            match self.inspect(id).await? {
                Some(container)
                    if matches!(container.state, ContainerState::Running | ContainerState::Paused) => {}
                _ => return Ok(()),
            }
            let request = Request::post(self.container_path(id, query).await?);
            let answer = match self.client.accepted(request).await {
                Ok(answer) => answer.into_reader(),
                Err(failure) if failure.is_missing() => return Ok(()),
                Err(failure) => {
                    // A container that goes away while it is asked for is over, whatever is said of it.
                    match self.inspected(id).await? {
                        None => return Ok(()),
                        Some(_) => return Err(failure.plain(self.kind)),
                    }
                }
            };
            // The head of the answer comes at once, its body at the end.
            let mut told = Vec::new();
            let read = answer.take(64 << 10).read_to_end(&mut told).await;
            if let Err(error) = read {
                return Err(self.client.connector().unreachable(error));
            }
            match self.inspect(id).await? {
                Some(container)
                    if matches!(container.state, ContainerState::Running | ContainerState::Paused) =>
                {
                    tokio::time::sleep(LOOK).await;
                }
                _ => return Ok(()),
            }
        }
    }

    async fn logs(&self, id: &str, limit: usize) -> Result<Vec<u8>> {
        let Some(inspected) = self.inspected(id).await? else {
            return Err(EngineError::NoSuchContainer { id: id.to_owned() });
        };
        if inspected.keeps_no_logs() {
            return Ok(Vec::new());
        }
        let path = self.container_path(id, "/logs?stdout=true&stderr=true&follow=false").await?;
        within(self.kind, CHANGE, "read a container's log", async {
            let answer = match self.client.accepted(Request::get(path)).await {
                Ok(answer) => answer,
                // The engine keeps logs where it cannot read them.
                Err(Failure::Refused(Refusal { status: 501, .. })) => return Ok(Vec::new()),
                Err(failure) => return Err(self.of_container(id, failure)),
            };
            let mut frames = Frames::new(Arc::clone(&self.client), answer.into_reader(), None);
            let mut last: VecDeque<u8> = VecDeque::new();
            while let Some((_, piece)) = super::Output::next(&mut frames).await? {
                last.extend(piece);
                let over = last.len().saturating_sub(limit);
                last.drain(..over);
            }
            Ok(last.into())
        })
        .await
    }

    async fn exec(&self, id: &str, spec: &ExecSpec) -> Result<Execution> {
        let mut body = json!({
            "AttachStdin": true,
            "AttachStdout": true,
            "AttachStderr": true,
            "Tty": spec.terminal.is_some(),
            "Cmd": spec.argv,
            "Env": spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>(),
        });
        if let Some((user, group)) = spec.user {
            body["User"] = json!(format!("{user}:{group}"));
        }
        if let Some(directory) = &spec.directory {
            body["WorkingDir"] = json!(directory);
        }
        let path = self.container_path(id, "/exec").await?;
        let made: Made = self
            .client
            .ask(CHANGE, "run a program in a container", Request::post(path).json(&body))
            .await
            .map_err(|failure| self.of_container(id, failure))?;
        let mut start = json!({"Detach": false, "Tty": spec.terminal.is_some()});
        if let Some((rows, columns)) = spec.terminal {
            // Engines that do not know this key are told the size once the program runs.
            start["ConsoleSize"] = json!([rows, columns]);
            if self.is_podman().await? {
                start["h"] = json!(rows);
                start["w"] = json!(columns);
            }
        }
        let path = self.path(&format!("/exec/{}/start", encoded(&made.id))).await?;
        let (stream, connection) = within(self.kind, CHANGE, "run a program in a container", async {
            let answer = self
                .client
                .accepted(Request::post(path).json(&start).upgrade())
                .await
                .map_err(|failure| self.of_container(id, failure))?;
            answer.into_stream().await
        })
        .await?;
        let (input, output) = halves(stream);
        if let Some((rows, columns)) = spec.terminal {
            // The program may be over already, or not run yet; its size is no reason to fail.
            let _ = self.exec_resize(&made.id, rows, columns).await;
        }
        let client = Arc::clone(&self.client);
        let output: Box<dyn super::Output> = if spec.terminal.is_some() {
            Box::new(Raw { client, reader: output, _connection: connection })
        } else {
            Box::new(Frames::new(client, Box::new(output), Some(connection)))
        };
        Ok(Execution { id: made.id, stdin: Box::new(input), output })
    }

    async fn exec_result(&self, exec: &str) -> Result<Option<i32>> {
        let path = self.path(&format!("/exec/{}/json", encoded(exec))).await?;
        let told: InspectedExec = self
            .client
            .ask(QUESTION, "say how a program does", Request::get(path))
            .await
            .map_err(|failure| failure.plain(self.kind))?;
        if !told.running {
            return Ok(Some(told.exit_code.unwrap_or(-1)));
        }
        // An engine can miss the end of a program whose container ended under it.
        match self.inspect(&told.container).await? {
            Some(container) if container.state == ContainerState::Running => Ok(None),
            Some(container) if container.state == ContainerState::Paused => Ok(None),
            _ => Ok(Some(137)),
        }
    }

    async fn exec_resize(&self, exec: &str, rows: u16, columns: u16) -> Result<()> {
        let path = self.path(&format!("/exec/{}/resize?h={rows}&w={columns}", encoded(exec))).await?;
        self.client
            .tell(QUESTION, "resize a terminal", Request::post(path))
            .await
            .map(drop)
            .map_err(|failure| failure.plain(self.kind))
    }

    async fn put_archive(&self, id: &str, directory: &str, tar: Vec<u8>) -> Result<()> {
        let path = self.container_path(id, &format!("/archive?path={}", encoded(directory))).await?;
        if self.is_podman().await? {
            // Podman says nothing of a directory that is not there.
            let request = Request::head(path.clone());
            if let Err(failure) = self.client.tell(QUESTION, "find a directory", request).await {
                return Err(self.of_path(id, directory, failure).await);
            }
        }
        let request = Request::put(path).tar(Body::Whole(tar.into()));
        match self.client.tell(CHANGE, "unpack an archive", request).await {
            Ok(_) => Ok(()),
            Err(failure) => Err(self.of_path(id, directory, failure).await),
        }
    }

    async fn get_archive(&self, id: &str, path: &str) -> Result<Bytes> {
        let url = self.container_path(id, &format!("/archive?path={}", encoded(path))).await?;
        let answer =
            within(self.kind, CHANGE, "pack an archive", self.client.accepted(Request::get(url))).await;
        match answer {
            Ok(answer) => Ok(answer.into_reader()),
            Err(failure) => Err(self.of_path(id, path, failure).await),
        }
    }

    async fn image(&self, reference: &str) -> Result<Option<Image>> {
        images::image(&self.client, reference).await
    }

    async fn images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
        images::images(&self.client, labels).await
    }

    async fn pull(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()> {
        images::pull(&self.client, &self.environment, reference, progress).await
    }

    async fn build(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
        build::build(&self.client, spec, progress).await
    }

    async fn commit(&self, id: &str, image: &Committed<'_>) -> Result<()> {
        let query = format!(
            "/commit?container={}&repo={}&tag={}&pause={}&changes={}",
            encoded(id),
            encoded(image.repository),
            encoded(image.tag),
            image.pause,
            encoded(&image.change())
        );
        let request = Request::post(self.path(&query).await?);
        let committed = self.client.tell(COMMIT, "keep a container as an image", request).await;
        committed.map(drop).map_err(|failure| self.of_container(id, failure))
    }

    async fn remove_image(&self, reference: &str) -> Result<()> {
        images::remove(&self.client, reference).await
    }

    async fn load(&self, archive: Bytes) -> Result<()> {
        images::load(&self.client, archive).await
    }

    async fn save(&self, reference: &str) -> Result<Bytes> {
        images::save(&self.client, reference).await
    }
}

impl Api {
    /// An error of a call that names a container and a path: which of them is missing is asked for.
    async fn of_path(&self, id: &str, path: &str, failure: Failure) -> EngineError {
        if !failure.is_missing() {
            return failure.plain(self.kind);
        }
        match self.inspected(id).await {
            Ok(Some(_)) => EngineError::NoSuchPath { path: path.to_owned() },
            Ok(None) => EngineError::NoSuchContainer { id: id.to_owned() },
            Err(error) => error,
        }
    }
}

/// Labels as a filter of either engine has them.
fn filters(labels: &[(&str, &str)]) -> Vec<String> {
    labels
        .iter()
        .map(|(name, value)| if value.is_empty() { (*name).to_owned() } else { format!("{name}={value}") })
        .collect()
}
