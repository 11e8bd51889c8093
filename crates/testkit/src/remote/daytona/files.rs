//! Files of a toolbox.

use bytes::Bytes;
use futures_util::StreamExt;
use moltis_sandbox::files::{EntryKind, Metadata, WriteOptions};
use moltis_sandbox::{Command, ExecEvent, ExecRequest, GuestPath, Result as Outcome};
use serde_json::{Value, json};

use super::commands::DIRECTORY;
use super::{One, answer, failed, nothing};
use crate::remote::http::{Asked, Reply};

/// The files of an upload: the place of each must come right before its content.
pub fn parts(asked: &Asked) -> Result<Vec<(String, Vec<u8>)>, String> {
    let kind = asked.headers.get("content-type").ok_or("no kind")?;
    let boundary = kind.split_once("boundary=").ok_or("no boundary")?.1;
    if boundary.is_empty() || boundary.len() > 70 {
        return Err("a boundary of no length, or too long".to_owned());
    }
    let line = format!("--{boundary}\r\n");
    let mut rest = asked.body.strip_prefix(line.as_bytes()).ok_or("it does not begin with the boundary")?;
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    let mut place: Option<String> = None;
    loop {
        let head = memchr::memmem::find(rest, b"\r\n\r\n").ok_or("a part without a head")?;
        let words = std::str::from_utf8(&rest[..head]).map_err(|error| error.to_string())?;
        let body = &rest[head + 4..];
        let next = format!("\r\n--{boundary}");
        let end = memchr::memmem::find(body, next.as_bytes()).ok_or("a part without an end")?;
        let number = files.len();
        let name = |what: &str| format!("Content-Disposition: form-data; name=\"files[{number}].{what}\"");
        let first = words.lines().next().unwrap_or_default();
        match &place {
            None if words == name("path") => {
                let text = std::str::from_utf8(&body[..end]).map_err(|error| error.to_string())?;
                place = Some(text.to_owned());
            }
            Some(path) if first.starts_with(&format!("{}; filename=\"", name("file"))) => {
                files.push((path.clone(), body[..end].to_vec()));
                place = None;
            }
            _ => return Err(format!("`{first}` does not come here")),
        }
        match &body[end + next.len()..] {
            b"--\r\n" if place.is_none() && !files.is_empty() => return Ok(files),
            after => rest = after.strip_prefix(b"\r\n").ok_or("what follows the boundary is no line")?,
        }
    }
}

/// Writes them; only the first of them if it is to fail in the middle.
pub async fn put(one: &One, parts: Vec<(String, Vec<u8>)>, partial: bool) -> Reply {
    let (mut done, mut errors) = (Vec::new(), Vec::new());
    for (number, (path, content)) in parts.into_iter().enumerate() {
        if partial && number > 0 {
            errors.push(format!("{path}: unexpected EOF"));
            continue;
        }
        let whole = if path.starts_with('/') { path.clone() } else { format!("{DIRECTORY}/{path}") };
        let Some(place) = GuestPath::new(whole) else {
            errors.push(format!("{path}: no path"));
            continue;
        };
        let options = WriteOptions { mode: Some(0o644), overwrite: true, parents: true };
        let size = content.len();
        let content = Box::pin(futures_util::stream::iter([Ok(Bytes::from(content))]));
        match one.machine.files().write(&place, options, content).await {
            Ok(_) => done.push(json!({ "path": path, "bytes": size })),
            Err(error) => errors.push(format!("{path}: {error}")),
        }
    }
    if errors.is_empty() {
        answer(200, &json!({ "files": done }))
    } else {
        answer(400, &json!({ "errors": errors, "files": done }))
    }
}

/// An absolute path; a relative one begins where commands do.
fn place(path: &str) -> Option<GuestPath> {
    GuestPath::new(if path.starts_with('/') { path.to_owned() } else { format!("{DIRECTORY}/{path}") })
}

fn told(name: &str, about: &Metadata) -> Value {
    let is_dir = about.kind == EntryKind::Directory;
    json!({
        "name": name, "isDir": is_dir, "size": about.size, "mode": if is_dir { "drwxr-xr-x" } else { "-rw-r--r--" },
        "permissions": format!("{:04o}", about.mode & 0o7777), "modTime": "2026-11-29 17:55:45 +0000 UTC",
        "modifiedAt": "2026-11-29T17:55:45.801Z", "owner": "daytona", "group": "daytona",
    })
}

