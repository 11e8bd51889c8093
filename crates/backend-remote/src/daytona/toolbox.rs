//! Calls to the toolbox of one sandbox: the daemon inside that runs commands and takes files.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::Method;
use moltis_agentless::{hex, random_bytes};
use serde::de::DeserializeOwned;

use super::client::{Daytona, call, with_body};
use super::wire::{Begun, Command, Directory, NewCommand, NewSession, Output, Session, Uploaded};
use crate::http::{Call, Client, Failure, Socket, escaped};
use crate::retry::Again;

/// How long an upload may take.
const UPLOAD: Duration = Duration::from_secs(120);

/// The toolbox of one sandbox.
pub struct Toolbox {
    client: Client,
    daytona: Arc<Daytona>,
    id: String,
}

impl Toolbox {
    /// Of this sandbox.
    pub fn new(client: Client, daytona: Arc<Daytona>, id: String) -> Self {
        Self { client, daytona, id }
    }

    /// The API that it belongs to.
    pub fn daytona(&self) -> &Arc<Daytona> {
        &self.daytona
    }

    /// The sandbox's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Text of the provider without the key.
    pub fn scrub(&self, text: &str) -> String {
        self.client.scrub(text)
    }

    /// A failure as it is once the sandbox has been looked at: a toolbox that cannot be had says so in the words of a bad
    /// request.
    pub async fn judged(&self, failure: Failure) -> Failure {
        if !matches!(failure.status(), Some(400 | 404 | 502 | 503)) {
            return failure;
        }
        match self.daytona.sandbox(&self.id).await {
            Ok(told) if told.state() != "started" => over(self.scrub(told.state())),
            Err(gone) if gone.status() == Some(404) => over("removed".to_owned()),
            _ => failure,
        }
    }

    async fn json<T: DeserializeOwned>(&self, call: Call) -> Result<T, Failure> {
        match self.client.json(&call).await {
            Ok(answer) => Ok(answer),
            Err(failure) => Err(self.judged(failure).await),
        }
    }

