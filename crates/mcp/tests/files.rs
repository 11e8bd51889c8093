//! Tools for files: on every backend, within the rules, and within bounds.

use moltis_mcp::{Place, Server};
use moltis_runtime::Overrides;
use moltis_sandbox::BackendName;
use serde_json::{Value, json};

use crate::support::{BACKENDS, Client, Here, text};

#[tokio::test]
async fn files_are_written_read_and_edited() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        let made =
            client.good("write_file", json!({ "path": "a/b.txt", "content": "one\ntwo\nthree\n" })).await;
        let path = made["path"].as_str().unwrap().to_owned();
        assert!(path.ends_with("/a/b.txt"), "{path}");
        assert_eq!((&made["bytes"], &made["created"]), (&json!(14), &json!(true)));
        assert_eq!(client.sh("cat a/b.txt").await, "one\ntwo\nthree\n");

        let result = client.call("read_file", json!({ "path": path, "offset": 2, "limit": 1 })).await;
        let told = "     2\ttwo\n[up to line 2 of 3; go on with offset 3]\n";
        assert_eq!(text(&result), told);
        let want = json!({
            "path": path, "bytes": 14, "content": "two\n", "startLine": 2, "lines": 1, "more": true,
            "totalLines": 3, "nextOffset": 3,
        });
        assert_eq!(client.good("read_file", json!({ "path": path, "offset": 2, "limit": 1 })).await, want);

        let edit = |old: &str, new: &str| json!({ "path": path, "old_string": old, "new_string": new });
        let edited = client.good("edit_file", edit("two", "2")).await;
        assert_eq!(edited, json!({ "path": path, "bytes": 12, "replacements": 1, "line": 2 }));
        assert_eq!(client.sh("cat a/b.txt").await, "one\n2\nthree\n");
        assert_eq!(client.bad("edit_file", edit("two", "2")).await, "edit-no-match");
        assert_eq!(client.bad("edit_file", edit("e", "x")).await, "edit-not-unique");
        let all = json!({ "path": path, "old_string": "e", "new_string": "E", "replace_all": true });
        assert_eq!(client.good("edit_file", all).await["replacements"], 3);
        assert_eq!(client.sh("cat a/b.txt").await, "onE\n2\nthrEE\n");

        let again =
            client.good("write_file", json!({ "path": "a/b.txt", "content": "#!/bin/sh\necho ran\n" })).await;
        assert_eq!(again["created"], false);
        let script = json!({ "path": "a/run", "content": "#!/bin/sh\necho ran\n", "executable": true });
        client.good("write_file", script).await;
        if backend == BackendName::Namespaces {
            assert_eq!(client.sh("./a/run").await, "ran\n");
        }
        assert_eq!(client.bad("read_file", json!({ "path": "a" })).await, "file-wrong-kind");
        assert_eq!(client.bad("write_file", json!({ "path": "a", "content": "" })).await, "file-wrong-kind");
        assert_eq!(client.bad("read_file", json!({ "path": "a/none" })).await, "file-missing");
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn what_is_no_text_is_told_and_pictures_are_shown() {
    let here = Here::new(BackendName::Namespaces);
    let client = here.client().await;
    client.sh(r"printf 'a\000b' > binary; printf '\211PNG\r\n\032\n1234' > p.png; : > empty; printf '\351\n' > latin").await;
    let read = |path: &'static str| client.call("read_file", json!({ "path": path }));
    let binary = read("binary").await;
    assert_eq!(binary.structured_content.as_ref().unwrap()["binary"], true);
    assert!(text(&binary).contains("is no text: 3 bytes"), "{binary:?}");
    let picture = read("p.png").await;
    let shown = picture.content[1].as_image().unwrap();
    assert_eq!((shown.mime_type.as_str(), shown.data.as_str()), ("image/png", "iVBORw0KGgoxMjM0"));
    assert_eq!(text(&read("empty").await), "[the file is empty]\n");
    assert!(text(&read("latin").await).contains("not all of it is UTF-8"));
    client.leave().await;
    here.end().await;
}

