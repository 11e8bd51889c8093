//! Words of any bytes, through engines that carry text alone.

use std::fmt::Write;

/// Words for a script, and whether they are escaped as `printf %b` undoes it.
pub fn words(words: &[&[u8]]) -> (bool, Vec<String>) {
    let plain: Option<Vec<String>> =
        words.iter().map(|word| std::str::from_utf8(word).ok().map(str::to_owned)).collect();
    match plain {
        Some(plain) => (false, plain),
        None => (true, words.iter().map(|word| escaped(word)).collect()),
    }
}

fn escaped(word: &[u8]) -> String {
    let mut text = String::with_capacity(word.len());
    for byte in word {
        match byte {
            b'\\' | 0..0x20 | 0x7f.. => {
                let _ = write!(text, "\\0{byte:03o}");
            }
            _ => text.push(char::from(*byte)),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_no_text_is_escaped() {
        assert_eq!(words(&[b"a b", "ж\\n".as_bytes()]), (false, vec!["a b".to_owned(), "ж\\n".to_owned()]));
        let (escaped, text) = words(&[b"a\\b", b"\xff\n%"]);
        assert!(escaped);
        assert_eq!(text, ["a\\0134b", "\\0377\\0012%"]);
    }
}
