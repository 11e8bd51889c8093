//! Our own program, and what lies beside it, in a folder of its own, to be mounted as a folder: the tool mounts single
//! files only from 0.9 on, by a second name of theirs, of which it is known that reading it fails now and then.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::engine::{Bind, ContainerSpec, EngineError, EngineKind, Result};

/// The folder inside that is ours.
const OURS: &str = "/.moltis";

/// Shows the files that go into our own folder inside as one folder, in which there is a mount point for what else is
/// mounted there. Blocks.
///
/// # Errors
/// When it cannot be made.
pub fn stage(mut spec: ContainerSpec) -> Result<ContainerSpec> {
    let inside = |target: &str| -> Option<String> {
        let name = target.strip_prefix(OURS)?.strip_prefix('/')?;
        (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
    };
    let ours = |bind: &Bind| inside(&bind.target).filter(|_| bind.source.is_file());
    let Some(at) = spec.binds.iter().position(|bind| ours(bind).is_some()) else { return Ok(spec) };
    let (mut files, mut first) = (Vec::new(), None);
    spec.binds.retain(|bind| {
        let name = ours(bind);
        if let Some(name) = &name {
            files.push((bind.source.clone(), name.clone()));
            first.get_or_insert_with(|| bind.clone());
        }
        name.is_none()
    });
    let Some(bind) = first else { return Ok(spec) };
    let others =
        spec.binds.iter().map(|bind| &bind.target).chain(spec.tmpfs.iter().map(|tmpfs| &tmpfs.target));
    let points: Vec<String> = others.filter_map(|target| inside(target)).collect();
    let folder = folder_of(&files, &points).map_err(|cause| EngineError::Refused {
        engine: EngineKind::Apple,
        message: format!("the agent's folder beside {} cannot be made: {cause}", bind.source.display()),
    })?;
    let folder = Bind { source: folder, target: OURS.to_owned(), read_only: true, relabel: bind.relabel };
    spec.binds.insert(at, folder);
    Ok(spec)
}

/// A folder beside the first file that holds copies of all under these names, and these mount points.
fn folder_of(files: &[(PathBuf, String)], points: &[String]) -> std::io::Result<PathBuf> {
    let mut folder = files.first().map(|(source, _)| source.as_os_str().to_owned()).unwrap_or_default();
    folder.push(".mount");
    let folder = PathBuf::from(folder);
    make(&folder)?;
    for point in points {
        make(&folder.join(point))?;
    }
    for (source, name) in files {
        copy(source, &folder, name)?;
    }
    Ok(folder)
}

/// Sees that the folder holds a copy of the file under this name.
fn copy(source: &Path, folder: &Path, name: &str) -> std::io::Result<()> {
    let bytes = std::fs::read(source)?;
    let place = folder.join(name);
    // What is there is not believed.
    if std::fs::read(&place).is_ok_and(|there| there == bytes) && mode(&place)? == mode(source)? {
        return Ok(());
    }
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&bytes)?;
    file.as_file().set_permissions(std::fs::Permissions::from_mode(mode(source)?))?;
    file.persist(&place).map_err(|error| error.error)?;
    Ok(())
}

fn make(folder: &Path) -> std::io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o755).create(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            if std::fs::symlink_metadata(folder)?.is_dir() { Ok(()) } else { Err(error) }
        }
        made => made,
    }
}

fn mode(path: &Path) -> std::io::Result<u32> {
    Ok(std::fs::symlink_metadata(path)?.permissions().mode() & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Relabel, Tmpfs};

    #[test]
    fn our_file_becomes_a_folder_and_a_changed_copy_is_replaced() {
        let temp = tempfile::tempdir().unwrap();
        let guest = temp.path().join("guest-1");
        std::fs::write(&guest, "program").unwrap();
        std::fs::set_permissions(&guest, std::fs::Permissions::from_mode(0o555)).unwrap();
        let text = temp.path().join("text");
        std::fs::write(&text, "text").unwrap();
        let bind = |source: &Path, target: &str| Bind {
            source: source.to_owned(),
            target: target.to_owned(),
            read_only: true,
            relabel: Relabel::Not,
        };
        let other = bind(temp.path(), "/workspace");
        let spec = ContainerSpec {
            binds: vec![bind(&guest, "/.moltis/guest"), other.clone(), bind(&text, "/.moltis/text")],
            tmpfs: vec![Tmpfs { target: "/.moltis/agent".to_owned(), options: String::new() }],
            ..ContainerSpec::default()
        };
        let folder = temp.path().join("guest-1.mount");
        for _ in 0..2 {
            let staged = stage(spec.clone()).unwrap();
            assert_eq!(staged.binds, [bind(&folder, "/.moltis"), other.clone()]);
            assert_eq!(std::fs::read(folder.join("text")).unwrap(), b"text");
            let copy = folder.join("guest");
            assert_eq!((std::fs::read(&copy).unwrap(), mode(&copy).unwrap()), (b"program".to_vec(), 0o555));
            assert!(folder.join("agent").is_dir());
            std::fs::remove_file(&copy).unwrap();
            std::fs::write(&copy, "another").unwrap();
        }
        assert_eq!(stage(ContainerSpec::default()).unwrap(), ContainerSpec::default());
    }
}
