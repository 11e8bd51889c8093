//! Images of a backend that has them: built, pulled, listed, removed.

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{ImageChoice, Result};

/// Codes of [`Unavailable`](crate::Error::Unavailable) errors by which an image is absent and cannot be pulled, or cannot
/// be built. `auto` then goes on to another backend that isolates as much.
pub const IMAGE_FAILURES: &[&str] = &["image-unavailable", "image-build-failed"];

/// What is to be made ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildRequest {
    /// A base on which packages are baked, or a finished image, which is pulled.
    pub image: ImageChoice,
    /// Build or pull although it is there.
    pub fresh: bool,
}

/// An image that is ready.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuiltImage {
    /// What a container is started from: our tag, or the finished image's reference.
    pub tag: String,
    /// The engine's id of it, a digest.
    pub id: String,
    /// Whether this call made or fetched it; otherwise it was there, or another call that it waited for did so.
    pub new: bool,
}

/// A program of the configuration that was made ready before it is first run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Prepared {
    /// Its name in the configuration.
    pub name: String,
    /// Whether this call made it ready; otherwise it was.
    pub new: bool,
}

/// One of our images.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageInfo {
    /// Its tag.
    pub tag: String,
    /// The engine's id of it, a digest.
    pub id: String,
    /// Bytes that it takes, shared layers counted.
    pub size_bytes: u64,
    /// When it was built, in seconds since 1970.
    pub created_secs: u64,
    /// What was baked on its base, groups spelled out.
    pub packages: Vec<String>,
    /// The base, as it was named.
    pub base: String,
    /// Whether a container uses it now.
    pub in_use: bool,
}

/// How a build goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildProgress {
    /// A part begins, such as `pulling docker.io/library/debian:12`.
    Step(String),
    /// A line that the build printed: hostile text, to be shown escaped, never to be judged by.
    Log(String),
    /// Bytes that were fetched so far, and how many there are if that is known.
    Fetched {
        /// So far.
        bytes: u64,
        /// In all.
        total: Option<u64>,
    },
}

/// Where progress goes. It is bounded: a build waits for whoever looks on. One that was dropped, or was made by
/// [`BuildSink::ignore`], keeps nobody waiting.
#[derive(Clone, Debug)]
pub struct BuildSink(Option<mpsc::Sender<BuildProgress>>);

impl BuildSink {
    /// Steps and lines that wait to be shown at most.
    pub const DEPTH: usize = 64;

    /// A sink and the end from which its progress is read.
    pub fn channel() -> (Self, mpsc::Receiver<BuildProgress>) {
        let (sender, receiver) = mpsc::channel(Self::DEPTH);
        (Self(Some(sender)), receiver)
    }

    /// A sink that nobody looks at.
    pub fn ignore() -> Self {
        Self(None)
    }

    /// Waits until whoever looked on has gone away; for ever where nobody ever did.
    pub async fn closed(&self) {
        match &self.0 {
            Some(sender) => sender.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Tells how it goes on.
    pub async fn tell(&self, progress: BuildProgress) {
        if let Some(sender) = &self.0 {
            // Nobody who looks on any more is no reason to stop: others may wait for the same image.
            let _ = sender.send(progress).await;
        }
    }
}

/// What a clean-up of images did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cleaned {
    /// Tags that were removed.
    pub removed: Vec<String>,
    /// Tags that stay because they are in use.
    pub kept: Vec<String>,
    /// Bytes that the removed images took, shared layers counted.
    pub freed_bytes: u64,
}

/// The images of a backend. Only images with our label are listed, removed or cleaned, whatever their names are.
#[async_trait]
pub trait Images: Send + Sync {
    /// Whether what a sandbox would start from is there, so that nothing need be built or pulled. It is cheap, and asks
    /// only the engine.
    ///
    /// # Errors
    /// Those of the engine.
    async fn is_ready(&self, image: &ImageChoice) -> Result<bool>;

    /// Builds the image of a base and its packages, or pulls a finished one. Concurrent builds of one tag share one.
    /// Dropping the future cancels the build unless others wait for it; a failed or cancelled one leaves no image.
    ///
    /// # Errors
    /// `Unavailable` with one of [`IMAGE_FAILURES`] when it cannot be built or pulled, naming the package that failed;
    /// `Refused` for a base on which nothing can be baked; those of the engine.
    async fn build(&self, request: &BuildRequest, progress: &BuildSink) -> Result<BuiltImage>;

    /// Our images, newest first.
    ///
    /// # Errors
    /// Those of the engine.
    async fn list(&self) -> Result<Vec<ImageInfo>>;

    /// Removes one of our images.
    ///
    /// # Errors
    /// `Invalid` with `image-missing` when there is none of this tag, `Refused` with `image-not-ours` for one of somebody
    /// else and with `image-in-use` while a container uses it.
    async fn remove(&self, tag: &str) -> Result<()>;

    /// Removes those of our images that are not what one of these would start from, and that no container uses.
    ///
    /// # Errors
    /// Those of the engine.
    async fn clean(&self, in_use: &[ImageChoice]) -> Result<Cleaned>;

    /// Waits, for some seconds at most, until what calls that were given up had made for a moment is removed again.
    async fn settled(&self) {}

    /// Whether a finished image could be used, as far as that can be told without fetching it: one that is there is
    /// looked into, one that is not is no reason to refuse.
    ///
    /// # Errors
    /// `Refused` or `Invalid` for one that cannot be used here, such as one of another architecture.
    async fn check(&self, reference: &str) -> Result<()>;
}
