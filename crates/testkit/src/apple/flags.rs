//! The flags of each subcommand by version, and how a command line is read: whatever is not in the table is an error.

use std::collections::BTreeMap;

use super::Version;
use super::say::{Result, usage};

/// A flag.
#[derive(Clone, Copy)]
struct Flag {
    names: &'static [&'static str],
    value: bool,
    since: Version,
}

const fn flag(names: &'static [&'static str]) -> Flag {
    Flag { names, value: false, since: Version(0, 0) }
}

const fn with(names: &'static [&'static str]) -> Flag {
    Flag { names, value: true, since: Version(0, 0) }
}

const fn since(version: Version, flag: Flag) -> Flag {
    Flag { since: version, ..flag }
}

const PROCESS: &[Flag] = &[
    with(&["--env", "-e"]),
    with(&["--env-file"]),
    with(&["--gid"]),
    flag(&["--interactive", "-i"]),
    flag(&["--tty", "-t"]),
    with(&["--user", "-u"]),
    with(&["--uid"]),
    with(&["--workdir", "-w", "--cwd"]),
    since(Version(0, 9), with(&["--ulimit"])),
];

const MANAGEMENT: &[Flag] = &[
    with(&["--cpus", "-c"]),
    with(&["--memory", "-m"]),
    with(&["--arch", "-a"]),
    with(&["--cidfile"]),
    flag(&["--detach", "-d"]),
    with(&["--dns"]),
    with(&["--dns-domain"]),
    with(&["--dns-option"]),
    with(&["--dns-search"]),
    with(&["--entrypoint"]),
    with(&["--kernel", "-k"]),
    with(&["--label", "-l"]),
    with(&["--mount"]),
    with(&["--name"]),
    with(&["--network"]),
    flag(&["--no-dns"]),
    with(&["--os"]),
    with(&["--publish", "-p"]),
    with(&["--platform"]),
    with(&["--publish-socket"]),
    flag(&["--rm", "--remove"]),
    flag(&["--ssh"]),
    with(&["--tmpfs"]),
    with(&["--volume", "-v"]),
    flag(&["--virtualization"]),
    with(&["--scheme"]),
    since(Version(0, 8), with(&["--progress"])),
    since(Version(0, 8), flag(&["--read-only"])),
    since(Version(1, 0), with(&["--cap-add"])),
    since(Version(1, 0), with(&["--cap-drop"])),
    since(Version(1, 0), flag(&["--init"])),
    since(Version(1, 0), with(&["--init-image"])),
];

const DETACH: &[Flag] = &[flag(&["--detach", "-d"])];
const ALL: Flag = flag(&["--all", "-a"]);
const FORMAT: Flag = with(&["--format"]);
const QUIET: Flag = flag(&["--quiet", "-q"]);
const PLATFORM: &[Flag] = &[with(&["--arch", "-a"]), with(&["--os"]), with(&["--platform"])];

/// The flags of a subcommand.
fn of(command: &str) -> Option<Vec<Flag>> {
    Some(match command {
        "create" | "run" => [PROCESS, MANAGEMENT].concat(),
        "exec" => [PROCESS, DETACH].concat(),
        "start" => vec![flag(&["--attach", "-a"]), flag(&["--interactive", "-i"])],
        "stop" => vec![ALL, with(&["--signal", "-s"]), with(&["--time", "-t"])],
        "kill" => vec![ALL, with(&["--signal", "-s"])],
        "delete" => vec![ALL, flag(&["--force", "-f"])],
        "list" => vec![ALL, FORMAT, QUIET],
        "inspect" | "image inspect" | "system start" | "system stop" => vec![],
        "logs" => vec![flag(&["--boot"]), flag(&["--follow", "-f"]), with(&["-n"])],
        "build" => vec![
            with(&["--arch", "-a"]),
            with(&["--build-arg"]),
            with(&["--cpus", "-c"]),
            with(&["--file", "-f"]),
            with(&["--label", "-l"]),
            with(&["--memory", "-m"]),
            flag(&["--no-cache"]),
            with(&["--output", "-o"]),
            with(&["--os"]),
            with(&["--platform"]),
            with(&["--progress"]),
            QUIET,
            with(&["--tag", "-t"]),
            with(&["--target"]),
            with(&["--vsock-port"]),
        ],
        "image list" => vec![FORMAT, QUIET, flag(&["--verbose", "-v"])],
        "image pull" => {
            [PLATFORM, &[with(&["--scheme"]), since(Version(0, 8), with(&["--progress"]))]].concat()
        }
        "image save" => [PLATFORM, &[with(&["--output", "-o"])]].concat(),
        "image load" => vec![with(&["--input", "-i"])],
        "image delete" => vec![ALL],
        "system status" => vec![with(&["--prefix", "-p"])],
        "system version" => vec![FORMAT],
        _ => return None,
    })
}

