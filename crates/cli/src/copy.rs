//! Copying files and whole trees between here and files elsewhere, by the rules of `cp -r`: a folder that is there
//! receives the source by its name. Nothing that is there is replaced without a word.

mod skipped;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use futures_util::StreamExt;
use moltis_runtime::local_files::{self, LeftOut};
use moltis_sandbox::files::WriteOptions;
use moltis_sandbox::{Diagnosis, EntryKind, Error, Files, GuestPath, Metadata};
use serde::Serialize;

use self::skipped::Skipped;
use crate::failure::Failure;
use crate::transfer::{Breaker, standard_input, to_standard_output};
use crate::{output, render};

/// The end of a copy that is here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Local {
    /// Standard input or output.
    Standard,
    /// A path of ours.
    Path(PathBuf),
}

impl Local {
    /// What an argument names.
    pub fn of(argument: &OsStr) -> Self {
        if argument == "-" { Self::Standard } else { Self::Path(argument.into()) }
    }
}

/// How a copy is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Manner {
    /// Whether files that are there are replaced, and folders merged.
    pub overwrite: bool,
    /// Whether a link that the source itself is is followed; else it is copied as a link.
    pub follow: bool,
    /// Whether the files there can hold links.
    pub links: bool,
    /// What to do if the source is not here.
    pub missing: &'static str,
}

/// What was copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Copied {
    /// Where it went.
    pub to: String,
    /// Files, folders and links.
    pub entries: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// What was left out.
    pub skipped: Skipped,
    /// Links that lead out of what was copied.
    pub links_leading_out: u64,
    /// One of them.
    #[serde(skip)]
    pub one_leading_out: Option<Vec<u8>>,
}

impl Copied {
    fn file(to: impl Into<String>, bytes: u64) -> Self {
        Self {
            to: to.into(),
            entries: 1,
            bytes,
            skipped: Skipped::default(),
            links_leading_out: 0,
            one_leading_out: None,
        }
    }

    fn tree(to: String, unpacked: local_files::Unpacked, skipped: Skipped) -> Self {
        Self {
            to,
            entries: unpacked.summary.entries,
            bytes: unpacked.summary.bytes,
            skipped,
            links_leading_out: unpacked.leading_out,
            one_leading_out: unpacked.one_leading_out,
        }
    }

    /// Says what came of it; gives the exit status.
    pub fn report(&self, json: bool) -> Result<i32, Failure> {
        self.skipped.tell();
        if let Some(one) = &self.one_leading_out {
            let one = render::one_line(&String::from_utf8_lossy(one));
            let count = self.links_leading_out;
            crate::say!("moltis: {count} of the copied links lead out of what was copied, {one} among them");
        }
        if json { output::print_json(self) } else { Ok(0) }
    }
}

/// The name of what a path names there; `None` for `/`, and where only what is in it is meant.
fn remote_name(path: &GuestPath) -> Option<&[u8]> {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = bytes[..end].iter().rposition(|byte| *byte == b'/')? + 1;
    Some(&bytes[start..end]).filter(|name| !matches!(*name, b"." | b".."))
}

/// A path below another one.
fn below(path: &GuestPath, name: &[u8]) -> Result<GuestPath, Failure> {
    let separator: &[u8] = if path.as_bytes().ends_with(b"/") { b"" } else { b"/" };
    let whole = [path.as_bytes(), separator, name].concat();
    GuestPath::new(whole)
        .ok_or_else(|| invalid("request-invalid", format!("{path} is too long"), "use shorter names"))
}

/// The folder that a path lies in.
fn above(path: &GuestPath) -> GuestPath {
    let bytes = path.as_bytes();
    let end = bytes.iter().rposition(|byte| *byte != b'/').map_or(1, |last| last + 1);
    let slash = bytes[..end].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    GuestPath::new(&bytes[..slash.max(1)]).unwrap_or_else(|| path.clone())
}

