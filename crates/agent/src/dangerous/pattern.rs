//! Patterns of names, and how far each has matched on the way to a directory.

/// Folders of packages, caches and build results: large, made by tools, and nothing that a person opens in an editor or
/// runs `git` in. Their own names are matched, what is in them is not looked at.
const NOT_ENTERED: &[&[u8]] = &[
    b"node_modules",
    b"bower_components",
    b"site-packages",
    b"__pycache__",
    b".cache",
    b".gradle",
    b".mypy_cache",
    b".nox",
    b".pnpm-store",
    b".pytest_cache",
    b".terraform",
    b".tox",
    b".venv",
    b"venv",
];

/// The folder of build results that says by a file in it that it is one; see `walk`.
pub const TAGGED: &[u8] = b"target";

/// What `git` keeps besides what decides over the running of code.
const GIT_STORES: &[&[u8]] = &[b"objects", b"refs", b"logs", b"lfs", b"rr-cache", b"info"];

/// Names of `git`'s that are files: a directory of such a name is a submodule or a work tree that is called so.
const GIT_FILES: &[&[u8]] = &[b"config", b"commondir", b"config.worktree", b"gitdir"];

/// What `git` also takes hooks and settings from, beyond `.git/hooks` and `.git/config`.
const GIT_OTHERS: &[&str] = &[
    ".git/commondir",
    ".git/config.worktree",
    ".git/modules/**/hooks",
    ".git/modules/**/config",
    ".git/modules/**/commondir",
    ".git/modules/**/config.worktree",
    ".git/worktrees/*/commondir",
    ".git/worktrees/*/config.worktree",
    ".git/worktrees/*/gitdir",
];

const GIT: &[u8] = b".git";

/// Patterns that hold in a folder and in every folder beneath it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns {
    patterns: Vec<Vec<Part>>,
}

/// What matches one name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// `**`: any number of directories.
    Any,
    Literal(Vec<u8>),
    Glob(Vec<u8>),
}

impl Part {
    fn matches(&self, name: &[u8]) -> bool {
        match self {
            Self::Any => false,
            Self::Literal(literal) => literal == name,
            Self::Glob(glob) => name_matches(glob, name),
        }
    }
}

/// Where the patterns are in some directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Pattern and part that comes next.
    at: Vec<(usize, usize)>,
    /// Whether all of them begin here too.
    roams: bool,
    in_git: bool,
}

/// What a name is to the patterns.
#[derive(Debug, PartialEq, Eq)]
pub struct Step {
    /// A pattern names it.
    pub is_match: bool,
    /// Only if it is no directory.
    pub is_file: bool,
    /// A pattern names something beneath it, and itself by its very name: it must be a directory, or it can be made
    /// into one that holds what the pattern names.
    pub leads_on: bool,
    /// The state in it, should it be a directory that is worth looking into.
    pub into: Option<State>,
}

impl Patterns {
    /// Reads globs: `*`, `?` and `[…]` within a name, `**` for any number of directories. Where one of them names
    /// something of `git`'s, all that `git` runs code by is meant. One that leads upwards names nothing.
    pub fn new(globs: &[String]) -> Self {
        let globs = || globs.iter().map(String::as_str);
        let of_git = globs().any(|glob| glob.trim_start_matches("**/").starts_with(".git/"));
        let others = GIT_OTHERS.iter().copied().filter(|_| of_git);
        let mut patterns: Vec<Vec<Part>> = Vec::new();
        for glob in globs().chain(others) {
            let parts: Vec<&[u8]> = glob
                .as_bytes()
                .split(|byte| *byte == b'/')
                .filter(|part| !part.is_empty() && *part != b".")
                .collect();
            if parts.contains(&b"..".as_slice()) {
                continue;
            }
            let mut parts: Vec<Part> = parts
                .into_iter()
                .map(|part| match part {
                    b"**" => Part::Any,
                    part if part.iter().any(|byte| b"*?[".contains(byte)) => Part::Glob(part.to_vec()),
                    part => Part::Literal(part.to_vec()),
                })
                .collect();
            // Each pattern holds at any depth anyway, and all beneath a match is protected with it.
            while parts.last() == Some(&Part::Any) {
                parts.pop();
            }
            let leading = parts.iter().take_while(|part| **part == Part::Any).count();
            parts.drain(..leading);
            if !parts.is_empty() && !patterns.contains(&parts) {
                patterns.push(parts);
            }
        }
        Self { patterns }
    }