/// Subcommands whose first argument ends the options: the rest is another program's.
const PASSING: [&str; 3] = ["create", "run", "exec"];

/// A command line that was read.
#[derive(Debug, Default)]
pub struct Line {
    flags: BTreeMap<&'static str, Vec<String>>,
    /// What is no flag.
    pub arguments: Vec<String>,
}

impl Line {
    /// Whether a flag was given, by its first name.
    pub fn has(&self, name: &str) -> bool {
        self.flags.contains_key(name)
    }

    /// The last value of a flag.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.all(name).last().map(String::as_str)
    }

    /// All values of a flag.
    pub fn all(&self, name: &str) -> &[String] {
        self.flags.get(name).map_or(&[], Vec::as_slice)
    }
}

/// Reads the arguments of a subcommand.
pub fn read(command: &str, version: Version, given: &[String]) -> Result<Line> {
    let Some(table) = of(command) else {
        return Err(usage(command, format_args!("Unexpected argument '{command}'")));
    };
    let known = |name: &str| table.iter().find(|flag| flag.names.contains(&name) && flag.since <= version);
    let mut line = Line::default();
    let mut given = given.iter();
    while let Some(word) = given.next() {
        if !word.starts_with('-') || word == "-" {
            line.arguments.push(word.clone());
            if PASSING.contains(&command) {
                line.arguments.extend(given.by_ref().cloned());
            }
            continue;
        }
        if word == "--" {
            line.arguments.extend(given.by_ref().cloned());
            continue;
        }
        if word == "--debug" {
            continue;
        }
        let (name, inline) = match word.split_once('=').filter(|_| word.starts_with("--")) {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word.as_str(), None),
        };
        let Some(flag) = known(name) else {
            return Err(usage(command, format_args!("Unknown option '{name}'")));
        };
        let values = line.flags.entry(flag.names[0]).or_default();
        match (flag.value, inline) {
            (false, None) => {}
            (false, Some(value)) => {
                let words =
                    format!("The option '{name}' does not take any value, but '{value}' was specified.");
                return Err(usage(command, words));
            }
            (true, Some(value)) => values.push(value),
            (true, None) => match given.next().filter(|value| !value.starts_with('-')) {
                Some(value) => values.push(value.clone()),
                None => {
                    let word = name.trim_start_matches('-');
                    return Err(usage(command, format_args!("Missing value for '{name} <{word}>'")));
                }
            },
        }
    }
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn only_what_a_version_knows_is_taken() {
        let new = Version::V1_1;
        let line = read("create", new, &words("--name a --rm -e A=1 --env B=2 --cap-drop ALL i sh -c --rm"))
            .unwrap();
        assert_eq!(line.all("--env"), ["A=1", "B=2"]);
        assert_eq!((line.value("--name"), line.has("--rm")), (Some("a"), true));
        assert_eq!(line.arguments, ["i", "sh", "-c", "--rm"]);
        for (version, given) in [
            (new, "--pids-limit 5 i"),
            (new, "--security-opt no-new-privileges i"),
            (new, "--hostname x i"),
            (new, "--privileged i"),
            (Version::V0_8, "--ulimit nproc=5 i"),
            (Version::V0_9, "--cap-drop ALL i"),
            (Version::V0_5, "--read-only i"),
            (new, "--rm=true i"),
            (new, "--name"),
            (new, "--name --rm i"),
        ] {
            let failed = read("create", version, &words(given)).unwrap_err();
            assert_eq!(failed.code, 64, "{given}");
            assert!(failed.words.starts_with("Error: "), "{}", failed.words);
        }
        assert_eq!(read("frobnicate", new, &[]).unwrap_err().code, 64);
    }
}
