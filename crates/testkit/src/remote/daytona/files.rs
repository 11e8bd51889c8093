//! Files that are uploaded to a toolbox.

use bytes::Bytes;
use moltis_sandbox::GuestPath;
use moltis_sandbox::files::WriteOptions;
use serde_json::json;

use super::commands::DIRECTORY;
use super::{One, answer};
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
