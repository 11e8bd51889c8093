//! The other side: a directory on a machine that can run a script and carry bytes to and from it. Its answers are not
//! trusted; what is held of them is bounded.

use async_trait::async_trait;
use futures_util::StreamExt;
use moltis_sandbox::files::ByteStream;
use moltis_sandbox::{Diagnosis, Error, Result};

use super::node::{Hash, Stamp};

/// Most bytes of a list.
const MAX_LIST: usize = 64 << 20;
/// Bytes of names that one script is given at most, and how many.
const BATCH: (usize, usize) = (96 << 10, 4000);

/// A machine that has one side of a workspace.
#[async_trait]
pub trait Far: Send + Sync {
    /// Runs `sh -c SCRIPT sh DIRECTORY ARGS…`, sends it the input if there is one, and gives out what it prints. The
    /// output ends with an error unless the script ends with 0; nothing of it need be read for the script to go on only
    /// as far as buffers go.
    ///
    /// # Errors
    /// `Unavailable` when it does not run, `Lost` when it broke off.
    async fn run(&self, script: &str, args: &[&[u8]], input: Option<ByteStream>) -> Result<ByteStream>;
}

/// All that a script prints.
///
/// # Errors
/// Those of running it, and when it prints more than can be held.
pub async fn all(far: &dyn Far, script: &str, args: &[&[u8]], input: Option<ByteStream>) -> Result<Vec<u8>> {
    let mut output = far.run(script, args, input).await?;
    let mut whole = Vec::new();
    while let Some(piece) = output.next().await {
        whole.extend_from_slice(&piece?);
        if whole.len() > MAX_LIST {
            return Err(unlike("more than can be held"));
        }
    }
    Ok(whole)
}

/// Lists a tree. Arguments: the word for the last list, whether its head is enough, and what `find` is told before it prints. First line: how
/// the list is written (`f` by find, `s` by stat), the time, whether all could be read, and the word for this list, or only
/// `=` if it is the same as the last one.
const LIST: &str = r#"cd "$1" || exit 44
known=$2 brief=$3
shift 3
t=$(date +%s.%N 2>/dev/null)
case $t in *[!0-9.]*|'') t=$(date +%s);; esac
l=$(mktemp) || exit 46
trap 'rm -f "$l"' EXIT
all=1
if find . -maxdepth 0 -printf '' 2>/dev/null; then
  how=f
  find . -mindepth 1 "$@" -printf '%y %m %s %i %n %T@ %C@ %p\0%l\0' >"$l" 2>/dev/null || all=0
else
  how=s
  find . -mindepth 1 "$@" -exec stat -c '%f %s %i %h %Y %Z %n//' {} + >"$l" 2>/dev/null || all=0
  printf '=\n' >>"$l"
  find . -mindepth 1 "$@" -type l -exec sh -c 'for l; do t=$(readlink "$l" && echo .) && printf "%s\0%s\0" "$l" "${t%??}"; done' sh {} + >>"$l" 2>/dev/null || all=0
fi
w=$(sha256sum <"$l")
w=${w%% *}
if [ "$all$w" = "1$known" ]; then echo "= $t"; exit 0; fi
echo "$how $t $all $w"
[ "$brief" = 1 ] || cat "$l""#;

/// Hashes of files whose names are plain: one line each, as `sha256sum` writes them.
const HASH: &str = r#"cd "$1" || exit 44
shift
sha256sum -- "$@" 2>/dev/null
exit 0"#;

/// Hashes of files with odd names, in their order; `-` for what cannot be read.
const HASH_ODD: &str = r#"cd "$1" || exit 44
shift
for f; do { [ -f "$f" ] && sha256sum <"$f" 2>/dev/null; } || echo -; done
exit 0"#;

/// An archive of files. What has gone or cannot be read is left out.
pub const PACK: &str = r#"cd "$1" || exit 44
shift
tar -cf - -- "$@" 2>/dev/null
exit 0"#;

/// Unpacks an archive. The directory is made if it is missing.
pub const UNPACK: &str = r#"mkdir -p "$1" && cd "$1" || exit 44
umask 022
{ tar -xpof - 2>&1 >/dev/null; cat >/dev/null; } | head -c 2000
exit 0"#;

/// Removes files and links, and directories that are empty, in this order.
pub const REMOVE: &str = r#"cd "$1" || exit 44
shift
for p; do
  if [ -d "$p" ] && [ ! -L "$p" ]; then rmdir "$p"; else rm -f "$p"; fi
done 2>/dev/null
exit 0"#;

