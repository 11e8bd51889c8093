//! Moltis in a container beside the engine's others: what it calls a path, the engine calls by another name.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use moltis_sandbox::{Diagnosis, Error, Result};

use crate::engine::Engine;

/// Longest file that is read for it, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// What the engine calls the paths of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostPaths {
    /// The same: it sees what we see.
    Same,
    /// What lies below these folders of ours lies below these of the engine's: `(ours, its)`, longer ones first.
    Mapped(Vec<(PathBuf, PathBuf)>),
}

impl HostPaths {
    /// With these mounts of our own container, as the engine knows them (`(source, target)`), and the folder that
    /// `host_data_dir` names, which counts for the data directory whatever the mounts say.
    ///
    /// # Errors
    /// `host-data-dir-unknown` when the data directory lies on none of them, `host-data-dir-ambiguous` when the engine
    /// tells two sources for one place.
    pub fn mapped(mounts: &[(PathBuf, String)], data_dir: &Path, named: Option<&Path>) -> Result<Self> {
        let mut pairs: Vec<(PathBuf, PathBuf)> = Vec::new();
        for (source, target) in mounts {
            // A volume without a folder on the host, or a file system in memory.
            if !source.is_absolute() {
                continue;
            }
            let target = PathBuf::from(target);
            let other = pairs.iter().find(|(ours, its)| *ours == target && its != source);
            if let Some((ours, its)) = other
                && named.is_none()
                && data_dir.starts_with(ours)
            {
                return Err(ambiguous(data_dir, &[its.clone(), source.clone()]));
            }
            pairs.push((target, source.clone()));
        }
        if let Some(named) = named {
            pairs.retain(|(ours, _)| ours != data_dir);
            pairs.push((data_dir.to_owned(), named.to_owned()));
        }
        pairs.sort_by_key(|(ours, _)| std::cmp::Reverse(ours.components().count()));
        let paths = Self::Mapped(pairs);
        match paths.of(data_dir) {
            Some(_) => Ok(paths),
            None => Err(unknown(data_dir)),
        }
    }

    /// What the engine calls a path of ours; `None` if it cannot see it.
    pub fn of(&self, path: &Path) -> Option<PathBuf> {
        match self {
            Self::Same => Some(path.to_owned()),
            Self::Mapped(pairs) => {
                let (ours, its) = pairs.iter().find(|(ours, _)| path.starts_with(ours))?;
                let rest = path.strip_prefix(ours).ok()?;
                Some(if rest.as_os_str().is_empty() { its.clone() } else { its.join(rest) })
            }
        }
    }
}

/// What the engine calls the paths of this process. `outside` says that the engine's own process is not in our PID
/// namespace, so that it must be beside us or around us.
///
/// # Errors
/// Those of [`HostPaths::mapped`], of the engine, and `host-data-dir-unknown` when we are in a container that the engine
/// does not know, and nobody named the folder.
pub async fn host_paths(
    engine: &dyn Engine,
    outside: bool,
    data_dir: &Path,
    named: Option<&Path>,
) -> Result<HostPaths> {
    let mut own = None;
    let look = || Ok::<_, Error>(candidates());
    for id in moltis_host::blocking::short(look).await? {
        if let Some(container) = engine.inspect(&id).await? {
            match &own {
                None => own = Some(container),
                Some(other) if other.id == container.id => {}
                Some(_) if named.is_some() => {}
                Some(other) => {
                    return Err(ambiguous(
                        data_dir,
                        &[PathBuf::from(&other.name), PathBuf::from(&container.name)],
                    ));
                }
            }
        }
    }
    match (own, named) {
        (Some(container), named) => HostPaths::mapped(&container.mounts, data_dir, named),
        (None, Some(named)) => HostPaths::mapped(&[], data_dir, Some(named)),
        (None, None) if outside => Err(unknown(data_dir)),
        (None, None) => Ok(HostPaths::Same),
    }
}

/// Ids that our own container may have, if we are in one. Blocks on small files.
fn candidates() -> BTreeSet<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let in_container = Path::new("/.dockerenv").exists() || Path::new("/run/.containerenv").exists();
    let mut ids = in_texts(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    if in_container {
        // The engine's default host name is the beginning of the id; one that somebody chose is none.
        let name = read("/etc/hostname").trim().to_owned();
        if name.len() == 12 && name.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            ids.retain(|id| !id.starts_with(&name));
            ids.insert(name);
        }
    }
    ids
}

