//! Files through small scripts that the machine runs with its own tools. Paths are arguments of theirs, and mean
//! what they mean inside; none is ever joined to one of this machine.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use moltis_sandbox::files::{ByteStream, EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{Diagnosis, Entry, EntryKind, Error, Files, GuestPath, Metadata, Result};
use tokio::io::AsyncWriteExt;

use crate::program::{Program, Sink, Stream, Wanted};
use crate::sandbox::{Busy, Remote};
use crate::{failure, random, tree};

/// Most that is read of the list of one directory, in bytes.
const MAX_LIST: usize = 64 << 20;
/// Most that is read of any other answer.
const MAX_ANSWER: usize = 64 << 10;
/// Most that is kept of what a tool complained about.
const MAX_WORDS: usize = 4 << 10;
/// How long a tool may take that works on one thing.
const WORKS_WITHIN: Duration = Duration::from_secs(120);

const STAT: &str = r#"if [ "$2" = 1 ]; then exec stat -L -c '%f %s %Y %u %g' "$1"; fi
stat -c '%f %s %Y %u %g' "$1" || exit 1
[ -L "$1" ] && readlink "$1"
exit 0"#;

const LIST: &str = r#"[ -d "$1" ] || { stat -L -c x "$1" >/dev/null && exit 43; exit 41; }
cd "$1" || exit 44
find . -mindepth 1 -maxdepth 1 -exec stat -c '%f %s %Y %u %g %n//' {} + || exit 1
echo =
find . -mindepth 1 -maxdepth 1 -type l -exec sh -c 'for l; do printf "%s//" "$l"; readlink "$l"; done' sh {} +
exit 0"#;

const READ: &str = r#"[ -d "$1" ] && exit 43
[ -f "$1" ] || { stat -L -c x "$1" >/dev/null || exit 41; exit 43; }
exec 3<"$1" || exit 44
[ -f /proc/self/fd/3 ] || exit 43
stat -L -c '%f %s %Y %u %g' /proc/self/fd/3 || exit 1
if [ "$2" = 1 ]; then
  if [ -n "$3" ]; then exec head -c "$3" <&3; else exec cat <&3; fi
fi
if [ -n "$3" ]; then tail -c "+$2" <&3 | head -c "$3"; else exec tail -c "+$2" <&3; fi"#;

/// Where content is put before it takes its place: `$p` is the file that a link leads to, `$t` a new one beside it.
const PLACE: &str = r#"umask 022
p=$1
if [ -L "$p" ]; then q=$(readlink -f "$p" && echo .) && [ -n "$q" ] && p=${q%??}; fi
t=${p%/*}/.moltis-write-$2
"#;

const RECEIVE: &str = r#"if [ -d "$p" ]; then exit 43; fi
if [ "$3" != 1 ]; then if [ -e "$p" ] || [ -L "$p" ]; then exit 42; fi; fi
if [ "$4" = 1 ]; then d=${p%/*}; mkdir -p "${d:-/}" || exit 1; fi
set -C
cat >"$t" || { rm -f "$t"; exit 1; }"#;

const COMMIT: &str = r#"{ [ -f "$t" ] && [ ! -L "$t" ]; } || exit 41
[ "$(stat -c %s "$t")" = "$5" ] || { rm -f "$t"; exit 48; }
m=$4
if [ -z "$m" ]; then m=644; [ -f "$p" ] && m=$(stat -c %a "$p"); fi
chmod "$m" "$t" || { rm -f "$t"; exit 1; }
if [ "$3" = 1 ]; then
  if [ -d "$p" ]; then rm -f "$t"; exit 43; fi
  mv -f "$t" "$p" || { rm -f "$t"; exit 1; }
else
  ln "$t" "$p" || { rm -f "$t"; exit 42; }
  rm -f "$t"
fi
stat -c '%f %s %Y %u %g' "$p""#;

const ABORT: &str = r#"rm -f "$t""#;

const MKDIR: &str = r#"umask 022
if [ "$2" = 1 ]; then [ -d "$1" ] && exit 0; exec mkdir -p "$1"; fi
if [ -e "$1" ] || [ -L "$1" ]; then exit 42; fi
exec mkdir "$1""#;

const REMOVE: &str = r#"if [ -d "$1" ] && [ ! -L "$1" ]; then
  if [ "$2" = 1 ]; then rm -rf "$1"; else rmdir "$1"; fi
  exit
fi
if [ -e "$1" ] || [ -L "$1" ]; then exec rm -f "$1"; fi
exec stat -c x "$1""#;

const RENAME: &str = r#"stat -c x "$1" >/dev/null || exit 41
if [ -e "$2" ] || [ -L "$2" ]; then
  [ "$3" = 1 ] || exit 42
  exec mv -T -f "$1" "$2"
fi
exec mv -T "$1" "$2""#;

const DOWNLOAD: &str = r#"stat -c x "$1" >/dev/null || exit 41
if [ ! -d "$1" ] || [ -L "$1" ]; then
  if [ ! -f "$1" ] && [ ! -L "$1" ]; then exit 43; fi
  d=${1%/*}; n=${1##*/}
  cd "${d:-/}" || exit 44
  echo tar
  exec tar -cf - -- "$n"
