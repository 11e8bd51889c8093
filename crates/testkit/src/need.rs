//! What a test needs from the machine. A test that cannot run says so where the test runner collects it; where
//! everything must run, it fails instead.

use std::io::Write;
use std::path::PathBuf;

/// Variable that makes a missing need a failure.
pub const ALL: &str = "MOLTIS_TEST_ALL";

/// Variable that names the file in which skips are collected.
pub const SKIPS: &str = "MOLTIS_TEST_SKIPS";

/// Variable that asks for the long form.
pub const LONG: &str = "MOLTIS_TEST_LONG";

/// Variable that says that root runs the same tests.
pub const ROOT_TOO: &str = "MOLTIS_TEST_ROOT_TOO";

/// Whether the long form is asked for.
pub fn long() -> bool {
    std::env::var_os(LONG).is_some_and(|v| v == "1")
}

/// Whether everything must run.
pub fn everything() -> bool {
    std::env::var_os(ALL).is_some_and(|v| v == "1")
}

/// Notes that `test` cannot run here, and why.
///
/// # Panics
/// Where everything must run.
pub fn skip(test: &str, why: &str) {
    assert!(!everything(), "{test} cannot run here: {why}");
    eprintln!("SKIPPED {test}: {why}");
    if let Some(path) = std::env::var_os(SKIPS)
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).create(true).open(path)
    {
        // One write a line, so that tests which append at once do not mix.
        let _ = file.write_all(format!("{test}: {why}\n").as_bytes());
    }
}

/// Whether this is root, as `test` needs it to be. Where root runs the same test, another user's run is not one that
/// lacks it.
///
/// # Panics
/// Where everything must run, and nobody is root.
pub fn as_root(test: &str, why: &str) -> bool {
    if !root() {
        if root_too() {
            eprintln!("LEFT TO ROOT {test}: {why}");
        } else {
            skip(test, &format!("{why}: run it as root"));
        }
    }
    root()
}

/// Whether root runs the same tests beside this user.
pub fn root_too() -> bool {
    std::env::var_os(ROOT_TOO).is_some_and(|v| v == "1")
}

/// Where a program lies on `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::metadata(file).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Whether this process is root.
pub fn root() -> bool {
    rustix::process::geteuid().is_root()
}