    /// Whether there is nothing to look for.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The state in the folder itself.
    pub fn start(&self) -> State {
        State { at: Vec::new(), roams: true, in_git: false }
    }

    /// The state in the directory at a path, each name of which led on.
    pub fn state(&self, path: &[u8]) -> Option<State> {
        let mut state = self.start();
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            state = self.step(&state, name).into?;
        }
        Some(state)
    }

    /// Whether a directory is itself on the way from a pattern's first part to its last.
    pub fn is_within(&self, path: &[u8]) -> bool {
        self.state(path).is_some_and(|state| !state.at.is_empty())
    }

    /// Names that the patterns know by heart in a directory of this state: what to ask for where a directory is too
    /// large to be read.
    pub fn literals(&self, state: &State) -> Vec<&[u8]> {
        let begins = (0..self.patterns.len()).filter(|_| state.roams).map(|pattern| (pattern, 0));
        let parts = begins.chain(state.at.iter().copied()).filter_map(|(pattern, part)| {
            self.patterns.get(pattern)?.iter().skip(part).find(|part| **part != Part::Any)
        });
        let mut names: Vec<&[u8]> = parts
            .filter_map(|part| match part {
                Part::Literal(name) => Some(name.as_slice()),
                Part::Any | Part::Glob(_) => None,
            })
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What a name in a directory of this state is.
    pub fn step(&self, state: &State, name: &[u8]) -> Step {
        let is_file = state.in_git && GIT_FILES.contains(&name);
        let mut step = Step { is_match: false, is_file, leads_on: false, into: None };
        let is_store = state.in_git && GIT_STORES.contains(&name);
        let mut into = State { at: Vec::new(), roams: state.roams, in_git: state.in_git || name == GIT };
        let begins = (0..self.patterns.len()).filter(|_| state.roams).map(|pattern| (pattern, 0));
        for (pattern, mut part) in begins.chain(state.at.iter().copied()) {
            let parts = &self.patterns[pattern];
            while parts.get(part) == Some(&Part::Any) {
                // What is a pattern's last part is never this.
                if !is_store {
                    into.at.push((pattern, part));
                }
                part += 1;
            }
            let Some(next) = parts.get(part).filter(|next| next.matches(name)) else { continue };
            if part + 1 == parts.len() {
                step.is_match = true;
            } else {
                step.leads_on |= matches!(next, Part::Literal(_));
                into.at.push((pattern, part + 1));
            }
        }
        into.at.sort_unstable();
        into.at.dedup();
        into.roams &= !NOT_ENTERED.contains(&name) && !into.in_git;
        if (!step.is_match || is_file) && (into.roams || !into.at.is_empty()) {
            step.into = Some(into);
        }
        step
    }
}

impl State {
    /// Whether a folder of the name [`TAGGED`] matters here.
    pub fn roams(&self) -> bool {
        self.roams
    }

    /// The same in a folder whose own folders are not looked into.
    pub fn settle(&mut self) {
        self.roams = false;
    }
}

/// Whether this is `git`'s own name, which may also be a file that says where `git` is to look.
pub fn is_git(name: &[u8]) -> bool {
    name == GIT
}

/// Whether a name matches one part of a glob. A leading dot is not special.
pub fn name_matches(glob: &[u8], name: &[u8]) -> bool {
    // Where the last star was, and how much of the name it has taken: going back to an earlier one gains nothing.
    let mut star: Option<(&[u8], &[u8])> = None;
    let (mut rest, mut left) = (glob, name);
    loop {
        if let [b'*', after @ ..] = rest {
            star = Some((after, left));
            rest = after;
            continue;
        }
        match (one(rest, left), left.is_empty() && rest.is_empty()) {
            (_, true) => return true,
            (Some(after), _) => (rest, left) = (after, &left[1..]),
            (None, _) => match star {
                Some((after, [_, fewer @ ..])) => {
                    star = Some((after, fewer));
                    (rest, left) = (after, fewer);
                }
                _ => return false,
            },
        }
    }
}

