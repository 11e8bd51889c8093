//! `grep`: lines of files by what stands in them. Files are read by the sandbox's file tools and searched here.

use std::ops::ControlFlow;

use futures_util::{StreamExt, stream};
use moltis_sandbox::{EntryKind, Error, Files, GuestPath, Result};
use regex::bytes::{Regex, RegexBuilder};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Value, json};

use super::glob::Patterns;
use super::walk::{Bounds, Walk, below};
use super::{LOOKS, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{array, boolean, input, integer, may, needs, object, output, string};
use crate::server::Call;

/// Lines that an answer holds unless the call says otherwise, and at most.
const LIMIT: (u64, u64) = (100, 1000);

/// Largest file that is searched, in bytes.
const FILE: u64 = 8 * 1024 * 1024;

/// Bytes that are read of all files together.
const ALL: u64 = 512 * 1024 * 1024;

/// Bytes of a line that are shown.
const LINE: usize = 400;

/// Bytes of an answer.
const ANSWER: usize = 64 * 1024;

/// Lines around a match at most.
const CONTEXT: u64 = 20;

/// Files that are read at the same time.
const AT_ONCE: usize = 8;

/// Files that wait to be searched.
const BATCH: usize = 64;

/// Bytes that are looked at to tell text from anything else.
const SAMPLE: usize = 8 * 1024;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    pattern: String,
    path: Option<String>,
    glob: Option<String>,
    #[serde(default)]
    ignore_case: bool,
    #[serde(default)]
    literal: bool,
    #[serde(default)]
    context: u64,
    #[serde(default)]
    files_only: bool,
    #[serde(default)]
    ignored: bool,
    limit: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    let found = object(
        "A line",
        vec![
            needs("path", string("Its file, from `path`")),
            needs("line", integer("Its number", 1, None)),
            needs("text", string("What stands in it")),
            may("before", array("Lines before it", string(""))),
            may("after", array("Lines after it", string(""))),
        ],
    );
    super::tool(
        "grep",
        "Search in files",
        "Finds lines of text files in the sandbox that match a regular expression (Rust's syntax: no look-around, no \
         back-references), by file and number. Files that are no text or larger than 8 MiB are passed over, and so are \
         directories `.git` and `node_modules` and what `.gitignore` files leave out, unless `path` or `glob` names it. For \
         files by name use glob.",
        input(vec![
            needs("pattern", string("What to look for within a line, as in `fn \\w+_test`")),
            may("path", string("Directory or file to search; otherwise the directory in which commands run")),
            may("glob", string("Only files that match this, as in `*.py` or `src/**/*.{c,h}`")),
            may("ignore_case", boolean("Take a and A for the same")),
            may("literal", boolean("Take the pattern as it stands, with nothing special in it")),
            may("context", integer("Lines to give before and after each match", 0, Some(CONTEXT))),
            may("files_only", boolean("Give only the names of files with a match")),
            may("ignored", boolean("Search also what `.gitignore` files leave out")),
            may("limit", integer("Lines or files to give at most; otherwise 100", 1, Some(LIMIT.1))),
        ]),
        output(vec![
            needs("path", string("What was searched, from the root")),
            may("matches", array("The lines", found)),
            may("files", array("Files with a match, where only names are asked for", string("A path"))),
            needs("more", boolean("Whether there may be others than these")),
            needs("searched", integer("Files that were searched", 0, None)),
            needs("passedOver", integer("Files that are too large, no text, or cannot be read", 0, None)),
            may("incomplete", string("Why not all was searched")),
        ]),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let regex = regex(&args)?;
    let only = args.glob.as_deref().map(Patterns::new).transpose()?;
    let open = call.open().await?;
    let top = open.path(args.path.as_deref().unwrap_or("."))?;
    let files = open.files(call.runtime()).await;
    let limit = args.limit.unwrap_or(LIMIT.0).clamp(1, LIMIT.1);
    let mut bounds = Bounds::new();
    let context = usize::try_from(args.context.min(CONTEXT)).unwrap_or(0);
    let mut search = Search {
        files: &files,
        regex,
        context,
        files_only: args.files_only,
        most: usize::try_from(limit).unwrap_or(usize::MAX),
        waiting: Vec::new(),
        found: Found::default(),
    };
    if files.stat(&top, true).await?.kind == EntryKind::File {
        let name = top.as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        search.waiting.push((name, top.clone()));
    } else {
        let named = |name: &str| {
            args.glob.as_ref().is_some_and(|glob| glob.contains(name))
                || shown::path(top.as_bytes()).contains(name)
        };
        let goes_into = |directory: &[u8]| only.as_ref().is_none_or(|only| only.goes_into(directory));
        let mut walk = Walk::new(&files, &top, named, goes_into);
        if !args.ignored {
            walk = walk.without_ignored(|path| only.as_ref().is_some_and(|only| only.spells(path))).await?;
        }
        while let Some((path, entry)) = walk.next(&mut bounds).await? {
            if entry.metadata.kind != EntryKind::File
                || only.as_ref().is_some_and(|only| !only.is_match(&path))
            {
                continue;
            }
            if entry.metadata.size > FILE {
                search.found.passed_over += 1;
                continue;
            }
            let Some(whole) = GuestPath::new(below(top.as_bytes(), &path)) else { continue };
            search.waiting.push((path, whole));
            if search.waiting.len() >= BATCH && search.batch(&mut bounds).await?.is_break() {
                break;
            }
        }
    }
    let _ = search.batch(&mut bounds).await?;
    let name = shown::path(top.as_bytes());
    Ok(told(&name, search.found, &args, bounds))
}

fn regex(args: &Arguments) -> Result<Regex, ToolError> {
    let wrong = |why: String| ToolError::Pattern { pattern: args.pattern.clone(), why };
    if args.pattern.is_empty() {
        return Err(wrong("it is empty".to_owned()));
    }
    let text = if args.literal { regex::escape(&args.pattern) } else { args.pattern.clone() };
    // Anchors are those of a line, and nothing matches its end. What it costs is bounded whatever the pattern is.
    RegexBuilder::new(&text)
        .case_insensitive(args.ignore_case)
        .size_limit(4 << 20)
        .dfa_size_limit(4 << 20)
        .build()
        .map_err(|error| wrong(error.to_string()))
}

/// What was found so far.
#[derive(Default)]
struct Found {
    lines: Vec<Match>,
    files: Vec<String>,
    searched: u64,
    passed_over: u64,
    read: u64,
    /// Bytes of text in the answer.
    size: usize,
    more: bool,
}

struct Match {
    path: String,
    line: usize,
    text: String,
    before: Vec<String>,
    after: Vec<String>,
}

struct Search<'a> {
    files: &'a dyn Files,
    regex: Regex,
    context: usize,
    files_only: bool,
    most: usize,
    waiting: Vec<(Vec<u8>, GuestPath)>,
    found: Found,
}

