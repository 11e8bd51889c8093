//! What a hostile line uses up: time, memory, depth. The process stays, and so do the other sandboxes.

use std::time::Duration;

use moltis_sandbox::{Backend, Ending, Setting};

use crate::common::{World, out, run, shell};

/// Memory of the sandbox.
const MEMORY: u64 = 96 << 20;

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Each must end by itself or by its deadline, whichever is first, without taking much memory.
const LINES: &[(&str, &str)] = &[
    ("a loop", "while :; do :; done"),
    ("a growing variable", "a=x; while :; do a=$a$a; done"),
    ("a growing array", "i=0; while :; do a[$i]=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; i=$((i+1)); done"),
    ("a huge width", "printf '%2000000000d' 1 | wc -c"),
    ("a huge expansion", "echo {1..1000000000} | wc -c"),
    ("an endless substitution", "x=$(yes); echo ${#x}"),
    ("an endless sort", "yes | sort | head -1"),
    ("an endless tail", "yes | tail -1"),
    ("an endless line", "tr -d '\\n' </dev/zero | wc -c; cat /dev/zero | sort"),
    ("a doubling in awk", "awk 'BEGIN{s=\"x\"; while(1) s=s s}'"),
    ("a loop in awk", "awk 'BEGIN{while(1);}'"),
    ("a loop in jq", "echo 1 | jq 'def f: f; f'"),
    ("a growing jq", "echo 1 | jq '[range(1e12)]|length'"),
    ("a regex", "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | grep -E '(a+)+$'"),
    ("a regex with a back reference", "echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa! | grep -E '^(a+)+\\1$'"),
    ("a regex in a test", "x=$(printf 'a%.0s' {1..60}); [[ $x! =~ ^(a+)+$ ]]; echo $?"),
    ("a huge regex", "echo x | grep -E '((x{1000}){1000}){1000}'"),
    ("a loop in sed", "echo x | sed ':a; s/x/xx/; ta'"),
    ("a loop of labels in sed", "echo x | sed ':a; ba'"),
    ("deep recursion", "f() { f; }; f"),
    ("deep subshells", "f() { ( f ); }; f"),
    ("deep substitutions", "f() { echo $(f); }; f"),
    ("a deep pipeline", "f() { f | f; }; f"),
    ("a storm of jobs", "f() { f & f & wait; }; f"),
    ("a nest of parentheses", "eval \"$(printf '(%.0s' {1..20000}) : $(printf ')%.0s' {1..20000})\""),
    ("a nest of arithmetic", "echo $(( $(printf '(%.0s' {1..20000})1$(printf ')%.0s' {1..20000}) ))"),
    ("a huge power", "echo $((9**9999999)); echo '9^99999999' | bc"),
    ("an endless numbering", "seq 1 1000000000000 >/dev/null"),
    ("an endless file", "while :; do echo xxxxxxxxxxxxxxxxxxxxxxxx; done >/tmp/f"),
    ("a sparse file", "truncate -s 100G /tmp/s; cat /tmp/s | wc -c; sort /tmp/s; md5sum /tmp/s"),
    (
        "a bomb of an archive",
        "head -c 200M /dev/zero >/tmp/z; gzip /tmp/z; for i in 1 2 3; do cp /tmp/z.gz /tmp/y$i.gz; done; cat /tmp/y*.gz | gunzip | wc -c; zcat /tmp/z.gz | sort | wc -l",
    ),
    (
        "a bomb of globs",
        "mkdir -p /tmp/a/b/c/d; cd /tmp; echo */*/*/*/*/*/*/*/*{,,,,,,,,,,,}{,,,,,,,,,,,}{,,,,,,,,,,,}{,,,,,,,,,,,}{,,,,,,,,,,,}{,,,,,,,,,,,}{,,,,,,,,,,,} | wc -c",
    ),
    ("a long sleep", "sleep 100000"),
    ("an endless reader", "cat /dev/zero >/dev/null"),
    ("traps", "trap 'while :; do :; done' EXIT TERM INT; exit 0"),
    ("an endless xargs", "yes | xargs echo | head -c 10"),
    ("an endless find", "while :; do find / >/dev/null 2>&1; done"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_line_ends_at_its_deadline_and_stays_within_its_memory() {
    let world = World::new();
    let backend = world.backend();
    let neighbour = backend.open(&world.spec("neighbour")).await.unwrap();
    let only = std::env::var("ONLY").ok();
    for (what, line) in
        LINES.iter().filter(|(what, _)| only.as_ref().is_none_or(|only| what.contains(only.as_str())))
    {
        let mut spec = world.spec(what);
        spec.limits.memory = Some(Setting::built_in(MEMORY));
        let sandbox = backend.open(&spec).await.unwrap();
        let before = resident();
        let mut request = shell(line);
        request.timeout = Some(Duration::from_secs(1));
        let ran = run(&sandbox, request).await;
        let grown = resident().saturating_sub(before);
        eprintln!(
            "{what}: {:?} {:?} in {:?}, {} MiB more, notes {:?}, {} bytes, {}",
            ran.outcome.ending,
            ran.outcome.status,
            ran.took,
            grown >> 20,
            ran.outcome.notes,
            ran.stdout.len(),
            ran.errors().chars().take(160).collect::<String>().replace('\n', "|")
        );
        assert!(ran.took < Duration::from_secs(5), "{what} took {:?}", ran.took);
        assert!(matches!(ran.outcome.ending, Ending::Exited | Ending::TimedOut), "{what}");
        assert_eq!(out(&neighbour, "echo alive").await, "alive\n", "{what}");
        sandbox.close().await.unwrap();
        assert!(grown < 3 * MEMORY, "{what} took {} MiB", grown >> 20);
    }
    neighbour.close().await.unwrap();
}