/// What is left of a glob once its first element, which is no star, has matched the first byte of a name.
fn one<'g>(glob: &'g [u8], name: &[u8]) -> Option<&'g [u8]> {
    let byte = *name.first()?;
    match glob {
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => match rest.iter().skip(1).position(|b| *b == b']') {
            Some(end) => in_set(&rest[..=end], byte).then(|| &rest[end + 2..]),
            None => (byte == b'[').then_some(rest),
        },
        [first, rest @ ..] => (*first == byte).then_some(rest),
        [] => None,
    }
}

fn in_set(set: &[u8], byte: u8) -> bool {
    let (negated, set) = match set {
        [b'!' | b'^', rest @ ..] if !rest.is_empty() => (true, rest),
        set => (false, set),
    };
    let mut at = 0;
    let mut hit = false;
    while at < set.len() {
        if at + 2 < set.len() && set[at + 1] == b'-' {
            hit |= (set[at]..=set[at + 2]).contains(&byte);
            at += 3;
        } else {
            hit |= set[at] == byte;
            at += 1;
        }
    }
    hit != negated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_match_globs() {
        for (glob, name, matches) in [
            (".moltis*", ".moltis", true),
            (".moltis*", ".moltis.toml", true),
            (".moltis*", "moltis", false),
            ("a?c", "abc", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[", "[", true),
            ("*.y*l", "a.yaml", true),
            ("*.y*l", "a.yamlx", false),
            ("**a", "bba", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("a*b*c", "a-b-bc", true),
        ] {
            assert_eq!(name_matches(glob.as_bytes(), name.as_bytes()), matches, "{glob} {name}");
        }
        let (glob, name) = ([b"a*".repeat(500), b"b".to_vec()].concat(), b"a".repeat(4000));
        assert!(!name_matches(&glob, &name), "in a time that is bounded");
    }

    fn patterns(globs: &[&str]) -> Patterns {
        Patterns::new(&globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>())
    }

    /// Whether the last name of a path is a match, every one before it having led on.
    fn is_match(patterns: &Patterns, path: &str) -> bool {
        let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
        patterns.state(above.as_bytes()).is_some_and(|state| patterns.step(&state, name.as_bytes()).is_match)
    }

    #[test]
    fn patterns_hold_at_any_depth_and_git_is_meant_as_a_whole() {
        let patterns = patterns(&[".git/hooks", ".git/config", ".vscode", ".moltis*", "../x", "a/**/z"]);
        for path in [
            ".git/hooks",
            "sub/deep/.git/config",
            ".vscode",
            "x/.moltis.toml",
            ".git/commondir",
            "x/.git/config.worktree",
            ".git/modules/lib/hooks",
            ".git/modules/libs/lib/config",
            ".git/modules/a/modules/b/hooks",
            ".git/modules/config/config",
            ".git/worktrees/w/commondir",
            "a/z",
            "q/a/b/c/z",
        ] {
            assert!(is_match(&patterns, path), "{path}");
        }
        for path in [
            ".git",
            ".git/objects",
            ".git/index",
            ".git/modules/lib/objects/config",
            ".git/modules/lib/refs/hooks",
            ".git/refs/.vscode",
            ".vscode/hooks",
            "node_modules/p/.vscode",
            "hooks",
            "x",
            "z",
        ] {
            assert!(!is_match(&patterns, path), "{path}");
        }
        assert!(is_match(&patterns, "node_modules/../.vscode") || patterns.state(b"node_modules").is_none());
    }

    #[test]
    fn what_is_git_s_is_left_alone_unless_something_of_it_is_named() {
        let patterns = patterns(&[".envrc"]);
        assert!(!is_match(&patterns, ".git/commondir"));
        assert!(patterns.state(b".git").is_none(), "not looked into for nothing");
    }
}
