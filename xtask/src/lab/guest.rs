//! The kernel and the root file system of machines in the lab: built by the program as people build them, on this machine,
//! since the lab may have no packages within its reach, and kept below the cache folder.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::command::{Scratch, find, kept};
use crate::engines::cache;
use crate::real::Trouble;

/// What the build does: another recipe makes others.
const RECIPE: [&str; 2] = [
    include_str!("../../../crates/backend-firecracker/src/rootfs.rs"),
    include_str!("../../../crates/backend-firecracker/src/rootfs.sh"),
];

/// What the build leaves.
pub const FILES: [&str; 3] = ["vmlinux", "vmlinux.modules", "rootfs.ext4"];

const LIMIT: Duration = Duration::from_secs(30 * 60);

/// The folder of [`FILES`].
pub fn files(moltis: &Path, engine: &Path) -> Result<PathBuf, Trouble> {
    let guests = cache("lab-guest")?;
    let mut hasher = DefaultHasher::new();
    RECIPE.hash(&mut hasher);
    let folder = guests.join(format!("{:016x}", hasher.finish()));
    if folder.is_dir() {
        return Ok(folder);
    }
    find("mmdebstrap")
        .ok_or_else(|| Trouble::Lacking("there is no mmdebstrap (package mmdebstrap)".into()))?;
    println!("building what machines in the lab run into {}", folder.display());
    let scratch = Scratch::new("lab-guest")?;
    // Whole or not at all: a run may be broken off.
    let draft = guests.join(format!(".{}", std::process::id()));
    let built = build(moltis, engine, &scratch.0, &draft).and_then(|()| match fs::rename(&draft, &folder) {
        // Another run was quicker.
        Err(_) if folder.is_dir() => Ok(()),
        moved => Ok(moved?),
    });
    let _ = fs::remove_dir_all(&draft);
    built?;
    for entry in fs::read_dir(&guests)?.flatten() {
        // Each is large, and only one is ever used; those that are being made have a dot.
        if entry.path() != folder && !entry.file_name().to_string_lossy().starts_with('.') {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(folder)
}

fn build(moltis: &Path, engine: &Path, scratch: &Path, draft: &Path) -> Result<(), Trouble> {
    fs::create_dir(draft)?;
    let key = |name: &str, path: PathBuf| format!("firecracker_{name} = {:?}\n", path.display().to_string());
    let settings = [
        key("bin", engine.join("firecracker")),
        key("kernel", draft.join(FILES[0])),
        key("rootfs", draft.join(FILES[2])),
    ];
    fs::write(scratch.join("moltis.toml"), format!("[tools.exec.sandbox]\n{}", settings.concat()))?;
    let mut command = Command::new(moltis);
    command.args(["sandbox", "build", "--backend", "firecracker"]);
    command.env("MOLTIS_CONFIG_DIR", scratch).env("MOLTIS_DATA_DIR", scratch.join("data"));
    let ended = kept(&mut command, None, LIMIT)?;
    let made = FILES.iter().all(|name| draft.join(name).is_file());
    if ended.good() && made { Ok(()) } else { Err(Trouble::Failed(ended.all())) }
}