/// Gives things other names: pairs of arguments. Nothing that is there is replaced.
pub const RENAME: &str = r#"cd "$1" || exit 44
shift
while [ $# -gt 1 ]; do
  [ -e "$2" ] || [ -L "$2" ] || mv "$1" "$2" || exit 1
  shift 2
done"#;

/// Sets modes: pairs of mode and path. Links are passed over.
pub const MODES: &str = r#"cd "$1" || exit 44
shift
while [ $# -gt 1 ]; do
  [ -L "$2" ] || chmod "$1" "$2" 2>/dev/null
  shift 2
done
exit 0"#;

/// What something on the far side is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A regular file, with how many names it has.
    File(u64),
    /// A directory.
    Directory,
    /// A link to this target.
    Link(Vec<u8>),
    /// Anything else.
    Other,
}

/// One line of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path below the top.
    pub path: Vec<u8>,
    /// What it is.
    pub what: What,
    /// Its permission bits.
    pub mode: u32,
    /// How it is stamped.
    pub stamp: Stamp,
}

/// One look at the far side.
pub struct List {
    /// What there is; directories come before what is in them. `None` if it is what it was at the last look.
    pub entries: Option<Vec<Listed>>,
    /// What was changed before this is settled.
    pub settled_before: i64,
    /// Whether all could be read.
    pub whole: bool,
    /// The word for it.
    pub word: String,
}

/// What `find` is told so that it does not look into directories of these names.
fn pruned(passed_over: &[String]) -> Vec<&[u8]> {
    let mut find: Vec<&[u8]> = Vec::new();
    if !passed_over.is_empty() {
        find.extend([&b"-type"[..], b"d", b"("]);
        for (at, name) in passed_over.iter().enumerate() {
            if at > 0 {
                find.push(b"-o");
            }
            find.extend([&b"-name"[..], name.as_bytes()]);
        }
        find.extend([&b")"[..], b"-prune", b"-o"]);
    }
    find
}

/// Whether the far side is what it was at its last list, of which this is the word.
///
/// # Errors
/// Those of running a script.
pub async fn is_same(far: &dyn Far, known: &str, passed_over: &[String]) -> Result<bool> {
    let mut args: Vec<&[u8]> = vec![known.as_bytes(), b"1"];
    args.extend(pruned(passed_over));
    Ok(all(far, LIST, &args, None).await?.starts_with(b"= "))
}

