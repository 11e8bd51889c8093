//! The files of an image, read from the archive that the tool saves of it: what it has in it can be seen without
//! starting anything, and a container that was never started has nothing else.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};

use serde_json::Value;

use super::oci::{self, Odd};
use super::words;

/// Bytes of all layers together, unpacked, at most.
const MAX_UNPACKED: u64 = 64 << 30;
/// Files of an image, at most.
const MANY: usize = 4_000_000;

/// What is at a path.
#[derive(Clone, Debug)]
struct Entry {
    header: tar::Header,
    target: Vec<u8>,
    /// Where its content lies in the unpacked layers.
    offset: u64,
    /// How much of it there is.
    size: u64,
}

/// An image's files.
pub struct Layers {
    /// All layers, unpacked, one after the other, in a file that has no name.
    unpacked: File,
    /// By path without a slash at either end.
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Layers {
    /// Reads an archive of an image for this architecture. Blocks.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(mut archive: File, arch: &str) -> Result<Self, Odd> {
        let places = oci::places(&mut archive)?;
        let mut document: Value = read_json(&oci::text(&mut archive, &places, "index.json")?)?;
        // An index may name others, each for a platform.
        for _ in 0..4 {
            let Some(manifests) = document.get("manifests").and_then(Value::as_array) else { break };
            let digest = choose(manifests, arch).ok_or_else(|| odd("it holds no image"))?;
            document = read_json(&oci::text(&mut archive, &places, &blob(&digest)?)?)?;
        }
        let layers =
            document.get("layers").and_then(Value::as_array).ok_or_else(|| odd("it has no layers"))?;
        let mut read = Self { unpacked: tempfile::tempfile()?, entries: BTreeMap::new() };
        for layer in layers {
            let digest = layer.get("digest").and_then(Value::as_str).unwrap_or_default();
            let name = blob(digest)?;
            let (offset, size) = *places.get(&name).ok_or_else(|| odd("a layer is not in it"))?;
            let mut magic = [0; 4];
            archive.seek(SeekFrom::Start(offset))?;
            let beginning = archive.read(&mut magic[..(size.min(4) as usize)])?;
            archive.seek(SeekFrom::Start(offset))?;
            let packed = (&mut archive).take(size);
            match &magic[..beginning] {
                [0x1f, 0x8b, ..] => read.add(flate2::read::MultiGzDecoder::new(packed))?,
                [0x28, 0xb5, 0x2f, 0xfd] => return Err(odd("a layer is packed by zstd, which is not read")),
                _ => read.add(packed)?,
            }
        }
        Ok(read)
    }

    /// Lays a layer over what is there.
    fn add(&mut self, mut layer: impl Read) -> Result<(), Odd> {
        let start = self.unpacked.seek(SeekFrom::End(0))?;
        let mut buffer = vec![0; 1 << 20];
        let mut total = start;
        loop {
            let count = layer.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            total += count as u64;
            if total > MAX_UNPACKED {
                return Err(odd("it is too large"));
            }
            self.unpacked.write_all(&buffer[..count])?;
        }
        self.unpacked.seek(SeekFrom::Start(start))?;
        // Positions are counted from where the archive begins to be read.
        let mut whole = tar::Archive::new(Shifted { file: &mut self.unpacked, start });
        let mut added: Vec<(Vec<u8>, Entry)> = Vec::new();
        for entry in whole.entries_with_seek()? {
            let entry = entry?;
            let path = clean(&entry.path_bytes());
            let target = entry.link_name_bytes().unwrap_or_default().into_owned();
            let offset = start + entry.raw_file_position();
            added.push((path, Entry { header: entry.header().clone(), target, offset, size: entry.size() }));
            if added.len() + self.entries.len() > MANY {
                return Err(odd("it has too many files"));
            }
        }
        // What a layer takes away is of those below it.
        for (path, _) in &added {
            let (parent, name) = split(path);
            if name == b".wh..wh..opq" {
                self.remove_below(parent);
            } else if let Some(gone) = name.strip_prefix(b".wh.") {
                self.remove(&join(parent, gone));
            }
        }
        for (path, mut entry) in added {
            if split(&path).1.starts_with(b".wh.") {
                continue;
            }
            if entry.header.entry_type().is_hard_link() {
                let Some(same) = self.entries.get(&clean(&entry.target)) else { continue };
                entry = same.clone();
            }
            if !entry.header.entry_type().is_dir() {
                self.remove_below(&path);
            }
            self.entries.insert(path, entry);
        }
        Ok(())
    }

    fn remove(&mut self, path: &[u8]) {
        self.remove_below(path);
        self.entries.remove(path);
    }

    fn remove_below(&mut self, path: &[u8]) {
        let below: Vec<Vec<u8>> = self.below(path).map(|(path, _)| path.clone()).collect();
        for path in below {
            self.entries.remove(&path);
        }
    }

