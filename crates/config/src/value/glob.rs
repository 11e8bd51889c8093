//! Path globs: `*` and `?` within one part, `**` over parts, `[a-z]` classes.

use std::fmt;
use std::path::Path;

use super::{Context, Text};
use crate::error::InvalidValue;

/// A glob. It matches a whole path, byte by byte; its cost is bounded by the product of both lengths.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Token {
    Byte(u8),
    /// `?`: one character that is no slash.
    One,
    /// `*`: any number of bytes without a slash.
    Within,
    /// `**`: any number of bytes.
    Over,
    /// `**/`: nothing, or any bytes that end in a slash.
    Folders,
    /// `[…]`: one ASCII character of these ranges, or with `!` of none of them.
    Class {
        negated: bool,
        ranges: Vec<(u8, u8)>,
    },
}

impl Glob {
    /// Longest glob in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Reads a glob.
    ///
    /// # Errors
    /// What is wrong with it, in words.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("it is empty");
        }
        if text.len() > Self::MAX_BYTES {
            return Err("it is longer than 1024 bytes");
        }
        if text.contains('\0') {
            return Err("it contains a NUL byte");
        }
        Ok(Self { text: text.to_owned(), tokens: tokens(text.as_bytes())? })
    }

    /// The glob as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether it matches the whole path.
    pub fn is_match(&self, path: impl AsRef<Path>) -> bool {
        self.is_match_bytes(path.as_ref().as_os_str().as_encoded_bytes())
    }

    /// Whether it matches all of `path`.
    pub fn is_match_bytes(&self, path: &[u8]) -> bool {
        // at[i]: the tokens so far can match path[..i].
        let mut at = vec![false; path.len() + 1];
        at[0] = true;
        for token in &self.tokens {
            at = step(token, &at, path);
        }
        at[path.len()]
    }

    /// Whether it matches the plain absolute path or something that it lies in. A glob without a slash in front counts
    /// from any part of the path.
    pub fn covers(&self, path: &[u8]) -> bool {
        let is_anchored = self.tokens.first() == Some(&Token::Byte(b'/'));
        let mut at = vec![false; path.len() + 1];
        at[0] = true;
        if !is_anchored {
            for i in 1..at.len() {
                at[i] = path[i - 1] == b'/';
            }
        }
        for token in &self.tokens {
            at = step(token, &at, path);
        }
        // The top itself ends with its slash.
        (1..at.len()).any(|end| at[end] && (end == 1 || end == path.len() || path[end] == b'/'))
    }

    /// Whether the plain absolute path is a directory on the way to what a glob from the root spells out before its
    /// first wildcard.
    pub fn is_below(&self, path: &[u8]) -> bool {
        if self.tokens.first() != Some(&Token::Byte(b'/')) {
            return false;
        }
        let spelled = self.tokens.iter().map_while(|token| match token {
            Token::Byte(byte) => Some(*byte),
            _ => None,
        });
        let spelled: Vec<u8> = spelled.collect();
        path == b"/" || spelled.strip_prefix(path).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// What stays read-only in a writable workspace unless told otherwise.
    pub fn workspace_protect() -> Vec<Self> {
        let names = [
            ".git/hooks",
            ".git/config",
            ".gitmodules",
            ".envrc",
            ".vscode",
            ".idea",
            ".claude",
            ".codex",
            ".mcp.json",
            ".moltis*",
        ];
        names.iter().filter_map(|name| Self::new(name).ok()).collect()
    }
}

fn step(token: &Token, at: &[bool], path: &[u8]) -> Vec<bool> {
    let mut next = vec![false; at.len()];
    match token {
        Token::Within | Token::Over => {
            let mut alive = false;
            for i in 0..at.len() {
                alive = at[i] || (alive && (*token == Token::Over || path[i - 1] != b'/'));
                next[i] = alive;
            }
        }
        Token::Folders => {
            let mut alive = false;
            for i in 0..at.len() {
                next[i] = at[i] || (alive && path[i - 1] == b'/');
                alive |= at[i];
            }
        }
        Token::One => {
            for i in (0..path.len()).filter(|i| at[*i] && path[*i] != b'/') {
                // One character of UTF-8, or one byte of anything else.
                let mut end = i + 1;
                while path[i] >= 0xC0 && end < path.len() && end < i + 4 && path[end] & 0xC0 == 0x80 {
                    end += 1;
                }
                next[end] = true;
            }
        }
        Token::Byte(byte) => {
            for i in (0..path.len()).filter(|i| at[*i] && path[*i] == *byte) {
                next[i + 1] = true;
            }
        }
        Token::Class { negated, ranges } => {
            let fits =
                |b: u8| b != b'/' && ranges.iter().any(|(low, high)| (*low..=*high).contains(&b)) != *negated;
            for i in (0..path.len()).filter(|i| at[*i] && fits(path[*i])) {
                next[i + 1] = true;
            }
        }
    }
    next
}

