//! Images of an engine: asked for, fetched, removed, carried in and out.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::credentials;
use super::filters;
use super::http::{Answer, Body, CHANGE, Client, Dialect, Failure, QUESTION, Request, encoded, within};
use super::shapes::{InspectedImage, ListedImage, carries, or_empty};
use crate::engine::endpoint::Environment;
use crate::engine::words::{clean, is_full, message};
use crate::engine::{Bytes, EngineError, Image, Progress, ProgressSink, Result};

/// Longest line of a stream of JSON objects.
const LINE_LIMIT: usize = 1 << 20;

/// A stream of JSON objects, one on each line.
pub(super) struct Objects<'a> {
    client: &'a Client,
    answer: Answer<'a>,
    rest: Vec<u8>,
    /// Up to where the rest was searched for an end of a line.
    searched: usize,
    ended: bool,
}

impl<'a> Objects<'a> {
    pub(super) fn new(client: &'a Client, answer: Answer<'a>) -> Self {
        Self { client, answer, rest: Vec::new(), searched: 0, ended: false }
    }

    /// The next object; none at the end.
    pub(super) async fn next<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        loop {
            if let Some(at) = self.rest[self.searched..].iter().position(|byte| *byte == b'\n') {
                let end = self.searched + at;
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                self.searched = 0;
                if line.trim_ascii().is_empty() {
                    continue;
                }
                return self.read(&line).map(Some);
            }
            self.searched = self.rest.len();
            if self.ended {
                let line = std::mem::take(&mut self.rest);
                self.searched = 0;
                return if line.trim_ascii().is_empty() { Ok(None) } else { self.read(&line).map(Some) };
            }
            if self.rest.len() > LINE_LIMIT {
                return Err(self.client.nonsense(&"a line of more than 1 MiB"));
            }
            match self.answer.next().await? {
                Some(piece) => self.rest.extend_from_slice(&piece),
                None => self.ended = true,
            }
        }
    }

    fn read<T: DeserializeOwned>(&self, line: &[u8]) -> Result<T> {
        serde_json::from_slice(line).map_err(|error| self.client.nonsense(&error))
    }
}

/// A word of an error in a stream, which is a text in Podman's and an object or a text in Docker's.
pub(super) fn error_text(error: &Value, detail: &Value) -> Option<String> {
    let text = match (error, detail) {
        (Value::String(text), _) if !text.is_empty() => text,
        (_, Value::Object(detail)) => detail.get("message")?.as_str()?,
        _ => return None,
    };
    Some(message(text))
}

/// A reference as a part of a path. Engines take slashes in it as they are.
fn in_path(client: &Client, reference: &str) -> Result<String> {
    let fine = !reference.is_empty()
        && reference.len() <= 512
        && reference.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._/:@+".contains(&b))
        && reference.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if fine {
        return Ok(reference.to_owned());
    }
    Err(EngineError::Refused {
        engine: client.engine(),
        message: format!("{:?} is not the name of an image", clean(reference, 200)),
    })
}

async fn path(client: &Client, path: &str) -> Result<String> {
    Ok(format!("{}{path}", client.dialect().await?.prefix()))
}

pub(super) async fn image(client: &Client, reference: &str) -> Result<Option<Image>> {
    let name = in_path(client, reference)?;
    let request = Request::get(path(client, &format!("/images/{name}/json")).await?);
    match client.ask::<InspectedImage>(QUESTION, "describe an image", request).await {
        Ok(inspected) if inspected.has_id() => Ok(Some(inspected.into_image())),
        Ok(_) => Err(client.nonsense(&"an image without an id")),
        Err(failure) if failure.is_missing() => Ok(None),
        Err(failure) => Err(failure.plain(client.engine())),
    }
}

pub(super) async fn images(client: &Client, labels: &[(&str, &str)]) -> Result<Vec<Image>> {
    // Of two labels Podman 4 finds none; the others are looked at below.
    let last = &labels[labels.len().saturating_sub(1)..];
    let filters = serde_json::json!({"label": filters(last)}).to_string();
    let request = Request::get(path(client, &format!("/images/json?filters={}", encoded(&filters))).await?);
    let listed: Option<Vec<ListedImage>> = client
        .ask(QUESTION, "list images", request)
        .await
        .map_err(|failure| failure.plain(client.engine()))?;
    let mut images = Vec::new();
    for one in listed.unwrap_or_default() {
        // Older engines may not know a filter.
        if !labels.is_empty() && !one.labels.is_empty() && !carries(&one.labels, labels) {
            continue;
        }
        // One that is removed meanwhile is no more.
        if let Some(image) = image(client, &one.id).await?
            && carries(&image.labels, labels)
        {
            images.push(image);
        }
    }
    Ok(images)
}

/// A line that tells of a pull or of a load.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    #[serde(deserialize_with = "or_empty")]
    id: String,
    #[serde(deserialize_with = "or_empty")]
    status: String,
    #[serde(deserialize_with = "or_empty")]
    stream: String,
    #[serde(rename = "progressDetail", deserialize_with = "or_empty")]
    progress: Detail,
    error: Value,
    #[serde(rename = "errorDetail")]
    detail: Value,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Detail {
    current: Option<u64>,
    total: Option<i64>,
}

