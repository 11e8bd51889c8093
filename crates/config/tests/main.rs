//! Tests of the configuration as its callers see it.

// All of this is test code; the lint knows only functions marked as tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod errors;
mod files;
mod flags;
mod layers;
mod properties;
mod show;
mod values;
mod written;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use moltis_config::load::{Loaded, Options, load};
use moltis_config::{Config, Error};
use tempfile::TempDir;

/// A home of its own, an environment of its own.
struct World {
    dir: TempDir,
    options: Options,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Options {
            current_dir: Some(dir.path().to_owned()),
            uid: rustix::process::geteuid().as_raw(),
            ..Options::default()
        };
        options.env.insert("HOME".into(), dir.path().into());
        Self { dir, options }
    }

    /// A world whose moltis.toml is this.
    fn with(text: impl AsRef<[u8]>) -> Self {
        let world = Self::new();
        world.write(".config/moltis/moltis.toml", text, 0o600);
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.options.env.insert(name.into(), value.into());
        self
    }

    fn load(&self) -> Result<Loaded, Error> {
        load(&self.options)
    }

    fn config(&self) -> Config {
        self.load().unwrap_or_else(|error| panic!("{error}")).config
    }

    /// The defaults in this world.
    fn defaults(&self) -> Config {
        let mut config = Config::default();
        config.data_dir.value = self.path(".moltis");
        config.tools.exec.sandbox.shared_home_dir.value = self.path(".moltis/sandbox/home/shared");
        config
    }

    /// The error as text, with this world's folder as `$HOME`.
    fn error(&self) -> String {
        let error = self.load().expect_err("there is an error");
        tidy(&error.to_string(), self.dir.path())
    }
}

/// `text` with `home` as `$HOME` and the usual file shortened.
fn tidy(text: &str, home: &Path) -> String {
    text.replace(home.to_str().unwrap(), "$HOME").replace("$HOME/.config/moltis/moltis.toml", "moltis.toml")
}
