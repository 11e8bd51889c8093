//! `glob`: files by their names.

use moltis_config::value::glob::Glob;
use moltis_sandbox::{EntryKind, GuestPath, Result};
use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::json;

use super::walk::{Bounds, Walk, below};
use super::{LOOKS, shown};
use crate::answer::Answered;
use crate::error::ToolError;
use crate::schema::{array, boolean, input, integer, may, needs, output, string};
use crate::server::Call;

/// Files that an answer holds unless the call says otherwise, and at most.
const LIMIT: (u64, u64) = (100, 1000);

/// Files that are held to be sorted.
const HELD: usize = 100_000;

/// Patterns that one with braces stands for at most.
const PATTERNS: usize = 64;

#[derive(Deserialize)]
pub(crate) struct Arguments {
    pattern: String,
    path: Option<String>,
    #[serde(default)]
    ignored: bool,
    limit: Option<u64>,
}

pub(crate) fn tool() -> Tool {
    super::tool(
        "glob",
        "Find files by name",
        "Finds files and links in the sandbox whose path matches a pattern, the latest changed first. `*` and `?` stay \
         within one name, `**/` is any directories, `[a-z]` and `{a,b}` are choices. A pattern without a slash is for \
         names at any depth. Directories `.git` and `node_modules` are passed over, and what `.gitignore` files leave out, \
         unless the pattern or path names it. For what stands in files use grep.",
        input(vec![
            needs(
                "pattern",
                string("As in `*.rs`, `src/**/*.{ts,tsx}` or `**/Cargo.toml`; counted from `path`"),
            ),
            may("path", string("Directory to search; otherwise the one in which commands run")),
            may("ignored", boolean("Find also what `.gitignore` files leave out")),
            may("limit", integer("Files to give at most; otherwise 100", 1, Some(LIMIT.1))),
        ]),
        output(vec![
            needs("path", string("The directory that was searched, from the root")),
            needs("files", array("Paths from there, the latest changed first", string("A path"))),
            needs("total", integer("How many match, as far as was searched", 0, None)),
            needs("more", boolean("Whether others match than these")),
            may("incomplete", string("Why not all was searched")),
        ]),
        &LOOKS,
    )
}

pub(crate) async fn run(call: &Call, args: Arguments) -> Result<Answered> {
    let patterns = Patterns::new(&args.pattern)?;
    let open = call.open().await?;
    let (top, patterns) = patterns.anchored(open.path(args.path.as_deref().unwrap_or("."))?);
    let files = open.files(call.runtime()).await;
    let mut bounds = Bounds::new();
    let mut found: Vec<(i64, Vec<u8>)> = Vec::new();
    let mut total = 0u64;
    let named = |name: &str| args.pattern.contains(name) || shown::path(top.as_bytes()).contains(name);
    let mut walk = Walk::new(&files, &top, named, |directory| patterns.goes_into(directory));
    if !args.ignored {
        walk = walk.without_ignored(|path| patterns.spells(path)).await?;
    }
    while let Some((path, entry)) = walk.next(&mut bounds).await? {
        if entry.metadata.kind != EntryKind::Directory && patterns.is_match(&path) {
            total += 1;
            if found.len() < HELD {
                found.push((entry.metadata.modified_nanos, path));
            }
        }
    }
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    let limit = args.limit.unwrap_or(LIMIT.0).clamp(1, LIMIT.1);
    found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let name = shown::path(top.as_bytes());
    let paths: Vec<_> = found.iter().map(|(_, path)| shown::path(path)).collect();
    let more = (paths.len() as u64) < total;
    let mut text = String::new();
    for path in &paths {
        text.push_str(&format!("{path}\n"));
    }
    text.push_str(&format!("[{} in {name}", shown::count(total, "file matches", "files match")));
    if more {
        text.push_str(&format!(", these are the {} changed last", paths.len()));
    }
    text.push_str("]\n");
    let mut data = json!({ "path": name, "files": paths, "total": total, "more": more });
    if let Some(why) = bounds.incomplete {
        text.push_str(&format!("[not all was searched: {why}; name a deeper `path`]\n"));
        data["incomplete"] = why.into();
    }
    Ok(Answered::new(text, data))
}

/// What a pattern stands for once its braces are taken apart.
pub(crate) struct Patterns(Vec<Glob>);

impl Patterns {
    /// # Errors
    /// `pattern-invalid`.
    pub fn new(pattern: &str) -> Result<Self> {
        let wrong = |why: &str| ToolError::Pattern { pattern: pattern.to_owned(), why: why.to_owned() };
        let mut globs = Vec::new();
        for one in braces(pattern).map_err(wrong)? {
            let one = one.strip_prefix("./").unwrap_or(&one);
            let any_depth = !one.contains('/') && one != "**";
            let text = if any_depth { format!("**/{one}") } else { one.to_owned() };
            globs.push(Glob::new(&text).map_err(wrong)?);
        }
        Ok(Self(globs))
    }

    /// Where to search from: from the root where the pattern is written from there.
    fn anchored(self, path: GuestPath) -> (GuestPath, Self) {
        let (Some(root), true) =
            (GuestPath::new("/"), self.0.iter().any(|glob| glob.as_str().starts_with('/')))
        else {
            return (path, self);
        };
        let top = path.as_bytes().strip_prefix(b"/").unwrap_or_default();
        let top = String::from_utf8_lossy(top).into_owned();
        let globs = self.0.iter().filter_map(|glob| match glob.as_str().strip_prefix('/') {
            Some(rest) => Glob::new(rest).ok(),
            None => Glob::new(&shown::path(&below(top.as_bytes(), glob.as_str().as_bytes()))).ok(),
        });
        (root, Self(globs.collect()))
    }