async fn content(one: &One, path: &GuestPath) -> Outcome<Vec<u8>> {
    let mut stream = one.machine.files().read(path, 0, None).await?.content;
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next().await {
        bytes.extend_from_slice(&piece?);
    }
    Ok(bytes)
}

/// What the official clients ask of files besides uploads.
pub async fn other(one: &One, method: &str, rest: &[&str], asked: &Asked, body: &Value) -> Reply {
    let missing = || failed(404, "FILE_NOT_FOUND", "file not found");
    let query = |name: &str| asked.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
    let named = |name: &str| query(name).and_then(place);
    let files = one.machine.files();
    let done = |result: Outcome<()>, status: u16| match result {
        Ok(()) => nothing(status),
        Err(_) => missing(),
    };
    match (method, rest) {
        ("POST", ["bulk-download"]) => download(one, body).await,
        ("POST", ["folder"]) => match named("path") {
            Some(path) => done(files.mkdir(&path, true).await, 201),
            None => missing(),
        },
        ("GET", ["info"]) => match named("path") {
            Some(path) => match files.stat(&path, true).await {
                Ok(about) => {
                    let text = path.to_string();
                    answer(200, &told(text.rsplit('/').next().unwrap_or_default(), &about))
                }
                Err(_) => missing(),
            },
            None => missing(),
        },
        ("GET", []) => {
            let Some(path) = place(query("path").unwrap_or(DIRECTORY)) else { return missing() };
            let Ok(mut entries) = files.list(&path).await else { return missing() };
            let mut all = Vec::new();
            while let Some(Ok(entry)) = entries.next().await {
                all.push(told(&entry.name.to_string_lossy(), &entry.metadata));
            }
            answer(200, &json!(all))
        }
        ("POST", ["move"]) => match (named("source"), named("destination")) {
            (Some(from), Some(to)) => done(files.rename(&from, &to, true).await, 200),
            _ => missing(),
        },
        ("DELETE", []) => match named("path") {
            Some(path) => done(files.remove(&path, query("recursive") == Some("true")).await, 204),
            None => missing(),
        },
        ("POST", ["permissions"]) => match (named("path"), query("mode")) {
            (Some(path), Some(mode)) => done(permit(one, &path, mode).await, 200),
            _ => missing(),
        },
        _ => failed(404, "NOT_FOUND", "no such page"),
    }
}

async fn permit(one: &One, path: &GuestPath, mode: &str) -> Outcome<()> {
    let argv = ["chmod", mode, "--", &path.to_string()].map(Into::into).to_vec();
    let mut exec = one.machine.exec(ExecRequest::new(Command::Argv(argv))).await?;
    while let Some(event) = exec.events.next().await {
        if matches!(event?, ExecEvent::Exit(_)) {
            break;
        }
    }
    Ok(())
}

/// Several files in one answer, whose parts say which could not be had.
async fn download(one: &One, body: &Value) -> Reply {
    const LINE: &str = "DAYTONA-FILE-BOUNDARY";
    let mut told = Vec::new();
    for path in body["paths"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let found = match place(path) {
            Some(place) => content(one, &place).await.ok(),
            None => None,
        };
        // As text alone it is no name that is not ASCII.
        let name = format!("filename=\"{path}\"; filename*=utf-8''{}", escaped(path));
        let (head, content) = match found {
            Some(content) => (format!("name=\"file\"; {name}\r\nContent-Length: {}", content.len()), content),
            None => {
                let why = json!({ "statusCode": 404, "message": "file not found", "code": "FILE_NOT_FOUND" });
                (
                    format!("name=\"error\"; {name}\r\nContent-Type: application/json"),
                    why.to_string().into_bytes(),
                )
            }
        };
        told.extend_from_slice(
            format!("--{LINE}\r\nContent-Disposition: form-data; {head}\r\n\r\n").as_bytes(),
        );
        told.extend_from_slice(&content);
        told.extend_from_slice(b"\r\n");
    }
    told.extend_from_slice(format!("--{LINE}--\r\n").as_bytes());
    let kind = "multipart/form-data; boundary=DAYTONA-FILE-BOUNDARY";
    Reply::Whole { status: 200, kind, headers: Vec::new(), body: told }
}

fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let escape = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    text.bytes().map(escape).collect()
}
