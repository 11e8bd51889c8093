//! What is carried at all: ignore rules, names that hold secrets, and names that make the host run code.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use moltis_agent::dangerous::{Patterns, name_matches};

use super::node::above;

/// Files that say what is ignored, stronger ones last.
pub const IGNORE_FILES: [&str; 2] = [".gitignore", ".moltisignore"];

/// Names that hold secrets, wherever they are. What lies in a directory of such a name is one, too.
const SECRETS: &[&str] = &[
    ".env*",
    ".aws",
    ".azure",
    ".config/gcloud",
    ".docker/config.json",
    ".git-credentials",
    ".gnupg",
    ".htpasswd",
    ".kube",
    ".my.cnf",
    ".netrc",
    ".npmrc",
    ".pgpass",
    ".pypirc",
    ".ssh",
    ".terraformrc",
    ".vault-token",
    ".yarnrc.yml",
    "_netrc",
    "*.age",
    "*.asc",
    "*.jks",
    "*.kdb",
    "*.kdbx",
    "*.key",
    "*.keystore",
    "*.p12",
    "*.p8",
    "*.pem",
    "*.pfx",
    "*.ppk",
    "*.tfvars",
    "credentials.json",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_rsa*",
    "secrets.toml",
    "service-account*.json",
];

/// What tools keep in a home of their own accord.
const HOME_LITTER: &[&str] = &[
    ".bash_history",
    ".cache",
    ".config",
    ".lesshst",
    ".local",
    ".node_repl_history",
    ".npm",
    ".python_history",
    ".sudo_as_admin_successful",
    ".viminfo",
    ".wget-hsts",
];

/// Whether something lies in what tools keep in a home; what it is there.
pub fn home_litter(path: &[u8]) -> Option<&[u8]> {
    let first = path.split(|byte| *byte == b'/').next()?;
    HOME_LITTER.iter().any(|name| name.as_bytes() == first).then_some(first)
}

/// The rules of one workspace.
pub struct Rules {
    /// Globs of secrets that are carried all the same.
    listed: Vec<String>,
    protect: Patterns,
    guards_git: bool,
    /// Ignore files by the directory that they are in.
    files: BTreeMap<Vec<u8>, Vec<Gitignore>>,
    /// Names of directories that the top's own rules ignore wherever they are, if no rule takes anything back.
    plain: Vec<String>,
    takes_back: bool,
}

impl Rules {
    /// Without any ignore file yet. `protect` are globs of what is never written back, `listed` those of secrets that are
    /// carried.
    pub fn new(protect: &[String], listed: &[String]) -> Self {
        Self {
            listed: listed.iter().map(|glob| glob.to_ascii_lowercase()).collect(),
            protect: Patterns::new(protect),
            guards_git: protect.iter().any(|glob| glob.contains(".git/")),
            files: BTreeMap::new(),
            plain: Vec::new(),
            takes_back: false,
        }
    }

    /// Adds an ignore file of a directory; what cannot be understood of it is passed over, as git does.
    pub fn add(&mut self, directory: &[u8], content: &[u8]) {
        let mut builder = GitignoreBuilder::new("");
        for line in String::from_utf8_lossy(content).lines() {
            let _ = builder.add_line(None, line);
            let line = line.trim();
            self.takes_back |= line.starts_with('!');
            let name = line.trim_end_matches('/');
            if directory.is_empty() && !name.is_empty() && !name.contains(['/', '\\', '!', '#']) {
                self.plain.push(name.to_owned());
            }
        }
        if let Ok(built) = builder.build() {
            self.files.entry(directory.to_vec()).or_default().push(built);
        }
    }

    /// Names of directories that need not be looked into: globs of single names.
    pub fn passed_over(&self) -> &[String] {
        if self.takes_back { &[] } else { &self.plain }
    }

    /// Whether ignore rules leave this out, its directory not being left out itself.
    pub fn is_ignored(&self, path: &[u8], is_directory: bool) -> bool {
        if self.files.is_empty() {
            return false;
        }
        // The rules nearest to it decide.
        let directories: Vec<&[u8]> = std::iter::once(&b""[..]).chain(above(path)).collect();
        for directory in directories.into_iter().rev() {
            let Some(files) = self.files.get(directory) else { continue };
            let below = if directory.is_empty() { path } else { &path[directory.len() + 1..] };
            for file in files.iter().rev() {
                match file.matched(Path::new(OsStr::from_bytes(below)), is_directory) {
                    Match::Ignore(_) => return true,
                    Match::Whitelist(_) => return false,
                    Match::None => {}
                }
            }
        }
        false
    }

    /// Whether it holds secrets by its name, and nobody listed it; what is above it was asked about before.
    pub fn is_secret(&self, path: &[u8]) -> bool {
        let lower = path.to_ascii_lowercase();
        is_named(SECRETS.iter().copied(), &lower) && !is_named(self.listed.iter().map(String::as_str), &lower)
    }

