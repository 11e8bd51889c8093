//! `read_file`: lines of a text file, or a picture.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::StreamExt;
use moltis_sandbox::files::FileContent;
use moltis_sandbox::{EntryKind, Files, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::{LOOKS, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{boolean, input, integer, may, needs, output, string};
use crate::server::Call;

/// Lines that an answer holds unless the call says otherwise.
const LINES: u64 = 2000;

/// Bytes of lines that an answer holds at most.
const MOST: usize = 64 * 1024;

/// Bytes of one line that are shown.
const LINE: usize = 2000;

/// Bytes that are looked at to tell text from anything else.
const SAMPLE: usize = 8 * 1024;

/// Bytes that are read on, beyond what is shown, to count the lines.
const COUNTED: u64 = 16 * 1024 * 1024;

/// Largest picture in bytes.
const PICTURE: u64 = 3 * 1024 * 1024;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    path: String,
    offset: Option<u64>,
    limit: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    super::tool(
        "read_file",
        "Read a file",
        "Reads lines of a text file in the sandbox, with their numbers in front, which are no part of the file. At most \
         2000 lines or 64 KiB come at once: go on with `offset`. A PNG, JPEG, GIF or WebP comes as a picture; of other \
         files that are no text only the size is told.",
        input(vec![
            needs("path", string("The file, from the root or from the directory in which commands run")),
            may("offset", integer("First line to give, counted from 1", 1, None)),
            may("limit", integer("Lines to give at most", 1, Some(LINES))),
        ]),
        output(vec![
            needs("path", string("The file, from the root")),
            needs("bytes", integer("Its size", 0, None)),
            may("content", string("The lines, without numbers; absent where the file is no text")),
            may("startLine", integer("Number of the first of them", 1, None)),
            may("lines", integer("How many there are", 0, None)),
            may("totalLines", integer("Lines in the file, where it was read to its end", 0, None)),
            may("more", boolean("Whether there are lines after these")),
            may("nextOffset", integer("`offset` with which to go on", 1, None)),
            may("shortened", integer("Lines of which only the beginning is given", 0, None)),
            may("binary", boolean("The file is no text")),
            may("mimeType", string("What a picture is")),
        ]),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let open = call.open().await?;
    let path = open.path(&args.path)?;
    let files = open.files(call.runtime()).await;
    let name = shown::path(path.as_bytes());
    let found = files.stat(&path, true).await?;
    if found.kind != EntryKind::File {
        return Err(ToolError::NotFile(name).into());
    }
    let FileContent { metadata, mut content } = files.read(&path, 0, None).await?;
    let bytes = metadata.size;
    let start = args.offset.unwrap_or(1).max(1);
    let limit = args.limit.unwrap_or(LINES).clamp(1, LINES);
    let mut lines = Lines::new(start, limit);
    let mut seen = 0u64;
    while let Some(piece) = content.next().await {
        let piece = piece?;
        let sample = &piece[..piece.len().min(SAMPLE)];
        if seen == 0 && (picture(sample).is_some() || sample.contains(&0)) {
            drop(content);
            let kind = picture(sample).filter(|_| bytes <= PICTURE);
            let Some(kind) = kind else { return Ok(binary(&name, bytes)) };
            let FileContent { mut content, .. } = files.read(&path, 0, Some(PICTURE)).await?;
            let mut all = Vec::new();
            while let Some(piece) = content.next().await {
                all.extend_from_slice(&piece?);
            }
            let data = json!({ "path": name, "bytes": bytes, "binary": true, "mimeType": kind });
            let text = format!("{name}: {kind}, {bytes} bytes");
            return Ok(Answered { image: Some((BASE64.encode(&all), kind)), ..Answered::new(text, data) });
        }
        seen += piece.len() as u64;
        lines.take(&piece);
        if lines.is_full && bytes > COUNTED {
            break;
        }
    }
    let whole = !lines.is_full || bytes <= COUNTED;
    Ok(told(&name, bytes, lines.finish(), whole))
}

fn binary(name: &str, bytes: u64) -> Answered {
    let text = format!(
        "{name} is no text: {bytes} bytes. Look at it with `exec`, as by `file`, `xxd` or a program for its kind."
    );
    Answered::new(text, json!({ "path": name, "bytes": bytes, "binary": true }))
}

/// What kind of picture begins like this.
fn picture(start: &[u8]) -> Option<&'static str> {
    let webp = start.starts_with(b"RIFF") && start.get(8..12) == Some(b"WEBP");
    match start {
        _ if start.starts_with(b"\x89PNG\r\n\x1a\n") => Some("image/png"),
        _ if start.starts_with(b"\xff\xd8\xff") => Some("image/jpeg"),
        _ if start.starts_with(b"GIF87a") || start.starts_with(b"GIF89a") => Some("image/gif"),
        _ if webp => Some("image/webp"),
        _ => None,
    }
}

fn told(name: &str, bytes: u64, lines: Lines, whole: bool) -> Answered {
    let content = String::from_utf8_lossy(&lines.content).into_owned();
    let given = lines.given;
    let more = lines.is_full && lines.number > lines.start + given;
    let next = lines.start + given;
    let mut text = String::new();
    for (index, line) in content.lines().enumerate() {
        text.push_str(&format!("{:>6}\t{line}\n", lines.start + index as u64));
    }
    let total = lines.number.saturating_sub(1);
    if bytes == 0 {
        text.push_str("[the file is empty]\n");
    } else if given == 0 {
        text.push_str(&format!("[the file has {}]\n", shown::count(total, "line", "lines")));
    }
    if more {
        let of = if whole { format!(" of {total}") } else { String::new() };
        text.push_str(&format!("[up to line {}{of}; go on with offset {next}]\n", next - 1));
    }
    if lines.shortened > 0 {
        let many = shown::count(lines.shortened, "line is", "lines are");
        text.push_str(&format!("[{many} longer than {LINE} bytes and cut]\n"));
    }
    let is_text = std::str::from_utf8(&lines.content).is_ok();
    if !is_text {
        text.push_str(
            "[not all of it is UTF-8: what is not shows as \u{fffd}, and cannot be edited by edit_file]\n",
        );
    }
    let mut data = json!({
        "path": name, "bytes": bytes, "content": content, "startLine": lines.start, "lines": given, "more": more,
    });
    if whole {
        data["totalLines"] = total.into();
    }
    if more {
        data["nextOffset"] = next.into();
    }
    if lines.shortened > 0 {
        data["shortened"] = lines.shortened.into();
    }
    Answered::new(text, data)
}

/// The lines that are wanted, taken out of a stream; the rest is counted.
struct Lines {
    start: u64,
    limit: u64,
    content: Vec<u8>,
    /// Number of the line that is being read.
    number: u64,
    /// Bytes of it so far.
    within: usize,
    given: u64,
    shortened: u64,
    /// No more lines are taken.
    is_full: bool,
}

impl Lines {
    fn new(start: u64, limit: u64) -> Self {
        let content = Vec::new();
        Self { start, limit, content, number: 1, within: 0, given: 0, shortened: 0, is_full: false }
    }

    fn take(&mut self, mut piece: &[u8]) {
        while !piece.is_empty() {
            let end = memchr::memchr(b'\n', piece);
            let (line, rest) = piece.split_at(end.map_or(piece.len(), |at| at + 1));
            piece = rest;
            let wanted = self.number >= self.start && !self.is_full;
            if wanted {
                let text = if end.is_some() { &line[..line.len() - 1] } else { line };
                let room = LINE.saturating_sub(self.within);
                let taken = text.len().min(room);
                self.content.extend_from_slice(&text[..taken]);
                if self.within <= LINE && self.within + text.len() > LINE {
                    self.cut();
                }
            }
            self.within += line.len();
            if end.is_some() {
                self.end_line(wanted);
            }
        }
    }

    /// Marks a line that is longer than what is shown of it.
    fn cut(&mut self) {
        // Not within a character.
        while self.content.last().is_some_and(|byte| *byte & 0xC0 == 0x80) {
            self.content.pop();
        }
        if self.content.last().is_some_and(|byte| *byte >= 0xC0) {
            self.content.pop();
        }
        self.content.extend_from_slice(" [… cut]".as_bytes());
        self.shortened += 1;
    }

    fn end_line(&mut self, wanted: bool) {
        if wanted {
            self.content.push(b'\n');
            self.given += 1;
            self.is_full = self.given == self.limit || self.content.len() + LINE > MOST;
        }
        self.number += 1;
        self.within = 0;
    }

    fn finish(mut self) -> Self {
        if self.within > 0 {
            // The last line has no end.
            let wanted = self.number >= self.start && !self.is_full;
            self.given += u64::from(wanted);
            self.number += 1;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(start: u64, limit: u64, pieces: &[&[u8]]) -> (String, u64, u64, bool, u64) {
        let mut lines = Lines::new(start, limit);
        for piece in pieces {
            lines.take(piece);
        }
        let done = lines.finish();
        let content = String::from_utf8(done.content).unwrap();
        (content, done.given, done.number - 1, done.is_full, done.shortened)
    }

    #[test]
    fn the_lines_that_are_wanted_are_taken_however_they_arrive() {
        for pieces in [&[&b"a\nb\nc"[..]][..], &[b"a", b"\nb", b"\n", b"c"]] {
            assert_eq!(lines(1, 9, pieces), ("a\nb\nc".into(), 3, 3, false, 0));
            assert_eq!(lines(2, 1, pieces), ("b\n".into(), 1, 3, true, 0));
            assert_eq!(lines(3, 5, pieces), ("c".into(), 1, 3, false, 0));
            assert_eq!(lines(4, 5, pieces), (String::new(), 0, 3, false, 0));
        }
        assert_eq!(lines(1, 9, &[]), (String::new(), 0, 0, false, 0));
        assert_eq!(lines(1, 9, &[b"a\n"]), ("a\n".into(), 1, 1, false, 0));
    }

    #[test]
    fn long_lines_are_cut_between_characters() {
        let long = "é".repeat(LINE);
        let (content, given, total, _, shortened) = lines(1, 9, &[long.as_bytes(), b"\nnext"]);
        let (first, rest) = content.split_once('\n').unwrap();
        assert_eq!((given, total, shortened, rest), (2, 2, 1, "next"));
        assert!(first.ends_with("é [… cut]") && first.len() <= LINE + 16, "{}", first.len());
        let exact = "x".repeat(LINE);
        assert_eq!(lines(1, 9, &[exact.as_bytes(), b"\n"]).4, 0);
    }

    #[test]
    fn an_answer_has_a_size() {
        let line = format!("{}\n", "x".repeat(999));
        let all = line.repeat(200);
        let (content, given, total, is_full, _) = lines(1, 2000, &[all.as_bytes()]);
        assert!(is_full && content.len() <= MOST && given > 50, "{given}");
        assert_eq!(total, 200);
    }

    #[test]
    fn pictures_are_known_by_how_they_begin() {
        assert_eq!(picture(b"\x89PNG\r\n\x1a\nxx"), Some("image/png"));
        assert_eq!(picture(b"RIFFxxxxWEBP"), Some("image/webp"));
        assert_eq!(picture(b"RIFFxxxxWAVE"), None);
        assert_eq!(picture(b"GIF"), None);
    }
}
