//! Files: of a session's sandbox, and managed files. The same routes for both, beneath another path.

use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::Response;
use futures_util::StreamExt;
use moltis_runtime::answer::text_or_base64;
use moltis_runtime::store::KeyScope;
use moltis_runtime::{FileRules, ManagedFiles, OpenSession, RuledFiles, SessionRequest};
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{BuildSink, ByteStream, Entry, EntryKind, Files, GuestPath, Metadata, Sandbox};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use super::words;
use crate::call::{Call, guest_path, json as json_answer, nothing, ok};
use crate::carry::{carry, unheard};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Param, Route, Rule, header as header_param, needed, query};
use crate::schema::{flag, has, list, may, named, object, text, word};

/// Bytes of names that one answer holds.
const MAX_HELD: usize = 16 << 20;

/// Entries of a tree that are counted.
const MAX_COUNTED: u64 = 100_000;

/// Time that counting a tree takes at most.
const COUNTING: Duration = Duration::from_secs(5);

/// Home of most sandboxes.
const HOME: &[u8] = b"/home/sandbox";

/// Media type of whole trees.
const TAR: &str = "application/x-tar";

/// Media type of anything else that users have made.
const BYTES: &str = "application/octet-stream";

/// The routes.
pub fn routes() -> Vec<Route> {
    [Whose::Session, Whose::Managed].into_iter().flat_map(of).collect()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Whose {
    Session,
    Managed,
}

struct Paths {
    content: &'static str,
    info: &'static str,
    entries: &'static str,
    folders: &'static str,
    moves: &'static str,
    tree: &'static str,
    counts: &'static str,
}

const SESSION: Paths = Paths {
    content: "/api/v1/sessions/{session}/files/content",
    info: "/api/v1/sessions/{session}/files",
    entries: "/api/v1/sessions/{session}/files/list",
    folders: "/api/v1/sessions/{session}/files/mkdir",
    moves: "/api/v1/sessions/{session}/files/move",
    tree: "/api/v1/sessions/{session}/files/tree",
    counts: "/api/v1/sessions/{session}/files/count",
};

const MANAGED: Paths = Paths {
    content: "/api/v1/files/content",
    info: "/api/v1/files",
    entries: "/api/v1/files/list",
    folders: "/api/v1/files/mkdir",
    moves: "/api/v1/files/move",
    tree: "/api/v1/files/tree",
    counts: "/api/v1/files/count",
};

fn path_param() -> Param {
    needed(
        "path",
        "The path, from the root; its bytes are percent-encoded and need not be UTF-8",
        words::path(),
    )
}

fn of(whose: Whose) -> Vec<Route> {
    let (paths, bound, tag) = match whose {
        Whose::Session => (SESSION, Bound::Session, "Files"),
        Whose::Managed => (MANAGED, Bound::Never, "Managed files"),
    };
    let ids: [&str; 10] = match whose {
        Whose::Session => [
            "readFile",
            "writeFile",
            "statFile",
            "listFiles",
            "makeFolder",
            "moveFile",
            "removeFile",
            "downloadTree",
            "uploadTree",
            "countTree",
        ],
        Whose::Managed => [
            "readManagedFile",
            "writeManagedFile",
            "statManagedFile",
            "listManagedFiles",
            "makeManagedFolder",
            "moveManagedFile",
            "removeManagedFile",
            "downloadManagedTree",
            "uploadManagedTree",
            "countManagedTree",
        ],
    };
    let on = |route: Route| match whose {
        Whose::Session => route.part("session", words::SESSION, words::session()).runs(),
        Whose::Managed => route.runs(),
    };
    let overwrite = || query("overwrite", "Replace what is there; otherwise that is refused", flag());
    vec![
        on(Route::new(Method::GET, paths.content, ids[0], Rule::read(bound), move |call| read(call, whose)))
            .about(tag, "A file's content, or a range of it")
            .more("It is always sent as an attachment, whatever it is.")
            .with([
                path_param(),
                header_param("range", "One range of bytes, as in `bytes=0-99`", text()),
                header_param("if-none-match", "Send nothing if the file has this `ETag` still", text()),
            ])
            .fails(&[416])
            .answers_in(200, "The content", vec![(BYTES, binary())])
            .telling("etag", "Names the content as it is now")
            .answers_in(206, "The range", vec![(BYTES, binary())])
            .telling("content-range", "Which bytes these are, and of how many")
            .answers_nothing(304, "It has this `ETag` still"),
        on(Route::new(Method::PUT, paths.content, ids[1], Rule::write(bound), move |call| {
            write(call, whose)
        }))
        .about(tag, "Write a file, all at once when all of it is there")
        .with([
            path_param(),
            overwrite(),
            query("parents", "Make missing folders above it", flag()),
            query("mode", "Permission bits in octal, as in `644`", text()),
            header_param("if-match", "Write only if the file has this `ETag`; it is replaced then", text()),
            header_param("if-none-match", "`*`: write only if there is none", text()),
        ])
        .bytes(BYTES)
        .fails(&[412])
        .answers(200, "It was replaced", named("FileInfo"))
        .answers(201, "It was made", named("FileInfo")),
        on(Route::new(Method::GET, paths.info, ids[2], Rule::read(bound), move |call| stat(call, whose)))
            .about(tag, "What is known of a file without reading it")
            .with([path_param(), query("follow", "Of what a link leads to, instead of the link", flag())])
            .answers(200, "What it is", named("FileInfo"))
            .telling("etag", "Names the content as it is now"),
        on(Route::new(Method::GET, paths.entries, ids[3], Rule::read(bound), move |call| {
            entries(call, whose)
        }))
        .about(tag, "What a folder holds, by name")
        .with([Param {
            required: false,
            about: "The path, from the root; absent: the folder in which commands run that name none, or all managed files",
            ..path_param()
        }])
        .answers(
            200,
            "Its entries",
            object(
                "",
                [
                    has("path", "", text()),
                    may("pathEncoding", "When it is not UTF-8", word(&["base64"])),
                    has("entries", "", list(named("FileInfo"))),
                ],
            ),
        ),
        on(Route::new(Method::POST, paths.folders, ids[4], Rule::write(bound), move |call| {
            folder(call, whose)
        }))
        .about(tag, "Make a folder")
        .json(named("FolderRequest"))
        .answers(201, "It was made", object("", [has("path", "", text())])),
        on(Route::new(Method::POST, paths.moves, ids[5], Rule::write(bound), move |call| moved(call, whose)))
            .about(tag, "Move or rename")
            .json(named("MoveRequest"))
            .answers(200, "It was moved", object("", [has("from", "", text()), has("to", "", text())])),
        on(Route::new(Method::DELETE, paths.info, ids[6], Rule::write(bound), move |call| {
            remove(call, whose)
        }))
        .about(tag, "Remove a file, a link or a folder")
        .with([path_param(), query("recursive", "A folder with all that it holds", flag())])
        .answers_nothing(204, "It is gone"),
        on(Route::new(Method::GET, paths.tree, ids[7], Rule::read(bound), move |call| download(call, whose)))
            .about(tag, "A whole tree as a tar archive")
            .with([path_param()])
            .answers_in(200, "The archive", vec![(TAR, binary())]),
        on(Route::new(Method::PUT, paths.tree, ids[8], Rule::write(bound), move |call| upload(call, whose)))
            .about(tag, "Unpack a tar archive into a folder, which is made if it is missing")
            .more("Of managed files nothing is replaced unless `overwrite=true` says so.")
            .with([path_param(), overwrite()])
            .bytes(TAR)
            .answers(200, "It was unpacked", named("TreeSummary")),
        on(Route::new(Method::GET, paths.counts, ids[9], Rule::read(bound), move |call| counted(call, whose)))
            .about(tag, "What a tree holds, counted, without following links")
            .with([path_param()])
            .answers(200, "The count", named("TreeCount")),
    ]
}

fn binary() -> Value {
    json!({ "type": "string", "format": "binary" })
}

/// Files that were opened for a caller.
enum Target {
    Managed(ManagedFiles),
    Found(Arc<dyn Sandbox>),
    Open(Box<OpenSession>),
}

impl Target {
    /// Opens them. Whoever may only look does not start a sandbox.
    async fn open(call: &Call, whose: Whose, replacing: bool) -> Result<Self, Problem> {
        let runtime = call.runtime();
        if whose == Whose::Managed {
            return Ok(Self::Managed(runtime.managed_files().await?.replacing(replacing)));
        }
        let key = call.session()?;
        if !call.who.has(KeyScope::Write) {
            return Ok(Self::Found(runtime.running_sandbox(&key).await?.1));
        }
        let request = SessionRequest { must_exist: true, caller: call.caller(), ..SessionRequest::new(key) };
        let (sink, progress) = BuildSink::channel();
        let opening = carry(async move { runtime.open_session_with(&request, &sink).await });
        let open = unheard(opening, progress).await?;
        open.note_use().await;
        Ok(Self::Open(Box::new(open)))
    }

    /// Where things are whose path is not given: all managed files, or where the session's commands run.
    fn beginning(&self) -> Result<GuestPath, Problem> {
        let sandbox: &dyn Sandbox = match self {
            Self::Managed(_) => return guest_path(b"/"),
            Self::Found(sandbox) => &**sandbox,
            Self::Open(open) => &*open.sandbox,
        };
        sandbox.directory().map_or_else(|| guest_path(HOME), Ok)
    }

    /// The files, under the rules of the configuration.
    fn files(&self, call: &Call) -> RuledFiles<'_> {
        let files: &dyn Files = match self {
            Self::Managed(files) => files,
            Self::Found(sandbox) => sandbox.files(),
            Self::Open(open) => open.sandbox.files(),
        };
        RuledFiles::new(files, FileRules::new(call.runtime().config()))
    }
}

