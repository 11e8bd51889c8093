//! Bounds of the shell's own: ours are in their place, and where that cannot be it is told, never cut in silence.

use crate::common::{World, out, sh};

#[tokio::test(flavor = "multi_thread")]
async fn lines_bytes_turns_and_time_have_no_bounds_of_the_shells_own() {
    let world = World::new();
    let sandbox = world.open().await;
    for (line, expected) in [
        ("seq 1 300000 | tail -1", "300000\n"),
        ("yes | head -20000 | wc -l", "20000\n"),
        ("head -c 5M /dev/zero | wc -c", "5242880\n"),
        ("head -c 5M /dev/urandom | wc -c", "5242880\n"),
        ("for i in $(seq 120000); do :; done; echo $i", "120000\n"),
        ("a=($(seq 150000)); echo ${#a[@]}", "150000\n"),
        ("i=0; until [ $i -ge 11000 ]; do true; i=$((i+1)); done; echo $i", "11000\n"),
        ("timeout 0.1 sleep 61; echo $?", "124\n"),
    ] {
        assert_eq!(out(&sandbox, line).await, expected, "{line}");
    }
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_set_is_told() {
    let world = World::new();
    let sandbox = world.open().await;
    let deep = format!("{}echo deep; {}", "for i in 1; do ".repeat(11), "done; ".repeat(11));
    for (line, word) in [
        ("f() { f; }; f; echo after", "wasm-shell-limit: maximum function depth exceeded (16)"),
        (deep.as_str(), "wasm-shell-limit: budget validation failed: nested loop depth 11"),
        ("awk 'BEGIN { for (i = 0; i < 3000000; i++) print i }'", "awk: output limit exceeded"),
    ] {
        let ran = sh(&sandbox, line).await;
        assert!(ran.code() != 0 && ran.errors().contains(word), "{line}: {} {}", ran.code(), ran.errors());
    }
    for (line, word) in [
        ("cat /dev/zero | wc -c", "wasm-device-cut: /dev/zero"),
        ("tr -dc a-z </dev/urandom | head -c 8", "wasm-device-cut: /dev/urandom"),
        ("echo {1..20000}", "wasm-range-too-long: {1..20000}"),
        ("sleep 60 & echo on", "wasm-jobs-ended: 1 background job"),
    ] {
        let ran = sh(&sandbox, line).await;
        let told = ran.outcome.notes.iter().any(|note| note.starts_with(word));
        assert!(told && ran.took.as_secs() < 10, "{line}: {ran:?}");
    }
    assert_eq!(sh(&sandbox, "sleep 60 & exit 3").await.code(), 3);
    sandbox.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_removed_is_said_with_force_too() {
    let world = World::new();
    let sandbox = world.open().await;
    let ran = sh(&sandbox, "rm -rf /etc/passwd /; rm -f nosuch; echo $?").await;
    assert!(ran.errors().contains("cannot remove '/'") && ran.text().ends_with("0\n"), "{ran:?}");
    assert_eq!(
        out(&sandbox, "mkdir -p d/e; : >d/e/f; rm -rv d; ls; df -Pm /tmp | tail -1").await,
        "removed 'd'\nsandbox 256 0 256 0% /tmp\n"
    );
    sandbox.close().await.unwrap();
}
