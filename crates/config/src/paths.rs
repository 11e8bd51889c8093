//! Where the configuration file and the data directory are. Nothing is made or changed here.

use std::path::{Path, PathBuf};

use crate::env::{self, Env};

/// Where a configuration file is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    /// The file.
    pub path: PathBuf,
    /// Whether somebody named this very file, so that it must exist.
    pub named: bool,
}

/// The caller's home by `HOME`, if that is an absolute path.
pub fn home(env: &Env) -> Option<PathBuf> {
    env::get(env, "HOME").map(PathBuf::from).filter(|home| home.is_absolute())
}

/// The configuration file: the one of `--config`, else `moltis.toml` in `MOLTIS_CONFIG_DIR`, in
/// `$XDG_CONFIG_HOME/moltis`, in `~/.config/moltis`. `None` when none of them can be named.
pub fn config_file(flag: Option<&Path>, env: &Env) -> Option<ConfigFile> {
    if let Some(path) = flag {
        return Some(ConfigFile { path: path.to_owned(), named: true });
    }
    Some(ConfigFile { path: config_dir(env)?.join("moltis.toml"), named: false })
}

/// The configuration directory; `config init` writes there.
pub fn config_dir(env: &Env) -> Option<PathBuf> {
    if let Some(dir) = env::get(env, "MOLTIS_CONFIG_DIR") {
        return Some(dir.into());
    }
    // The XDG specification says that a relative one is to be ignored.
    let xdg = env::get(env, "XDG_CONFIG_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let base = xdg.or_else(|| Some(home(env)?.join(".config")))?;
    Some(base.join("moltis"))
}
