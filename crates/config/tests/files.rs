//! Files that cannot be read, or should not be.

use std::fs;

use moltis_config::load::MAX_FILE_BYTES;
use moltis_config::{Place, Problem};
use moltis_sandbox::Diagnosis;

use crate::World;

#[test]
fn a_named_file_must_exist() {
    let mut world = World::new();
    world.options.config_path = Some(world.path("nowhere.toml"));
    assert_eq!(
        world.error(),
        "there is no configuration file $HOME/nowhere.toml\n  check the path, or write one with `moltis config init`"
    );
}

#[test]
fn what_is_no_file_is_refused_without_waiting() {
    let world = World::new();
    fs::create_dir_all(world.path(".config/moltis/moltis.toml")).unwrap();
    assert_eq!(world.error(), "cannot read moltis.toml: it is a directory\n  name the file itself");

    #[cfg(target_os = "linux")]
    {
        let world = World::new();
        fs::create_dir_all(world.path(".config/moltis")).unwrap();
        let fifo = world.path(".config/moltis/moltis.toml");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(
            world.error(),
            "cannot read moltis.toml: it is not a regular file\n  name the file itself"
        );
    }

    let world = World::new();
    world.write(".config", "", 0o600);
    assert_eq!(world.error(), "cannot read moltis.toml: Not a directory (os error 20)\n  check the path");
}

#[test]
fn a_file_that_may_not_be_read_is_an_error() {
    if rustix::process::geteuid().is_root() {
        // Root reads everything.
        return;
    }
    let world = World::new();
    world.write(".config/moltis/moltis.toml", "", 0o000);
    assert_eq!(
        world.error(),
        "cannot read moltis.toml: Permission denied (os error 13)\n  \
         make it readable for this user, or run as the user that it belongs to"
    );
}

#[test]
fn the_size_is_bounded() {
    let comment = |bytes: u64| format!("#{}", "x".repeat(bytes as usize - 1));
    let world = World::with(comment(MAX_FILE_BYTES));
    assert_eq!(world.config(), world.defaults());
    let world = World::with(comment(MAX_FILE_BYTES + 1));
    assert_eq!(world.error(), "moltis.toml is over 1 MiB, which no configuration is\n  name the right file");
}

#[test]
fn what_is_not_utf_8_is_shown_where() {
    let world = World::with(b"[gateway]\n# \xc3\xa9 \xff\n");
    assert_eq!(world.error(), "moltis.toml:2:5: the file is not UTF-8\n  save it as UTF-8");
}

#[test]
fn a_byte_order_mark_and_windows_line_ends_are_understood() {
    let world = World::with("\u{feff}[gateway]\r\nport = 80\r\n");
    assert_eq!(world.config().gateway.port.value, 80);
}

#[test]
fn secrets_must_be_private() {
    let text = "[tools.exec.sandbox]\nvercel_token = 'hunter2'\n";
    for mode in [0o604, 0o640, 0o644, 0o660, 0o700] {
        let world = World::new();
        let path = world.write(".moltis/secrets.toml", text, mode);
        let expected = Problem::Exposed {
            path: path.clone(),
            cause: format!("its mode is {mode:04o}: others can reach the secrets in it"),
            fix: format!("chmod 600 {}", path.display()),
        };
        assert_eq!(world.load().unwrap_err().problems(), [expected]);
    }
    for mode in [0o600, 0o400] {
        let world = World::new();
        world.write(".moltis/secrets.toml", text, mode);
        assert!(world.config().tools.exec.sandbox.vercel_token.is_some());
    }
    let mut world = World::new();
    world.write(".moltis/secrets.toml", text, 0o600);
    let owner = world.options.uid;
    world.options.uid = owner + 1;
    assert_eq!(
        world.error(),
        format!(
            "$HOME/.moltis/secrets.toml is refused: it belongs to uid {owner}, not to the caller (uid {0})\n  \
             chown {0} $HOME/.moltis/secrets.toml && chmod 600 $HOME/.moltis/secrets.toml",
            owner + 1
        )
    );
}

#[test]
fn secrets_hold_credentials_only() {
    let world = World::new();
    let path = world.write(
        ".moltis/secrets.toml",
        "[tools.exec.sandbox]\nbackend = 'none'\nvercel_project_id = 'p'\ndaytona_api_url = 'https://d/api'\n",
        0o600,
    );
    let place = Place::File { path, line: 2, column: 11 };
    let expected = Problem::NotACredential { place, key: "tools.exec.sandbox.backend" };
    assert_eq!(world.load().unwrap_err().problems(), [expected]);
}

#[test]
fn a_file_that_others_can_change_or_a_secret_that_they_can_read_is_warned_about() {
    let world = World::new();
    let path = world.write(".config/moltis/moltis.toml", "[tools.exec.sandbox]\nvercel_token = 't'\n", 0o646);
    let path = path.display();
    let expected = [
        Diagnosis::new(
            "config-writable-by-others",
            format!("{path} can be changed by every user of this machine"),
        )
        .fix(format!("chmod o-w {path}")),
        Diagnosis::new(
            "config-secret-readable",
            format!("{path} holds a secret and can be read by other users"),
        )
        .fix(format!("chmod 600 {path}")),
    ];
    assert_eq!(world.load().unwrap().warnings, expected);
}

#[test]
fn without_a_home_the_data_directory_must_be_named() {
    let mut world = World::new();
    world.options.env.clear();
    assert_eq!(
        world.error(),
        "no data directory: HOME is not set to an absolute path\n  \
         set HOME, or name the folder with --data-dir or MOLTIS_DATA_DIR"
    );
    let world = world.env("MOLTIS_DATA_DIR", "/d");
    assert_eq!(world.config().data_dir.value.to_str(), Some("/d"));
}
