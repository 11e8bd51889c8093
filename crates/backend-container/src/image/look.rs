//! Looking into an image without running anything of it: a container is made, never started, read, and removed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::archive::{Archive, Broken, Kind};
use super::facts::{self, ImageFacts, OsRelease};
use super::packages::Manager;
use crate::engine::{ContainerSpec, ContainerState, Engine, EngineError, NetworkMode};

/// Most that is read of a file of accounts, in bytes.
const MAX_ACCOUNTS: u64 = 256 * 1024;

/// Most that is read of `/etc/os-release`, in bytes.
const MAX_RELEASE: u64 = 16 * 1024;

/// Most that is read of the archive of a directory, in bytes, and how many names of it are kept.
const MAX_DIRECTORY: u64 = 8 * 1024 * 1024;
const MAX_NAMES: usize = 32;

/// Links that are followed from one name.
const MAX_LINKS: u32 = 16;

/// Longest path inside that is asked for, in bytes.
const MAX_PATH: usize = 4096;

/// Time for all of it.
const PATIENCE: Duration = Duration::from_secs(120);

/// Age at which a container that was made to look is nobody's any more.
const STALE: Duration = Duration::from_secs(15 * 60);

/// What a look is to be called, and whose it is.
pub struct Look {
    /// Name of the container.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
}

/// Looks into an image by id. The container is removed whatever happens, unless this process ends before.
pub async fn look(engine: &Arc<dyn Engine>, image: &str, look: Look) -> Result<ImageFacts, EngineError> {
    let spec = ContainerSpec {
        name: look.name.clone(),
        image: image.to_owned(),
        user: (65534, 65534),
        // Nothing is ever started; there need be no such program.
        argv: vec!["/.moltis/look".to_owned()],
        directory: "/".to_owned(),
        labels: look.labels,
        network: NetworkMode::None,
        drop_capabilities: true,
        no_new_privileges: true,
        read_only_root: true,
        ..ContainerSpec::default()
    };
    let made = engine.create(&spec).await;
    let (id, facts) = match made {
        Ok(id) => {
            let read = tokio::time::timeout(PATIENCE, read(&**engine, &id)).await;
            let late = |_| EngineError::TimedOut {
                engine: engine.kind(),
                what: "show what is in an image".to_owned(),
                seconds: PATIENCE.as_secs(),
            };
            (id, read.map_err(late).and_then(|read| read))
        }
        // It may have been made though the answer was lost.
        Err(error) => (look.name, Err(error)),
    };
    let removed = engine.remove(&id).await;
    let facts = facts?;
    removed?;
    Ok(facts)
}

/// Removes containers that were made to look and whose maker was killed before it could remove them.
pub async fn sweep(engine: &dyn Engine, labels: &[(&str, &str)], now_secs: u64) -> Result<(), EngineError> {
    for container in engine.containers(labels).await? {
        let age = now_secs.saturating_sub(container.created_secs);
        if container.state == ContainerState::Created && age > STALE.as_secs() {
            engine.remove(&container.id).await?;
        }
    }
    Ok(())
}

async fn read(engine: &dyn Engine, id: &str) -> Result<ImageFacts, EngineError> {
    let inside = Inside { engine, id };
    let text = async |path: &str, limit: u64| match inside.follow(path, limit).await? {
        Found::File { bytes, whole, .. } => Ok::<_, EngineError>((bytes, whole)),
        _ => Ok((Vec::new(), true)),
    };
    let accounts = |(bytes, whole): (Vec<u8>, bool)| facts::accounts(&bytes, whole);
    let mut release = text("/etc/os-release", MAX_RELEASE).await?.0;
    if release.is_empty() {
        release = text("/usr/lib/os-release", MAX_RELEASE).await?.0;
    }
    let mut manager = None;
    for (path, of) in Manager::PLACES {
        if manager.is_none() && inside.is_program(path).await? {
            manager = Some(of);
        }
    }
    let home = inside.names("/home/sandbox").await?;
    let has_home = home.is_some();
    let (home_entries, has_more_in_home) = home.unwrap_or_default();
    Ok(ImageFacts {
        os_release: OsRelease::read(&release),
        passwd: accounts(text("/etc/passwd", MAX_ACCOUNTS).await?),
        group: accounts(text("/etc/group", MAX_ACCOUNTS).await?),
        has_shell: inside.is_program("/bin/sh").await?,
        has_home,
        home_entries,
        has_more_in_home,
        has_workspace: inside.is_there("/workspace").await?,
        has_moltis: inside.is_there("/.moltis").await?,
        manager,
    })
}

/// What is at a path.
enum Found {
    Nothing,
    File { bytes: Vec<u8>, whole: bool, mode: u32 },
    Directory,
    Link(String),
    Other,
}

