//! Building an image by the engine's own builder.

use serde::Deserialize;
use serde_json::{Value, json};

use super::http::{Body, Client, Dialect, Failure, Request, encoded};
use super::images::{Objects, error_text, image};
use super::shapes::or_empty;
use crate::engine::abandoned::Mark;
use crate::engine::words::{Lines, Steps, is_full};
use crate::engine::{BuildSpec, EngineError, Progress, ProgressSink, Result};

/// Lines of the log that an error keeps.
const LAST: usize = 40;

/// A line that a builder tells.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    #[serde(deserialize_with = "or_empty")]
    stream: String,
    error: Value,
    #[serde(rename = "errorDetail")]
    detail: Value,
    #[serde(deserialize_with = "or_empty")]
    aux: Aux,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Aux {
    #[serde(rename = "ID", deserialize_with = "or_empty")]
    id: String,
}

/// What a build has printed so far.
pub(in crate::engine) struct Log<'a> {
    progress: &'a dyn ProgressSink,
    lines: Lines,
    steps: Steps,
    last: Vec<String>,
}

impl<'a> Log<'a> {
    pub(in crate::engine) fn new(progress: &'a dyn ProgressSink) -> Self {
        Self { progress, lines: Lines::default(), steps: Steps::default(), last: Vec::new() }
    }

    /// A piece of it.
    pub(in crate::engine) fn push(&mut self, piece: &str) {
        let Self { progress, lines, steps, last } = self;
        lines.push(piece, |line| tell(*progress, steps, last, line));
    }

    /// A line without an end is one all the same.
    pub(in crate::engine) fn flush(&mut self) {
        let Self { progress, lines, steps, last } = self;
        lines.end(|line| tell(*progress, steps, last, line));
    }

    /// Its end: the last lines.
    pub(in crate::engine) fn end(mut self) -> Vec<String> {
        self.flush();
        self.last
    }

    /// The last line so far.
    pub(in crate::engine) fn last(&self) -> Option<&str> {
        self.last.last().map(String::as_str)
    }
}

fn tell(progress: &dyn ProgressSink, steps: &mut Steps, last: &mut Vec<String>, line: String) {
    if last.len() == LAST {
        last.remove(0);
    }
    last.push(line.clone());
    progress.progress(match steps.read(&line) {
        Some((number, total, what)) => Progress::Step { number, total, what },
        None => Progress::Log(line),
    });
}

pub(super) async fn build(client: &Client, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String> {
    let labels = serde_json::to_string(&spec.labels).map_err(|error| client.nonsense(&error))?;
    let query = format!(
        "t={}&dockerfile=Dockerfile&rm=true&forcerm=true&labels={}",
        encoded(&spec.tag),
        encoded(&labels)
    );
    let mark = Mark::new();
    let path = match client.dialect().await? {
        // The older builder needs no session beside the request, and ends with it.
        dialect @ Dialect::Docker(..) => format!("{}/build?{query}&version=1", dialect.prefix()),
        // Layers of its own would be left behind without a name.
        dialect @ Dialect::Podman(_) => {
            let host = encoded(&json!([mark.host()]).to_string());
            format!("{}/build?{query}&layers=false&extrahosts={host}", dialect.prefix())
        }
    };
    let request = Request::post(path).tar(Body::Whole(context(&spec.dockerfile).into()));
    let failed = |message: String, log: Vec<String>| {
        if is_full(&message) {
            EngineError::Full { engine: client.engine(), message }
        } else {
            EngineError::BuildFailed { message, log }
        }
    };
    let answer = match client.accepted(request).await {
        Ok(answer) => answer,
        Err(Failure::Refused(refusal)) if !matches!(refusal.status, 502..=504) => {
            return Err(failed(refusal.message, Vec::new()));
        }
        Err(failure) => return Err(failure.plain(client.engine())),
    };
    let mut objects = Objects::new(client, answer);
    let mut log = Log::new(progress);
    let mut id = String::new();
    while let Some(told) = objects.next::<Told>().await? {
        if let Some(error) = error_text(&told.error, &told.detail) {
            mark.finish();
            return Err(failed(error, log.end()));
        }
        if !told.aux.id.is_empty() {
            id = told.aux.id;
        }
        log.push(&told.stream);
    }
    mark.finish();
    log.flush();
    if id.is_empty()
        && client.dialect().await?.is_podman()
        && let Some(line) = log.last()
    {
        // Podman's own API ends the log with the id, after all that the steps printed.
        id = super::shapes::image_id(line.trim());
    }
    let built = image(client, &spec.tag).await?;
    match built {
        Some(image) if !id.is_empty() && image.id == id => Ok(id),
        // The tag belongs to another build by now, or to none.
        _ if id.starts_with("sha256:") && image(client, &id).await?.is_some() => Ok(id),
        _ => Err(failed("the engine does not name the image that it built".to_owned(), log.end())),
    }
}

/// A tar archive with one file, `Dockerfile`.
fn context(dockerfile: &str) -> Vec<u8> {
    const BLOCK: usize = 512;
    let mut head = [0_u8; BLOCK];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, "Dockerfile");
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", dockerfile.len()));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut tar = Vec::from(head);
    tar.extend_from_slice(dockerfile.as_bytes());
    tar.resize(tar.len().next_multiple_of(BLOCK) + 2 * BLOCK, 0);
    tar
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn the_context_is_a_tar_archive() {
        use std::io::Write;
        let mut child = Command::new("tar")
            .args(["-xOf", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&context("FROM x\nRUN y\n")).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"FROM x\nRUN y\n");
    }

    struct Seen(Mutex<Vec<Progress>>);

    impl ProgressSink for Seen {
        fn progress(&self, progress: Progress) {
            self.0.lock().unwrap().push(progress);
        }
    }

    #[test]
    fn steps_and_lines_are_told_apart() {
        let seen = Seen(Mutex::new(Vec::new()));
        let mut log = Log::new(&seen);
        log.push("Step 1/1 : FROM x\n");
        log.push("Step 9/9 : fo");
        log.push("rged\n\x1b[91merr");
        assert_eq!(log.end(), ["Step 1/1 : FROM x", "Step 9/9 : forged", "err"]);
        let want = [
            Progress::Step { number: 1, total: 1, what: "FROM x".to_owned() },
            Progress::Log("Step 9/9 : forged".to_owned()),
            Progress::Log("err".to_owned()),
        ];
        assert_eq!(*seen.0.lock().unwrap(), want);
    }
}
