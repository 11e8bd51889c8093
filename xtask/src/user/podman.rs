//! The ordinary user's own Podman: what it is told, its images, and what programs have left in it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::command::{find, kept};
use crate::engines::{self, images, left};

/// A command of a program, as the user.
type Program<'a> = &'a dyn Fn(&str) -> Command;

/// A Podman that has the images of the tests.
pub struct Podman {
    /// What is in it before any program has used it.
    before: BTreeSet<String>,
}

/// Writes the user's configuration: where the storage is, and what cannot be found out without a session of systemd's.
pub fn configure(home: &Path, run: &Path) -> Result<(), String> {
    let folder = home.join(".config/containers");
    let say = |e: std::io::Error| format!("{}: {e}", folder.display());
    fs::create_dir_all(&folder).map_err(say)?;
    // Podman removes no container that is over where this has more than 50 characters.
    let runroot = run.join("c");
    let length = runroot.as_os_str().len();
    if length > 50 {
        return Err(format!(
            "{}: {length} characters are more than Podman takes: set TMPDIR",
            runroot.display()
        ));
    }
    let storage = format!(
        "[storage]\ndriver = \"overlay\"\ngraphroot = \"{}\"\nrunroot = \"{}\"\n",
        home.join(".local/share/containers/storage").display(),
        runroot.display(),
    );
    fs::write(folder.join("storage.conf"), storage).map_err(say)?;
    fs::write(folder.join("containers.conf"), engines::containers_conf()).map_err(say)
}

impl Podman {
    /// Puts the images into it; none where it cannot be used, or where there are no images to put there.
    pub fn filled(user: Program) -> Result<Option<Self>, String> {
        if find("podman").is_none() {
            return Ok(None);
        }
        let usable = kept(user("podman").arg("info"), None, Duration::from_secs(60))?;
        if !usable.good() {
            println!("Podman without root is not usable here: {}", usable.all().trim());
            return Ok(None);
        }
        let began = Instant::now();
        if !images::fill(&|| user("podman"))? {
            println!("there are no images for Podman without root: `cargo xtask engines up` makes them");
        }
        println!("images for Podman without root: {:.1} s", began.elapsed().as_secs_f64());
        Ok(Some(Self { before: left::inside("podman (user)", &|| user("podman"))? }))
    }

    /// Fails when there is more in it than before, and goes on to be once what ends by itself has had its time.
    pub fn same_again(&self, user: Program) -> Result<(), String> {
        left::until_same(&self.before, || left::inside("podman (user)", &|| user("podman")))
    }
}
