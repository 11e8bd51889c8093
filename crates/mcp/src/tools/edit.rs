//! `edit_file`: one text for another, where exactly that text stands.

use futures_util::StreamExt;
use memchr::memmem;
use moltis_sandbox::files::{FileContent, WriteOptions};
use moltis_sandbox::{EntryKind, Files, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::write::stream_of;
use super::{Manner, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{boolean, input, integer, may, needs, output, string};
use crate::server::Call;

/// Largest file in bytes.
const MOST: u64 = 16 * 1024 * 1024;

/// Lines shown around a change.
const AROUND: usize = 3;

/// Bytes shown of a change.
const SHOWN: usize = 4 * 1024;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    path: String,
    old_string: String,
    new_string: String,
    #[serde(default)]
    replace_all: bool,
}

pub(crate) fn tool() -> Tool {
    super::tool(
        "edit_file",
        "Edit a file",
        "Replaces a text in a file of the sandbox by another one. `old_string` must be there exactly as it is written, \
         with its indentation, and only once: take in lines around it until it is. With `replace_all` every occurrence \
         is replaced. Line numbers of read_file are no part of the text.",
        input(vec![
            needs("path", string("The file, from the root or from the directory in which commands run")),
            needs("old_string", string("The text to be replaced")),
            needs("new_string", string("What is to stand there instead; empty removes it")),
            may("replace_all", boolean("Replace every occurrence")),
        ]),
        output(vec![
            needs("path", string("The file, from the root")),
            needs("bytes", integer("Its size now", 0, None)),
            needs("replacements", integer("How many texts were replaced", 1, None)),
            needs("line", integer("Line of the first of them", 1, None)),
        ]),
        &Manner { read_only: false, destructive: true, idempotent: false, open_world: false },
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
    let too_large = |bytes| ToolError::TooLarge { path: name.clone(), bytes, most: MOST };
    if found.size > MOST {
        return Err(too_large(found.size).into());
    }
    let FileContent { metadata: before, mut content } = files.read(&path, 0, Some(MOST + 1)).await?;
    let mut old = Vec::new();
    while let Some(piece) = content.next().await {
        old.extend_from_slice(&piece?);
    }
    if old.len() as u64 > MOST {
        return Err(too_large(old.len() as u64).into());
    }
    let Edited { content, replacements, at } = edited(&name, &old, &args)?;
    // Who wrote to it in this moment did not expect us either.
    let now = files.stat(&path, true).await?;
    if (now.size, now.modified_nanos) != (before.size, before.modified_nanos) {
        return Err(ToolError::Changed(name).into());
    }
    let line = 1 + memchr::memchr_iter(b'\n', &content[..at]).count();
    let part = around(&content, at, args.new_string.len());
    let options = WriteOptions { mode: None, overwrite: true, parents: false };
    let written = files.write(&path, options, stream_of(content)).await?;
    let many = shown::count(replacements as u64, "text", "texts");
    let text = format!("replaced {many} in {name}, on line {line}:\n{part}");
    let data = json!({ "path": name, "bytes": written.size, "replacements": replacements, "line": line });
    Ok(Answered::new(text, data))
}

struct Edited {
    content: Vec<u8>,
    replacements: usize,
    /// Where the first replacement stands.
    at: usize,
}

fn edited(name: &str, content: &[u8], args: &Arguments) -> Result<Edited, ToolError> {
    let Arguments { old_string, new_string, replace_all, .. } = args;
    if old_string.is_empty() {
        return Err(ToolError::NothingToReplace);
    }
    if old_string == new_string {
        return Err(ToolError::NoChange);
    }
    let found: Vec<usize> = memmem::find_iter(content, old_string.as_bytes()).collect();
    let Some(&at) = found.first() else {
        return Err(ToolError::NoMatch { path: name.to_owned(), hint: hint(content, old_string) });
    };
    if found.len() > 1 && !replace_all {
        let lines = found.iter().take(10).map(|at| 1 + memchr::memchr_iter(b'\n', &content[..*at]).count());
        let mut lines: Vec<_> = lines.map(|line| line.to_string()).collect();
        if found.len() > lines.len() {
            lines.push("…".to_owned());
        }
        let lines = lines.join(", ");
        return Err(ToolError::NotUnique { path: name.to_owned(), count: found.len(), lines });
    }
    let mut new = Vec::with_capacity(content.len());
    let mut from = 0;
    for at in &found {
        new.extend_from_slice(&content[from..*at]);
        new.extend_from_slice(new_string.as_bytes());
        from = at + old_string.len();
    }
    new.extend_from_slice(&content[from..]);
    Ok(Edited { content: new, replacements: found.len(), at })
}

/// Why a text that was meant to be there may not be found.
fn hint(content: &[u8], wanted: &str) -> String {
    if memchr::memchr(b'\r', content).is_some() && !wanted.contains('\r') && wanted.contains('\n') {
        let with = wanted.replace('\n', "\r\n");
        if memmem::find(content, with.as_bytes()).is_some() {
            return "the file's lines end in CR LF, and those of `old_string` in LF".to_owned();
        }
    }
    let first = wanted.lines().map(str::trim).find(|line| !line.is_empty());
    let Some(first) = first else { return "it holds only white space".to_owned() };
    let near = String::from_utf8_lossy(content);
    let near = near.lines().enumerate().find(|(_, line)| line.trim() == first);
    match near {
        Some((number, line)) => format!(
            "its first line is like line {}, which is {:?}: look for other white space, there or on the lines after it",
            number + 1,
            shown::shortened(line, 200).0
        ),
        None => "no line is like its first one".to_owned(),
    }
}

/// The lines around a change, with their numbers.
fn around(content: &[u8], at: usize, length: usize) -> String {
    let text = String::from_utf8_lossy(content);
    let first = memchr::memchr_iter(b'\n', &content[..at]).count();
    let last = first + memchr::memchr_iter(b'\n', &content[at..at + length]).count();
    let from = first.saturating_sub(AROUND);
    let mut shown = String::new();
    for (index, line) in text.lines().enumerate().skip(from).take(last + AROUND + 1 - from) {
        let (line, cut) = shown::shortened(line, 300);
        let mark = if cut > 0 { " [… cut]" } else { "" };
        shown.push_str(&format!("{:>6}\t{line}{mark}\n", index + 1));
        if shown.len() > SHOWN {
            shown.push_str("[…]\n");
            break;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(
        content: &str,
        old: &str,
        new: &str,
        replace_all: bool,
    ) -> Result<(String, usize, usize), String> {
        let (old_string, new_string) = (old.to_owned(), new.to_owned());
        let args = Arguments { path: String::new(), old_string, new_string, replace_all };
        let done = edited("f", content.as_bytes(), &args).map_err(|error| format!("{error:?}"))?;
        Ok((String::from_utf8(done.content).unwrap(), done.replacements, done.at))
    }

    #[test]
    fn one_text_is_replaced_where_it_stands_alone() {
        assert_eq!(edit("a b c", "b", "x", false), Ok(("a x c".into(), 1, 2)));
        assert_eq!(edit("a b c", "b ", "", false), Ok(("a c".into(), 1, 2)));
        assert_eq!(edit("a\na\n", "a", "bb", true), Ok(("bb\nbb\n".into(), 2, 0)));
        assert_eq!(edit("aaaa", "aa", "b", true), Ok(("bb".into(), 2, 0)));
        let refused = edit("a\nb\na\n", "a", "x", false).unwrap_err();
        assert_eq!(refused, r#"NotUnique { path: "f", count: 2, lines: "1, 3" }"#);
        assert_eq!(edit("a", "a", "a", false).unwrap_err(), "NoChange");
        assert_eq!(edit("a", "", "a", false).unwrap_err(), "NothingToReplace");
    }

    #[test]
    fn what_is_not_found_comes_with_a_hint() {
        let hint = |content: &str, old: &str| hint(content.as_bytes(), old);
        assert!(hint("a\r\nb\r\n", "a\nb").contains("CR LF"));
        assert!(hint("x\n\tlet a;\n", "  let a;").contains("line 2"));
        assert_eq!(hint("x\n", "y"), "no line is like its first one");
    }

    #[test]
    fn the_lines_around_a_change_are_shown() {
        let text: String = (1..=9).map(|n| format!("{n}\n")).collect();
        let at = text.find('5').unwrap();
        assert_eq!(around(text.as_bytes(), at, 1).lines().count(), 7);
        assert!(around(text.as_bytes(), at, 1).starts_with("     2\t2\n"));
        assert_eq!(around(b"x", 0, 1), "     1\tx\n");
        assert_eq!(around(b"", 0, 0), "");
    }
}