fi
cd "$1" || exit 44
set --
for n in * .[!.]* ..?*; do
  if [ -f "$n" ] || [ -d "$n" ] || [ -L "$n" ]; then set -- "$@" "$n"; fi
done
echo tar
[ $# -gt 0 ] || exec head -c 1024 /dev/zero
exec tar -cf - -- "$@""#;

const UPLOAD: &str = r#"umask 022
mkdir -p "$1" || exit 1
cd "$1" || exit 44
exec tar -xpof -"#;

/// Files of one sandbox.
pub struct RemoteFiles {
    sandbox: Arc<Remote>,
}

/// What a tool came to.
struct Done {
    stdout: Vec<u8>,
    _busy: Busy,
}

impl RemoteFiles {
    /// Of this sandbox.
    pub fn new(sandbox: Arc<Remote>) -> Self {
        Self { sandbox }
    }

    async fn begin(&self, script: &str, args: &[&[u8]], stdin: bool) -> Result<(Program, Busy)> {
        let busy = self.sandbox.begin(None).await?;
        let mut argv: Vec<&[u8]> = vec![b"/bin/sh", b"-c", script.as_bytes(), b"sh"];
        argv.extend(args);
        let path = self.sandbox.place.env.iter().find(|(name, _)| name == "PATH");
        let path = path.and_then(|(_, path)| path.to_str()).unwrap_or("/usr/bin:/bin").to_owned();
        let wanted = Wanted {
            argv: &argv,
            env: vec![("LC_ALL".to_owned(), "C".to_owned()), ("PATH".to_owned(), path)],
            directory: b"",
            stdin,
            timeout: None,
            counts: false,
        };
        let program =
            Program::start(&self.sandbox.machine, &self.sandbox.launch, self.sandbox.room, wanted).await?;
        Ok((program, busy))
    }

    /// Runs a script to its end. `path` is what an error is about.
    async fn run(&self, script: &str, args: &[&[u8]], path: &GuestPath, limit: usize) -> Result<Done> {
        let (mut program, busy) = self.begin(script, args, false).await?;
        let work = async {
            let (stdout, words) = collect(&mut program, limit).await?;
            finish(&mut program, &words, path)?;
            Ok::<_, Error>(stdout)
        };
        let stdout = match tokio::time::timeout(WORKS_WITHIN, work).await {
            Ok(done) => done?,
            Err(_) => return Err(slow(path)),
        };
        Ok(Done { stdout, _busy: busy })
    }

    /// The rest of a program's output as a stream, which is an error unless the program ends well.
    fn content(program: Program, busy: Busy, rest: Vec<u8>, path: GuestPath) -> ByteStream {
        let state = Some((program, busy, rest, Vec::new(), path));
        Box::pin(stream::unfold(state, |state| async move {
            let (mut program, busy, mut rest, mut words, path) = state?;
            if !rest.is_empty() {
                let piece = Bytes::from(std::mem::take(&mut rest));
                return Some((Ok(piece), Some((program, busy, rest, words, path))));
            }
            loop {
                match program.next().await {
                    Ok(Some((Stream::Stdout, piece))) => {
                        return Some((Ok(Bytes::from(piece)), Some((program, busy, rest, words, path))));
                    }
                    Ok(Some((Stream::Stderr, piece))) => keep(&mut words, &piece),
                    Ok(None) => {
                        let ended = finish(&mut program, &words, &path);
                        return ended.err().map(|error| (Err(error), None));
                    }
                    Err(error) => return Some((Err(error), None)),
                }
            }
        }))
    }

    async fn receive(
        &self,
        path: &GuestPath,
        token: &[u8],
        options: &WriteOptions,
        content: ByteStream,
    ) -> Result<u64> {
        let script = format!("{PLACE}{RECEIVE}");
        let (overwrite, parents) = (flag(options.overwrite), flag(options.parents));
        let (mut program, _busy) =
            self.begin(&script, &[path.as_bytes(), token, overwrite, parents], true).await?;
        let mut stdin = program.stdin.take();
        let feeding = feed(&mut stdin, content);
        let (sent, collected) = tokio::join!(feeding, collect(&mut program, MAX_ANSWER));
        let sent = sent?;
        let (_, words) = collected?;
        finish(&mut program, &words, path)?;
        Ok(sent)
    }
}

/// Sends content to a program, as long as it takes it; how much there was.
async fn feed(stdin: &mut Option<Sink>, mut content: ByteStream) -> Result<u64> {
    let mut sent = 0;
    let fed = async {
        while let Some(piece) = content.next().await {
            let piece = piece?;
            sent += piece.len() as u64;
            let Some(sink) = stdin.as_mut() else { break };
            // Its end says why it takes no more.
            if sink.write_all(&piece).await.is_err() {
                break;
            }
        }
        Ok(sent)
    }
    .await;
    if let Some(mut sink) = stdin.take() {
        let _ = sink.flush().await;
        let _ = sink.shutdown().await;
    }
    fed
}

fn keep(words: &mut Vec<u8>, piece: &[u8]) {
    let room = MAX_WORDS.saturating_sub(words.len());
    words.extend_from_slice(&piece[..piece.len().min(room)]);
}

/// All that it prints, and what it complains about.
async fn collect(program: &mut Program, limit: usize) -> Result<(Vec<u8>, Vec<u8>)> {
    let (mut stdout, mut words) = (Vec::new(), Vec::new());
    while let Some((stream, piece)) = program.next().await? {
        match stream {
            Stream::Stdout if stdout.len() + piece.len() > limit => return Err(too_much()),
            Stream::Stdout => stdout.extend_from_slice(&piece),
            Stream::Stderr => keep(&mut words, &piece),
        }
    }
    Ok((stdout, words))
}

/// Its end, which must be a good one.
fn finish(program: &mut Program, words: &[u8], path: &GuestPath) -> Result<()> {
    program.descent().leave();
    match program.end.as_ref().map(|end| end.code) {
        Some(0) => Ok(()),
        Some(code) => Err(wrong(code, words, path)),
        None => Err(failure::broke()),
    }
}

fn flag(value: bool) -> &'static [u8] {
    if value { b"1" } else { b"0" }
}

