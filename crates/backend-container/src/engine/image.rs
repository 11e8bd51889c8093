//! Images, as far as an engine is asked about them.

use std::collections::BTreeMap;

/// An image that an engine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// Its id: the digest of its configuration, with `sha256:`.
    pub id: String,
    /// Tags that name it.
    pub tags: Vec<String>,
    /// Digests under which a registry knows it (`name@sha256:…`).
    pub digests: Vec<String>,
    /// Architecture in Rust's words: `x86_64`, `aarch64`; the engine's own word if it has none.
    pub arch: String,
    /// Operating system: `linux`.
    pub os: String,
    /// Bytes on disk, shared layers counted.
    pub size_bytes: u64,
    /// When it was made, in seconds since 1970; 0 where that cannot be read.
    pub created_secs: u64,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Variables that it sets, as `NAME=value`.
    pub env: Vec<String>,
    /// Directory that it names; empty for none.
    pub directory: String,
    /// User that it names; empty for root.
    pub user: String,
    /// Paths that it declares to be volumes.
    pub volumes: Vec<String>,
}

/// What is kept of a container as an image.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// Name of the image.
    pub repository: &'a str,
    /// And its tag.
    pub tag: &'a str,
    /// Name and value of a label that it gets.
    pub label: (&'a str, &'a str),
    /// Whether the container's processes stand still meanwhile.
    pub pause: bool,
}

impl Committed<'_> {
    /// The label as an instruction.
    pub(super) fn change(&self) -> String {
        format!("LABEL {}={}", self.label.0, self.label.1)
    }
}

/// An image to build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BuildSpec {
    /// The Dockerfile. The context is empty but for it.
    pub dockerfile: String,
    /// Tag of the result. It is set only when the build succeeds.
    pub tag: String,
    /// Labels of the result.
    pub labels: BTreeMap<String, String>,
}

/// What happens while an image is built or fetched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// A step begins: its number, how many there are (0 where that is not known), and what it does.
    Step {
        /// From 1 on.
        number: u32,
        /// How many.
        total: u32,
        /// The instruction.
        what: String,
    },
    /// A line that a step printed, without its end and without control characters other than tabs.
    Log(String),
    /// Bytes of a download: so far, and in all (0 where that is not known).
    Download {
        /// Which layer.
        layer: String,
        /// So far.
        bytes: u64,
        /// In all.
        total: u64,
    },
}

/// Is told what happens. Called from an async thread: it must not block.
pub trait ProgressSink: Send + Sync {
    /// Something happened.
    fn progress(&self, progress: Progress);
}

/// Tells nobody.
impl ProgressSink for () {
    fn progress(&self, _: Progress) {}
}