#[tokio::test]
async fn directories_are_listed_within_bounds() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        client.sh("mkdir -p d/sub && cd d && touch b .a && ln -s b link && mkfifo pipe").await;
        let listed = client.good("list_directory", json!({ "path": "d" })).await;
        let names: Vec<_> = listed["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| (entry["name"].as_str().unwrap(), entry["kind"].as_str().unwrap()))
            .collect();
        let want =
            [(".a", "file"), ("b", "file"), ("link", "symlink"), ("pipe", "other"), ("sub", "directory")];
        assert_eq!(names, want);
        assert_eq!((&listed["total"], &listed["more"]), (&json!(5), &json!(false)));
        let listed = client.call("list_directory", json!({ "path": "d", "limit": 2 })).await;
        let data = listed.structured_content.as_ref().unwrap();
        assert_eq!((&data["total"], &data["more"]), (&json!(5), &json!(true)));
        assert!(text(&listed).contains("[the first 2 by name; "), "{listed:?}");
        assert_eq!(client.bad("list_directory", json!({ "path": "none" })).await, "file-missing");
        client.leave().await;
        here.end().await;
    }
}

const TREE: &str = "mkdir -p src/deep .git node_modules && echo 'fn main() { todo() }' > src/main.rs && \
    printf 'a\\nTODO one\\nb\\n' > src/deep/x.rs && echo TODO > .git/x.rs && echo TODO > node_modules/x.rs && \
    printf 'TODO\\000' > src/blob && echo text > README.md && ln -s / src/all && touch -d 2001-01-01 src/main.rs";

fn list(data: &Value, name: &str) -> Vec<String> {
    data[name].as_array().unwrap().iter().map(|one| one.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn files_are_found_by_name() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        client.sh(TREE).await;
        let glob = |args: Value| client.good("glob", args);
        // The latest changed first.
        assert_eq!(
            list(&glob(json!({ "pattern": "*.rs" })).await, "files"),
            ["src/deep/x.rs", "src/main.rs"]
        );
        assert_eq!(list(&glob(json!({ "pattern": "src/*.{rs,md}" })).await, "files"), ["src/main.rs"]);
        assert_eq!(list(&glob(json!({ "pattern": "*.rs", "path": "src/deep" })).await, "files"), ["x.rs"]);
        assert_eq!(list(&glob(json!({ "pattern": "node_modules/*" })).await, "files"), ["node_modules/x.rs"]);
        let some = glob(json!({ "pattern": "*.rs", "limit": 1 })).await;
        assert_eq!((&some["total"], &some["more"]), (&json!(2), &json!(true)));
        assert_eq!(glob(json!({ "pattern": "none" })).await["total"], 0);
        assert_eq!(client.bad("glob", json!({ "pattern": "*", "path": "none" })).await, "file-missing");
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn lines_are_found_by_what_stands_in_them() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        client.sh(TREE).await;
        let found = client.good("grep", json!({ "pattern": "todo", "ignore_case": true })).await;
        let want = json!([
            { "path": "src/deep/x.rs", "line": 2, "text": "TODO one" },
            { "path": "src/main.rs", "line": 1, "text": "fn main() { todo() }" },
        ]);
        assert_eq!((&found["matches"], &found["more"]), (&sorted(want), &json!(false)), "{found}");
        // The one that is no text.
        assert_eq!(found["passedOver"], 1, "{found}");
        let around = client.good("grep", json!({ "pattern": "^TODO", "context": 1, "glob": "*.rs" })).await;
        let line = json!({ "path": "src/deep/x.rs", "line": 2, "text": "TODO one", "before": ["a"], "after": ["b"] });
        assert_eq!(around["matches"], json!([line]));
        let only =
            client.good("grep", json!({ "pattern": "todo()", "literal": true, "files_only": true })).await;
        assert_eq!(list(&only, "files"), ["src/main.rs"]);
        let one = client.call("grep", json!({ "pattern": "TODO", "path": "src/deep/x.rs" })).await;
        assert!(text(&one).starts_with("x.rs:2:TODO one\n"), "{one:?}");
        let some = client.good("grep", json!({ "pattern": "o", "limit": 1 })).await;
        assert_eq!(some["more"], true);
        client.leave().await;
        here.end().await;
    }
}

