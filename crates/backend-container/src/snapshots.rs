//! Snapshots of a container's root: an image of what was written to it, from which others are made.

use moltis_sandbox::{Diagnosis, Error, ImageChoice, Result, SandboxSpec, SnapshotId};

use crate::backend::State;
use crate::connected::Connected;
use crate::engine::{Committed, EngineError};
use crate::image::Resolved;
use crate::labels;

/// The snapshot that an image is of.
const SNAPSHOT: &str = "org.moltis.snapshot";

/// Variables that Podman gives each container by itself, and keeps with its root. They are none of the image's.
const OF_PODMAN: [&str; 3] = ["container=podman", "TERM=xterm", "HOSTNAME=sandbox"];

/// Whether what a command writes to the root stays there: the root of an image that packages were baked into is
/// read-only.
fn has_writable_root(spec: &SandboxSpec) -> bool {
    let finished = matches!(spec.image, Some(ImageChoice::Finished { .. }));
    let begun = spec.begins.as_ref().is_some_and(|begins| begins.root.is_some());
    finished || begun || spec.nested_podman.value
}

/// Repository of a data directory's snapshots in an engine, which is common to many data directories.
fn repository(prefix: &str, instance: &str) -> String {
    format!("localhost/{prefix}-snapshot-{instance}")
}

impl State {
    /// Keeps what was written to the root of a container that runs, if it can be written to.
    pub(crate) async fn commit(&self, spec: &SandboxSpec, snapshot: &SnapshotId) -> Result<Option<String>> {
        if !has_writable_root(spec) {
            return Ok(None);
        }
        let connected = self.connected().await?;
        let id = spec.id();
        let container = self.run().and_then(|run| run.record(&id)).map(|record| record.handle().to_owned());
        let container = container.ok_or_else(|| {
            Error::Unavailable(Diagnosis::new(
                "sandbox-gone",
                "the sandbox ended while its snapshot was taken",
            ))
        })?;
        let repository = repository(&self.config.prefix, connected.images.instance());
        let tag = snapshot.as_str();
        let pause = connected.info.can_pause();
        let image = Committed { repository: &repository, tag, label: (SNAPSHOT, tag), pause };
        match connected.engine.commit(&container, &image).await {
            Ok(()) => Ok(Some(format!("{repository}:{tag}"))),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Removes the image of a snapshot. One that is not ours, whatever its name, stays.
    pub(crate) async fn uncommit(&self, snapshot: &SnapshotId) -> Result<()> {
        let connected = self.connected().await?;
        let name = format!("{}:{snapshot}", repository(&self.config.prefix, connected.images.instance()));
        let Some(image) = connected.engine.image(&name).await? else { return Ok(()) };
        let is = |label, value: &str| image.labels.get(label).is_some_and(|said| said == value);
        if !is(labels::INSTANCE, connected.images.instance()) || !is(SNAPSHOT, snapshot.as_str()) {
            return Ok(());
        }
        match connected.engine.remove_image(&name).await {
            Ok(()) => Ok(()),
            Err(EngineError::Conflict { message }) => Err(Error::Refused(
                Diagnosis::new("snapshot-in-use", format!("a container is made of the snapshot {snapshot}"))
                    .cause(message)
                    .fix("end what uses it first: `moltis sandbox ps`, `moltis sandbox rm`"),
            )),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// What a sandbox starts from that begins from this image of a snapshot.
    pub(crate) async fn committed(&self, name: &str, connected: &Connected) -> Result<Resolved> {
        let Some(mut image) = connected.engine.image(name).await? else {
            return Err(Error::Unavailable(
                Diagnosis::new("snapshot-image-missing", format!("the engine has no image {name} any more"))
                    .cause("the session begins from a snapshot whose root was kept there")
                    .fix("begin from another snapshot, or from none: `moltis session restore KEY --none`"),
            ));
        };
        let facts = connected.images.look(&image).await?;
        image.env.retain(|variable| !OF_PODMAN.contains(&variable.as_str()));
        Ok(Resolved { image, facts, prebuilt: false })
    }
}
