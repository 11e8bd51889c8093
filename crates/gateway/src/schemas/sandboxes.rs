//! Backends with what they keep, sandboxes, images, disk use.

use super::sessions::backend_choice;
use super::{Named, backend};
use crate::schema::{count, flag, has, list, may, named, object, or_null, text, text_of, word};

pub fn all() -> Named {
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
                    may(
                        "snapshots",
                        "What a snapshot of its sandboxes holds; absent: none can be taken",
                        word(&["fileSystem", "memoryAndFileSystem"]),
                    ),
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
                    may(
                        "usage",
                        "What everything in it takes now; absent where it cannot say",
                        object(
                            "",
                            [
                                has("memoryBytes", "Memory that is held", count()),
                                has("cpuMs", "Processor time since the start, in milliseconds", count()),
                            ],
                        ),
                    ),
                    has("background", "Background commands that run in it", count()),
                    may(
                        "provider",
                        "What the provider that holds it says of it",
                        object(
                            "",
                            [
                                has("name", "Its name there", text()),
                                has("state", "Its state, in the provider's own word", text()),
                                has("known", "Whether it is written down here, too", flag()),
                            ],
                        ),
                    ),
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