/// Container ids in the texts of `mountinfo` and `cgroup`: the engine mounts files of its own from a folder that is named
/// after the container, and names its control group so.
fn in_texts(mounts: &str, groups: &str) -> BTreeSet<String> {
    let mut ids = BTreeSet::new();
    if mounts.len() > MAX_BYTES || groups.len() > MAX_BYTES {
        return ids;
    }
    for line in mounts.lines() {
        let mut words = line.split(' ').skip(3);
        let (Some(root), Some(point)) = (words.next(), words.next()) else { continue };
        if !["/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/run/.containerenv"].contains(&point) {
            continue;
        }
        ids.extend(root.split('/').filter(|part| is_id(part)).map(str::to_owned));
    }
    for line in groups.lines() {
        let path = line.rsplit(':').next().unwrap_or_default();
        let last = path.rsplit('/').next().unwrap_or_default();
        let last = last.trim_end_matches(".scope");
        let id = last.rsplit('-').next().unwrap_or_default();
        if is_id(id) {
            ids.insert(id.to_owned());
        }
    }
    ids
}

fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

const SET: &str = "set `host_data_dir` to the folder that holds the data directory on the host";

fn unknown(data_dir: &Path) -> Error {
    Error::Unavailable(
        Diagnosis::new(
            "host-data-dir-unknown",
            format!(
                "Moltis runs in a container, and the engine cannot see its data directory {}",
                data_dir.display()
            ),
        )
        .cause("no mount of the container holds it, as far as the engine says")
        .fix(format!(
            "mount a folder of the host there (docker run -v /srv/moltis:{}), or {SET}",
            data_dir.display()
        )),
    )
}

fn ambiguous(data_dir: &Path, found: &[PathBuf]) -> Error {
    let found: Vec<_> = found.iter().map(|path| path.display().to_string()).collect();
    Error::Unavailable(
        Diagnosis::new(
            "host-data-dir-ambiguous",
            format!(
                "Moltis runs in a container, and where its data directory {} is on the host cannot be told",
                data_dir.display()
            ),
        )
        .cause(format!("the engine names {}", found.join(" and ")))
        .fix(SET),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(pairs: &[(&str, &str)]) -> Vec<(PathBuf, String)> {
        pairs.iter().map(|(source, target)| (PathBuf::from(source), (*target).to_owned())).collect()
    }

    #[test]
    fn a_path_is_what_the_innermost_mount_makes_of_it() {
        let mounts =
            mounts(&[("/srv/m", "/data"), ("/srv/files", "/data/files"), ("", "/tmp"), ("/home/u/w", "/w")]);
        let paths = HostPaths::mapped(&mounts, Path::new("/data"), None).unwrap();
        let of = |path: &str| paths.of(Path::new(path)).map(|path| path.display().to_string());
        assert_eq!(of("/data/run/docker/x").unwrap(), "/srv/m/run/docker/x");
        assert_eq!(of("/data").unwrap(), "/srv/m");
        assert_eq!(of("/data/files/a").unwrap(), "/srv/files/a");
        assert_eq!(of("/w/sub").unwrap(), "/home/u/w/sub");
        assert_eq!(of("/database"), None);
        assert_eq!(of("/etc"), None);
    }

    #[test]
    fn what_cannot_be_told_is_an_error_that_names_the_key() {
        let code = |mounts: &[(PathBuf, String)], named: Option<&str>| {
            HostPaths::mapped(mounts, Path::new("/data"), named.map(Path::new))
                .map(|paths| paths.of(Path::new("/data/x")).unwrap().display().to_string())
                .map_err(|error| {
                    assert!(error.diagnosis().fix.as_ref().unwrap().contains("host_data_dir"));
                    error.code().to_owned()
                })
        };
        assert_eq!(code(&mounts(&[("/w", "/w")]), None).unwrap_err(), "host-data-dir-unknown");
        let two = mounts(&[("/a", "/data"), ("/b", "/data")]);
        assert_eq!(code(&two, None).unwrap_err(), "host-data-dir-ambiguous");
        assert_eq!(code(&two, Some("/srv")).unwrap(), "/srv/x");
        assert_eq!(code(&[], Some("/srv")).unwrap(), "/srv/x");
    }

    #[test]
    fn our_own_container_is_known_by_what_the_engine_mounts_and_names() {
        let id = "0123456789abcdef".repeat(4);
        let mounts = format!(
            "1 2 8:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw - ext4 /dev/a rw\n\
             1 2 8:1 /var/lib/docker/containers/{} /other rw - ext4 /dev/a rw\n",
            "f".repeat(64)
        );
        assert_eq!(in_texts(&mounts, ""), BTreeSet::from([id.clone()]));
        let groups = format!("12:pids:/docker/{id}\n0::/system.slice/docker-{id}.scope\n3:cpu:/user.slice\n");
        assert_eq!(in_texts("", &groups), BTreeSet::from([id]));
        assert!(in_texts("short", "0::/").is_empty());
    }
}
