//! Sessions, and what they set.

use moltis_sandbox::{BackendName, Network};
use serde_json::{Value, json};

use super::{Named, ORIGINS, backend};
use crate::schema::{
    amount, count, flag, has, list, map, may, named, number, object, or_null, text, text_of, word,
};

pub fn network_word() -> Value {
    word(&Network::ALL.map(Network::as_str))
}

pub fn backend_choice() -> Value {
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

pub fn all() -> Named {
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
            may("begins", "The snapshot that each sandbox of it begins from", named("SessionBegins")),
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
    let snapshot = || {
        vec![
            has("id", "", text()),
            has("session", "The key of its session, which need not be there any more", text()),
            may("name", "Its name among those of its session", text()),
            has("backend", "Where alone sandboxes can begin from it", backend()),
            has("createdMillis", "", count()),
            has("createdBy", "", named("Caller")),
            has("bytes", "Of the files in it, without the root", count()),
            has("home", "Whether a copy of the home is in it", word(&["copied", "shared"])),
        ]
    };
    let mut taken = snapshot();
    taken.push(has("notes", "What is not in it", list(text())));
    vec![
        ("Overrides", overrides),
        ("Snapshot", object("What a session's sandbox held at a moment", snapshot())),
        ("TakenSnapshot", object("A snapshot that was just taken", taken)),
        (
            "SessionBegins",
            object(
                "",
                [
                    has("snapshot", "Its id", text()),
                    has("backend", "Where the session's sandboxes are therefore", backend()),
                    may("root", "The image of the root that is in it, in the engine", text()),
                    has("home", "Whether a home is in it", flag()),
                    has("homeWaits", "Whether the session's home is yet to be replaced by that", flag()),
                ],
            ),
        ),
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
