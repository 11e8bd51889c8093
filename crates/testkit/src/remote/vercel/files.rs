//! Files of a machine.

use std::io::Read;

use bytes::Bytes;
use moltis_sandbox::GuestPath;
use moltis_sandbox::files::WriteOptions;
use serde_json::{Value, json};

use super::{One, answer, refusal};
use crate::remote::http::Reply;

/// Files of an archive, which holds plain ones alone and ends as it should.
pub(super) fn unpack(body: &[u8]) -> Result<Vec<(String, u32, Vec<u8>)>, String> {
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(body).read_to_end(&mut plain).map_err(|error| error.to_string())?;
    if plain.len() % 512 != 0
        || plain.len() < 1024
        || plain[plain.len() - 1024..].iter().any(|byte| *byte != 0)
    {
        return Err("the archive does not end with two empty blocks".to_owned());
    }
    let mut files = Vec::new();
    let mut archive = tar::Archive::new(&plain[..]);
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        let header = entry.header().clone();
        let name = String::from_utf8(entry.path_bytes().into_owned()).map_err(|error| error.to_string())?;
        let is_plain = header.entry_type() == tar::EntryType::Regular
            && header.uid().ok() == Some(0)
            && header.gid().ok() == Some(0)
            && !name.starts_with('/')
            && name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !is_plain {
            return Err(format!("`{name}` is no plain file with a relative name"));
        }
        let mut content = Vec::new();
        entry.read_to_end(&mut content).map_err(|error| error.to_string())?;
        files.push((name, header.mode().map_err(|error| error.to_string())?, content));
    }
    Ok(files)
}

pub(super) async fn put(run: &One, files: Vec<(String, u32, Vec<u8>)>) -> Reply {
    for (name, mode, content) in files {
        let path = GuestPath::new(format!("/{name}")).expect("a path");
        let options = WriteOptions { mode: Some(mode), overwrite: true, parents: true };
        let content = Box::pin(futures_util::stream::iter([Ok(Bytes::from(content))]));
        if let Err(error) = run.machine.files().write(&path, options, content).await {
            return refusal(400, "bad_request", &error.to_string());
        }
    }
    answer(200, &json!({}))
}

/// A path of a request, which may be relative to the directory that it names, or to the machine's.
fn path(run: &One, body: &Value) -> Option<GuestPath> {
    let named = body["path"].as_str()?;
    if named.starts_with('/') {
        return GuestPath::new(named);
    }
    let directory = body["cwd"].as_str().unwrap_or(&run.directory);
    GuestPath::new(format!("{}/{named}", directory.trim_end_matches('/')))
}

/// Makes a directory, and those above it only if it is told to.
pub(super) async fn mkdir(run: &One, body: &Value) -> Reply {
    let Some(path) = path(run, body) else { return refusal(400, "bad_request", "no path") };
    let parents = body["recursive"] == json!(true);
    if !parents && run.machine.files().stat(&path, false).await.is_ok() {
        return refusal(400, "bad_request", "File exists");
    }
    match run.machine.files().mkdir(&path, parents).await {
        Ok(()) => answer(200, &json!({})),
        Err(error) => refusal(400, "bad_request", &error.to_string()),
    }
}

/// What a file holds.
pub(super) async fn read(run: &One, body: &Value) -> Reply {
    use futures_util::StreamExt as _;

    let Some(path) = path(run, body) else { return refusal(400, "bad_request", "no path") };
    let Ok(mut content) = run.machine.files().read(&path, 0, None).await else {
        return refusal(404, "not_found", "no such file");
    };
    let mut bytes = Vec::new();
    while let Some(piece) = content.content.next().await {
        match piece {
            Ok(piece) => bytes.extend_from_slice(&piece),
            Err(error) => return refusal(500, "internal", &error.to_string()),
        }
    }
    Reply::Whole { status: 200, kind: "application/octet-stream", headers: Vec::new(), body: bytes }
}