    fn below<'a>(&'a self, path: &[u8]) -> impl Iterator<Item = (&'a Vec<u8>, &'a Entry)> {
        let mut prefix = path.to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        let from = prefix.clone();
        self.entries.range(from..).take_while(move |(path, _)| path.starts_with(&prefix))
    }

    /// A file or directory as an archive whose names begin with its own, links in the way to it followed; `None` if
    /// there is none. Blocks.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn archive(&self, path: &str) -> Result<Option<File>, Odd> {
        let Some(place) = self.resolve(path) else { return Ok(None) };
        let name = match split(&clean(path.as_bytes())).1 {
            [] => b".".to_vec(),
            name => name.to_vec(),
        };
        let mut out = tempfile::tempfile()?;
        match self.entries.get(&place) {
            Some(entry) => self.write(&mut out, &name, entry)?,
            // Archives need not name a directory that they have files in.
            None if place.is_empty() || self.below(&place).next().is_some() => {
                let mut header = tar::Header::new_gnu();
                header.set_entry_type(tar::EntryType::Directory);
                header.set_mode(0o755);
                self.write(&mut out, &name, &Entry { header, target: Vec::new(), offset: 0, size: 0 })?;
            }
            None => return Ok(None),
        }
        for (path, entry) in self.below(&place) {
            let rest = path[place.len()..].strip_prefix(b"/").unwrap_or(path);
            self.write(&mut out, &join(&name, rest), entry)?;
        }
        out.write_all(&[0; 1024])?;
        out.seek(SeekFrom::Start(0))?;
        Ok(Some(out))
    }

    /// Where a path leads, its last part not followed.
    fn resolve(&self, path: &str) -> Option<Vec<u8>> {
        let mut left: Vec<Vec<u8>> = parts(path.as_bytes());
        left.reverse();
        let (mut at, mut links) = (Vec::new(), 0);
        while let Some(part) = left.pop() {
            if part == b".." {
                at = split(&at).0.to_vec();
                continue;
            }
            let next = join(&at, &part);
            let link = self.entries.get(&next).filter(|entry| entry.header.entry_type().is_symlink());
            match link {
                Some(entry) if !left.is_empty() => {
                    links += 1;
                    if links > 40 {
                        return None;
                    }
                    if entry.target.starts_with(b"/") {
                        at = Vec::new();
                    }
                    left.extend(parts(&entry.target).into_iter().rev());
                }
                _ => at = next,
            }
        }
        Some(at)
    }

    fn write(&self, out: &mut File, name: &[u8], entry: &Entry) -> Result<(), Odd> {
        use moltis_agent_protocol::tar::{Entry as Plain, Kind, padding};

        let kind = match entry.header.entry_type() {
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_symlink() => Kind::Symlink,
            kind if kind.is_file() => Kind::File,
            // Devices and the like are nothing to read.
            _ => return Ok(()),
        };
        let size = if kind == Kind::File { entry.size } else { 0 };
        let name = if kind == Kind::Directory { [name, b"/"].concat() } else { name.to_vec() };
        let number = |number: std::io::Result<u64>| number.ok().and_then(|number| u32::try_from(number).ok());
        let mut header = Vec::new();
        Plain {
            kind,
            name: &name,
            target: &entry.target,
            mode: entry.header.mode().unwrap_or(0o644),
            uid: number(entry.header.uid()).unwrap_or(0),
            gid: number(entry.header.gid()).unwrap_or(0),
            size,
            mtime: entry.header.mtime().ok().and_then(|time| i64::try_from(time).ok()).unwrap_or(0),
        }
        .write(&mut header);
        out.write_all(&header)?;
        let mut from = self.unpacked.try_clone()?;
        from.seek(SeekFrom::Start(entry.offset))?;
        std::io::copy(&mut from.take(size), out)?;
        out.write_all(&vec![0; padding(size)])?;
        Ok(())
    }
}

/// A file from somewhere in it on.
struct Shifted<'a> {
    file: &'a mut File,
    start: u64,
}

impl Read for Shifted<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.file.read(buffer)
    }
}

impl Seek for Shifted<'_> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let to = match to {
            SeekFrom::Start(at) => SeekFrom::Start(self.start + at),
            other => other,
        };
        Ok(self.file.seek(to)?.saturating_sub(self.start))
    }
}

fn read_json(bytes: &[u8]) -> Result<Value, Odd> {
    serde_json::from_slice(bytes).map_err(|error| Odd::Text("index".to_owned(), error))
}

/// The manifest for an architecture, else the first that is one.
fn choose(manifests: &[Value], arch: &str) -> Option<String> {
    let of = |manifest: &Value| {
        let word = manifest.pointer("/platform/architecture").and_then(Value::as_str);
        words::arch(word.unwrap_or_default())
    };
    let found = manifests.iter().find(|manifest| of(manifest) == arch);
    let found = found.or_else(|| manifests.iter().find(|manifest| of(manifest) != "unknown"))?;
    found.get("digest").and_then(Value::as_str).map(str::to_owned)
}