/// Looks at the far side. `known` is the word for the last list; `passed_over` are names of directories that are not
/// looked into.
///
/// # Errors
/// Those of running a script; what it says is not understood; there are more entries than these.
pub async fn list(far: &dyn Far, known: &str, passed_over: &[String], most: u64) -> Result<List> {
    let find = pruned(passed_over);
    let mut args: Vec<&[u8]> = vec![known.as_bytes(), b"0"];
    args.extend(find);
    let said = all(far, LIST, &args, None).await?;
    let end = said.iter().position(|byte| *byte == b'\n').ok_or_else(|| unlike("no list"))?;
    let head = String::from_utf8_lossy(&said[..end]).into_owned();
    let words: Vec<&str> = head.split(' ').collect();
    let (how, time) = match words[..] {
        ["=", time] | [_, time, _, _] => (words[0], time),
        _ => return Err(unlike("another head of a list")),
    };
    let grain = if time.contains('.') { 100_000_000 } else { 2_000_000_000 };
    let settled_before = nanos(time).ok_or_else(|| unlike("no time"))?.saturating_sub(grain);
    if how == "=" {
        return Ok(List { entries: None, settled_before, whole: true, word: known.to_owned() });
    }
    let rest = &said[end + 1..];
    let mut entries = match how {
        "f" => by_find(rest, most),
        "s" => by_stat(rest, most),
        _ => None,
    }
    .ok_or_else(|| unlike("a list that is none"))?;
    if entries.len() as u64 > most {
        return Err(Error::Refused(
            Diagnosis::new(
                "workspace-too-large",
                format!("the workspace in the sandbox has more than {most} files and directories"),
            )
            .fix("name what is not needed in `.moltisignore`, or remove it inside"),
        ));
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let before = entries.len();
    entries.dedup_by(|one, other| one.path == other.path);
    if before != entries.len() {
        return Err(unlike("a name twice"));
    }
    Ok(List { entries: Some(entries), settled_before, whole: words[2] == "1", word: words[3].to_owned() })
}

/// Seconds with a fraction, as nanoseconds.
fn nanos(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let part: String = part.chars().take(9).collect();
    let fraction: i64 = if part.is_empty() { 0 } else { format!("{part:0<9}").parse().ok()? };
    whole.parse::<i64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// A name as tools print it, if it is one that can be below the top.
fn below(name: &[u8]) -> Option<Vec<u8>> {
    let path = name.strip_prefix(b"./")?;
    let sound = path.split(|byte| *byte == b'/').all(|part| !matches!(part, b"" | b"." | b".."));
    (sound && path.len() < 4096 && !path.contains(&0)).then(|| path.to_vec())
}

/// No more are read than this and one.
fn by_find(rest: &[u8], most: u64) -> Option<Vec<Listed>> {
    let mut entries = Vec::new();
    let mut parts = rest.split(|byte| *byte == 0);
    loop {
        let head = parts.next()?;
        if head.is_empty() || entries.len() as u64 > most {
            return Some(entries);
        }
        let target = parts.next()?;
        let mut fields = head.splitn(8, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let kind = field()?;
        let mode = u32::from_str_radix(field()?, 8).ok()? & 0o777;
        let (size, inode, names) = (field()?.parse().ok()?, field()?.parse().ok()?, field()?.parse().ok()?);
        let (modified, changed) = (nanos(field()?)?, nanos(field()?)?);
        let path = below(fields.next()?)?;
        let what = match kind {
            "f" => What::File(names),
            "d" => What::Directory,
            "l" => What::Link(target.to_vec()),
            _ => What::Other,
        };
        entries.push(Listed { path, what, mode, stamp: Stamp { inode, size, modified, changed } });
    }
}

/// No more are read than this and one.
fn by_stat(mut rest: &[u8], most: u64) -> Option<Vec<Listed>> {
    let mut entries = Vec::new();
    let find = |text: &[u8], what: &[u8]| text.windows(what.len()).position(|part| part == what);
    while !rest.starts_with(b"=\n") {
        if entries.len() as u64 > most {
            return Some(entries);
        }
        let end = find(rest, b"//\n")?;
        let mut fields = rest[..end].splitn(7, |byte| *byte == b' ');
        let mut field = || std::str::from_utf8(fields.next()?).ok();
        let raw = u32::from_str_radix(field()?, 16).ok()?;
        let (size, inode, names) = (field()?.parse().ok()?, field()?.parse().ok()?, field()?.parse().ok()?);
        let (modified, changed) = (nanos(field()?)?, nanos(field()?)?);
        let path = below(fields.next()?)?;
        let what = match raw & 0o170_000 {
            0o100_000 => What::File(names),
            0o040_000 => What::Directory,
            0o120_000 => What::Link(Vec::new()),
            _ => What::Other,
        };
        entries.push(Listed {
            path,
            what,
            mode: raw & 0o777,
            stamp: Stamp { inode, size, modified, changed },
        });
        rest = &rest[end + 3..];
    }
    let mut targets = std::collections::HashMap::new();
    let mut parts = rest[2..].split(|byte| *byte == 0);
    while let Some(name) = parts.next().filter(|name| !name.is_empty()) {
        targets.insert(below(name)?, parts.next()?.to_vec());
    }
    // A link without a target has gone meanwhile.
    entries.retain_mut(|entry: &mut Listed| match &mut entry.what {
        What::Link(target) => targets.remove(&entry.path).map(|found| *target = found).is_some(),
        _ => true,
    });
    Some(entries)
}

/// Paths in groups that a script can be given, each as `./path`.
pub fn batches<'a>(paths: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<Vec<u8>>> {
    let mut batches = vec![Vec::new()];
    let mut bytes = 0;
    for path in paths {
        let last = batches.len() - 1;
        if !batches[last].is_empty() && (bytes + path.len() > BATCH.0 || batches[last].len() >= BATCH.1) {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += path.len() + 8;
        let last = batches.len() - 1;
        batches[last].push([b"./", path].concat());
    }
    batches.retain(|batch| !batch.is_empty());
    batches
}

/// Words of a batch.
pub fn words(batch: &[Vec<u8>]) -> Vec<&[u8]> {
    batch.iter().map(Vec::as_slice).collect()
}

/// Hashes of files. What cannot be read, or has gone, is not among them.
///
/// # Errors
/// Those of running scripts.
pub async fn hashes(far: &dyn Far, paths: &[&[u8]]) -> Result<std::collections::HashMap<Vec<u8>, Hash>> {
    let mut found = std::collections::HashMap::new();
    let is_odd = |path: &&&[u8]| path.iter().any(|byte| matches!(byte, b'\\' | b'\n' | b'\r'));
    for batch in batches(paths.iter().filter(|path| !is_odd(path)).copied()) {
        let said = all(far, HASH, &words(&batch), None).await?;
        for line in said.split(|byte| *byte == b'\n') {
            if let (Some(hash), Some(name)) = (line.get(..64).and_then(read), line.get(66..).and_then(below))
            {
                found.insert(name, hash);
            }
        }
    }
    for batch in batches(paths.iter().filter(is_odd).copied()) {
        let said = all(far, HASH_ODD, &words(&batch), None).await?;
        for (line, name) in said.split(|byte| *byte == b'\n').zip(&batch) {
            if let (Some(hash), Some(name)) = (line.get(..64).and_then(read), below(name)) {
                found.insert(name, hash);
            }
        }
    }
    Ok(found)
}

fn read(text: &[u8]) -> Option<Hash> {
    let text = std::str::from_utf8(text).ok()?;
    let mut hash = [0; 32];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(hash)
}

/// What the far side says is not what its scripts write.
pub fn unlike(what: &str) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "workspace-not-carried",
            "what the sandbox says of its workspace cannot be understood",
        )
        .cause(format!("it said {what}"))
        .fix("something inside may have replaced its tools; stop the sandbox and begin with a new one"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_both_tools_are_read_with_names_of_any_bytes() {
        let stamp = Stamp { inode: 5, size: 3, modified: 1_500_000_000, changed: 2_250_000_000 };
        let file = Listed { path: b"a b\n//x".to_vec(), what: What::Other, mode: 0o644, stamp };
        let found = b"f 644 3 5 1 1.5000000000 2.25 ./a\nb\0\0l 777 3 5 1 1.5 2.25 ./l\0../t x\0";
        let read = by_find(found, 9).unwrap();
        assert_eq!(read.len(), 2);
        assert_eq!(read[0], Listed { path: b"a\nb".to_vec(), what: What::File(1), ..file.clone() });
        assert_eq!(
            read[1],
            Listed { path: b"l".to_vec(), what: What::Link(b"../t x".to_vec()), mode: 0o777, ..file }
        );
        let told = b"81a4 3 5 1 1 2 ./a\nb//\na1ff 3 5 1 1 2 ./l//\n=\n./l\0../t x\0";
        let read = by_stat(told, 9).unwrap();
        assert_eq!(read[0].path, b"a\nb");
        assert_eq!((&read[1].what, read[1].mode), (&What::Link(b"../t x".to_vec()), 0o777));
    }

    /// Answers everything with this.
    struct Said(&'static [u8]);

    #[async_trait]
    impl Far for Said {
        async fn run(&self, _: &str, _: &[&[u8]], _: Option<ByteStream>) -> Result<ByteStream> {
            let said = bytes::Bytes::from_static(self.0);
            Ok(Box::pin(futures_util::stream::iter([Ok(said)])))
        }
    }

    #[tokio::test]
    async fn no_more_of_a_list_is_read_than_a_workspace_may_have() {
        // What comes after the third one cannot be read at all.
        let found = b"f 1.5 1 w\nf 644 3 5 1 1 2 ./a\0\0f 644 3 5 1 1 2 ./b\0\0f 644 3 5 1 1 2 ./c\0\0junk";
        let told = b"s 1 1 w\n81a4 3 5 1 1 2 ./a//\n81a4 3 5 1 1 2 ./b//\n81a4 3 5 1 1 2 ./c//\njunk";
        for said in [&found[..], &told[..]] {
            let far = Said(said);
            let error = list(&far, "", &[], 2).await.err().unwrap();
            assert_eq!((error.kind(), error.code()), ("refused", "workspace-too-large"));
            let error = list(&far, "", &[], 3).await.err().unwrap();
            assert_eq!((error.kind(), error.code()), ("unavailable", "workspace-not-carried"));
        }
    }

    #[tokio::test]
    async fn a_time_at_the_end_of_all_times_is_read() {
        let far = Said(b"= -9223372036\n");
        assert_eq!(list(&far, "w", &[], 9).await.unwrap().settled_before, i64::MIN);
    }

    #[test]
    fn names_that_lead_out_are_no_names() {
        for name in ["/etc/passwd", "./../x", "./a/../../x", "./", "./a//b", "..", "./.", "x"] {
            assert_eq!(below(name.as_bytes()), None, "{name}");
        }
        assert_eq!(below(b"./a/b"), Some(b"a/b".to_vec()));
        assert!(by_find(b"f 644 3 5 1 1 2 /etc/passwd\0\0", 9).is_none());
        assert!(by_stat(b"81a4 3 5 1 1 2 ./../x//\n=\n", 9).is_none());
        assert!(by_find(b"f 644 3", 9).is_none() && by_stat(b"", 9).is_none());
    }

    #[test]
    fn names_go_in_groups_that_a_script_can_be_given() {
        let paths: Vec<Vec<u8>> = (0..9000).map(|n| format!("{n:0100}").into_bytes()).collect();
        let groups = batches(paths.iter().map(Vec::as_slice));
        assert!(groups.len() > 2);
        assert_eq!(groups.concat().len(), 9000);
        assert!(groups.iter().all(|group| group.iter().map(Vec::len).sum::<usize>() <= BATCH.0 + 4096));
    }
}
