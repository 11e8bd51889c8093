//! The calls that are made, one function each.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Method;
use hyper::body::Incoming;
use serde::de::DeserializeOwned;

use super::wire::{
    Command, Create, Created, Line, Page, Policy, Record, Running, Session, Snapped, Snapshot, Told,
};
use crate::http::{Call, Client, Failure, escaped};
use crate::machine::{Output, Piece};
use crate::retry::Again;

/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(30);
/// How long a machine may take to be made or ended.
const CHANGE: Duration = Duration::from_secs(120);
/// How long it may take to keep a disk.
const SNAPSHOT: Duration = Duration::from_secs(600);
/// Longest line of a stream: the first one repeats the whole command.
const MAX_LINE: usize = 16 << 20;
/// How often a stream that broke off is taken up again.
const TAKEN_UP: u32 = 5;

/// One project at Vercel.
#[derive(Debug)]
pub struct Vercel {
    client: Client,
    project: String,
    team: Option<String>,
}

impl Vercel {
    pub fn new(client: Client, project: String, team: Option<String>) -> Self {
        Self { client, project, team }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn project(&self) -> &str {
        &self.project
    }

    fn call(&self, method: Method, path: &str, query: &[(&str, &str)], again: Again) -> Call {
        let team = self.team.as_deref().map(|team| ("teamId", team));
        let query: Vec<String> = team
            .iter()
            .chain(query)
            .map(|(name, value)| format!("{}={}", escaped(name), escaped(value)))
            .collect();
        let query = if query.is_empty() { String::new() } else { format!("?{}", query.join("&")) };
        Call {
            method,
            path: format!("{path}{query}"),
            body: Bytes::new(),
            content: "application/json",
            headers: Vec::new(),
            again,
            within: QUESTION,
        }
    }

    async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Failure> {
        self.client.json(&call).await
    }

    /// Makes a machine. Its name is used once, so that a second try finds what the first one made.
    pub async fn create(&self, create: &Create<'_>) -> Result<Created, Failure> {
        let version = if create.runtime.is_some() { "v2" } else { "v3" };
        let mut call = self.call(Method::POST, &format!("/{version}/sandboxes"), &[], Again::Never);
        call.body = body(create)?;
        call.within = CHANGE;
        self.json(call).await
    }

    /// A machine by name.
    pub async fn named(&self, name: &str) -> Result<Created, Failure> {
        let path = format!("/v2/sandboxes/{}", escaped(name));
        self.json(self.call(Method::GET, &path, &[("projectId", &self.project)], Again::Safe)).await
    }

    /// Machines with this tag.
    pub async fn tagged(&self, tag: &str) -> Result<Vec<Record>, Failure> {
        let mut records = Vec::new();
        let mut cursor: Option<String> = None;
        for _ in 0..100 {
            let mut query = vec![("project", self.project.as_str()), ("limit", "50"), ("tags", tag)];
            if let Some(cursor) = &cursor {
                query.push(("cursor", cursor));
            }
            let page: Page = self.json(self.call(Method::GET, "/v2/sandboxes", &query, Again::Safe)).await?;
            records.extend(page.sandboxes);
            cursor = page.pagination.next;
            if cursor.is_none() {
                break;
            }
        }
        Ok(records)
    }

    /// Whether the token may use the project.
    pub async fn try_out(&self) -> Result<(), Failure> {
        let query = [("project", self.project.as_str()), ("limit", "1")];
        let _: Page = self.json(self.call(Method::GET, "/v2/sandboxes", &query, Again::Safe)).await?;
        Ok(())
    }

    /// One run of a machine.
    pub async fn session(&self, id: &str) -> Result<Session, Failure> {
        let told: Told = self.json(self.call(Method::GET, &session(id, ""), &[], Again::Safe)).await?;
        Ok(told.session)
    }

    /// Ends a run.
    pub async fn stop(&self, id: &str) -> Result<(), Failure> {
        let mut call = self.call(Method::POST, &session(id, "/stop"), &[], Again::Safe);
        call.within = CHANGE;
        self.client.send(&call).await.map(drop)
    }

    /// Removes a machine and what runs of it.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        let path = format!("/v2/sandboxes/{}", escaped(name));
        let mut call = self.call(Method::DELETE, &path, &[("projectId", &self.project)], Again::Safe);
        call.within = CHANGE;
        self.client.send(&call).await.map(drop)
    }

