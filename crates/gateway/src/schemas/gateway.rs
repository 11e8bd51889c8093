//! The gateway itself: its state, keys, settings.

use serde_json::Value;

use super::sessions::network_word;
use super::{Named, ORIGINS, backend};
use crate::routes::system;
use crate::schema::{count, flag, has, integer, list, may, named, object, text, word};
use crate::state::scopes;

pub fn all() -> Named {
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
                    has(
                        "runningNotEnforced",
                        "Built-in defaults that are not kept in sandboxes that run and the caller sees, each once",
                        list(object(
                            "",
                            [
                                has("backend", "", backend()),
                                has("key", "The configuration's key", text()),
                                has("reason", "Why not", text()),
                                has("session", "A session that lacks it", text()),
                                has("sessions", "How many do", count()),
                            ],
                        )),
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