impl Search<'_> {
    /// Searches the files that wait, in their order, some of them read ahead.
    async fn batch(&mut self, bounds: &mut Bounds) -> Result<ControlFlow<()>> {
        let files = self.files;
        let waiting = std::mem::take(&mut self.waiting);
        let reading =
            waiting.into_iter().map(|(name, path)| async move { (name, content(files, &path).await) });
        let mut reading = stream::iter(reading).buffered(AT_ONCE);
        while let Some((name, content)) = reading.next().await {
            match content {
                Ok(Some(content)) => {
                    self.found.searched += 1;
                    self.found.read += content.len() as u64;
                    if self.lines(&name, &content).is_break() {
                        self.found.more = true;
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(None) | Err(Error::Refused(_) | Error::Invalid(_)) => self.found.passed_over += 1,
                Err(error) => return Err(error),
            }
            if self.found.read > ALL {
                bounds.incomplete = Some(format!("the search was ended after {} MiB", ALL >> 20));
            }
            if bounds.incomplete.is_some() || bounds.is_over() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes what matches in one file; a break when the answer is full.
    fn lines(&mut self, name: &[u8], content: &[u8]) -> ControlFlow<()> {
        if self.files_only
            && !content.split(|byte| *byte == b'\n').any(|line| self.regex.is_match(chopped(line)))
        {
            return ControlFlow::Continue(());
        }
        if self.files_only {
            if self.found.files.len() == self.most {
                return ControlFlow::Break(());
            }
            self.found.files.push(shown::path(name));
            return ControlFlow::Continue(());
        }
        let ends: Vec<usize> = memchr::memchr_iter(b'\n', content).collect();
        let lines = ends.len() + usize::from(!content.is_empty() && !content.ends_with(b"\n"));
        let line = |index: usize| {
            let from = index.checked_sub(1).map_or(0, |before| ends[before] + 1);
            chopped(&content[from..ends.get(index).copied().unwrap_or(content.len())])
        };
        for index in 0..lines {
            let Some(hit) = self.regex.find(line(index)) else { continue };
            if self.found.lines.len() == self.most || self.found.size > ANSWER {
                return ControlFlow::Break(());
            }
            let text = part(line(index), hit.start());
            let before = (index.saturating_sub(self.context)..index).map(|i| part(line(i), 0)).collect();
            let after = (index + 1..lines.min(index + 1 + self.context)).map(|i| part(line(i), 0)).collect();
            let found = Match { path: shown::path(name), line: index + 1, text, before, after };
            self.found.size += found.path.len()
                + found.text.len()
                + found.before.iter().chain(&found.after).map(String::len).sum::<usize>();
            self.found.lines.push(found);
        }
        ControlFlow::Continue(())
    }
}

/// A line without the CR of a CR LF.
fn chopped(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}

/// As much of a line as is shown: with what matched in it.
fn part(line: &[u8], hit: usize) -> String {
    if line.len() <= LINE {
        return shown::path(line);
    }
    let from = if hit > LINE / 2 { hit - LINE / 4 } else { 0 };
    let to = (from + LINE).min(line.len());
    let (begun, ended) = (if from > 0 { "[…] " } else { "" }, if to < line.len() { " […]" } else { "" });
    format!("{begun}{}{ended}", shown::path(&line[from..to]))
}

/// A file's content; nothing where it is no text.
async fn content(files: &dyn Files, path: &GuestPath) -> Result<Option<Vec<u8>>> {
    let mut read = files.read(path, 0, Some(FILE + 1)).await?;
    let mut all = Vec::new();
    while let Some(piece) = read.content.next().await {
        let piece = piece?;
        if all.is_empty() && piece[..piece.len().min(SAMPLE)].contains(&0) {
            return Ok(None);
        }
        all.extend_from_slice(&piece);
        if all.len() as u64 > FILE {
            return Ok(None);
        }
    }
    Ok(Some(all))
}

fn told(name: &str, found: Found, args: &Arguments, bounds: Bounds) -> Answered {
    let mut text = String::new();
    let mut data = json!({
        "path": name,
        "more": found.more || bounds.incomplete.is_some(),
        "searched": found.searched,
        "passedOver": found.passed_over,
    });
    if args.files_only {
        for file in &found.files {
            text.push_str(&format!("{file}\n"));
        }
        data["files"] = found.files.into();
    } else {
        let mut last = None;
        for found in &found.lines {
            if args.context > 0 && last.is_some() {
                text.push_str("--\n");
            }
            let first = found.line - found.before.len();
            for (index, line) in found.before.iter().enumerate() {
                text.push_str(&format!("{}-{}-{line}\n", found.path, first + index));
            }
            text.push_str(&format!("{}:{}:{}\n", found.path, found.line, found.text));
            for (index, line) in found.after.iter().enumerate() {
                text.push_str(&format!("{}-{}-{line}\n", found.path, found.line + 1 + index));
            }
            last = Some(found.line);
        }
        data["matches"] = found.lines.iter().map(line).collect();
    }
    if text.is_empty() {
        text.push_str("[nothing matches]\n");
    }
    if found.more {
        text.push_str("[there are more; narrow the search by `path`, `glob` or `pattern`, or set `limit`]\n");
    }
    let searched = shown::count(found.searched, "file", "files");
    text.push_str(&format!("[{searched} searched in {name}, {} passed over]\n", found.passed_over));
    if let Some(why) = bounds.incomplete {
        text.push_str(&format!("[not all was searched: {why}; name a deeper `path`]\n"));
        data["incomplete"] = why.into();
    }
    Answered::new(text, data)
}

fn line(found: &Match) -> Value {
    let Match { path, line, text, before, after } = found;
    let mut told = json!({ "path": path, "line": line, "text": text });
    for (name, lines) in [("before", before), ("after", after)] {
        if !lines.is_empty() {
            told[name] = lines.clone().into();
        }
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_show_what_matched() {
        let line = [b"x".repeat(5000), b"hit".to_vec(), b"y".repeat(5000)].concat();
        let shown = part(&line, 5000);
        assert!(shown.contains("xhity") && shown.starts_with("[…] ") && shown.ends_with(" […]"), "{shown}");
        assert!(shown.len() < LINE + 20);
        assert_eq!(part(b"short", 2), "short");
        assert_eq!(chopped(b"a\r"), b"a");
    }
}
