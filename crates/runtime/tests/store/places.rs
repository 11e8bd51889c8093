//! File systems that are full or cannot be written to, each in a mount namespace of its own.

use std::process::Command;

use super::child::Job;

/// A user and mount namespace with a file system of this size and mode at `place`; `None` where there can be none.
fn wrapper(options: &str, then: &str) -> Option<Vec<String>> {
    let script =
        format!("mount -t tmpfs -o {options} none \"$MOLTIS_TEST_STORE_PLACE\" && {then} exec \"$0\" \"$@\"");
    let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script];
    let possible = Command::new(words[0]).args(["--user", "--map-root-user", "--mount", "true"]).status();
    if !possible.is_ok_and(|status| status.success()) {
        println!("not tried: no user namespaces here");
        return None;
    }
    Some(words.iter().map(ToString::to_string).collect())
}

fn said(wrapper: &[String], job: &str) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
    let mut job = Job::start(&words, job, folder.path());
    std::iter::from_fn(|| job.said()).collect()
}

#[test]
fn a_full_disk_is_said_and_loses_nothing() {
    let Some(wrapper) = wrapper("mode=0700,size=600k", "") else { return };
    let said = said(&wrapper, "fill");
    let begun = said.iter().filter(|line| line.starts_with("begun")).count();
    assert!(begun > 5, "{said:?}");
    assert_eq!(said[begun..], ["error store-full".to_owned(), format!("kept {begun} {begun}")]);
}

#[test]
fn a_place_that_cannot_be_written_to_is_said() {
    let then = "mount -o remount,ro none \"$MOLTIS_TEST_STORE_PLACE\" &&";
    let Some(wrapper) = wrapper("mode=0700,size=600k", then) else { return };
    assert_eq!(said(&wrapper, "try"), ["store-read-only"]);
}
