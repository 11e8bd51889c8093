//! Files and folders.

use super::{Named, encoding};
use crate::routes::words;
use crate::schema::{count, flag, has, integer, may, object, text, text_of, word};

pub fn all() -> Named {
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