/// The files of a container that was never started.
struct Inside<'a> {
    engine: &'a dyn Engine,
    id: &'a str,
}

impl Inside<'_> {
    /// What is at a path, with the beginning of a file. A link that is the last part of it is not followed, unless the
    /// engine does so.
    async fn at(&self, path: &str, limit: u64) -> Result<Found, EngineError> {
        let stream = match self.engine.get_archive(self.id, path).await {
            Ok(stream) => stream,
            Err(EngineError::NoSuchPath { .. }) => return Ok(Found::Nothing),
            Err(error) => return Err(error),
        };
        // A few blocks of headers, and the beginning of a file.
        let mut archive = Archive::new(stream, limit.saturating_add(256 * 1024));
        let entry = match archive.next().await {
            Ok(Some(entry)) => entry,
            Ok(None) => return Ok(Found::Nothing),
            Err(broken) => return Err(self.broken(path, &broken)),
        };
        Ok(match entry.kind {
            Kind::Directory => Found::Directory,
            Kind::Link => String::from_utf8(entry.target).map_or(Found::Other, Found::Link),
            Kind::Other => Found::Other,
            Kind::File => {
                let (bytes, whole) =
                    archive.content(limit).await.map_err(|broken| self.broken(path, &broken))?;
                Found::File { bytes, whole, mode: entry.mode }
            }
        })
    }

    /// What is at a path, links followed within the image.
    async fn follow(&self, path: &str, limit: u64) -> Result<Found, EngineError> {
        Ok(self.resolve(path, limit).await?.1)
    }

    async fn resolve(&self, path: &str, limit: u64) -> Result<(String, Found), EngineError> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match self.at(&path, limit).await? {
                Found::Link(target) => match join(&path, &target) {
                    Some(next) => path = next,
                    None => break,
                },
                found => return Ok((path, found)),
            }
        }
        Ok((path, Found::Nothing))
    }

    async fn is_program(&self, path: &str) -> Result<bool, EngineError> {
        Ok(matches!(self.follow(path, 0).await?, Found::File { mode, .. } if mode & 0o111 != 0))
    }

    async fn is_there(&self, path: &str) -> Result<bool, EngineError> {
        Ok(!matches!(self.at(path, 0).await?, Found::Nothing))
    }

    /// The first names in a directory, and whether there may be more; `None` if it is none.
    async fn names(&self, path: &str) -> Result<Option<(Vec<String>, bool)>, EngineError> {
        let (path, found) = self.resolve(path, 0).await?;
        if !matches!(found, Found::Directory) {
            return Ok(None);
        }
        let stream = self.engine.get_archive(self.id, &path).await?;
        let mut archive = Archive::new(stream, MAX_DIRECTORY);
        let mut names: Vec<String> = Vec::new();
        loop {
            let entry = match archive.next().await {
                Ok(Some(entry)) => entry,
                Ok(None) => return Ok(Some((names, false))),
                Err(Broken::TooLong) => return Ok(Some((names, true))),
                Err(broken) => return Err(self.broken(&path, &broken)),
            };
            // The first part is the directory's own name.
            let Some(name) = entry.parts.get(1) else { continue };
            let name = String::from_utf8_lossy(name).into_owned();
            match names.contains(&name) {
                true => {}
                false if names.len() == MAX_NAMES => return Ok(Some((names, true))),
                false => names.push(name),
            }
        }
    }

    fn broken(&self, path: &str, broken: &Broken) -> EngineError {
        EngineError::Answer { engine: self.engine.kind(), message: format!("of {path}: {broken}") }
    }
}

/// Where a link leads that is at `path`, as a path from the image's root; it leads nowhere above that.
fn join(path: &str, target: &str) -> Option<String> {
    if target.is_empty() || target.contains('\0') || target.len() > MAX_PATH {
        return None;
    }
    let from = if target.starts_with('/') { "" } else { path.rsplit_once('/').map_or("", |(from, _)| from) };
    let mut parts = Vec::new();
    for part in from.split('/').chain(target.split('/')) {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let joined = format!("/{}", parts.join("/"));
    (joined.len() <= MAX_PATH).then_some(joined)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_nowhere_above_the_root() {
        let cases = [
            ("/bin/sh", "dash", "/bin/dash"),
            ("/etc/os-release", "../usr/lib/os-release", "/usr/lib/os-release"),
            ("/bin/sh", "/etc/alternatives/sh", "/etc/alternatives/sh"),
            ("/bin/sh", "../../../../etc/shadow", "/etc/shadow"),
            ("/bin", "usr/bin/", "/usr/bin"),
            ("/a/b", "..", "/"),
        ];
        for (path, target, expected) in cases {
            assert_eq!(join(path, target).as_deref(), Some(expected));
        }
        assert_eq!(join("/a", ""), None);
        assert_eq!(join("/a", &"x".repeat(5000)), None);
    }
}
