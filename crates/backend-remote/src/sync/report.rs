//! What was carried, and what was not and why.

use std::collections::BTreeSet;

use rustix::io::Errno;

use super::plan::Why;
use super::scan::named;

/// Paths of one kind that are named at most.
const MAX: usize = 64;

/// What one carrying came to. Paths are below the workspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Things that went there.
    pub sent: u64,
    /// Bytes of content that went there.
    pub sent_bytes: u64,
    /// Things that came here.
    pub fetched: u64,
    /// Bytes of content that came here.
    pub fetched_bytes: u64,
    /// Things that are no more here.
    pub removed_here: u64,
    /// Things that are no more there.
    pub removed_there: u64,
    /// Copies of what was changed on both sides.
    pub conflicts: BTreeSet<Vec<u8>>,
    /// What would make the host run code, and stays there.
    pub protected: BTreeSet<Vec<u8>>,
    /// Changes there to what is read-only here.
    pub read_only: BTreeSet<Vec<u8>>,
    /// Secrets that do not go there, if they were not named before.
    pub secrets: BTreeSet<Vec<u8>>,
    /// What is neither file, directory nor link.
    pub others: BTreeSet<Vec<u8>>,
    /// What cannot be read here.
    pub unread: BTreeSet<Vec<u8>>,
    /// Links that came and lead out of the workspace.
    pub leading_out: BTreeSet<Vec<u8>>,
    /// What could not be written here, or did not come.
    pub failed_here: BTreeSet<Vec<u8>>,
    /// What could not be put there.
    pub failed_there: BTreeSet<Vec<u8>>,
    why_here: Option<String>,
    why_there: Option<String>,
}

fn add(set: &mut BTreeSet<Vec<u8>>, path: &[u8]) {
    if set.len() < MAX {
        set.insert(path.to_vec());
    }
}

impl Report {
    /// Something stays there.
    pub fn hold(&mut self, path: &[u8], why: Why) {
        let set = if why.is_protected() { &mut self.protected } else { &mut self.read_only };
        add(set, path);
    }

    /// The kernel did not let something be written here.
    pub fn fail(&mut self, path: &[u8], errno: Errno) {
        add(&mut self.failed_here, path);
        self.why_here.get_or_insert_with(|| std::io::Error::from(errno).to_string());
    }

    /// Something did not come.
    pub fn missing(&mut self, path: &[u8]) {
        add(&mut self.failed_here, path);
        self.why_here.get_or_insert_with(|| "it cannot be read there, or has gone".to_owned());
    }

    /// Something is not there after it was sent.
    pub fn refused_there(&mut self, path: &[u8], words: &str) {
        add(&mut self.failed_there, path);
        if !words.is_empty() {
            self.why_there.get_or_insert_with(|| words.chars().take(300).collect());
        }
    }

    /// What was not carried as one would expect, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut note = |paths: &BTreeSet<Vec<u8>>, text: &dyn Fn(String) -> String| {
            if !paths.is_empty() {
                notes.push(text(named(paths.iter())));
            }
        };
        let because = |why: &Option<String>| why.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        note(&self.secrets, &|paths| {
            format!(
                "not sent to the provider, since the names are those of secrets: {paths}; `workspace_upload` lists what is \
                 to be sent all the same"
            )
        });
        note(&self.conflicts, &|paths| {
            format!("changed on both sides; what the sandbox made of it is kept as {paths}")
        });
        note(&self.protected, &|paths| {
            format!("not carried back, since this machine might run it (`workspace_protect`): {paths}")
        });
        note(&self.read_only, &|paths| {
            format!("not carried back, since the workspace is read-only (`--workspace DIR:rw`): {paths}")
        });
        note(&self.failed_here, &|paths| format!("not carried back{}: {paths}", because(&self.why_here)));
        note(&self.failed_there, &|paths| {
            format!("not sent to the provider{}: {paths}", because(&self.why_there))
        });
        note(&self.leading_out, &|paths| format!("links that lead out of the workspace came back: {paths}"));
        note(&self.others, &|paths| format!("not sent, since it is neither file, folder nor link: {paths}"));
        note(&self.unread, &|paths| format!("not sent, since it cannot be read: {paths}"));
        notes
    }
}