/// What a script's end means. The words are those of the machine's tools in the C locale.
fn wrong(code: i32, words: &[u8], path: &GuestPath) -> Error {
    let said = failure::plain(words);
    let has = |text: &str| said.contains(text);
    let path: String =
        path.to_string().chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    let told = |code: &'static str, what: &str| {
        let diagnosis = Diagnosis::new(code, format!("`{path}` {what}"));
        if said.is_empty() { diagnosis } else { diagnosis.cause(&said) }
    };
    let code = match code {
        1 | 2 if has("No such file or directory") => 41,
        1 | 2 if has("File exists") => 42,
        1 | 2 if has("Not a directory") || has("Is a directory") || has("symbolic links") => 43,
        1 | 2 if has("Permission denied") || has("not permitted") => 44,
        1 | 2 if has("Read-only file system") => 45,
        1 | 2 if has("No space left") || has("quota") => 46,
        code => code,
    };
    match code {
        41 => Error::Invalid(
            told("file-missing", "does not exist").fix("name something that is there inside the sandbox"),
        ),
        42 => Error::Invalid(
            told("file-exists", "exists already").fix("take another name, or ask for it to be replaced"),
        ),
        43 => Error::Invalid(told("file-wrong-kind", "is of another kind than this takes")),
        44 => Error::Refused(
            told("file-denied", "may not be used so by the sandbox's user")
                .fix("use another place inside the sandbox, or one that its user may change"),
        ),
        45 => Error::Refused(
            told("file-read-only", "cannot be written to")
                .fix("use a place that can be written, as the home or /tmp; a workspace can be if it is named with `:rw`"),
        ),
        46 => Error::Unavailable(
            told("disk-full", "does not fit").fix("remove files inside the sandbox, or make room on the disk behind it"),
        ),
        48 => Error::Unavailable(told("file-changed", "changed while it was being written")),
        126 | 127 => failure::unsuitable("tool for this", &said),
        _ => Error::Invalid(told("file-failed", "could not be worked on")),
    }
}

fn slow(path: &GuestPath) -> Error {
    Error::Lost(Diagnosis::new(
        "agent-silent",
        format!("work on `{path}` was ended after {} s", WORKS_WITHIN.as_secs()),
    ))
}