fn invalid(code: &'static str, message: String, fix: &'static str) -> Failure {
    Failure::invalid(Diagnosis::new(code, message).fix(fix))
}

fn exists(what: impl std::fmt::Display) -> Failure {
    invalid("file-exists", format!("{what} exists"), REPLACE)
}

fn not_a_folder(what: impl std::fmt::Display) -> Failure {
    invalid("file-wrong-kind", format!("{what} is no folder"), "name a folder, or make it first")
}

/// What is at a path there; `None` when there is nothing.
async fn look(files: &dyn Files, path: &GuestPath, follow: bool) -> Result<Option<Metadata>, Failure> {
    match files.stat(path, follow).await {
        Ok(metadata) => Ok(Some(metadata)),
        Err(Error::Invalid(diagnosis)) if diagnosis.code == "file-missing" => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Copies from there to here.
///
/// # Errors
/// When something is there already and is not to be replaced, is of another kind than is needed, or cannot be read or
/// written.
pub async fn fetch(
    files: &dyn Files,
    from: &GuestPath,
    to: &Local,
    manner: Manner,
    breaker: &Breaker,
) -> Result<Option<Copied>, Failure> {
    let overwrite = manner.overwrite;
    // There is no link in a stream of bytes.
    let metadata = files.stat(from, manner.follow || *to == Local::Standard).await?;
    let to = match (to, metadata.kind) {
        (Local::Standard, EntryKind::File) => {
            let content = breaker.guard(files.read(from, 0, None).await?.content);
            return Ok(to_standard_output(content, false).await?.map(|size| Copied::file("-", size)));
        }
        (Local::Standard, _) => {
            return Err(invalid(
                "tree-to-stream",
                format!("{from} is no file, and only a file can go to standard output"),
                "name a folder to copy it to",
            ));
        }
        (Local::Path(to), EntryKind::File | EntryKind::Directory | EntryKind::Symlink) => to,
        (Local::Path(_), EntryKind::Other) => {
            return Err(invalid("file-wrong-kind", format!("{from} is no file and no folder"), "name one"));
        }
    };
    let name = remote_name(from);
    let found = local_files::look(to, true).await?;
    let shown = to.display();
    if metadata.kind != EntryKind::Directory {
        let target = match (&found, name) {
            (Some(there), Some(name)) if there.kind == EntryKind::Directory => {
                to.join(OsStr::from_bytes(name))
            }
            (None, _) if to.as_os_str().as_bytes().ends_with(b"/") => return Err(not_a_folder(shown)),
            _ => to.clone(),
        };
        if metadata.kind == EntryKind::Symlink {
            let leads_to = metadata.target.unwrap_or_default();
            let made = local_files::write_link(&target, &leads_to, overwrite).await?;
            return Ok(Some(Copied::tree(target.display().to_string(), made, Skipped::default())));
        }
        let content = files.read(from, 0, None).await?;
        let guarded = breaker.guard(content.content);
        let size = local_files::write(&target, guarded, content.metadata, overwrite).await?;
        return Ok(Some(Copied::file(target.display().to_string(), size)));
    }
    let target = match (found, name) {
        (Some(there), _) if there.kind != EntryKind::Directory => return Err(not_a_folder(shown)),
        (Some(_), Some(name)) => {
            let target = to.join(OsStr::from_bytes(name));
            if !overwrite && local_files::look(&target, true).await?.is_some() {
                return Err(exists(target.display()));
            }
            target
        }
        (Some(_), None) => {
            let target = real_path(to).await?;
            if !overwrite && !local_files::is_empty(&target).await? {
                return Err(exists(format!("{shown} is not empty: what is in it")));
            }
            target
        }
        (None, _) => to.components().collect(),
    };
    let tar = breaker.guard(files.download(from).await?);
    let looking = async {
        tokio::select! {
            found = skipped::find(files, from, manner.links) => found,
            () = breaker.heard() => Skipped::default(),
        }
    };
    let writing = local_files::write_tree(&target, tar, metadata, overwrite);
    let (unpacked, skipped) = tokio::join!(writing, looking);
    Ok(Some(Copied::tree(target.display().to_string(), unpacked?, skipped)))
}

/// Copies from here to there.
///
/// # Errors
/// As for [`fetch`].
pub async fn send(
    files: &dyn Files,
    from: &Local,
    to: &GuestPath,
    manner: Manner,
    breaker: &Breaker,
) -> Result<Copied, Failure> {
    let overwrite = manner.overwrite;
    let write = async |target: &GuestPath, mode, content| -> Result<Copied, Failure> {
        let options = WriteOptions { mode, overwrite, parents: false };
        let written = files.write(target, options, breaker.guard(content)).await;
        let written = written.map_err(|error| hinted(error, "file-exists", REPLACE))?;
        Ok(Copied::file(target.to_string(), written.size))
    };
    let Local::Path(from) = from else { return write(to, None, standard_input()).await };
    let shown = from.display();
    let Some(metadata) = local_files::look(from, manner.follow).await? else {
        return Err(invalid("file-missing", format!("{shown} is not here"), manner.missing));
    };
    // Of `dir/.` only what is in it is meant.
    let is_whole = !matches!(last_word(from), b"." | b"..");
    let name = match from.file_name() {
        Some(name) => name.to_owned(),
        None => real_path(from).await?.file_name().map(OsString::from).unwrap_or_default(),
    };
    let found = look(files, to, true).await?;
    if metadata.kind != EntryKind::Directory {
        let target = match &found {
            Some(there) if there.kind == EntryKind::Directory => below(to, name.as_bytes())?,
            None if to.as_bytes().ends_with(b"/") => return Err(not_a_folder(to)),
            _ => to.clone(),
        };
        if metadata.kind == EntryKind::Symlink {
            return send_link(files, from, &target, overwrite).await;
        }
        // A FIFO or a device is refused here, by name.
        let (metadata, content) = local_files::read(from).await?;
        return write(&target, Some(metadata.mode & 0o777), content).await;
    }
    if !manner.links
        && let Some(link) = local_files::find_link(from).await?
    {
        return Err(invalid(
            "file-wrong-kind",
            format!("{} is a link, and managed files hold none", link.display()),
            "leave it out, or put what it leads to in its place",
        ));
    }
    let (target, is_there) = match found {
        Some(there) if there.kind != EntryKind::Directory => return Err(not_a_folder(to)),
        Some(_) if is_whole && !name.is_empty() => {
            let target = below(to, name.as_bytes())?;
            let there = look(files, &target, false).await?;
            match &there {
                Some(_) if !overwrite => return Err(exists(target)),
                Some(there) if there.kind != EntryKind::Directory => return Err(not_a_folder(target)),
                _ => {}
            }
            (target, there.is_some())
        }
        Some(_) => {
            if !overwrite && files.list(to).await?.next().await.is_some() {
                return Err(exists(format!("{to} is not empty: what is in it")));
            }
            (to.clone(), true)
        }
        None => (to.clone(), false),
    };
    // With its own name in front a new folder keeps its mode; that needs the one above it.
    let parent = above(&target);
    let left_out = LeftOut::default();
    let summary = match remote_name(&target).filter(|_| !is_there) {
        Some(name) if allowed(files, &parent).await? => {
            let tar = local_files::read_tree(from, name, &left_out).await?;
            files.upload(&parent, breaker.guard(tar)).await?
        }
        _ => {
            let tar = local_files::read_tree(from, b"", &left_out).await?;
            files.upload(&target, breaker.guard(tar)).await?
        }
    };
    Ok(Copied {
        entries: summary.entries,
        skipped: Skipped::of(&left_out, false),
        ..Copied::file(target.to_string(), summary.bytes)
    })
}

/// Copies a link from here to there.
async fn send_link(
    files: &dyn Files,
    from: &Path,
    target: &GuestPath,
    overwrite: bool,
) -> Result<Copied, Failure> {
    match look(files, target, false).await? {
        Some(there) if there.kind == EntryKind::Directory => {
            return Err(invalid(
                "file-wrong-kind",
                format!("{target} is a folder, and a link does not take its place"),
                "name another place",
            ));
        }
        Some(_) if !overwrite => return Err(exists(target)),
        _ => {}
    }
    let parent = above(target);
    allowed(files, &parent).await?;
    let name = remote_name(target).ok_or_else(|| not_a_folder(target))?;
    let tar = local_files::read_link(from, name).await?;
    files.upload(&parent, tar).await?;
    Ok(Copied::file(target.to_string(), 0))
}

/// What to do about something that is there.
pub const REPLACE: &str = "give --overwrite to replace it, or name another place";

/// An error of this code with another thing to do about it.
pub fn hinted(error: Error, code: &str, fix: &'static str) -> Error {
    match error {
        Error::Invalid(diagnosis) if diagnosis.code == code => Error::Invalid(diagnosis.fix(fix)),
        other => other,
    }
}

/// Where something goes that is moved: a folder that is there receives it by its name.
pub async fn receiving(files: &dyn Files, from: &GuestPath, to: GuestPath) -> Result<GuestPath, Failure> {
    match (look(files, &to, true).await, remote_name(from)) {
        (Ok(Some(there)), Some(name)) if there.kind == EntryKind::Directory => below(&to, name),
        // Whatever is wrong with it is said by the move itself.
        _ => Ok(to),
    }
}

/// Whether file tools may use the folder above a target, which must be there.
async fn allowed(files: &dyn Files, parent: &GuestPath) -> Result<bool, Failure> {
    match files.stat(parent, true).await {
        Ok(there) if there.kind == EntryKind::Directory => Ok(true),
        Ok(_) => Err(not_a_folder(parent)),
        Err(Error::Refused(_)) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The last word of a path as it was written.
fn last_word(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

async fn real_path(path: &Path) -> Result<PathBuf, Failure> {
    Ok(local_files::real_path(path).await?)
}

/// A path there as it was typed: below `home` unless it begins with a slash.
pub fn remote_path(text: &OsStr, home: Option<&str>) -> Result<GuestPath, Failure> {
    let bytes = text.as_bytes();
    let whole = match home {
        Some(home) if !bytes.starts_with(b"/") => [home.as_bytes(), bytes].concat(),
        _ => bytes.to_vec(),
    };
    GuestPath::new(whole.clone()).ok_or_else(|| {
        let shown = OsString::from_vec(whole).to_string_lossy().into_owned();
        let message = format!("{shown} is not an absolute path inside the sandbox");
        Failure::usage(
            Diagnosis::new("path-not-absolute", message).fix("write it from the root, as in /workspace/src"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> GuestPath {
        GuestPath::new(text).unwrap()
    }

    #[test]
    fn paths_are_taken_apart_and_put_together() {
        for (text, name, parent) in [
            ("/a/b", Some("b"), "/a"),
            ("/a/b/", Some("b"), "/a"),
            ("/a", Some("a"), "/"),
            ("/", None, "/"),
            ("/a/.", None, "/a"),
            ("/a/..", None, "/a"),
        ] {
            assert_eq!(remote_name(&path(text)), name.map(str::as_bytes), "{text}");
            assert_eq!(above(&path(text)), path(parent), "{text}");
        }
        assert_eq!(below(&path("/"), b"x").ok(), Some(path("/x")));
        assert_eq!(below(&path("/a/"), b"x").ok(), Some(path("/a/x")));
        assert_eq!(remote_path(OsStr::new("x/y"), Some("/")).ok(), Some(path("/x/y")));
        assert!(remote_path(OsStr::new("x/y"), None).is_err());
        assert_eq!(last_word(Path::new("a/.")), b".");
        assert_eq!(last_word(Path::new("a/")), b"");
    }
}
