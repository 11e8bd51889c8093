//! The files of a snapshot: for each part of a sandbox an archive in the data directory, written and read as it streams.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{BufWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use moltis_agent_protocol::tar::{BLOCK, padding};
use moltis_host::bridge::{self, Inflow};
use moltis_host::tree::archive::Archive;
use moltis_sandbox::{ByteStream, EntryKind, GuestPath, Result, Sandbox, SandboxSpec, SnapshotId};

use super::errors::{stalled, unusable};
use crate::runtime::{see_space, see_space_for};
use crate::store::{Snapshot, SnapshotHome};

/// Bytes after which it is looked whether there is still room.
const LOOK: u64 = 16 << 20;

/// Bytes that are read at once.
const PIECE: usize = 128 << 10;

/// How long a sandbox may say nothing while its files are read.
const STALLED: Duration = Duration::from_secs(60);

/// A part of a sandbox that is kept as an archive.
#[derive(Clone, Copy)]
enum Part {
    Scratch,
    Home,
}

impl Part {
    fn file(self) -> &'static str {
        match self {
            Self::Scratch => "tmp.tar",
            Self::Home => "home.tar",
        }
    }

    /// Where it is inside.
    fn place(self) -> &'static str {
        match self {
            Self::Scratch => "/tmp",
            Self::Home => "/home/sandbox",
        }
    }
}

/// The folder of a snapshot's archives.
pub(super) fn folder(data_dir: &Path, id: &SnapshotId) -> PathBuf {
    data_dir.join("sandbox/snapshots").join(id.as_str())
}

/// Removes the folder of a snapshot, if it is there. Blocks.
pub(super) fn remove(folder: &Path) -> Result<()> {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(unusable(folder, &error)),
    }
}

/// Writes down what the sandbox holds in the parts that are kept; bytes of the archives.
pub(super) async fn keep(
    data_dir: &Path,
    id: &SnapshotId,
    sandbox: &dyn Sandbox,
    spec: &SandboxSpec,
    home: SnapshotHome,
) -> Result<u64> {
    let folder = folder(data_dir, id);
    let (made, data) = (folder.clone(), data_dir.to_owned());
    crate::runtime::off_thread(move || {
        DirBuilder::new().recursive(true).mode(0o700).create(&made).map_err(|e| unusable(&made, &e))
    })
    .await?;
    let mut bytes = 0;
    let home = (home == SnapshotHome::Copied).then_some(Part::Home);
    for part in [Some(Part::Scratch), home].into_iter().flatten() {
        let place = inside(part.place().as_bytes())?;
        let content = watched(sandbox.files().download(&place).await?, STALLED);
        let (file, data) = (folder.join(part.file()), data.clone());
        let others = mounted(spec, part.place());
        bytes += bridge::consume(content, move |inflow| write(inflow, &file, &data, &others)).await?;
    }
    Ok(bytes)
}

/// A stream that ends with an error where nothing comes for too long: who sends it may be anybody, and the session is
/// locked meanwhile.
fn watched(content: ByteStream, within: Duration) -> ByteStream {
    Box::pin(futures_util::stream::unfold(Some(content), move |content| async move {
        let mut content = content?;
        match tokio::time::timeout(within, content.next()).await {
            Ok(piece) => piece.map(|piece| (piece, Some(content))),
            Err(_) => Some((Err(stalled(within)), None)),
        }
    }))
}

/// Writes an archive without what belongs to others. Blocks.
fn write(inflow: &mut Inflow, path: &Path, data_dir: &Path, others: &[Vec<u8>]) -> Result<u64> {
    let failed = |error| unusable(path, &error);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
    let mut file = BufWriter::with_capacity(PIECE, file);
    let mut archive = Archive::new(inflow);
    let (mut written, mut looked) = (0, 0);
    while let Some(item) = archive.next_item()? {
        if others.iter().any(|other| is_in(&item.path, other)) {
            continue;
        }
        // A file may be all holes, and longer than the disk: that is seen before it is filled with zeros.
        if item.size > LOOK {
            see_space_for(data_dir, item.size)?;
        }
        file.write_all(&item.raw).map_err(failed)?;
        written += item.raw.len() as u64;
        while let Some(bytes) = archive.content()? {
            file.write_all(&bytes).map_err(failed)?;
            written += bytes.len() as u64;
            see_room(written, &mut looked, data_dir)?;
        }
        let filling = [0; BLOCK];
        let filling = &filling[..padding(item.size)];
        file.write_all(filling).map_err(failed)?;
        written += filling.len() as u64;
        // An archive may be all names.
        see_room(written, &mut looked, data_dir)?;
    }
    file.write_all(&[0; 2 * BLOCK]).map_err(failed)?;
    let file = file.into_inner().map_err(|error| unusable(path, error.error()))?;
    file.sync_all().map_err(failed)?;
    Ok(written + 2 * BLOCK as u64)
}

/// Sees from time to time that there is still room.
fn see_room(written: u64, looked: &mut u64, data_dir: &Path) -> Result<()> {
    if written - *looked > LOOK {
        *looked = written;
        see_space(data_dir)?;
    }
    Ok(())
}

