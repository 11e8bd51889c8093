//! What all parts of the API speak of: problems, promises, callers.

use moltis_sandbox::BackendName;
use serde_json::json;

use super::Named;
use crate::schema::{count, has, may, number, object, text, word};

pub fn all() -> Named {
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
