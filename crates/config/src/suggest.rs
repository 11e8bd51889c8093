//! The nearest valid word to one that is not.

/// The word of `candidates` that `word` was probably meant to be; `None` when none is near.
pub fn suggest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Hostile lengths would make the comparison slow, and no word of ours is longer.
    if word.len() > 128 {
        return None;
    }
    let wanted = normal(word);
    let mut best: Option<(usize, &str)> = None;
    for candidate in candidates {
        let known = normal(candidate);
        let distance = strsim::damerau_levenshtein(&wanted, &known);
        // One slip for short words, a third of the letters for long ones; a cut-off word counts as near.
        let allowed = (known.chars().count().max(wanted.chars().count()) / 3).max(1);
        let begins = wanted.len() >= 3 && known.starts_with(&wanted);
        if (distance <= allowed || begins) && best.is_none_or(|(least, _)| distance < least) {
            best = Some((distance, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

/// Case and the choice of hyphen or underscore are slips that cost nothing.
fn normal(word: &str) -> String {
    word.to_lowercase().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_word_is_named() {
        let backends = ["auto", "podman", "docker", "namespaces", "restricted-host", "none", "wasm"];
        let cases = [
            ("dokcer", Some("docker")),
            ("Docker", Some("docker")),
            ("namespace", Some("namespaces")),
            ("restricted_host", Some("restricted-host")),
            ("restricted", Some("restricted-host")),
            ("pod", Some("podman")),
            ("kubernetes", None),
            ("", None),
            ("x", None),
        ];
        for (word, expected) in cases {
            assert_eq!(suggest(word, backends), expected, "{word}");
        }
    }
}
