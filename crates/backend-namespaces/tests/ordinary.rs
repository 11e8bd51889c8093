//! The same tests for a user without any privilege.

use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::Command;

use super::support::is_root;

/// A user id that nobody has.
const USER: u32 = 61_234;

#[test]
fn everything_holds_for_an_ordinary_user() {
    if !is_root() {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    chown(home.path(), Some(USER), Some(USER)).unwrap();
    std::fs::set_permissions(home.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let temp = home.path().join("tmp");
    std::fs::create_dir(&temp).unwrap();
    chown(&temp, Some(USER), Some(USER)).unwrap();
    // By the link, because the user may not be allowed to the folder that the binary lies in.
    let output = Command::new("/proc/self/exe")
        .args(["--test-threads", "2"])
        .env("HOME", home.path().join("home"))
        .env("TMPDIR", &temp)
        .current_dir("/")
        .uid(USER)
        .gid(USER)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    assert_eq!(super::support::names(&temp), Vec::<String>::new());
}