    /// Whether it makes the host run code, so that what a sandbox made of it is never written here.
    pub fn is_protected(&self, path: &[u8], is_directory: bool) -> bool {
        if self.protect.is_empty() {
            return false;
        }
        // There are file systems that do not tell letters apart by their case.
        let lower = path.to_ascii_lowercase();
        let names: Vec<&[u8]> = lower.split(|byte| *byte == b'/').collect();
        // A file of git's name says where git is to look.
        if self.guards_git && !is_directory && names.last() == Some(&&b".git"[..]) {
            return true;
        }
        (0..names.len()).any(|first| {
            let mut state = Some(self.protect.start());
            names[first..].iter().any(|name| {
                let Some(before) = state.take() else { return false };
                let step = self.protect.step(&before, name);
                state = step.into;
                step.is_match
            })
        })
    }
}

/// Whether globs, in lower case as the path, name it by its last names.
fn is_named<'a>(mut globs: impl Iterator<Item = &'a str>, path: &[u8]) -> bool {
    globs.any(|glob| {
        let mut names = path.rsplit(|byte| *byte == b'/');
        let mut parts = glob.as_bytes().rsplit(|byte| *byte == b'/');
        parts.all(|part| names.next().is_some_and(|name| name_matches(part, name)))
    })
}

/// What was found out of paths before, so that a long list is judged in one go.
#[derive(Default)]
pub struct Judged(HashMap<Vec<u8>, bool>);

impl Judged {
    /// Whether a path is out of bounds: ignored, secret, or below what is. Directories come before what is in them.
    pub fn is_out(&mut self, rules: &Rules, path: &[u8], is_directory: bool) -> bool {
        let parent = above(path).last();
        let out = parent.is_some_and(|parent| self.0.get(parent).copied().unwrap_or(false))
            || rules.is_secret(path)
            || rules.is_ignored(path, is_directory);
        if is_directory {
            self.0.insert(path.to_vec(), out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_known_by_name_unless_they_are_listed() {
        let rules = Rules::new(&[], &["config/.env.example".to_owned(), "test.pem".to_owned()]);
        for path in [
            ".env",
            "a/.env.local",
            ".ENV",
            "x/.ssh/known_hosts",
            ".aws/config",
            "sub/.npmrc",
            "deploy/id_rsa",
            "a/b.pem",
            ".docker/config.json",
            "x/.config/gcloud/y",
        ] {
            let path = path.as_bytes();
            assert!(above(path).chain([path]).any(|path| rules.is_secret(path)), "{path:?}");
        }
        for path in ["env", "a/main.rs", "config/.env.example", "x/test.pem", ".docker/other", "monkey"] {
            assert!(!rules.is_secret(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn the_nearest_ignore_rule_decides_and_ours_is_stronger_than_git_s() {
        let mut rules = Rules::new(&[], &[]);
        rules.add(b"", b"target/\n*.log\nbuild\n");
        assert_eq!(rules.passed_over(), ["target", "*.log", "build"]);
        rules.add(b"", b"!keep.log\n");
        rules.add(b"sub", b"!*.log\n/only\n");
        let ignored = |path: &str, is_directory| rules.is_ignored(path.as_bytes(), is_directory);
        assert!(ignored("target", true) && ignored("a/target", true) && !ignored("target", false));
        assert!(ignored("x.log", false) && !ignored("keep.log", false) && !ignored("sub/x.log", false));
        assert!(ignored("sub/only", false) && !ignored("sub/deep/only", false) && ignored("a/build", true));
        assert_eq!(rules.passed_over(), [""; 0], "a rule takes something back");
    }

    #[test]
    fn what_makes_the_host_run_code_is_protected_at_any_depth_and_in_any_case() {
        let globs = [".git/hooks", ".git/config", ".envrc", ".vscode", ".moltis*", ".mcp.json"];
        let rules = Rules::new(&globs.map(str::to_owned), &[]);
        for path in [
            ".git/hooks",
            ".git/hooks/pre-commit",
            ".GIT/Hooks/x",
            "a/b/.git/config",
            "node_modules/p/.vscode/tasks.json",
            ".moltisignore",
            "x/.envrc",
            "x/.git",
            ".git/modules/lib/hooks/post-checkout",
        ] {
            assert!(rules.is_protected(path.as_bytes(), false), "{path}");
        }
        for path in [".git/objects/aa/bb", ".git/index", "src/main.rs", "hooks/x"] {
            assert!(!rules.is_protected(path.as_bytes(), false), "{path}");
        }
        assert!(!rules.is_protected(b".git", true) && rules.is_protected(b".git", false));
        assert!(!Rules::new(&[], &[]).is_protected(b".git/hooks/x", false));
    }
}
