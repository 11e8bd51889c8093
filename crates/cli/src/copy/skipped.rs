//! What a copy out of a sandbox leaves out: FIFOs, sockets and devices, which a tree comes without, and links where none
//! are held.

use std::os::unix::ffi::OsStrExt;

use futures_util::StreamExt;
use moltis_runtime::local_files::LeftOut;
use moltis_sandbox::{EntryKind, Files, GuestPath};
use serde::Serialize;

use super::below;
use crate::render;

/// Folders that are looked through, which costs a connection each, and entries in all of them. Something may add to
/// them as fast as they are read.
const MAX_FOLDERS: usize = 256;
const MAX_ENTRIES: usize = 50_000;

/// What was left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Skipped {
    /// How many entries.
    pub count: u64,
    /// Paths of the first few below the top of the copy.
    pub names: Vec<String>,
    /// Whether the tree was too large to be looked through, so that there may be more.
    pub perhaps_more: bool,
}

impl Skipped {
    /// What was noted.
    pub fn of(left_out: &LeftOut, perhaps_more: bool) -> Self {
        Self { count: left_out.count(), names: left_out.names(), perhaps_more }
    }

    /// Says it.
    pub fn tell(&self) {
        if self.count == 0 {
            return;
        }
        let names: Vec<_> = self.names.iter().map(|name| render::one_line(name)).collect();
        let more = if self.count > names.len() as u64 { ", …" } else { "" };
        let least = if self.perhaps_more { "at least " } else { "" };
        let (count, names) = (self.count, names.join(", "));
        crate::say!(
            "moltis: {least}{count} left out, being no file, folder or link that is copied: {names}{more}"
        );
    }
}

/// Looks through a tree there for what its download leaves out. What cannot be listed the download speaks of.
pub async fn find(files: &dyn Files, top: &GuestPath, links: bool) -> Skipped {
    let left_out = LeftOut::default();
    let mut waiting = std::collections::VecDeque::from([Vec::new()]);
    let (mut folders, mut seen) = (0, 0);
    while let Some(folder) = waiting.pop_front() {
        folders += 1;
        if folders > MAX_FOLDERS {
            return Skipped::of(&left_out, true);
        }
        let Ok(path) = below(top, &folder) else { continue };
        let Ok(mut entries) = files.list(&path).await else { continue };
        while let Some(Ok(entry)) = entries.next().await {
            seen += 1;
            if seen > MAX_ENTRIES {
                return Skipped::of(&left_out, true);
            }
            let separator: &[u8] = if folder.is_empty() { b"" } else { b"/" };
            let path = [&*folder, separator, entry.name.as_bytes()].concat();
            match entry.metadata.kind {
                EntryKind::Directory => waiting.push_back(path),
                EntryKind::Other => left_out.note(&path),
                EntryKind::Symlink if !links => left_out.note(&path),
                EntryKind::Symlink | EntryKind::File => {}
            }
        }
    }
    Skipped::of(&left_out, false)
}