    /// Whether a path from the top matches.
    pub fn is_match(&self, path: &[u8]) -> bool {
        self.0.iter().any(|glob| glob.is_match_bytes(path))
    }

    /// Whether a path is spelled out by what stands before the first wildcard.
    pub fn spells(&self, path: &[u8]) -> bool {
        let mut rests = self.0.iter().filter_map(|glob| spelled(glob).strip_prefix(path));
        rests.any(|rest| rest.first().is_none_or(|byte| *byte == b'/'))
    }

    /// Whether something in a directory could match: what is spelled out before the first wildcard has to agree.
    pub fn goes_into(&self, directory: &[u8]) -> bool {
        self.0.iter().any(|glob| {
            let spelled = spelled(glob);
            let length = spelled.len().min(directory.len());
            spelled[..length] == directory[..length]
                && (directory.len() >= spelled.len() || spelled[directory.len()] == b'/')
        })
    }
}

/// What stands in a pattern before its first wildcard.
fn spelled(glob: &Glob) -> &[u8] {
    let text = glob.as_str().as_bytes();
    &text[..text.iter().position(|byte| b"*?[\\".contains(byte)).unwrap_or(text.len())]
}

/// The patterns that one with braces stands for.
fn braces(pattern: &str) -> Result<Vec<String>, &'static str> {
    let mut done = Vec::new();
    let mut waiting = vec![pattern.to_owned()];
    while let Some(next) = waiting.pop() {
        let Some(close) = next.find('}') else {
            if next.contains('{') {
                return Err("a { is not closed");
            }
            done.push(next);
            continue;
        };
        let Some(open) = next[..close].rfind('{') else { return Err("a } closes nothing") };
        for choice in next[open + 1..close].split(',').rev() {
            waiting.push(format!("{}{choice}{}", &next[..open], &next[close + 1..]));
        }
        if waiting.len() + done.len() > PATTERNS {
            return Err("its braces stand for too many patterns");
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_taken_apart() {
        let all = |pattern: &str| braces(pattern).map(|all| all.join(" "));
        assert_eq!(all("*.{ts,tsx}"), Ok("*.ts *.tsx".into()));
        assert_eq!(all("{a,b}/{c,d}"), Ok("a/c a/d b/c b/d".into()).or_else(|_: ()| all("{a,b}/{c,d}")));
        assert_eq!(all("x"), Ok("x".into()));
        assert_eq!(all("a{b"), Err("a { is not closed"));
        assert_eq!(all("a}b"), Err("a } closes nothing"));
        assert!(all(&"{a,b}".repeat(9)).is_err());
    }

    #[test]
    fn names_match_at_any_depth_and_paths_from_the_top() {
        let is_match = |pattern: &str, path: &str| Patterns::new(pattern).unwrap().is_match(path.as_bytes());
        for (pattern, path) in [
            ("*.rs", "a.rs"),
            ("*.rs", "x/y/a.rs"),
            ("src/**/*.rs", "src/a.rs"),
            ("src/**/*.rs", "src/x/a.rs"),
            ("./a", "a"),
            ("**", "x/y"),
        ] {
            assert!(is_match(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [("src/*.rs", "src/x/a.rs"), ("a", "b/ab"), ("src/**", "lib/src/a")] {
            assert!(!is_match(pattern, path), "{pattern} {path}");
        }
        assert!(Patterns::new("[").is_err());
    }

    #[test]
    fn directories_that_cannot_hold_a_match_are_left_out() {
        let goes = |pattern: &str, path: &str| Patterns::new(pattern).unwrap().goes_into(path.as_bytes());
        assert!(goes("src/a/*.rs", "src") && goes("src/a/*.rs", "src/a") && goes("src/a*/x", "src/ab"));
        assert!(!goes("src/a/*.rs", "srcs") && !goes("src/a/*.rs", "lib") && !goes("src/a/*.rs", "sr"));
        assert!(goes("*.rs", "any/where"));
    }

    #[test]
    fn what_stands_before_a_wildcard_is_asked_for() {
        let spells = |pattern: &str, path: &str| Patterns::new(pattern).unwrap().spells(path.as_bytes());
        assert!(spells("target/debug/*.d", "target") && spells("target/debug/*.d", "target/debug"));
        assert!(spells("a/b", "a/b") && !spells("a/b*", "a/b/c"));
        assert!(
            !spells("target/*.d", "target/x.d") && !spells("targets/*", "target") && !spells("*.d", "x.d")
        );
    }

    #[test]
    fn a_pattern_from_the_root_is_searched_from_there() {
        let path = GuestPath::new("/work").unwrap();
        let (top, patterns) = Patterns::new("/etc/*.conf").unwrap().anchored(path.clone());
        assert_eq!((top.as_bytes(), patterns.is_match(b"etc/a.conf")), (&b"/"[..], true));
        let (top, patterns) = Patterns::new("a/*").unwrap().anchored(path.clone());
        assert_eq!((top, patterns.is_match(b"a/b")), (path, true));
    }
}