    /// Gives a run more time.
    pub async fn extend(&self, id: &str, millis: u64) -> Result<Session, Failure> {
        let mut call = self.call(Method::POST, &session(id, "/extend-timeout"), &[], Again::Never);
        call.body = body(&serde_json::json!({ "duration": millis }))?;
        let told: Told = self.json(call).await?;
        Ok(told.session)
    }

    /// What a run may reach from now on; how it is then.
    pub async fn policy(&self, id: &str, policy: &Policy) -> Result<Session, Failure> {
        let mut call = self.call(Method::POST, &session(id, "/network-policy"), &[], Again::Safe);
        call.body = body(policy)?;
        let told: Told = self.json(call).await?;
        Ok(told.session)
    }

    /// Keeps what is on a machine's disk, for as many milliseconds. The run ends with it.
    pub async fn snapshot(&self, id: &str, expiration: u64) -> Result<Snapshot, Failure> {
        let mut call = self.call(Method::POST, &session(id, "/snapshot"), &[], Again::Never);
        call.body = body(&serde_json::json!({ "expiration": expiration }))?;
        call.within = SNAPSHOT;
        let told: Snapped = self.json(call).await?;
        Ok(told.snapshot)
    }

    /// Puts an archive (tar, gzip) there.
    pub async fn write(&self, id: &str, archive: Bytes) -> Result<(), Failure> {
        let mut call = self.call(Method::POST, &session(id, "/fs/write"), &[], Again::Safe);
        call.body = archive;
        call.content = "application/gzip";
        call.headers = vec![("x-cwd", "/".to_owned())];
        call.within = CHANGE;
        self.client.send(&call).await.map(drop)
    }

    /// Starts a command that nobody waits for.
    pub async fn detach(&self, id: &str, command: &Command<'_>) -> Result<(), Failure> {
        let mut call = self.call(Method::POST, &session(id, "/cmd"), &[], Again::Never);
        call.body = body(command)?;
        call.within = CHANGE;
        let _: Running = self.json(call).await?;
        Ok(())
    }

    /// Starts a command; its output comes as it is printed.
    pub async fn command(self: &Arc<Self>, id: &str, command: &Command<'_>) -> Result<Logs, Failure> {
        let mut call = self.call(Method::POST, &session(id, "/cmd"), &[], Again::Never);
        call.body = body(command)?;
        call.within = CHANGE;
        let answer = self.client.send(&call).await?;
        let mut logs = Logs {
            vercel: Arc::clone(self),
            session: id.to_owned(),
            command: None,
            lines: Some(Lines::new(answer.into_body())),
            seen: [0; 2],
            skip: [0; 2],
            again: 0,
            waits: true,
        };
        match logs.line().await? {
            Some(Line::Command { command }) => logs.command = Some(command.id),
            Some(Line::Log { .. }) => {
                return Err(Failure::Unlike("output came before the command".to_owned()));
            }
            None => return Err(Failure::Broken("the answer broke off".to_owned())),
        }
        Ok(logs)
    }
}

fn session(id: &str, rest: &str) -> String {
    format!("/v2/sandboxes/sessions/{}{rest}", escaped(id))
}

fn body(value: &impl serde::Serialize) -> Result<Bytes, Failure> {
    serde_json::to_vec(value).map(Bytes::from).map_err(|error| Failure::Unlike(error.to_string()))
}

/// Lines of an answer.
struct Lines {
    body: Incoming,
    buffer: Vec<u8>,
    searched: usize,
}

impl Lines {
    fn new(body: Incoming) -> Self {
        Self { body, buffer: Vec::new(), searched: 0 }
    }

    /// The next line; `None` at the end. What comes behind the last line break is none.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        loop {
            if let Some(at) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') {
                let rest = self.buffer.split_off(self.searched + at + 1);
                self.searched = 0;
                return Ok(Some(std::mem::replace(&mut self.buffer, rest)));
            }
            self.searched = self.buffer.len();
            if self.buffer.len() > MAX_LINE {
                return Err(Failure::Unlike("a line is longer than any should be".to_owned()));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Failure::Broken(error.to_string())),
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                    }
                }
            }
        }
    }
}