/// What is told of a file.
fn told(name: Option<&[u8]>, metadata: &Metadata) -> Value {
    let mut value = json!({
        "kind": metadata.kind,
        "size": metadata.size,
        "mode": format!("{:04o}", metadata.mode),
        "modifiedMillis": metadata.modified_nanos.div_euclid(1_000_000),
        "uid": metadata.uid,
        "gid": metadata.gid,
    });
    let mut put = |field: &str, bytes: &[u8]| {
        let (text, encoding) = text_or_base64(bytes);
        value[field] = text.into();
        if let Some(encoding) = encoding {
            value[format!("{field}Encoding")] = encoding.into();
        }
    };
    if let Some(name) = name {
        put("name", name);
    }
    if let Some(target) = &metadata.target {
        put("target", target.as_bytes());
    }
    if metadata.kind == EntryKind::File {
        value["etag"] = etag(metadata).into();
    }
    value
}

/// Names a content by its size and the time of its last change.
fn etag(metadata: &Metadata) -> String {
    format!("\"{:x}-{:x}\"", metadata.size, metadata.modified_nanos)
}

/// Whether a condition names this content. What is weak, or a list, is compared part by part.
fn names(condition: &str, etag: &str) -> bool {
    condition.split(',').map(str::trim).any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == etag)
}

