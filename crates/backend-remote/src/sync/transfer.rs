//! Content on its way: archives to the far side and from it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use moltis_agent_protocol::tar::{BLOCK, Entry, Kind, padding};
use moltis_host::bridge::{Inflow, PIECE, consume, produce};
use moltis_host::tree::archive::{Archive, Kind as ItemKind};
use moltis_host::tree::object;
use moltis_host::tree::part::Part;
use moltis_sandbox::files::ByteStream;
use moltis_sandbox::{Diagnosis, Error, Result};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::far::{Far, PACK, UNPACK, all, unlike, words};
use super::near::{Fresh, Made, Near};
use super::node::{Node, Seen};
use super::scan::stamp;

/// Sends these to the far side. Returned are those that were touched while they were read, and what the far side's tools
/// complained about.
///
/// # Errors
/// Those of running a script.
pub async fn push(
    far: &dyn Far,
    near: Arc<Near>,
    items: Vec<(Vec<u8>, Seen)>,
) -> Result<(HashSet<Vec<u8>>, String)> {
    let touched = Arc::new(Mutex::new(HashSet::new()));
    let found = Arc::clone(&touched);
    let tar: ByteStream = produce(move |out| {
        let mut buffer = Vec::with_capacity(PIECE);
        for (path, seen) in items {
            if !pack(&near, &path, &seen, &mut buffer, &mut |piece| out.give(piece))? {
                found.lock().unwrap_or_else(PoisonError::into_inner).insert(path);
            }
        }
        buffer.extend_from_slice(&[0; 2 * BLOCK]);
        out.give(Bytes::from(buffer))
    });
    // What is there afterwards is looked at; this says why it is not what it should be.
    let words = moltis_agentless::plain(&all(far, UNPACK, &[], Some(tar)).await?);
    let touched = std::mem::take(&mut *touched.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((touched, words))
}

/// Appends one entry; whether it is still what was seen.
fn pack(
    near: &Near,
    path: &[u8],
    seen: &Seen,
    buffer: &mut Vec<u8>,
    give: &mut dyn FnMut(Bytes) -> Result<()>,
) -> Result<bool> {
    let directory = [path, b"/"].concat();
    let mut entry = Entry {
        kind: Kind::File,
        name: path,
        target: b"",
        mode: 0,
        uid: 0,
        gid: 0,
        size: 0,
        mtime: seen.stamp.modified.div_euclid(1_000_000_000),
    };
    match &seen.node {
        Node::Directory { mode } => {
            // It stays open until all is in it.
            (entry.kind, entry.name, entry.mode) = (Kind::Directory, &directory, *mode | 0o700);
            entry.write(buffer);
            Ok(true)
        }
        Node::Link { target } => {
            (entry.kind, entry.target, entry.mode) = (Kind::Symlink, target, 0o777);
            entry.write(buffer);
            Ok(true)
        }
        Node::File { mode, .. } => {
            let Ok((parent, name)) = near.place(path, false) else { return Ok(false) };
            let Ok((file, stat)) = object::file(&parent, &*name) else { return Ok(false) };
            let size = stamp(&stat).size;
            (entry.mode, entry.size) = (*mode, size);
            entry.write(buffer);
            let mut file = File::from(file).take(size);
            let mut left = size;
            let mut whole = true;
            while left > 0 {
                let start = buffer.len();
                let most = usize::try_from(left).unwrap_or(PIECE).min(PIECE);
                buffer.resize(start + most, 0);
                // What is shorter by now is filled up: the entry says how long it is.
                let count = match file.read(&mut buffer[start..]) {
                    Ok(count @ 1..) => count,
                    _ => {
                        whole = false;
                        most
                    }
                };
                buffer.truncate(start + count);
                left -= count as u64;
                if buffer.len() >= PIECE {
                    give(Bytes::from(std::mem::replace(buffer, Vec::with_capacity(PIECE))))?;
                }
            }
            buffer.resize(buffer.len() + padding(size), 0);
            let after = rustix::fs::fstat(file.get_ref()).ok();
            Ok(whole && stamp(&stat) == seen.stamp && after.is_some_and(|after| stamp(&after) == seen.stamp))
        }
    }
}

/// What came of one file.
pub struct Got {
    /// What is here now, if it was written.
    pub made: Made,
    /// What it is, by the content that came.
    pub node: Node,
}

/// Fetches the content of these files and puts it in its place; `expected` is what is here now. What does not come is not
/// among what is returned.
///
/// # Errors
/// Those of running a script; an archive that is broken, or holds more than `room` bytes.
pub async fn pull(
    far: &dyn Far,
    near: Arc<Near>,
    batch: &[Vec<u8>],
    expected: HashMap<Vec<u8>, Option<Seen>>,
    room: u64,
) -> Result<HashMap<Vec<u8>, Got>> {
    let content = far.run(PACK, &words(batch), None).await?;
    consume(content, move |inflow| unpack(inflow, &near, expected, room)).await
}

fn unpack(
    inflow: &mut Inflow,
    near: &Near,
    mut wanted: HashMap<Vec<u8>, Option<Seen>>,
    mut room: u64,
) -> Result<HashMap<Vec<u8>, Got>> {
    let mut got = HashMap::new();
    let mut archive = Archive::new(inflow);
    while let Some(item) = archive.next_item()? {
        // Nothing that was not asked for, and nothing twice.
        if item.kind != ItemKind::File {
            return Err(unlike("another kind of thing than was asked for"));
        }
        let Some(expected) = wanted.remove(&item.path) else {
            return Err(unlike("something that was not asked for"));
        };
        room = room.checked_sub(item.size).ok_or_else(too_much)?;
        let mode = item.mode & object::MODE;
        let (parent, name) = match near.place(&item.path, true) {
            Ok(place) => place,
            Err(made) => {
                let node = Node::File { hash: [0; 32], size: item.size, mode };
                got.insert(item.path, Got { made, node });
                continue;
            }
        };
        let mut hash = Sha256::new();
        let (made, size) = match Part::new(parent.as_fd()) {
            Ok(mut part) => {
                let mut failed = None;
                let mut size = 0u64;
                while let Some(bytes) = archive.content()? {
                    hash.update(&bytes);
                    size += bytes.len() as u64;
                    if failed.is_none() {
                        failed = part.file().write_all(&bytes).err();
                    }
                }
                let made = match failed {
                    Some(error) => Made::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                    None => {
                        near.file(parent.as_fd(), &name, Fresh { part }, mode, item.mtime, expected.as_ref())
                    }
                };
                (made, size)
            }
            Err(errno) => (Made::Failed(errno), item.size),
        };
        let node = Node::File { hash: hash.finalize().into(), size, mode };
        got.insert(item.path, Got { made, node });
    }
    Ok(got)
}

fn too_much() -> Error {
    Error::Refused(
        Diagnosis::new("workspace-too-large", "the sandbox sent more for the workspace than it may hold")
            .fix("name what is not needed in `.moltisignore`, or remove it inside"),
    )
}
