//! The schemas of what the API takes and gives, by their names.

use moltis_egress::{Action, Event, Protocol, Source};
use moltis_sandbox::{BackendName, Network};
use serde_json::{Map, Value, json};

use crate::routes::{system, words};
use crate::schema::{
    Field, amount, count, flag, has, integer, list, map, may, named, number, object, or_null, text, text_of,
    word,
};
use crate::state::scopes;

/// All of them.
pub fn all() -> Map<String, Value> {
    [common(), commands(), sessions(), sandboxes(), files(), network(), gateway()]
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.to_owned(), schema))
        .collect()
}

type Named = Vec<(&'static str, Value)>;

fn backend() -> Value {
    named("BackendName")
}

/// Who set a value.
const ORIGINS: [&str; 8] = ["default", "alias", "secrets", "file", "env", "session", "flag", "api"];

fn encoding() -> Value {
    word(&["base64"])
}

fn common() -> Named {
    vec![
        (
            "Problem",
            object(
                "What went wrong, after RFC 9457",
                [
                    has("type", "`urn:moltis:problem:` and the code", text()),
                    has("title", "The kind of problem", text()),
                    has("status", "The status", number(100, 599)),
                    has("detail", "What happened, naming the thing it happened to", text()),
                    has("code", "Stable name of the problem", text()),
                    has(
                        "kind",
                        "`refused`: it will not be done; `unavailable`: it cannot be now; `lost`: it may have been; `invalid`: \
                     the request is wrong",
                        word(&["refused", "unavailable", "lost", "invalid"]),
                    ),
                    may("cause", "Why", text()),
                    may("fix", "What to do about it", text()),
                ],
            ),
        ),
        (
            "Diagnosis",
            object(
                "What a person should know",
                [
                    has("code", "Stable name", text()),
                    has("message", "", text()),
                    may("cause", "", text()),
                    may("fix", "", text()),
                ],
            ),
        ),
        ("BackendName", word(&BackendName::ALL.map(BackendName::as_str))),
        (
            "NotEnforced",
            object(
                "A built-in default that is not kept",
                [has("key", "The configuration's key", text()), has("reason", "Why not", text())],
            ),
        ),
        (
            "Caller",
            json!({
                "description": "On whose behalf something was done",
                "oneOf": [
                    object("", [has("kind", "", word(&["cli"])), has("uid", "", count())]),
                    object("", [has("kind", "", word(&["apiKey"])), has("name", "", text())]),
                    object("", [has("kind", "", word(&["mcp"])), has("client", "", text())]),
                ],
            }),
        ),
        (
            "Gone",
            word(&["idle", "spec", "crash", "failover", "stopped", "evicted", "recreated", "filesMount"]),
        ),
    ]
}

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

fn commands() -> Named {
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

fn network_word() -> Value {
    word(&Network::ALL.map(Network::as_str))
}

fn backend_choice() -> Value {
    let words: Vec<_> = ["auto"].into_iter().chain(BackendName::ALL.map(BackendName::as_str)).collect();
    word(&words)
}

fn workspace() -> Value {
    object(
        "A folder of the host, beneath one of `workspace_roots`",
        [
            has("source", "Its path, from the root", text_of(1, 4096)),
            may("mode", "", or_null(word(&["ro", "rw"]))),
        ],
    )
}

fn sessions() -> Named {
    let memory = || json!({ "type": "integer", "minimum": 1_048_576, "maximum": i64::MAX });
    let cores = || json!({ "type": "number", "exclusiveMinimum": 0 });
    let pids = || number(1, 4_194_304);
    let fuel = || number(1, i64::MAX);
    let idle = || number(1, 31_536_000);
    let domains = || json!({ "type": "array", "items": text_of(1, 300), "maxItems": 1024 });
    let ask = || word(&["deny", "ask"]);
    let overrides = object(
        "What a session sets over the configuration",
        [
            may("sandboxEnabled", "", flag()),
            may("sandboxImage", "", text()),
            may("sandboxBackend", "", backend_choice()),
            may("network", "", network_word()),
            may(
                "limits",
                "",
                object(
                    "",
                    [may("memory", "Bytes", count()), may("cpus", "", amount()), may("pids", "", count())],
                ),
            ),
            may(
                "workspace",
                "",
                object("", [has("source", "", text()), may("mode", "", word(&["ro", "rw"]))]),
            ),
            may("idleTtlSecs", "", count()),
            may("trustedDomains", "", list(text())),
            may("deniedDomains", "", list(text())),
            may("onUnknown", "", ask()),
            may("wasmFuelLimit", "", count()),
        ],
    );
    let session = || {
        vec![
            has("session", "Its key", text()),
            has("sandboxId", "The opaque id that stands for it", text()),
            has("createdMillis", "", count()),
            has("lastUsedMillis", "", count()),
            has("lastUsedBy", "", named("Caller")),
            has("overrides", "", named("Overrides")),
            has("env", "Names of its variables", list(text())),
            may("ended", "Why its last sandbox ended", named("Gone")),
            has("state", "Of its sandbox", word(&["none", "opening", "running", "closing", "gone"])),
            may("backend", "What holds it", backend()),
            may("sandbox", "The sandbox as it is found now", named("Sandbox")),
        ]
    };
    let mut details = session();
    details.extend([
        has("commandsRemembered", "", count()),
        has(
            "fate",
            "What would become of its sandbox with the next command",
            word(&["new", "used", "madeAnew"]),
        ),
        has("because", "Why this backend", text()),
        has("settings", "What its next command would get, and who set it", list(named("SessionSetting"))),
        has("mounts", "Folders of the host that would show inside", list(named("SessionMount"))),
        has("notEnforced", "", list(named("NotEnforced"))),
        has("notes", "", list(text())),
        may("refusal", "What the next command would be answered, if nothing would run", named("Problem")),
    ]);
    vec![
        ("Overrides", overrides),
        ("Session", object("A session", session())),
        (
            "SessionSetting",
            object(
                "A setting of a session's sandbox. What names folders of the host is shown to `operator.admin` alone.",
                [
                    has("key", "", text()),
                    may("value", "As it is written in moltis.toml; absent: none", text()),
                    has("origin", "Who set it", word(&ORIGINS)),
                    may("configured", "What it would be if the session set nothing; absent: none", text()),
                ],
            ),
        ),
        (
            "SessionMount",
            object(
                "A folder or file of the host that shows inside",
                [
                    has("target", "Where inside", text()),
                    has("mode", "", word(&["ro", "rw"])),
                    may("source", "Its path on the host, for `operator.admin`", text()),
                ],
            ),
        ),
        ("SessionDetails", object("A session, and what would become of its next command", details)),
        (
            "Settings",
            object(
                "What a sandbox is to be",
                [
                    may("backend", "", or_null(backend_choice())),
                    may("network", "", or_null(network_word())),
                    may("image", "A finished image", or_null(text_of(1, 512))),
                    may(
                        "limits",
                        "",
                        object(
                            "",
                            [
                                may("memory", "Bytes", or_null(memory())),
                                may("cpus", "Cores", or_null(cores())),
                                may("pids", "Processes and threads", or_null(pids())),
                            ],
                        ),
                    ),
                    may("workspace", "", or_null(workspace())),
                    may("wasmFuelLimit", "", or_null(fuel())),
                ],
            ),
        ),
        (
            "SessionPatch",
            object(
                "A change of a session: what is absent stays, `null` clears",
                [
                    may("sandboxEnabled", "Whether its commands run in a sandbox", or_null(flag())),
                    may("sandboxImage", "A finished image", or_null(text_of(1, 512))),
                    may("sandboxBackend", "", or_null(backend_choice())),
                    may("network", "", or_null(network_word())),
                    may(
                        "limits",
                        "Each by itself; `null` clears all",
                        or_null(object(
                            "",
                            [
                                may("memory", "Bytes", or_null(memory())),
                                may("cpus", "Cores", or_null(cores())),
                                may("pids", "Processes and threads", or_null(pids())),
                            ],
                        )),
                    ),
                    may("workspace", "", or_null(workspace())),
                    may("env", "Variables, each by itself; `null` clears all", or_null(map(or_null(text())))),
                    may("idleTtlSecs", "Time without use after which its sandbox ends", or_null(idle())),
                    may("trustedDomains", "Besides those of the configuration", or_null(domains())),
                    may("deniedDomains", "Besides those of the configuration", or_null(domains())),
                    may("onUnknown", "", or_null(ask())),
                    may("wasmFuelLimit", "", or_null(fuel())),
                ],
            ),
        ),
    ]
}

fn sandboxes() -> Named {
    const PROMISES: [&str; 23] = [
        "filesystem",
        "kernel",
        "environment",
        "networkBlocked",
        "networkTrusted",
        "networkOpen",
        "memory",
        "cpus",
        "pids",
        "terminal",
        "background",
        "forward",
        "workspace",
        "home",
        "managedFiles",
        "adopt",
        "images",
        "packages",
        "rootfs",
        "runtime",
        "gpus",
        "hostPodman",
        "nestedPodman",
    ];
    let guarantees =
        object("What a backend keeps here", PROMISES.map(|name| has(name, "", named("Promise"))));
    let legacy = object(
        "What an earlier program left in an engine",
        [
            has("backend", "", backend()),
            has("id", "", text()),
            has("name", "", text()),
            has("why", "", text()),
            has("oursByLabel", "", flag()),
        ],
    );
    vec![
        (
            "Promise",
            object(
                "Whether something is kept",
                [has("state", "", word(&["held", "notEnforced"])), may("reason", "Why not", text())],
            ),
        ),
        ("Guarantees", guarantees),
        (
            "FailedOver",
            object(
                "A backend that was given up",
                [
                    has("from", "", backend()),
                    has("to", "What took over", backend()),
                    has("why", "", named("Diagnosis")),
                    has("sinceMillis", "", count()),
                ],
            ),
        ),
        (
            "Backend",
            object(
                "A backend",
                [
                    has("backend", "", backend()),
                    has("usable", "Whether it can open a sandbox now", flag()),
                    may("version", "", text()),
                    may("guarantees", "", named("Guarantees")),
                    may("leftOff", "", list(named("NotEnforced"))),
                    may("notes", "", list(text())),
                    may("reason", "Why it is not usable", named("Diagnosis")),
                    may("failedOver", "", named("FailedOver")),
                ],
            ),
        ),
        (
            "Sandbox",
            object(
                "A sandbox",
                [
                    has("id", "", text()),
                    has("backend", "", backend()),
                    may("session", "Whose it is", text()),
                    has("running", "", flag()),
                    has("createdMillis", "", count()),
                    may(
                        "activity",
                        "How much it is in use",
                        object(
                            "",
                            [
                                has("operations", "", count()),
                                has("idleMs", "", count()),
                                has("commands", "", count()),
                                has("uptimeMs", "", count()),
                            ],
                        ),
                    ),
                    has("background", "Background commands that run in it", count()),
                ],
            ),
        ),
        ("Legacy", legacy),
        (
            "Pruned",
            object(
                "What was removed",
                [
                    has("removed", "Ids of sandboxes", list(text())),
                    has("kept", "How many stay", count()),
                    has("legacy", "", list(named("Legacy"))),
                ],
            ),
        ),
        (
            "Disk",
            object(
                "What the data directory takes",
                [
                    has(
                        "parts",
                        "",
                        list(object(
                            "",
                            [
                                has("name", "", text()),
                                has("path", "", text()),
                                has("bytes", "", count()),
                                has("entries", "", count()),
                                may(
                                    "unseen",
                                    "What could not be looked into",
                                    object(
                                        "",
                                        [
                                            has("folders", "", count()),
                                            has("first", "", text()),
                                            has("why", "", word(&["closed", "deep"])),
                                        ],
                                    ),
                                ),
                            ],
                        )),
                    ),
                    has(
                        "images",
                        "",
                        list(object(
                            "",
                            [
                                has("backend", "", backend()),
                                has("images", "", count()),
                                has("bytes", "", count()),
                            ],
                        )),
                    ),
                    has("freeBytes", "", count()),
                    has("floorBytes", "Below it no new command starts", count()),
                ],
            ),
        ),
        (
            "Image",
            object(
                "An image that Moltis has built",
                [
                    has("backend", "", backend()),
                    has("tag", "", text()),
                    has("id", "", text()),
                    has("base", "", text()),
                    has("packages", "", list(text())),
                    has("sizeBytes", "", count()),
                    has("createdMillis", "", count()),
                    has("inUse", "", flag()),
                ],
            ),
        ),
        ("ImageTag", object("", [has("backend", "", backend()), has("tag", "", text())])),
        (
            "BuildRequest",
            object(
                "What is to be made ready",
                [
                    may(
                        "backend",
                        "The one that a command would run on where it is absent",
                        or_null(backend_choice()),
                    ),
                    may("base", "A base instead of the configuration's", or_null(text_of(1, 512))),
                    may("fresh", "Fetch and build although it is there", flag()),
                ],
            ),
        ),
        (
            "Built",
            object(
                "What is ready",
                [
                    has("backend", "", backend()),
                    may(
                        "image",
                        "Absent: the backend has none",
                        object("", [has("tag", "", text()), has("id", "", text()), has("new", "", flag())]),
                    ),
                    has(
                        "prepared",
                        "Programs",
                        list(object("", [has("name", "", text()), has("new", "", flag())])),
                    ),
                ],
            ),
        ),
        (
            "CleanedImages",
            object(
                "What was removed",
                [
                    has("removed", "", list(named("ImageTag"))),
                    has("kept", "", list(named("ImageTag"))),
                    has("freedBytes", "", count()),
                    has("warnings", "", list(named("Diagnosis"))),
                ],
            ),
        ),
    ]
}

fn files() -> Named {
    vec![
        (
            "FileInfo",
            object(
                "A file, a folder or a link",
                [
                    may("name", "In a listing", text()),
                    may("nameEncoding", "When it is not UTF-8", encoding()),
                    has("kind", "", word(&["file", "directory", "symlink", "other"])),
                    has("size", "Bytes", count()),
                    has("mode", "Permission bits in octal", text()),
                    has("modifiedMillis", "", integer()),
                    has("uid", "", count()),
                    has("gid", "", count()),
                    may("target", "Of a link", text()),
                    may("targetEncoding", "", encoding()),
                    may("etag", "Of a file", text()),
                ],
            ),
        ),
        (
            "FolderRequest",
            object(
                "",
                [
                    has("path", "", words::path()),
                    may(
                        "parents",
                        "Make missing folders above it; one that is there is no error then",
                        flag(),
                    ),
                ],
            ),
        ),
        (
            "MoveRequest",
            object(
                "",
                [
                    has("from", "", text_of(1, 8192)),
                    may("fromEncoding", "When it is not UTF-8", encoding()),
                    has("to", "", text_of(1, 8192)),
                    may("toEncoding", "When it is not UTF-8", encoding()),
                    may("overwrite", "Replace what is there", flag()),
                ],
            ),
        ),
        (
            "TreeCount",
            object(
                "What a tree holds",
                [
                    has("files", "", count()),
                    has("folders", "Beneath it", count()),
                    has("others", "Links, and what else there is", count()),
                    has("bytes", "Of its files", count()),
                    has("all", "Whether all of it was counted: a large tree is not", flag()),
                ],
            ),
        ),
        (
            "TreeSummary",
            object(
                "What was unpacked",
                [has("entries", "Files, folders and links", count()), has("bytes", "Of content", count())],
            ),
        ),
    ]
}

fn network() -> Named {
    let protocol = || word(&Protocol::ALL.map(Protocol::as_str));
    let action = || word(&Action::ALL.map(Action::as_str));
    let source = || word(&Source::ALL.map(Source::as_str));
    let counted = || {
        vec![
            has("allowed", "", count()),
            has("denied", "", count()),
            has("sentBytes", "", count()),
            has("receivedBytes", "", count()),
            has("lastMillis", "", count()),
        ]
    };
    let mut of_domain = counted();
    of_domain.push(has("domain", "", text()));
    vec![
        (
            "AuditEntry",
            object(
                "A decision of the proxy, or the end of what was allowed",
                [
                    has("timestamp", "Milliseconds since 1970", count()),
                    has("session", "", text()),
                    has("id", "Open and close share it", count()),
                    has("event", "", word(&Event::ALL.map(Event::as_str))),
                    has("domain", "", text()),
                    has("port", "", count()),
                    has("protocol", "", protocol()),
                    has("action", "", action()),
                    has("source", "What decided", source()),
                    may("reason", "", text()),
                    has("sentBytes", "", count()),
                    has("receivedBytes", "", count()),
                    has("durationMs", "", count()),
                ],
            ),
        ),
        (
            "NetworkStats",
            object(
                "What the log says, counted",
                [
                    has("domains", "The most used first", list(object("", of_domain))),
                    has("others", "Those that are not named", object("", counted())),
                    has("total", "", object("", counted())),
                    has(
                        "overTime",
                        "Connections and requests by time: periods of one length, those in which there were any",
                        object(
                            "",
                            [
                                has("periodMs", "The length of each, in milliseconds", count()),
                                has(
                                    "periods",
                                    "The earliest first",
                                    list(object(
                                        "",
                                        [
                                            has("fromMillis", "", count()),
                                            has("allowed", "", count()),
                                            has("denied", "", count()),
                                        ],
                                    )),
                                ),
                            ],
                        ),
                    ),
                    has("droppedEntries", "", count()),
                    has("unreadableLines", "", count()),
                ],
            ),
        ),
        (
            "Approval",
            object(
                "A question about a host that no rule names",
                [
                    has("id", "", count()),
                    has("session", "", text()),
                    has("host", "", text()),
                    has("port", "", count()),
                    has("protocol", "", protocol()),
                    has("askedMillis", "", count()),
                    has("expiresMillis", "", count()),
                    may("result", "Absent while it waits", word(&["decided", "expired", "withdrawn"])),
                    may(
                        "decision",
                        "",
                        word(&["once", "session", "always", "deny", "denySession", "denyAlways"]),
                    ),
                    may("decidedBy", "", named("Caller")),
                    may("decidedMillis", "", count()),
                ],
            ),
        ),
        (
            "NetworkRule",
            object(
                "A pattern, what it does, and whose it is",
                [
                    has("pattern", "", text()),
                    has("action", "", word(&["allow", "deny"])),
                    has("origin", "", word(&["config", "session", "rule"])),
                    may("madeMillis", "", count()),
                    may("madeBy", "", named("Caller")),
                ],
            ),
        ),
        (
            "Tested",
            object(
                "What would be said of a host",
                [
                    has("domain", "", text()),
                    has("port", "", count()),
                    has("action", "", action()),
                    has("source", "", source()),
                    may("code", "", text()),
                    may("pattern", "", text()),
                    has("why", "", text()),
                    has("asks", "Whether a person would be asked first", flag()),
                    has(
                        "addresses",
                        "",
                        list(object("", [has("address", "", text()), may("refused", "", text())])),
                    ),
                    may("upstream", "", text()),
                ],
            ),
        ),
    ]
}

fn gateway() -> Named {
    vec![
        (
            "Status",
            object(
                "What the gateway is and does",
                [
                    has("version", "", text()),
                    has("startedMillis", "", count()),
                    has("ready", "", flag()),
                    has("ending", "", flag()),
                    has("encrypted", "Whether it speaks TLS", flag()),
                    has("network", "What a session gets that sets nothing", network_word()),
                    may("backend", "What a session gets that sets nothing", backend()),
                    has("failedOver", "Backends that were given up", list(named("FailedOver"))),
                    has(
                        "pool",
                        "",
                        object(
                            "",
                            [
                                has("wanted", "", count()),
                                has("ready", "", count()),
                                may("whyNot", "", text()),
                            ],
                        ),
                    ),
                    has("requestsRunning", "", integer()),
                    has("sandboxesRunning", "Of those that the caller sees", count()),
                    has(
                        "notEnforced",
                        "Built-in defaults that a session gets that sets nothing, and that are not kept",
                        list(named("NotEnforced")),
                    ),
                    may("warnings", "", list(named("Diagnosis"))),
                    may(
                        "adopted",
                        "What was found at the start",
                        object(
                            "",
                            [
                                has("running", "Sandboxes that go on", count()),
                                has("silent", "Sandboxes that did not answer", count()),
                                has("lost", "Commands whose outcome is not known", count()),
                                has("removed", "Remains that were removed", count()),
                            ],
                        ),
                    ),
                ],
            ),
        ),
        (
            "Me",
            object(
                "The caller",
                [
                    has("kind", "", word(&["owner", "admin", "key"])),
                    has("scope", "", word(&scopes())),
                    may("name", "Of the key", text()),
                    may("sessions", "Patterns of the sessions that he sees", list(text())),
                ],
            ),
        ),
        (
            "Key",
            object(
                "An API key",
                [
                    has("name", "", text()),
                    has("scope", "", word(&scopes())),
                    may(
                        "sessions",
                        "Patterns of the sessions that it sees; absent: every session",
                        list(text()),
                    ),
                    has("createdMillis", "", count()),
                    may("expiresMillis", "", count()),
                    may("lastUsedMillis", "To the minute", count()),
                ],
            ),
        ),
        ("NewKey", system::new_key_schema()),
        (
            "Setting",
            object(
                "A key of the configuration",
                [
                    has("key", "", text()),
                    may("value", "As it is written in moltis.toml", text()),
                    has("origin", "", word(&ORIGINS)),
                    may("place", "", text()),
                    may("default", "", text()),
                    has("help", "", text()),
                    has("kind", "What its values look like, in words", text()),
                    may(
                        "form",
                        "What a change of it takes",
                        word(&["text", "flag", "number", "list", "table"]),
                    ),
                    may("words", "What it may be, where that is one of a few words", list(text())),
                    may("now", "Its value in the form in which a change takes it", Value::Bool(true)),
                    has("secret", "Whether its value is never shown", flag()),
                    has("live", "Whether a change holds at once", flag()),
                    has("writable", "Whether the caller may change it", flag()),
                ],
            ),
        ),
        (
            "Reloaded",
            object(
                "What came of a change",
                [
                    has("changed", "Keys that hold now", list(text())),
                    has("atNextStart", "Keys that hold from the next start on", list(text())),
                    has("warnings", "", list(named("Diagnosis"))),
                ],
            ),
        ),
    ]
}
