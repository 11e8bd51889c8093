//! Lines of a file, forwards and backwards, in bounded memory whatever the file holds.

use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use super::line::MAX_LINE;

/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

/// A line without its end, or what is none because it is too long.
pub(super) type Found<'a> = Option<&'a [u8]>;

/// Gives each line between two offsets to `each`. Answers with the offset after the last end of a line, and whether
/// there is more than that.
///
/// # Errors
/// The kernel's.
pub(super) fn forwards(
    file: &File,
    from: u64,
    to: u64,
    mut each: impl FnMut(Found<'_>) -> ControlFlow<()>,
) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut held: Vec<u8> = Vec::new();
    let (mut at, mut ended, mut is_too_long) = (from, from, false);
    while at < to {
        let most = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
        let read = match file.read_at(&mut chunk[..most], at) {
            // It is shorter than it was.
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &chunk[..read];
        while let Some(length) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(length);
            rest = &after[1..];
            let found = if is_too_long || held.len() + line.len() >= MAX_LINE {
                None
            } else if held.is_empty() {
                Some(line)
            } else {
                held.extend_from_slice(line);
                Some(&*held)
            };
            let flow = each(found);
            held.clear();
            is_too_long = false;
            ended = at + (read - rest.len()) as u64;
            if flow.is_break() {
                return Ok(ended);
            }
        }
        if held.len() + rest.len() >= MAX_LINE {
            is_too_long = true;
            held.clear();
        } else if !is_too_long {
            held.extend_from_slice(rest);
        }
        at += read as u64;
    }
    Ok(ended)
}

/// Gives each line of the first `to` bytes to `each`, the last one first. What stands after the last end of a line is
/// a line, too.
///
/// # Errors
/// The kernel's.
pub(super) fn backwards(
    file: &File,
    to: u64,
    mut each: impl FnMut(Found<'_>) -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let mut chunk = vec![0; CHUNK];
    // What was read of the line whose beginning lies further on.
    let mut held: Vec<u8> = Vec::new();
    let (mut at, mut is_too_long, mut is_last) = (to, false, true);
    while at > 0 {
        let most = usize::try_from(at).unwrap_or(CHUNK).min(CHUNK);
        at -= most as u64;
        if let Err(error) = file.read_exact_at(&mut chunk[..most], at) {
            // It is shorter than it was: somebody has emptied it.
            return if error.kind() == io::ErrorKind::UnexpectedEof {
                Ok(ControlFlow::Continue(()))
            } else {
                Err(error)
            };
        }
        let mut rest = &chunk[..most];
        while let Some(end) = rest.iter().rposition(|byte| *byte == b'\n') {
            let line = &rest[end + 1..];
            rest = &rest[..end];
            // After the last end of a line there is no line.
            if !(is_last && line.is_empty() && held.is_empty() && !is_too_long) {
                let flow = each(joined(line, &mut held, is_too_long));
                if flow.is_break() {
                    return Ok(flow);
                }
            }
            held.clear();
            (is_last, is_too_long) = (false, false);
        }
        if held.len() + rest.len() >= MAX_LINE {
            is_too_long = true;
            held.clear();
        } else if !is_too_long {
            held.splice(0..0, rest.iter().copied());
        }
    }
    if to > 0 && !(is_last && held.is_empty() && !is_too_long) {
        return Ok(each(joined(&[], &mut held, is_too_long)));
    }
    Ok(ControlFlow::Continue(()))
}

fn joined<'a>(line: &'a [u8], held: &'a mut Vec<u8>, is_too_long: bool) -> Found<'a> {
    if is_too_long || held.len() + line.len() >= MAX_LINE {
        return None;
    }
    if held.is_empty() {
        return Some(line);
    }
    held.splice(0..0, line.iter().copied());
    Some(held)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use proptest::prelude::*;

    use super::*;

    fn file(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn kept(found: Found<'_>) -> Option<Vec<u8>> {
        found.map(<[u8]>::to_vec)
    }

    fn both_ways(content: &[u8]) {
        let lines: Vec<_> = content
            .split_inclusive(|b| *b == b'\n')
            .map(|line| line.strip_suffix(b"\n").unwrap_or(line))
            .map(|line| (line.len() < MAX_LINE).then(|| line.to_vec()))
            .collect();
        let file = file(content);
        let to = content.len() as u64;
        let mut found = Vec::new();
        let ended = forwards(&file, 0, to, |line| {
            found.push(kept(line));
            ControlFlow::Continue(())
        })
        .unwrap();
        let whole = content.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        assert_eq!(ended, whole as u64);
        let ends = content.iter().filter(|b| **b == b'\n').count();
        assert_eq!(found, lines[..ends]);

        let mut found = Vec::new();
        let flow = backwards(&file, to, |line| {
            found.push(kept(line));
            ControlFlow::Continue(())
        });
        assert_eq!(flow.unwrap(), ControlFlow::Continue(()));
        found.reverse();
        assert_eq!(found, lines);
    }

    #[test]
    fn lines_are_the_same_both_ways() {
        let long = "y".repeat(MAX_LINE - 1);
        let longer = "z".repeat(MAX_LINE);
        let longest = "q".repeat(3 * CHUNK);
        for content in [
            "",
            "\n",
            "\n\n",
            "a",
            "a\n",
            "a\nb",
            "\na\n\nb\n",
            &format!("{longest}\na\n{longest}\nb\n{longest}"),
            &format!("{long}\n{longer}\n{long}\n"),
            &format!("a\n{longer}"),
            &longest,
        ] {
            both_ways(content.as_bytes());
        }
        let many: String = (0..20_000).map(|n| format!("{}\n", "x".repeat(n % 200))).collect();
        both_ways(many.as_bytes());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn lines_of_any_length_are_the_same_both_ways(lengths in proptest::collection::vec(0usize..20_000, 0..40)) {
            let content: Vec<u8> = lengths.iter().flat_map(|n| [vec![b'x'; *n], vec![b'\n']].concat()).collect();
            both_ways(&content);
        }
    }
}