fn too_much() -> Error {
    Error::Invalid(Diagnosis::new(
        "file-list-too-long",
        "the answer is longer than can be carried from a provider",
    ))
}

/// Metadata as `stat -c '%f %s %Y %u %g'` prints it.
fn metadata(line: &str) -> Option<Metadata> {
    let mut words = line.split(' ');
    let bits = u32::from_str_radix(words.next()?, 16).ok()?;
    let size = words.next()?.parse().ok()?;
    let seconds: i64 = words.next()?.parse().ok()?;
    let uid = words.next()?.parse().ok()?;
    let gid = words.next()?.parse().ok()?;
    Some(Metadata {
        kind: match bits & 0o170_000 {
            0o100_000 => EntryKind::File,
            0o040_000 => EntryKind::Directory,
            0o120_000 => EntryKind::Symlink,
            _ => EntryKind::Other,
        },
        size,
        mode: bits & 0o7777,
        modified_nanos: seconds.saturating_mul(1_000_000_000),
        uid,
        gid,
        target: None,
    })
}

/// The first line of an answer as metadata, and what comes after it.
fn first_line(bytes: &[u8]) -> Result<(Metadata, &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    let (line, rest) = bytes.split_at(end);
    let found = std::str::from_utf8(line).ok().and_then(metadata).ok_or_else(|| unlike(line))?;
    Ok((found, rest.get(1..).unwrap_or_default()))
}

fn unlike(line: &[u8]) -> Error {
    Error::Unavailable(
        Diagnosis::new("agent-protocol", "the machine's tools said something else than expected")
            .cause(failure::plain(line)),
    )
}

/// The entries of a directory: records that end with two slashes, which no name holds, and the links among them with
/// their targets.
fn entries(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    while let Some(first) = rest.first().filter(|first| **first != b'=') {
        let end = rest.windows(3).position(|w| w == b"//\n").ok_or_else(|| unlike(&[*first]))?;
        let record = &rest[..end];
        rest = &rest[end + 3..];
        let mut spaces = record.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
        let at = spaces.nth(4).ok_or_else(|| unlike(record))?;
        let (line, name) = record.split_at(at);
        let name = name[1..].strip_prefix(b"./").ok_or_else(|| unlike(record))?;
        let found = std::str::from_utf8(line).ok().and_then(metadata).ok_or_else(|| unlike(line))?;
        entries.push(Entry { name: OsString::from_vec(name.to_vec()), metadata: found });
    }
    rest = rest.strip_prefix(b"=\n").unwrap_or_default();
    let mut links: std::collections::HashMap<OsString, usize> = entries
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.metadata.kind == EntryKind::Symlink)
        .map(|(at, entry)| (entry.name.clone(), at))
        .collect();
    while let Some(end) = rest.windows(2).position(|w| w == b"//") {
        let Some(name) = rest[..end].strip_prefix(b"./") else { break };
        rest = &rest[end + 2..];
        let Some(at) = links.remove(&OsString::from_vec(name.to_vec())) else { break };
        let length = usize::try_from(entries[at].metadata.size).unwrap_or(usize::MAX);
        let Some(target) = rest.get(..length).filter(|_| rest.get(length) == Some(&b'\n')) else { break };
        entries[at].metadata.target = Some(OsString::from_vec(target.to_vec()));
        rest = &rest[length + 1..];
    }
    Ok(entries)
}