#[tokio::test]
async fn what_git_ignores_is_left_out_of_a_search_unless_it_is_asked_for() {
    for backend in BACKENDS {
        let here = Here::new(backend);
        let client = here.client().await;
        client
            .sh("mkdir -p target/debug src && printf 'target/\\n*.log\\n' > .gitignore && \
                 printf '!kept.log\\n' > src/.gitignore && \
                 for f in target/debug/x.rs a.log src/b.log src/kept.log src/main.rs; do echo word > $f; done")
            .await;
        let glob = async |args: Value| {
            let mut all = list(&client.good("glob", args).await, "files");
            all.sort();
            all
        };
        let whole = ["a.log", "src/b.log", "src/kept.log", "src/main.rs", "target/debug/x.rs"];
        assert_eq!(glob(json!({ "pattern": "*.{rs,log}" })).await, ["src/kept.log", "src/main.rs"]);
        assert_eq!(glob(json!({ "pattern": "*.{rs,log}", "ignored": true })).await, whole);
        assert_eq!(glob(json!({ "pattern": "target/**/*.rs" })).await, ["target/debug/x.rs"]);
        assert_eq!(glob(json!({ "pattern": "*.rs", "path": "target/debug" })).await, ["x.rs"]);
        // The rules above the directory hold in it.
        assert_eq!(glob(json!({ "pattern": "*.log", "path": "src" })).await, ["kept.log"]);
        let grep = async |mut args: Value| {
            (args["pattern"], args["files_only"]) = (json!("word"), json!(true));
            list(&client.good("grep", args).await, "files")
        };
        assert_eq!(grep(json!({})).await, ["src/kept.log", "src/main.rs"]);
        assert_eq!(grep(json!({ "ignored": true })).await, whole);
        assert_eq!(grep(json!({ "path": "a.log" })).await, ["a.log"]);
        assert_eq!(grep(json!({ "glob": "target/debug/*" })).await, ["target/debug/x.rs"]);
        client.leave().await;
        here.end().await;
    }
}

/// In the order of paths, as a walk gives them.
fn sorted(mut value: Value) -> Value {
    if let Some(list) = value.as_array_mut() {
        list.sort_by_key(|one| {
            let path = one["path"].as_str().unwrap_or_default();
            // Files of a directory come before those deeper down.
            (path.matches('/').count(), path.to_owned())
        });
    }
    value
}

#[tokio::test]
async fn the_rules_for_file_tools_hold() {
    let here = Here::new(BackendName::Namespaces);
    let runtime = here.runtime_with(|config| {
        let deny = moltis_config::value::glob::Glob::new("secret*").unwrap();
        config.tools.fs.deny_paths.value = vec![deny];
    });
    let client = Client::new(Server::new(runtime, Place::Own(Overrides::default()))).await;
    client.sh("echo key > secret.txt; echo key > open.txt; mkdir secrets; echo key > secrets/x").await;
    for (tool, arguments) in [
        ("read_file", json!({ "path": "secret.txt" })),
        ("write_file", json!({ "path": "secret.txt", "content": "x" })),
        ("edit_file", json!({ "path": "secret.txt", "old_string": "key", "new_string": "x" })),
        ("list_directory", json!({ "path": "secrets" })),
        ("grep", json!({ "pattern": "key", "path": "secret.txt" })),
        ("read_file", json!({ "path": "./secrets/../secret.txt" })),
    ] {
        assert_eq!(client.bad(tool, arguments.clone()).await, "path-denied", "{tool} {arguments}");
    }
    assert_eq!(list(&client.good("glob", json!({ "pattern": "**" })).await, "files"), ["open.txt"]);
    let found = client.good("grep", json!({ "pattern": "key", "files_only": true })).await;
    assert_eq!(list(&found, "files"), ["open.txt"]);
    let info = client.good("sandbox_info", json!({})).await;
    assert_eq!(info["filePaths"], json!({ "allowPaths": [], "denyPaths": ["secret*"] }));
    client.leave().await;
    here.end().await;
}
