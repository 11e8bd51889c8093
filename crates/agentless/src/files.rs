//! Files through small scripts that run inside, with the sandbox's own tools. Paths are arguments of theirs, and mean
//! what they mean inside; none is ever joined to one of this machine.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use moltis_sandbox::files::{ByteStream, EntryStream, FileContent, TreeSummary, WriteOptions};
use moltis_sandbox::{EntryKind, Error, Files, GuestPath, Metadata, Result};
use tokio::io::AsyncWriteExt;

use crate::answers::{entries, first_line, too_much, unlike, wrong};
use crate::runs::{Running, Runs, Sink, Stream};
use crate::said::plain;
use crate::{answers, random, tree};

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
pub struct ScriptFiles {
    runs: Arc<dyn Runs>,
}

impl ScriptFiles {
    /// Of the sandbox in which these programs run.
    pub fn new(runs: Arc<dyn Runs>) -> Self {
        Self { runs }
    }

    /// Starts a script of a caller in this crate's manner: `/bin/sh -c`, its arguments behind it.
    async fn begin(&self, script: &str, args: &[&[u8]], input: bool) -> Result<Box<dyn Running>> {
        let mut argv: Vec<&[u8]> = vec![b"/bin/sh", b"-c", script.as_bytes(), b"sh"];
        argv.extend(args);
        self.runs.start(&argv, input).await
    }

    /// Runs a script to its end; what it printed, at most `limit` bytes. `path` is what an error is about.
    ///
    /// # Errors
    /// Those of running a program; what its tools complained about.
    pub async fn run(&self, script: &str, args: &[&[u8]], path: &GuestPath, limit: usize) -> Result<Vec<u8>> {
        let mut program = self.begin(script, args, false).await?;
        let work = async {
            let (stdout, words) = collect(&mut *program, limit).await?;
            self.finish(&mut *program, &words, path).await?;
            Ok::<_, Error>(stdout)
        };
        tokio::time::timeout(WORKS_WITHIN, work)
            .await
            .unwrap_or_else(|_| Err(answers::slow(path, WORKS_WITHIN)))
    }

    /// The rest of a program's output as a stream, which is an error unless the program ends well.
    fn content(&self, program: Box<dyn Running>, rest: Vec<u8>, path: GuestPath) -> ByteStream {
        let files = Self { runs: Arc::clone(&self.runs) };
        let state = Some((files, program, rest, Vec::new(), path));
        Box::pin(stream::unfold(state, |state| async move {
            let (files, mut program, mut rest, mut words, path) = state?;
            if !rest.is_empty() {
                let piece = Bytes::from(std::mem::take(&mut rest));
                return Some((Ok(piece), Some((files, program, rest, words, path))));
            }
            loop {
                match program.next().await {
                    Ok(Some((Stream::Stdout, piece))) => {
                        return Some((Ok(Bytes::from(piece)), Some((files, program, rest, words, path))));
                    }
                    Ok(Some((Stream::Stderr, piece))) => keep(&mut words, &piece),
                    Ok(None) => {
                        let ended = files.finish(&mut *program, &words, &path).await;
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
        let mut program = self.begin(&script, &[path.as_bytes(), token, overwrite, parents], true).await?;
        let mut stdin = program.input();
        let feeding = feed(&mut stdin, content);
        let (sent, collected) = tokio::join!(feeding, collect(&mut *program, MAX_ANSWER));
        let sent = sent?;
        let (_, words) = collected?;
        self.finish(&mut *program, &words, path).await?;
        Ok(sent)
    }

    /// Its end, which must be a good one.
    async fn finish(&self, program: &mut dyn Running, words: &[u8], path: &GuestPath) -> Result<()> {
        match program.end().await? {
            0 => Ok(()),
            126 | 127 => Err(self.runs.unsuitable("tool for this", &plain(words))),
            code => Err(wrong(code, words, path)),
        }
    }

    /// The first line that it prints, and what came with it; its failure, if it prints none.
    async fn head(&self, program: &mut dyn Running, path: &GuestPath) -> Result<(Vec<u8>, Vec<u8>)> {
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
                    self.finish(program, &words, path).await?;
                    return Err(unlike(&line));
                }
            }
        }
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
async fn collect(program: &mut dyn Running, limit: usize) -> Result<(Vec<u8>, Vec<u8>)> {
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

fn flag(value: bool) -> &'static [u8] {
    if value { b"1" } else { b"0" }
}

#[async_trait]
impl Files for ScriptFiles {
    async fn stat(&self, path: &GuestPath, follow: bool) -> Result<Metadata> {
        let done = self.run(STAT, &[path.as_bytes(), flag(follow)], path, MAX_ANSWER).await?;
        let (mut found, rest) = first_line(&done)?;
        if found.kind == EntryKind::Symlink {
            let target = rest.strip_suffix(b"\n").unwrap_or(rest);
            found.target = Some(OsString::from_vec(target.to_vec()));
        }
        Ok(found)
    }

    async fn list(&self, path: &GuestPath) -> Result<EntryStream> {
        let done = self.run(LIST, &[path.as_bytes()], path, MAX_LIST).await?;
        let entries = entries(&done)?;
        Ok(Box::pin(stream::iter(entries.into_iter().map(Ok))))
    }

    async fn read(&self, path: &GuestPath, offset: u64, length: Option<u64>) -> Result<FileContent> {
        // No file is longer than the kernel counts.
        let length = length.filter(|length| i64::try_from(*length).is_ok());
        let from = (offset.min(i64::MAX as u64 - 1) + 1).to_string();
        let length = length.map_or_else(String::new, |length| length.to_string());
        let args: [&[u8]; 3] = [path.as_bytes(), from.as_bytes(), length.as_bytes()];
        let mut program = self.begin(READ, &args, false).await?;
        let (line, rest) = self.head(&mut *program, path).await?;
        let (found, _) = first_line(&line)?;
        Ok(FileContent { metadata: found, content: self.content(program, rest, path.clone()) })
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
            Ok(done) => Ok(first_line(&done)?.0),
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
        let mut program = self.begin(DOWNLOAD, &[path.as_bytes()], false).await?;
        let (_, rest) = self.head(&mut *program, path).await?;
        Ok(self.content(program, rest, path.clone()))
    }

    async fn upload(&self, path: &GuestPath, tar: ByteStream) -> Result<TreeSummary> {
        let mut program = self.begin(UPLOAD, &[path.as_bytes()], true).await?;
        let mut stdin = program.input();
        let (unpacked, collected) =
            tokio::join!(tree::checked(&mut stdin, tar), collect(&mut *program, MAX_ANSWER));
        let summary = unpacked?;
        let (_, words) = collected?;
        self.finish(&mut *program, &words, path).await?;
        Ok(summary)
    }
}