/// What users have made is saved, never shown: nothing of it is run.
fn attachment(mut response: Response, path: &GuestPath, suffix: &str, kind: &'static str) -> Response {
    let name = path.as_bytes().rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or(b"files");
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let encoded: String = name
        .iter()
        .chain(suffix.as_bytes())
        .map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") })
        .collect();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename*=UTF-8''{encoded}")) {
        headers.insert(header::CONTENT_DISPOSITION, value);
    }
    response
}

/// A body of what comes out of a sandbox. What it holds stays open for as long as somebody reads.
fn body(stream: ByteStream, held: Target) -> Body {
    let stream = futures_util::stream::unfold((stream, held), |(mut stream, held)| async move {
        let piece = stream.next().await?;
        Some((piece, (stream, held)))
    });
    Body::from_stream(stream)
}

/// The range that is asked for; nothing for the whole.
fn range(text: &str, size: u64) -> Result<Option<(u64, u64)>, ()> {
    // What is of another unit, or several at once, may be answered with the whole.
    let Some(text) = text.strip_prefix("bytes=").filter(|text| !text.contains(',')) else { return Ok(None) };
    let Some((from, to)) = text.split_once('-') else { return Ok(None) };
    let (from, to) = match (from.trim().parse::<u64>(), to.trim().parse::<u64>()) {
        (Ok(from), Ok(to)) if from <= to => (from, to.min(size.saturating_sub(1))),
        (Ok(from), Err(_)) if to.trim().is_empty() => (from, size.saturating_sub(1)),
        (Err(_), Ok(last)) if from.trim().is_empty() => {
            if last == 0 {
                return Err(());
            }
            (size.saturating_sub(last), size.saturating_sub(1))
        }
        _ => return Ok(None),
    };
    if from >= size { Err(()) } else { Ok(Some((from, to))) }
}

