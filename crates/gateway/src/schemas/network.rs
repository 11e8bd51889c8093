//! The network's log, questions, rules.

use moltis_egress::{Action, Event, Protocol, Source};

use super::Named;
use crate::schema::{count, flag, has, list, may, named, object, text, word};

pub fn all() -> Named {
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
