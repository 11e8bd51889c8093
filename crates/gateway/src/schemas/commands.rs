//! Commands: how one is asked for, what it answers, what is remembered of it.

use serde_json::{Value, json};

use super::{Named, backend, encoding};
use crate::schema::{
    Field, amount, count, flag, has, integer, list, map, may, named, object, or_null, text, word,
};

/// How a command ended.
fn ended(of: fn(&'static str, &'static str, Value) -> Field) -> Vec<Field> {
    vec![
        of("exitCode", "The code; 128 + n after signal n; 124 when its time was up", integer()),
        may("signal", "The signal that ended it", integer()),
        of("timedOut", "Whether its time was up", flag()),
        of("cancelled", "Whether somebody ended it", flag()),
        of("durationMs", "From start to end, in milliseconds", amount()),
    ]
}

/// A stream of a collected answer.
fn stream(name: [&'static str; 4]) -> Vec<Field> {
    let [text_name, encoding_name, bytes, cut] = name;
    vec![
        has(text_name, "What was kept, with a mark where bytes were cut", text()),
        may(encoding_name, "When it is not UTF-8", encoding()),
        has(bytes, "Bytes that were written", count()),
        has(cut, "Bytes that were cut", count()),
    ]
}

pub fn all() -> Named {
    let mut answer =
        vec![may("session", "", text()), has("backend", "", backend()), has("sandboxId", "", text())];
    answer.extend(ended(has));
    answer.extend(stream(["stdout", "stdoutEncoding", "stdoutBytes", "stdoutCut"]));
    answer.extend(stream(["stderr", "stderrEncoding", "stderrBytes", "stderrCut"]));
    answer.extend([
        has("leftovers", "Children that live on", list(named("Leftover"))),
        has("leftoversTotal", "How many", count()),
        may("outOfMemory", "Whether the memory limit was hit", flag()),
        may("newlyDangerous", "Files that the host may run, made inside", list(text())),
        may("newlyDangerousTotal", "How many", count()),
        has("notEnforced", "", list(named("NotEnforced"))),
        may("notes", "What else a person should know", list(text())),
        may("restarted", "Why the sandbox before this one ended", named("Gone")),
        may("lost", "Earlier commands whose outcome is not known", list(named("LostCommand"))),
    ]);
    let mut process = vec![
        has("process", "Its number in the sandbox", count()),
        has("pid", "Process id inside", count()),
        has("command", "What was asked for, shortened", text()),
        has("startedMillis", "When it started, in milliseconds since 1970", count()),
        has("running", "", flag()),
    ];
    process.extend(ended(may));
    let mut output = vec![
        has("process", "", count()),
        has("readMillis", "When it was read", count()),
        has("running", "", flag()),
    ];
    for [text_name, encoding_name, from, missed, next] in [
        ["stdout", "stdoutEncoding", "stdoutFrom", "stdoutMissed", "stdoutNext"],
        ["stderr", "stderrEncoding", "stderrFrom", "stderrMissed", "stderrNext"],
    ] {
        output.extend([
            has(text_name, "", text()),
            may(encoding_name, "When it is not UTF-8", encoding()),
            has(from, "Where it begins", count()),
            has(missed, "Bytes that are not kept any more", count()),
            has(next, "Where to go on", count()),
        ]);
    }
    output.extend(ended(may));
    let mut history = vec![
        has("number", "Its number within the session", count()),
        has("command", "", text()),
        has("caller", "", named("Caller")),
        has("backend", "", backend()),
        has("background", "", flag()),
        may("process", "The number that a background command has, or had, in its sandbox", count()),
        has("startedMillis", "", count()),
        has("state", "", word(&["running", "ended", "lost"])),
        may("stdout", "", named("Remains")),
        may("stderr", "", named("Remains")),
    ];
    history.extend(ended(may));
    vec![
        ("ExecAnswer", object("How a command ended, and what it printed", answer)),
        ("Ended", object("How a command ended", ended(has))),
        ("Process", object("A background command", process)),
        ("ProcessOutput", object("What a background command printed", output)),
        ("HistoryEntry", object("A command that is remembered", history)),
        (
            "Remains",
            object(
                "What is remembered of a stream",
                [
                    has("bytes", "Bytes that were written", count()),
                    has("cut", "Bytes between head and tail", count()),
                    has("head", "", text()),
                    may("headEncoding", "", encoding()),
                    has("tail", "", text()),
                    may("tailEncoding", "", encoding()),
                ],
            ),
        ),
        (
            "Leftover",
            object(
                "A process that outlives its command",
                [has("pid", "", count()), has("command", "", text())],
            ),
        ),
        (
            "LostCommand",
            object(
                "A command whose caller died",
                [
                    has("session", "", text()),
                    has("number", "", count()),
                    has("command", "", text()),
                    has("caller", "", named("Caller")),
                    has("background", "", flag()),
                    has("startedMillis", "", count()),
                ],
            ),
        ),
        (
            "StartedProcess",
            object(
                "A background command that runs",
                [
                    has("process", "Its number in the sandbox", count()),
                    may("session", "", text()),
                    has("backend", "", backend()),
                    has("sandboxId", "", text()),
                    has("notEnforced", "", list(named("NotEnforced"))),
                    has("notes", "", list(text())),
                    has("lost", "", list(named("LostCommand"))),
                    may("restarted", "", named("Gone")),
                ],
            ),
        ),
        (
            "ExecRequest",
            object(
                "A command, and where it is to run. Either `command` or `argv`.",
                [
                    may("command", "A line for the shell", or_null(text())),
                    may(
                        "argv",
                        "A program and its arguments",
                        or_null(json!({ "type": "array", "items": text(), "minItems": 1 })),
                    ),
                    may("cwd", "Directory inside to run it in", or_null(text())),
                    may("env", "Variables", map(text())),
                    may("stdin", "Standard input", or_null(text())),
                    may("stdinEncoding", "`utf8` where it is absent", word(&["utf8", "base64"])),
                    may(
                        "timeoutSecs",
                        "Time until it is ended, at most 1800 s",
                        or_null(json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1800 })),
                    ),
                    may("maxOutputBytes", "Bytes of each stream that the answer keeps", or_null(count())),
                    may(
                        "settings",
                        "What a new session stores, and an existing one must agree with",
                        named("Settings"),
                    ),
                    may("mustExist", "Refuse a session that is not there", flag()),
                    may("recreate", "End the session's sandbox first, with all that runs in it", flag()),
                ],
            ),
        ),
    ]
}