fn tokens(mut text: &[u8]) -> Result<Vec<Token>, &'static str> {
    let mut tokens = Vec::new();
    while let Some((&byte, rest)) = text.split_first() {
        text = rest;
        let token = match byte {
            b'*' => {
                let stars = text.iter().take_while(|b| **b == b'*').count();
                text = &text[stars..];
                let starts_part = matches!(tokens.last(), None | Some(Token::Byte(b'/') | Token::Folders));
                match (stars, text.first()) {
                    (0, _) => Token::Within,
                    (1, Some(b'/')) if starts_part => {
                        text = &text[1..];
                        Token::Folders
                    }
                    (1, None) if starts_part => Token::Over,
                    _ => return Err("** must be a whole part of the path, as in src/**/x"),
                }
            }
            b'?' => Token::One,
            b'[' => {
                let (class, rest) = class(text)?;
                text = rest;
                class
            }
            b'\\' => {
                let (&escaped, rest) = text.split_first().ok_or("it ends in a lone backslash")?;
                text = rest;
                Token::Byte(escaped)
            }
            b'{' | b'}' => return Err("braces are not understood: write one glob for each"),
            byte => Token::Byte(byte),
        };
        tokens.push(token);
    }
    Ok(tokens)
}

fn class(text: &[u8]) -> Result<(Token, &[u8]), &'static str> {
    let (negated, mut text) = match text.first() {
        Some(b'!' | b'^') => (true, &text[1..]),
        _ => (false, text),
    };
    let mut ranges = Vec::new();
    loop {
        let (&low, rest) = text.split_first().ok_or("a [ is not closed")?;
        if low == b']' && !ranges.is_empty() {
            return Ok((Token::Class { negated, ranges }, rest));
        }
        if !low.is_ascii() || low == b'/' {
            return Err("between [ and ] only ASCII characters other than / are understood");
        }
        match rest {
            [b'-', high, tail @ ..] if *high != b']' => {
                if *high < low || !high.is_ascii() {
                    return Err("a range between [ and ] runs backwards or leaves ASCII");
                }
                ranges.push((low, *high));
                text = tail;
            }
            _ => {
                ranges.push((low, low));
                text = rest;
            }
        }
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A path glob.
pub struct GlobFormat;

impl Text for GlobFormat {
    type Value = Glob;

    const NAME: &'static str = "glob";
    const EXAMPLE: &'static str = "/srv/data/**";

    fn parse(text: &str, _: &Context) -> Result<Glob, InvalidValue> {
        Glob::new(text).map_err(|why| InvalidValue::malformed(text, "a glob", why))
    }

    fn text(value: &Glob) -> String {
        value.text.clone()
    }
}

/// A glob over image references.
pub struct ImageGlob;

impl Text for ImageGlob {
    type Value = Glob;

    const NAME: &'static str = "image pattern";
    const EXAMPLE: &'static str = "docker.io/library/*";

    fn parse(text: &str, _: &Context) -> Result<Glob, InvalidValue> {
        let malformed = |why| InvalidValue::malformed(text, "an image pattern", why);
        if text.contains(char::is_whitespace) {
            return Err(malformed("it contains a space"));
        }
        Glob::new(text).map_err(malformed)
    }

    fn text(value: &Glob) -> String {
        value.text.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_paths() {
        let cases = [
            ("/a/*", "/a/b", true),
            ("/a/*", "/a/b/c", false),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/a", false),
            ("**/x", "x", true),
            ("**/x", "a/b/x", true),
            ("**/x", "ax", false),
            ("a/**/b", "a/b", true),
            ("a/**/b", "a/x/y/b", true),
            ("a/**/b", "ab", false),
            ("**", "a/b", true),
            (".moltis*", ".moltis", true),
            (".moltis*", ".moltis.toml", true),
            (".moltis*", ".moltis/x", false),
            ("?", "é", true),
            ("?", "/", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("**/**/x", "x", true),
        ];
        for (glob, path, expected) in cases {
            assert_eq!(Glob::new(glob).unwrap().is_match(path), expected, "{glob} {path}");
        }
    }

    #[test]
    fn globs_cover_what_lies_in_what_they_match() {
        let cases = [
            ("a.key", "/a.key", true),
            ("a.key", "/x/y/a.key/z", true),
            ("a.key", "/xa.key", false),
            ("a.key", "/a.keys", false),
            ("*.key", "/x/a.key", true),
            ("a/b", "/x/a/b", true),
            ("a/b", "/xa/b", false),
            ("/a", "/a/b", true),
            ("/a", "/x/a", false),
            ("/", "/x", true),
            ("**", "/", true),
            ("/a/**", "/a", false),
        ];
        for (glob, path, expected) in cases {
            assert_eq!(Glob::new(glob).unwrap().covers(path.as_bytes()), expected, "{glob} {path}");
        }
    }

    #[test]
    fn folders_on_the_way_are_known() {
        let cases = [
            ("/tmp/**", "/", true),
            ("/tmp/**", "/tmp", true),
            ("/tmp/**", "/tm", false),
            ("/tmp/**", "/tmp/x", false),
            ("/tmp/a*", "/tmp", true),
            ("/a/b", "/a", true),
            ("/a/b", "/a/b", false),
            ("/tmp*", "/tmp", false),
            ("*.key", "/", false),
        ];
        for (glob, path, expected) in cases {
            assert_eq!(Glob::new(glob).unwrap().is_below(path.as_bytes()), expected, "{glob} {path}");
        }
    }

    #[test]
    fn what_is_no_glob_is_refused() {
        for text in ["", "a**", "**a", "***", "[", "[a", "[]", "[b-a]", "{a,b}", "a\\", "a\0"] {
            assert!(Glob::new(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_hostile_glob_costs_little() {
        let glob = Glob::new(&"*a".repeat(500)).unwrap();
        assert!(!glob.is_match("a".repeat(4096) + "b"));
    }

    #[test]
    fn every_protected_name_is_a_glob() {
        assert_eq!(Glob::workspace_protect().len(), 10);
    }
}