    /// Begins a session: a shell of its own. `quiet`: it is no use of the sandbox.
    pub async fn begin(&self, session: &str, quiet: bool) -> Result<(), Failure> {
        let body = NewSession { session_id: session };
        // The name is used once: one that is there was made by an earlier try.
        let mut call = with_body(Method::POST, "/process/session".to_owned(), &body, Again::Safe)?;
        call.headers = silent(quiet);
        match self.client.send(&call).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.status() == Some(409) => Ok(()),
            Err(failure) => Err(self.judged(failure).await),
        }
    }

    /// Runs a line in a session, without waiting for it; its id. A lost answer is made good: the session tells whether
    /// the line arrived, and once it is ended none can arrive any more.
    pub async fn run(&self, session: &str, line: &str, quiet: bool) -> Result<String, Failure> {
        let body = NewCommand { command: line, run_async: true };
        let mut call = with_body(Method::POST, format!("{}/exec", at(session)), &body, Again::Never)?;
        call.headers = silent(quiet);
        let failure = match self.client.json::<Begun>(&call).await {
            Ok(begun) => return Ok(begun.cmd_id),
            Err(failure @ (Failure::Broken(_) | Failure::Answer { status: 500..=599, .. })) => failure,
            Err(failure) => return Err(self.judged(failure).await),
        };
        let told: Result<Session, _> =
            self.client.json(&super::client::call(Method::GET, at(session), Again::Safe)).await;
        match told {
            Ok(Session { commands }) if !commands.is_empty() => Ok(commands[0].id.clone()),
            _ => {
                let _ = self.end(session).await;
                Err(failure)
            }
        }
    }

    /// Ends a session, and the processes of its group.
    pub async fn end(&self, session: &str) -> Result<(), Failure> {
        let mut call = call(Method::DELETE, at(session), Again::Safe);
        call.headers = silent(true);
        self.client.send(&call).await.map(drop)
    }

    /// Whether a command is over.
    pub async fn is_over(&self, session: &str, command: &str) -> Result<bool, Failure> {
        let path = format!("{}/command/{}", at(session), escaped(command));
        let told: Command = self.json(call(Method::GET, path, Again::Safe)).await?;
        Ok(told.exit_code.is_some())
    }

    /// All that a command has printed.
    pub async fn printed(&self, session: &str, command: &str) -> Result<String, Failure> {
        let path = format!("{}/command/{}/logs", at(session), escaped(command));
        let told: Output = self.json(call(Method::GET, path, Again::Safe)).await?;
        Ok(told.output)
    }

    /// What a command has printed and prints.
    pub async fn follow(&self, session: &str, command: &str) -> Result<Socket, Failure> {
        let path = format!("{}/command/{}/logs?follow=true", at(session), escaped(command));
        let call = call(Method::GET, path, Again::Safe);
        match self.client.socket(&call).await {
            Ok(socket) => Ok(socket),
            Err(failure) => Err(self.judged(failure).await),
        }
    }

    /// Where the daemon works; `None` where it does not say.
    pub async fn directory(&self) -> Result<Option<String>, Failure> {
        match self.json::<Directory>(call(Method::GET, "/work-dir".to_owned(), Again::Safe)).await {
            Ok(told) => Ok(Some(told.dir).filter(|dir| dir.starts_with('/'))),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Puts files there, in this order. All of them, or it is an error: what a part of them came to is not kept.
    pub async fn upload(&self, files: &[(String, Bytes)]) -> Result<(), Failure> {
        let boundary = format!(
            "moltis-{}",
            hex(&random_bytes::<16>().map_err(|error| Failure::Unlike(error.to_string()))?)
        );
        let mut upload = call(Method::POST, "/files/bulk-upload".to_owned(), Again::Safe);
        upload.body = multipart(&boundary, files);
        upload.headers = vec![("content-type", format!("multipart/form-data; boundary={boundary}"))];
        upload.within = UPLOAD;
        let told: Uploaded = self.json(upload).await?;
        let has = |(path, content): &(String, Bytes)| {
            told.files.iter().any(|file| file.path == *path && file.bytes == content.len() as u64)
        };
        match files.iter().find(|file| !has(file)) {
            Some((path, _)) => Err(Failure::Unlike(format!("of `{path}` not all has arrived"))),
            None => Ok(()),
        }
    }
}

/// Where a session is.
fn at(session: &str) -> String {
    format!("/process/session/{}", escaped(session))
}

fn silent(quiet: bool) -> Vec<(&'static str, String)> {
    if quiet { vec![("x-daytona-skip-last-activity-update", "true".to_owned())] } else { Vec::new() }
}

fn over(state: String) -> Failure {
    Failure::Answer {
        status: 410,
        code: Some("sandbox_not_started".to_owned()),
        message: format!("the sandbox is {state}"),
        retry_after: None,
    }
}

/// Files as they go over the wire: the place of each before its content.
fn multipart(boundary: &str, files: &[(String, Bytes)]) -> Bytes {
    let mut body = BytesMut::new();
    for (number, (path, content)) in files.iter().enumerate() {
        body.extend_from_slice(
            format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"files[{number}].path\"\r\n\r\n{path}\r\n\
                 --{boundary}\r\nContent-Disposition: form-data; name=\"files[{number}].file\"; filename=\"file\"\r\n\
                 Content-Type: application/octet-stream\r\n\r\n"
            )
            .as_bytes(),
        );
        body.extend_from_slice(content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_comes_before_its_content() {
        let files = [("/a/b".to_owned(), Bytes::from_static(b"x\r\n--y")), ("/c".to_owned(), Bytes::new())];
        let want = "--B\r\nContent-Disposition: form-data; name=\"files[0].path\"\r\n\r\n/a/b\r\n\
                    --B\r\nContent-Disposition: form-data; name=\"files[0].file\"; filename=\"file\"\r\n\
                    Content-Type: application/octet-stream\r\n\r\nx\r\n--y\r\n\
                    --B\r\nContent-Disposition: form-data; name=\"files[1].path\"\r\n\r\n/c\r\n\
                    --B\r\nContent-Disposition: form-data; name=\"files[1].file\"; filename=\"file\"\r\n\
                    Content-Type: application/octet-stream\r\n\r\n\r\n--B--\r\n";
        assert_eq!(String::from_utf8(multipart("B", &files).to_vec()).unwrap(), want);
    }
}