#[async_trait]
impl Files for RemoteFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let done = self.run(STAT, &[path.as_bytes(), flag(follow)], path, MAX_ANSWER).await?;
        let (mut found, rest) = first_line(&done.stdout)?;
        if found.kind == EntryKind::Symlink {
            let target = rest.strip_suffix(b"\n").unwrap_or(rest);
            found.target = Some(OsString::from_vec(target.to_vec()));
        }
        Ok(found)
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        let done = self.run(LIST, &[path.as_bytes()], path, MAX_LIST).await?;
        let entries = entries(&done.stdout)?;
        Ok(Box::pin(stream::iter(entries.into_iter().map(Ok))))
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        // No file is longer than the kernel counts.
        let length = length.filter(|length| i64::try_from(*length).is_ok());
        let from = (offset.min(i64::MAX as u64 - 1) + 1).to_string();
        let length = length.map_or_else(String::new, |length| length.to_string());
        let args: [&[u8]; 3] = [path.as_bytes(), from.as_bytes(), length.as_bytes()];
        let (mut program, busy) = self.begin(READ, &args, false).await?;
        let (line, rest) = head(&mut program, path).await?;
        let (found, _) = first_line(&line)?;
        Ok(FileContent { metadata: found, content: Self::content(program, busy, rest, path.clone()) })
    }

    async fn write(&self, path: &GuestPath, options: WriteOptions, content: ByteStream) -> Result<Metadata> {
        let token = random::hex(&random::bytes::<8>()?);
        let token = token.as_bytes();
        let received = self.receive(path, token, &options, content).await;
        let committed = match received {
            Ok(size) => {
                let mode = options.mode.map_or_else(String::new, |mode| format!("{:o}", mode & 0o7777));
                let size = size.to_string();
                let args: [&[u8]; 5] =
                    [path.as_bytes(), token, flag(options.overwrite), mode.as_bytes(), size.as_bytes()];
                self.run(&format!("{PLACE}{COMMIT}"), &args, path, MAX_ANSWER).await
            }
            Err(error) => Err(error),
        };
        match committed {
            Ok(done) => Ok(first_line(&done.stdout)?.0),
            Err(error) => {
                let abort = format!("{PLACE}{ABORT}");
                let _ = self.run(&abort, &[path.as_bytes(), token], path, MAX_ANSWER).await;
                Err(error)
            }
        }
    }

    async fn mkdir(&self, path: &GuestPath, parents: bool) -> Result<()> {
        self.run(MKDIR, &[path.as_bytes(), flag(parents)], path, MAX_ANSWER).await.map(drop)
    }

    async fn remove(&self, path: &GuestPath, recursive: bool) -> Result<()> {
        if path.as_bytes().split(|byte| *byte == b'/').all(|part| matches!(part, b"" | b"." | b"..")) {
            return Err(wrong(44, b"it is the root", path));
        }
        self.run(REMOVE, &[path.as_bytes(), flag(recursive)], path, MAX_ANSWER).await.map(drop)
    }

    async fn rename(&self, from: &GuestPath, to: &GuestPath, replace: bool) -> Result<()> {
        self.run(RENAME, &[from.as_bytes(), to.as_bytes(), flag(replace)], from, MAX_ANSWER).await.map(drop)
    }

    async fn download(&self, path: &GuestPath) -> Result<ByteStream> {
        let (mut program, busy) = self.begin(DOWNLOAD, &[path.as_bytes()], false).await?;
        let (_, rest) = head(&mut program, path).await?;
        Ok(Self::content(program, busy, rest, path.clone()))
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        let (mut program, _busy) = self.begin(UPLOAD, &[path.as_bytes()], true).await?;
        let mut stdin = program.stdin.take();
        let (unpacked, collected) =
            tokio::join!(tree::checked(&mut stdin, tar), collect(&mut program, MAX_ANSWER));
        let summary = unpacked?;
        let (_, words) = collected?;
        finish(&mut program, &words, path)?;
        Ok(summary)
    }
}

/// The first line that it prints, and what came with it; its failure, if it prints none.
async fn head(program: &mut Program, path: &GuestPath) -> Result<(Vec<u8>, Vec<u8>)> {
    let (mut line, mut words) = (Vec::new(), Vec::new());
    loop {
        match program.next().await? {
            Some((Stream::Stdout, mut piece)) => {
                if let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
                    let rest = piece.split_off(end + 1);
                    line.extend_from_slice(&piece);
                    return Ok((line, rest));
                }
                line.extend_from_slice(&piece);
                if line.len() > MAX_ANSWER {
                    return Err(unlike(&line));
                }
            }
            Some((Stream::Stderr, piece)) => keep(&mut words, &piece),
            None => {
                finish(program, &words, path)?;
                return Err(unlike(&line));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_whatever_names_are_in_them() {
        let listed =
            b"81a4 3 1000000000 0 0 ./a b\n=//\na1ff 4 5 1 2 ./l//\n41ed 40 6 0 0 ./d//\n=\n./l//x//y\n";
        let found = entries(listed).unwrap();
        let names: Vec<_> = found.iter().map(|e| e.name.to_string_lossy().into_owned()).collect();
        assert_eq!(names, ["a b\n=", "l", "d"]);
        assert_eq!(
            (found[0].metadata.mode, found[0].metadata.modified_nanos),
            (0o644, 1_000_000_000_000_000_000)
        );
        assert_eq!(found[1].metadata.target, Some("x//y".into()));
        assert_eq!(found[2].metadata.kind, EntryKind::Directory);
        assert!(entries(b"junk").is_err() && entries(b"81a4 3 1 0 0 a//\n").is_err());
    }
}
