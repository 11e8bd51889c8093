//! Which version of Apple's tool is here, and what that version can be asked for. What it cannot be asked for is said
//! before anything is made, never left out without a word.

use std::fmt;

use crate::engine::Support;

/// The oldest version that is driven. Before it, options of the program inside were read as options of the tool.
pub const OLDEST: Version = Version { major: 0, minor: 5, patch: 0 };

/// A version of Apple's `container`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A row of the hardening table, or another promise, that this engine does not keep.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Which.
    pub row: &'static str,
    /// What is so instead, for people.
    pub reason: &'static str,
}

impl fmt::Display for Lacking {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.row, self.reason)
    }
}

impl Version {
    /// Reads what `container --version` prints: `container CLI version 0.9.0 (build: release, commit: …)`. Another
    /// program of that name is not taken for Apple's.
    pub fn read(text: &str) -> Option<Self> {
        let rest = text.trim_start().strip_prefix("container CLI")?;
        rest.split_ascii_whitespace().take(4).find_map(Self::parse)
    }

    fn parse(word: &str) -> Option<Self> {
        // Builds between releases are `1.0.0-12-gabcdef`.
        let numbers = word.split(['-', '+']).next()?;
        let mut numbers = numbers.split('.').map(|number| number.parse().ok());
        let version = Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? };
        numbers.next().is_none().then_some(version)
    }

    fn is(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }

    /// Whether `--network none` gives a container no interface but loopback. Asked for on an older version, it would be
    /// the name of a network that does not exist.
    pub fn network_none(self) -> Support {
        if self.is(0, 7) {
            return Support::Yes;
        }
        Support::No(
            "a container without a network needs version 0.7 or newer of Apple's container".to_owned(),
        )
    }

    /// Whether `--ulimit nproc=` binds. It counts the processes of one user; the sandbox is the only one in its virtual
    /// machine, and its user is not root, so it bounds the whole of it.
    pub fn pids(self) -> Support {
        if self.is(0, 9) {
            return Support::Yes;
        }
        Support::No("`pids_max` needs version 0.9 or newer of Apple's container".to_owned())
    }

    /// Whether `--read-only` is known.
    pub fn read_only(self) -> bool {
        self.is(0, 8)
    }

    /// Whether `--cap-drop` is known.
    pub fn cap_drop(self) -> bool {
        self.is(1, 0)
    }

    /// Whether a single file can be mounted, and not only a folder.
    pub fn file_mounts(self) -> bool {
        self.is(0, 9)
    }

    /// Whether a container says when it was started, so that one that never was can be told apart.
    pub fn tells_started(self) -> bool {
        self.is(0, 8)
    }

    /// What is asked of every engine and cannot be asked of this version. Exactly this is left off.
    pub fn lacking(self) -> Vec<Lacking> {
        let mut rows = vec![
            Lacking {
                row: "hostname",
                reason: "the tool has no option for it: a sandbox is called as its container",
            },
            Lacking {
                row: "tmpfs options",
                reason: "the tool takes none: no size but that of the machine's memory, no noexec on /run",
            },
            Lacking {
                row: "no-new-privileges",
                reason: "the tool has no option for it: the agent sets it before anything runs",
            },
        ];
        if !self.cap_drop() {
            rows.push(Lacking {
                row: "cap-drop",
                reason: "needs version 1.0: until then the agent alone gives up all capabilities",
            });
        }
        if !self.read_only() {
            rows.push(Lacking {
                row: "read-only",
                reason: "needs version 0.8: the image's files can be changed",
            });
        }
        if !self.file_mounts() {
            rows.push(Lacking {
                row: "passwd and group",
                reason: "files can be mounted from version 0.9 on: the image's own are used",
            });
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_read_from_what_releases_print() {
        let of = |major, minor, patch| Some(Version { major, minor, patch });
        for (text, version) in [
            ("container CLI version 0.5.0 (build: release, commit: 48230f3)\n", of(0, 5, 0)),
            ("container CLI 0.12.3 (build: release, commit: f989901)", of(0, 12, 3)),
            ("container CLI version 1.0.0-12-gabcdef (build: debug, commit: 1)", of(1, 0, 0)),
            ("container 1.2.3", None),
            ("Docker version 20.10.24", None),
            ("container CLI version 1.2 (build)", None),
            ("container CLI version 1.2.3.4", None),
            ("container CLI version 99999999999.2.3", None),
            ("", None),
        ] {
            assert_eq!(Version::read(text), version, "{text}");
        }
    }

    #[test]
    fn an_older_version_lacks_more() {
        let rows = |major, minor| -> Vec<&str> {
            Version { major, minor, patch: 0 }.lacking().iter().map(|lacking| lacking.row).collect()
        };
        let always = ["hostname", "tmpfs options", "no-new-privileges"];
        assert_eq!(rows(1, 0), always);
        assert_eq!(rows(0, 12), [&always[..], &["cap-drop"]].concat());
        assert_eq!(rows(0, 8), [&always[..], &["cap-drop", "passwd and group"]].concat());
        assert_eq!(rows(0, 5), [&always[..], &["cap-drop", "read-only", "passwd and group"]].concat());
    }
}