fn blob(digest: &str) -> Result<String, Odd> {
    let hash = digest.strip_prefix("sha256:").filter(|hash| hash.bytes().all(|b| b.is_ascii_hexdigit()));
    Ok(format!("blobs/sha256/{}", hash.ok_or_else(|| odd("a digest of another kind"))?))
}

fn odd(why: &str) -> Odd {
    Odd::Archive(why.to_owned())
}

fn parts(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

/// A path without anything that leads nowhere, and nowhere above the root.
fn clean(path: &[u8]) -> Vec<u8> {
    let mut out: Vec<Vec<u8>> = Vec::new();
    for part in parts(path) {
        if part == b".." {
            out.pop();
        } else {
            out.push(part);
        }
    }
    out.join(&b'/')
}

fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

fn join(parent: &[u8], name: &[u8]) -> Vec<u8> {
    if parent.is_empty() { name.to_vec() } else { [parent, b"/", name].concat() }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Thing<'a> {
        File(&'a str, &'a str),
        Folder(&'a str),
        Link(&'a str, &'a str),
        Same(&'a str, &'a str),
    }

    fn layer(things: &[Thing<'_>]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for thing in things {
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o755);
            header.set_size(0);
            match thing {
                Thing::File(name, text) => {
                    header.set_size(text.len() as u64);
                    header.set_cksum();
                    builder.append_data(&mut header, name, text.as_bytes()).unwrap();
                }
                Thing::Folder(name) => {
                    header.set_entry_type(tar::EntryType::Directory);
                    header.set_cksum();
                    builder.append_data(&mut header, name, &b""[..]).unwrap();
                }
                Thing::Link(name, target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    builder.append_link(&mut header, name, target).unwrap();
                }
                Thing::Same(name, target) => {
                    header.set_entry_type(tar::EntryType::Link);
                    builder.append_link(&mut header, name, target).unwrap();
                }
            }
        }
        builder.into_inner().unwrap()
    }

    fn image(layers: &[Vec<u8>]) -> Layers {
        let mut read = Layers { unpacked: tempfile::tempfile().unwrap(), entries: BTreeMap::new() };
        for layer in layers {
            read.add(&layer[..]).unwrap();
        }
        read
    }

    fn look(image: &Layers, path: &str) -> Option<Vec<(String, String)>> {
        let archive = image.archive(path).unwrap()?;
        let mut found = Vec::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().display().to_string();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            if let Some(target) = entry.link_name().unwrap() {
                text = format!("-> {}", target.display());
            }
            found.push((name, text));
        }
        Some(found)
    }

    #[test]
    fn layers_lie_over_one_another() {
        let lower = layer(&[
            Thing::Folder("etc"),
            Thing::File("etc/a", "one"),
            Thing::File("etc/b", "two"),
            Thing::File("./opt/x/y", "deep"),
            Thing::File("keep/old", "old"),
            Thing::Link("bin", "usr/bin"),
            Thing::File("usr/bin/sh", "shell"),
            Thing::Same("usr/bin/ash", "usr/bin/sh"),
        ]);
        let upper = layer(&[
            Thing::File("etc/a", "three"),
            Thing::File("etc/.wh.b", ""),
            Thing::File("opt/.wh.x", ""),
            Thing::File("keep/.wh..wh..opq", ""),
            Thing::File("keep/new", "new"),
        ]);
        let image = image(&[lower, upper]);
        let some = |list: &[(&str, &str)]| {
            Some(list.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Vec<_>>())
        };
        assert_eq!(look(&image, "/etc"), some(&[("etc/", ""), ("etc/a", "three")]));
        assert_eq!(look(&image, "/etc/b"), None);
        assert_eq!(look(&image, "/opt/x"), None);
        assert_eq!(look(&image, "/keep"), some(&[("keep/", ""), ("keep/new", "new")]));
        assert_eq!(look(&image, "/bin"), some(&[("bin", "-> usr/bin")]));
        assert_eq!(look(&image, "/bin/sh"), some(&[("sh", "shell")]));
        assert_eq!(look(&image, "/usr/../etc/a"), some(&[("a", "three")]));
        assert_eq!(look(&image, "/usr/bin/ash"), some(&[("ash", "shell")]));
        assert_eq!(look(&image, "/../../etc/a"), some(&[("a", "three")]));
        // Above where the link leads, as the kernel has it.
        assert_eq!(look(&image, "/bin/../etc/a"), None);
        assert_eq!(look(&image, "/nothing"), None);
    }

    #[test]
    fn links_in_a_circle_lead_nowhere() {
        let image = image(&[layer(&[Thing::Link("a", "b"), Thing::Link("b", "a")])]);
        assert_eq!(look(&image, "/a/x"), None);
    }
}