/// The output of a command. When the connection breaks off it is taken up again where it was: the provider keeps it.
pub struct Logs {
    vercel: Arc<Vercel>,
    session: String,
    command: Option<String>,
    lines: Option<Lines>,
    /// Bytes that came of each stream.
    seen: [usize; 2],
    /// Bytes of each stream that have come before.
    skip: [usize; 2],
    again: u32,
    /// Whether this is the answer to the command, whose last line is its end.
    waits: bool,
}

impl Logs {
    async fn line(&mut self) -> Result<Option<Line>, Failure> {
        let Some(lines) = &mut self.lines else { return Ok(None) };
        let Some(line) = lines.next().await? else { return Ok(None) };
        serde_json::from_slice(&line)
            .map(Some)
            .map_err(|_| Failure::Unlike("a line of output is not what it should be".to_owned()))
    }

    /// Begins again from the start of the output.
    async fn take_up(&mut self, why: Failure) -> Result<(), Failure> {
        let Some(command) = &self.command else { return Err(why) };
        self.again += 1;
        if self.again > TAKEN_UP {
            return Err(why);
        }
        self.waits = false;
        self.skip = self.seen;
        let path = session(&self.session, &format!("/cmd/{}/logs", escaped(command)));
        let mut call = self.vercel.call(Method::GET, &path, &[], Again::Safe);
        call.within = CHANGE;
        let answer = self.vercel.client.send(&call).await?;
        self.lines = Some(Lines::new(answer.into_body()));
        Ok(())
    }

    /// Whether the command is over, by the provider's word.
    async fn is_over(&self) -> Result<bool, Failure> {
        let Some(command) = &self.command else { return Ok(false) };
        let path = session(&self.session, &format!("/cmd/{}", escaped(command)));
        let told: Running = self.vercel.json(self.vercel.call(Method::GET, &path, &[], Again::Safe)).await?;
        Ok(told.command.exit_code.is_some())
    }

    fn text(&mut self, which: usize, data: &str) -> Option<String> {
        let skipped = self.skip[which].min(data.len());
        self.skip[which] -= skipped;
        // Output of ours is ASCII; anything else is not looked at closely.
        let text = data.get(skipped..).unwrap_or_default();
        self.seen[which] += text.len();
        (!text.is_empty()).then(|| text.to_owned())
    }
}

#[async_trait]
impl Output for Logs {
    async fn next(&mut self) -> Result<Option<Piece>, Failure> {
        loop {
            match self.line().await {
                Ok(Some(Line::Command { command })) if command.exit_code.is_some() => {
                    self.lines = None;
                    return Ok(None);
                }
                Ok(Some(Line::Command { .. })) => {}
                Ok(Some(Line::Log { stream, data })) => match (stream.as_str(), data.as_str()) {
                    ("stdout", Some(data)) => {
                        if let Some(text) = self.text(0, data) {
                            return Ok(Some(Piece::Stdout(text)));
                        }
                    }
                    ("stderr", Some(data)) => {
                        if let Some(text) = self.text(1, data) {
                            return Ok(Some(Piece::Stderr(text)));
                        }
                    }
                    ("error", _) => {
                        let word =
                            |name: &str| data.get(name).and_then(|word| word.as_str()).unwrap_or_default();
                        let (code, message) =
                            (word("code").to_owned(), self.vercel.client.scrub(word("message")));
                        if code == "sandbox_stopped" {
                            return Err(Failure::Answer {
                                status: 410,
                                code: Some(code),
                                message,
                                retry_after: None,
                            });
                        }
                        self.take_up(Failure::Broken(format!("{code}: {message}"))).await?;
                    }
                    _ => return Err(Failure::Unlike("a line of output is of an unknown stream".to_owned())),
                },
                Ok(None) if self.lines.is_none() => return Ok(None),
                Ok(None) => {
                    // What came again ends with the command; the answer to it only with its last line.
                    if !self.waits && self.is_over().await? {
                        self.lines = None;
                        return Ok(None);
                    }
                    self.take_up(Failure::Broken("the stream ended early".to_owned())).await?;
                }
                Err(error @ Failure::Broken(_)) => self.take_up(error).await?,
                Err(error) => return Err(error),
            }
        }
    }
}
