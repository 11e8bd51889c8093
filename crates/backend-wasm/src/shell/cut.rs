//! What the shell makes less of than it is asked for, and says nothing: devices that never end, which its commands take
//! in as files of a fixed size, but for `head` and `dd`; and long ranges in braces. Who may be meant is told.

/// Longest range in braces that becomes words.
const MAX_RANGE: u64 = 10_000;

/// Names of devices, and how much of each the others get.
const DEVICES: [(&str, &str); 3] =
    [("/dev/zero", "1 MiB"), ("/dev/urandom", "8 KiB"), ("/dev/random", "8 KiB")];

/// Commands that take as much as they are asked for.
const WHOLE: [&str; 2] = ["head", "dd"];

/// What a person should know of a script.
pub fn notes(script: &str) -> Vec<String> {
    device(script).into_iter().chain(range(script)).collect()
}

/// Of one with a range that stays as it is.
fn range(script: &str) -> Option<String> {
    let long = script.split('{').skip(1).find_map(|rest| {
        let inside = rest.split_once('}')?.0;
        let mut parts = inside.split("..");
        let (first, last): (i64, i64) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let step = parts.next().map_or(Some(1), |step| step.parse::<i64>().ok())?.unsigned_abs().max(1);
        (first.abs_diff(last) / step >= MAX_RANGE).then_some(inside)
    })?;
    Some(format!(
        "wasm-range-too-long: {{{long}}} stays as it is: {MAX_RANGE} words are the most (see `seq`)"
    ))
}

/// Of one that reads a device.
fn device(script: &str) -> Option<String> {
    let (name, size) = DEVICES.into_iter().find(|(name, _)| {
        script.match_indices(name).any(|(at, _)| {
            let before = &script[..at];
            let begin = before.rfind(['|', ';', '&', '\n', '(', '`', '{']).map_or(0, |at| at + 1);
            let command = before[begin..].split_whitespace().next();
            let read = !before.trim_end().ends_with('>');
            read && !command.is_some_and(|command| WHOLE.contains(&command)) | before.ends_with('<')
        })
    })?;
    Some(format!("wasm-device-cut: {name} gives {size} here, but to `head -c N {name}` and `dd if={name}`"))
}

#[cfg(test)]
mod tests {
    use super::{device, range};

    #[test]
    fn who_is_told() {
        for script in
            ["cat /dev/zero | head -c 3", "tr -dc a </dev/urandom", "x; wc -c /dev/zero", "head </dev/zero"]
        {
            assert!(device(script).is_some(), "{script}");
        }
        for script in
            ["", "head -c 3 /dev/zero", "true; dd if=/dev/urandom of=f", "echo x >/dev/zero", "cat /dev/null"]
        {
            assert_eq!(device(script), None, "{script}");
        }
    }

    #[test]
    fn which_ranges_are_too_long() {
        for script in ["echo {1..20000}", "x; for i in {0..99999..2}; do :; done", "echo {10000..0}"] {
            assert!(range(script).is_some(), "{script}");
        }
        for script in ["echo {1..10000}", "{ a; }", "${x..}", "{1..999999..1000}", "{a..z}", "{1..2"] {
            assert_eq!(range(script), None, "{script}");
        }
    }
}