async fn read(call: Call, whose: Whose) -> Answered {
    let path = call.path("path")?;
    let wanted = call.header(header::RANGE).map(str::to_owned);
    let unless = call.header(header::IF_NONE_MATCH).map(str::to_owned);
    let target = Target::open(&call, whose, false).await?;
    let files = target.files(&call);
    let mut asked = None;
    if wanted.is_some() || unless.is_some() {
        let metadata = files.stat(&path, true).await?;
        let tag = etag(&metadata);
        if unless.as_deref().is_some_and(|condition| names(condition, &tag)) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response.headers_mut().extend(HeaderValue::from_str(&tag).map(|tag| (header::ETAG, tag)));
            return Ok(response);
        }
        if let Some(text) = &wanted
            && metadata.kind == EntryKind::File
        {
            asked = range(text, metadata.size).map_err(|()| {
                Problem::invalid("range-missing", format!("the file has {} bytes", metadata.size))
                    .status(StatusCode::RANGE_NOT_SATISFIABLE)
                    .header(header::CONTENT_RANGE, &format!("bytes */{}", metadata.size))
            })?;
        }
    }
    let (offset, length) = asked.map_or((0, None), |(from, to)| (from, Some(to - from + 1)));
    let content = files.read(&path, offset, length).await?;
    drop(files);
    let size = content.metadata.size;
    let mut response = Response::new(body(content.content, target));
    let headers = response.headers_mut();
    headers.extend(HeaderValue::from_str(&etag(&content.metadata)).map(|tag| (header::ETAG, tag)));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    if let Some((from, to)) = asked {
        headers.insert(header::CONTENT_LENGTH, (to - from + 1).into());
        let range = HeaderValue::from_str(&format!("bytes {from}-{to}/{size}"));
        headers.extend(range.map(|range| (header::CONTENT_RANGE, range)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(attachment(response, &path, "", BYTES))
}

async fn write(mut call: Call, whose: Whose) -> Answered {
    let path = call.path("path")?;
    let mode = call.query("mode").map(|text| u32::from_str_radix(text, 8)).transpose();
    let mode = mode.ok().flatten().filter(|mode| *mode <= 0o7777);
    if mode.is_none() && call.query("mode").is_some() {
        return Err(
            Problem::invalid("param-invalid", "`mode` cannot be right").fix("write octal digits, as in 644")
        );
    }
    let unless = call.header(header::IF_NONE_MATCH).map(str::to_owned);
    let only = call.header(header::IF_MATCH).map(str::to_owned);
    let overwrite = (call.says("overwrite") || only.is_some()) && unless.is_none();
    let options = WriteOptions { mode, overwrite, parents: call.says("parents") };
    let content = call.stream();
    let target = Target::open(&call, whose, overwrite).await?;
    let files = target.files(&call);
    let before = match files.stat(&path, true).await {
        Ok(metadata) => Some(metadata),
        Err(error) if error.code() == "file-missing" => None,
        Err(error) => return Err(error.into()),
    };
    if let Some(condition) = &only {
        let tag = before.as_ref().map(etag);
        if !tag.is_some_and(|tag| names(condition, &tag)) {
            return Err(Problem::precondition("the file is not as it was, or not there"));
        }
    }
    if let (Some(condition), Some(before)) = (&unless, &before)
        && names(condition, &etag(before))
    {
        return Err(Problem::precondition("the file is there"));
    }
    let metadata = files.write(&path, options, content).await?;
    let made = before.is_none();
    json_answer(if made { 201 } else { 200 }, &told(None, &metadata))
}

async fn stat(call: Call, whose: Whose) -> Answered {
    let (path, follow) = (call.path("path")?, call.says("follow"));
    let target = Target::open(&call, whose, false).await?;
    let metadata = target.files(&call).stat(&path, follow).await?;
    let mut response = ok(&told(None, &metadata))?;
    if metadata.kind == EntryKind::File {
        response.headers_mut().extend(HeaderValue::from_str(&etag(&metadata)).map(|tag| (header::ETAG, tag)));
    }
    Ok(response)
}

async fn entries(call: Call, whose: Whose) -> Answered {
    let asked = call.path_if_any("path")?;
    let target = Target::open(&call, whose, false).await?;
    let path = match asked {
        Some(path) => path,
        None => target.beginning()?,
    };
    let mut entries = target.files(&call).list(&path).await?;
    let (mut held, mut bytes) = (Vec::<Entry>::new(), 0);
    while let Some(entry) = entries.next().await {
        let entry = entry?;
        bytes += entry.name.len() + entry.metadata.target.as_ref().map_or(0, |target| target.len()) + 128;
        if bytes > MAX_HELD {
            return Err(Problem::invalid(
                "listing-too-long",
                "the folder holds too many entries for one answer",
            )
            .fix("download it as a tree, or list it by a command")
            .status(StatusCode::UNPROCESSABLE_ENTITY));
        }
        held.push(entry);
    }
    held.sort_by(|a, b| a.name.cmp(&b.name));
    let entries: Vec<_> =
        held.iter().map(|entry| told(Some(entry.name.as_bytes()), &entry.metadata)).collect();
    let (text, encoding) = text_or_base64(path.as_bytes());
    let mut answer = json!({ "path": text, "entries": entries });
    if let Some(encoding) = encoding {
        answer["pathEncoding"] = encoding.into();
    }
    ok(&answer)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Folder {
    path: String,
    #[serde(default)]
    parents: bool,
}

async fn folder(mut call: Call, whose: Whose) -> Answered {
    let Folder { path, parents } = call.json().await?;
    let path = guest_path(path.as_bytes())?;
    Target::open(&call, whose, false).await?.files(&call).mkdir(&path, parents).await?;
    json_answer(201, &json!({ "path": path.to_string() }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Move {
    from: String,
    #[serde(default)]
    from_encoding: Option<String>,
    to: String,
    #[serde(default)]
    to_encoding: Option<String>,
    #[serde(default)]
    overwrite: bool,
}

/// A path in a body: the only encoding that there is, besides none, is base64.
fn encoded_path(text: String, is_base64: bool) -> Result<GuestPath, Problem> {
    use base64::Engine;

    if !is_base64 {
        return guest_path(text.as_bytes());
    }
    let bytes = base64::engine::general_purpose::STANDARD.decode(text);
    guest_path(&bytes.map_err(|_| {
        Problem::invalid("body-invalid", "a path is no base64").fix("leave its encoding out for plain text")
    })?)
}

async fn moved(mut call: Call, whose: Whose) -> Answered {
    let Move { from, from_encoding, to, to_encoding, overwrite } = call.json().await?;
    let from = encoded_path(from, from_encoding.is_some())?;
    let to = encoded_path(to, to_encoding.is_some())?;
    Target::open(&call, whose, overwrite).await?.files(&call).rename(&from, &to, overwrite).await?;
    ok(&json!({ "from": from.to_string(), "to": to.to_string() }))
}

async fn remove(call: Call, whose: Whose) -> Answered {
    let (path, recursive) = (call.path("path")?, call.says("recursive"));
    Target::open(&call, whose, false).await?.files(&call).remove(&path, recursive).await?;
    nothing()
}

async fn download(call: Call, whose: Whose) -> Answered {
    let path = call.path("path")?;
    let target = Target::open(&call, whose, false).await?;
    let mut tar = target.files(&call).download(&path).await?;
    // What fails at once can still be answered; later only the broken stream tells of it.
    let first = tar.next().await.transpose()?;
    let tar = Box::pin(futures_util::stream::iter(first.map(Ok)).chain(tar));
    Ok(attachment(Response::new(body(tar, target)), &path, ".tar", TAR))
}

/// What a tree holds. Links are counted, not followed.
async fn counted(call: Call, whose: Whose) -> Answered {
    let path = call.path("path")?;
    let target = Target::open(&call, whose, false).await?;
    let files = target.files(&call);
    let top = files.stat(&path, false).await?;
    let mut count = Count::default();
    let mut waiting = Vec::new();
    if count.add(&top) {
        waiting.push(path);
    }
    let (until, mut all) = (Instant::now() + COUNTING, true);
    'folders: while let Some(folder) = waiting.pop() {
        let mut entries = match files.list(&folder).await {
            Ok(entries) => entries,
            // Gone since it was counted.
            Err(error) if error.code() == "file-missing" => continue,
            Err(error) => return Err(error.into()),
        };
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            if count.add(&entry.metadata) {
                let mut inside = folder.as_bytes().to_vec();
                if !inside.ends_with(b"/") {
                    inside.push(b'/');
                }
                inside.extend_from_slice(entry.name.as_bytes());
                match GuestPath::new(inside) {
                    Some(inside) => waiting.push(inside),
                    // Too deep to be named.
                    None => all = false,
                }
            }
            if count.seen() > MAX_COUNTED || Instant::now() > until {
                all = false;
                break 'folders;
            }
        }
    }
    let folders = count.folders - u64::from(top.kind == EntryKind::Directory);
    ok(&json!({
        "files": count.files, "folders": folders, "others": count.others, "bytes": count.bytes, "all": all,
    }))
}

#[derive(Default)]
struct Count {
    files: u64,
    folders: u64,
    others: u64,
    bytes: u64,
}

impl Count {
    /// Counts an entry; whether it is a folder to look into.
    fn add(&mut self, metadata: &Metadata) -> bool {
        match metadata.kind {
            EntryKind::File => {
                self.files += 1;
                self.bytes = self.bytes.saturating_add(metadata.size);
            }
            EntryKind::Directory => self.folders += 1,
            EntryKind::Symlink | EntryKind::Other => self.others += 1,
        }
        metadata.kind == EntryKind::Directory
    }

    fn seen(&self) -> u64 {
        self.files + self.folders + self.others
    }
}

async fn upload(mut call: Call, whose: Whose) -> Answered {
    let (path, overwrite) = (call.path("path")?, call.says("overwrite"));
    let tar = call.stream();
    let target = Target::open(&call, whose, overwrite).await?;
    let summary = target.files(&call).upload(&path, tar).await?;
    ok(&summary)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_within_the_file_or_none() {
        for (text, size, expected) in [
            ("bytes=0-9", 100, Ok(Some((0, 9)))),
            ("bytes=90-200", 100, Ok(Some((90, 99)))),
            ("bytes=5-", 100, Ok(Some((5, 99)))),
            ("bytes=-5", 100, Ok(Some((95, 99)))),
            ("bytes=-500", 100, Ok(Some((0, 99)))),
            ("bytes=-0", 100, Err(())),
            ("bytes=100-", 100, Err(())),
            ("bytes=0-", 0, Err(())),
            ("bytes=9-5", 100, Ok(None)),
            ("bytes=0-1,5-6", 100, Ok(None)),
            ("lines=1-2", 100, Ok(None)),
            ("bytes=x-y", 100, Ok(None)),
        ] {
            assert_eq!(range(text, size), expected, "{text}");
        }
    }

    #[test]
    fn conditions_name_contents() {
        assert!(names("\"a\", W/\"b\"", "\"b\"") && names("*", "\"x\"") && !names("\"a\"", "\"b\""));
    }
}