pub(super) async fn pull(
    client: &Client,
    environment: &Environment,
    reference: &str,
    progress: &dyn ProgressSink,
) -> Result<()> {
    let cannot = |message: String| {
        if is_full(&message) {
            EngineError::Full { engine: client.engine(), message }
        } else {
            EngineError::CannotPull { reference: reference.to_owned(), message }
        }
    };
    in_path(client, reference)?;
    let mut request = match client.dialect().await? {
        dialect @ Dialect::Podman(_) => {
            Request::post(format!("{}/images/pull?reference={}", dialect.prefix(), encoded(reference)))
        }
        dialect @ Dialect::Docker(..) => {
            let (name, tag) = parts(reference);
            let prefix = dialect.prefix();
            Request::post(format!("{prefix}/images/create?fromImage={}&tag={}", encoded(name), encoded(tag)))
        }
    };
    if let Some(secret) = credentials::header(client.engine(), environment, reference).await? {
        request = request.header("X-Registry-Auth", secret);
    }
    let answer = match client.accepted(request).await {
        Ok(answer) => answer,
        Err(Failure::Refused(refusal)) if !matches!(refusal.status, 502..=504) => {
            return Err(cannot(refusal.message));
        }
        Err(failure) => return Err(failure.plain(client.engine())),
    };
    let mut objects = Objects::new(client, answer);
    while let Some(told) = objects.next::<Told>().await? {
        if let Some(error) = error_text(&told.error, &told.detail) {
            return Err(cannot(error));
        }
        match told.progress.current {
            Some(bytes) if told.status == "Downloading" => progress.progress(Progress::Download {
                layer: clean(&told.id, 100),
                bytes,
                total: told.progress.total.and_then(|total| u64::try_from(total).ok()).unwrap_or(0),
            }),
            Some(_) => {}
            None => {
                let line = if told.stream.is_empty() { &told.status } else { &told.stream };
                let line = clean(line, crate::engine::words::LINE);
                if !line.trim().is_empty() {
                    progress.progress(Progress::Log(line.trim_end().to_owned()));
                }
            }
        }
    }
    Ok(())
}

/// A reference as name and tag or digest. Without one, the tag is `latest`: Docker would fetch them all.
fn parts(reference: &str) -> (&str, &str) {
    if let Some((name, digest)) = reference.split_once('@') {
        return (name, digest);
    }
    match reference.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => (name, tag),
        _ => (reference, "latest"),
    }
}

pub(super) async fn remove(client: &Client, reference: &str) -> Result<()> {
    let name = in_path(client, reference)?;
    let request = Request::delete(path(client, &format!("/images/{name}")).await?);
    match client.tell(CHANGE, "remove an image", request).await {
        Ok(_) => Ok(()),
        Err(failure) if failure.is_missing() => Ok(()),
        Err(failure) => Err(failure.plain(client.engine())),
    }
}

pub(super) async fn load(client: &Client, archive: Bytes) -> Result<()> {
    let request = Request::post(path(client, "/images/load?quiet=true").await?).tar(Body::Stream(archive));
    let answer = client.accepted(request).await.map_err(|failure| failure.plain(client.engine()))?;
    let mut objects = Objects::new(client, answer);
    while let Some(told) = objects.next::<Told>().await? {
        if let Some(message) = error_text(&told.error, &told.detail) {
            let engine = client.engine();
            return Err(if is_full(&message) {
                EngineError::Full { engine, message }
            } else {
                EngineError::Refused { engine, message }
            });
        }
    }
    Ok(())
}

pub(super) async fn save(client: &Client, reference: &str) -> Result<Bytes> {
    let name = in_path(client, reference)?;
    let url = format!("/images/{name}/get?format=docker-archive");
    let request = Request::get(path(client, &url).await?);
    match within(client.engine(), CHANGE, "pack an image", client.accepted(request)).await {
        Ok(answer) => Ok(answer.into_reader()),
        Err(failure) if failure.is_missing() => {
            Err(EngineError::NoSuchImage { reference: reference.to_owned() })
        }
        // Docker answers so, with status 500, in versions before 25.
        Err(failure) => match image(client, reference).await? {
            None => Err(EngineError::NoSuchImage { reference: reference.to_owned() }),
            Some(_) => Err(failure.plain(client.engine())),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_have_a_tag() {
        assert_eq!(parts("ubuntu"), ("ubuntu", "latest"));
        assert_eq!(parts("box:5000/a/b"), ("box:5000/a/b", "latest"));
        assert_eq!(parts("box:5000/a/b:c"), ("box:5000/a/b", "c"));
        assert_eq!(parts("a/b@sha256:00"), ("a/b", "sha256:00"));
    }

    #[test]
    fn errors_in_streams_are_read_in_both_shapes() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        assert_eq!(error_text(&value("\"no\""), &Value::Null), Some("no".to_owned()));
        assert_eq!(error_text(&Value::Null, &value(r#"{"message":"no"}"#)), Some("no".to_owned()));
        assert_eq!(error_text(&Value::Null, &Value::Null), None);
        assert_eq!(error_text(&value("\"\""), &Value::Null), None);
    }
}