/// Whether a name is this one or lies beneath it.
fn is_in(name: &[u8], top: &[u8]) -> bool {
    name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.first() == Some(&b'/'))
}

/// What of others is mounted beneath a place, by its name there.
fn mounted(spec: &SandboxSpec, place: &str) -> Vec<Vec<u8>> {
    let workspace = spec.workspace.iter().map(|workspace| &workspace.value.target);
    let files = spec.managed_files.iter().map(|files| &files.target);
    let mounts = spec.mounts.iter().map(|mount| &mount.value.target);
    workspace
        .chain(files)
        .chain(mounts)
        .filter_map(|target| target.strip_prefix(place).ok())
        .map(|below| below.as_os_str().as_bytes().to_vec())
        .filter(|below| !below.is_empty())
        .collect()
}

/// Sees that the archives are as long as they were when they were written, before anything gives way to them. Blocks.
pub(super) fn see_whole(data_dir: &Path, snapshot: &Snapshot) -> Result<()> {
    let folder = folder(data_dir, &snapshot.id);
    let home = (snapshot.home == SnapshotHome::Copied).then_some(Part::Home);
    let mut bytes = 0;
    for part in [Some(Part::Scratch), home].into_iter().flatten() {
        let path = folder.join(part.file());
        bytes += std::fs::symlink_metadata(&path).map_err(|error| unusable(&path, &error))?.len();
    }
    if bytes != snapshot.bytes {
        let cause = format!("there are {bytes} bytes of archives, and {} were written", snapshot.bytes);
        return Err(unusable(&folder, &std::io::Error::other(cause)));
    }
    Ok(())
}

/// Fills a new sandbox from the archives. `lasts`: the home is a folder that is there already, and gives way.
pub(super) async fn unpack(
    data_dir: &Path,
    id: &SnapshotId,
    sandbox: &dyn Sandbox,
    spec: &SandboxSpec,
    home: bool,
    lasts: bool,
) -> Result<()> {
    let folder = folder(data_dir, id);
    let home = home.then_some(Part::Home);
    for part in [Some(Part::Scratch), home].into_iter().flatten() {
        let path = folder.join(part.file());
        // Opened before anything gives way to it.
        let at = path.clone();
        let file = crate::runtime::off_thread(move || File::open(&at).map_err(|e| unusable(&at, &e))).await?;
        if matches!(part, Part::Home) && lasts {
            clear(sandbox, part.place(), &mounted(spec, part.place())).await?;
        }
        let content = bridge::produce(move |out| read(file, &path, |piece| out.give(piece)));
        sandbox.files().upload(&inside(part.place().as_bytes())?, content).await?;
    }
    Ok(())
}

fn read(mut file: File, path: &Path, mut give: impl FnMut(Bytes) -> Result<()>) -> Result<()> {
    loop {
        let mut piece = vec![0; PIECE];
        match file.read(&mut piece).map_err(|error| unusable(path, &error))? {
            0 => return Ok(()),
            count => piece.truncate(count),
        }
        give(piece.into())?;
    }
}

/// Removes all that is beneath a place but what is mounted there, and the folders that lead to that.
async fn clear(sandbox: &dyn Sandbox, place: &str, others: &[Vec<u8>]) -> Result<()> {
    let files = sandbox.files();
    // Names beneath the place; the top is the empty one.
    let mut folders = vec![Vec::new()];
    while let Some(folder) = folders.pop() {
        let path = |name: &[u8]| inside(&[place.as_bytes(), b"/", name].concat());
        let mut entries = files.list(&path(&folder)?).await?;
        let mut found = Vec::new();
        while let Some(entry) = entries.next().await {
            let entry = entry?;
            let mut name = folder.clone();
            if !name.is_empty() {
                name.push(b'/');
            }
            name.extend(entry.name.into_vec());
            found.push((name, entry.metadata.kind));
        }
        for (name, kind) in found {
            if others.contains(&name) {
                continue;
            }
            if kind == EntryKind::Directory && others.iter().any(|other| is_in(other, &name)) {
                folders.push(name);
                continue;
            }
            files.remove(&path(&name)?, true).await?;
        }
    }
    Ok(())
}

fn inside(path: &[u8]) -> Result<GuestPath> {
    GuestPath::new(path).ok_or_else(|| {
        moltis_sandbox::Error::Invalid(moltis_sandbox::Diagnosis::new(
            "path-invalid",
            format!("`{}` cannot be a path", String::from_utf8_lossy(path)),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_that_stalls_ends_with_an_error() {
        let pieces = futures_util::stream::iter([1_u8, 2, 3].map(|piece| Ok(Bytes::from(vec![piece]))));
        let stuck = pieces.chain(futures_util::stream::pending());
        let mut found = watched(Box::pin(stuck), Duration::from_millis(50));
        for piece in [1_u8, 2, 3] {
            assert_eq!(found.next().await.unwrap().unwrap(), vec![piece]);
        }
        assert_eq!(found.next().await.unwrap().unwrap_err().code(), "snapshot-stalled");
        assert!(found.next().await.is_none());
    }
}
