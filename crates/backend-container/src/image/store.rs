//! The images of one engine, for one data directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use moltis_sandbox::{
    BuildRequest, BuildSink, BuiltImage, Cleaned, Error, ImageChoice, ImageInfo, Images, Result, blocking,
};
use sha2::{Digest, Sha256};
use tokio::sync::OnceCell;

use super::build::Ready;
use super::facts::{self, ImageFacts};
use super::look::{self, Look};
use super::pending::Pending;
use super::shared::Runs;
use super::{label, recipe};
use crate::engine::{Engine, EngineError, Image};

/// Time in which what was made for a moment is removed again.
const SETTLING: Duration = Duration::from_secs(10);

/// Whose images they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The data directory.
    pub data_dir: PathBuf,
    /// What stands for it in labels.
    pub instance: String,
    /// First part of the names of containers and images.
    pub prefix: String,
}

/// The images of one engine, for one data directory. Clones share what is under way.
#[derive(Clone)]
pub struct ImageStore(pub(super) Arc<Shared>);

/// What is under way. Stores that have it in common, whatever their handles on an engine, share work.
#[derive(Clone, Default)]
pub struct Work {
    pub(super) runs: Runs<Ready>,
    looks: Runs<ImageFacts>,
    pending: Pending,
}

pub(super) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub place: Place,
    /// Engines that build for this one, best first.
    pub builders: Vec<ImageStore>,
    pub work: Work,
    arch: OnceCell<String>,
}

impl ImageStore {
    /// The images of this engine. Nothing is asked yet.
    pub fn new(engine: Arc<dyn Engine>, place: Place, work: Work) -> Self {
        Self(Arc::new(Shared { engine, place, builders: Vec::new(), work, arch: OnceCell::new() }))
    }

    /// What stands for the data directory in labels.
    pub fn instance(&self) -> &str {
        &self.0.place.instance
    }

    /// The same, for whom others build, if one of them is usable: it is given what they built.
    #[must_use]
    pub fn with_builders(self, builders: Vec<Arc<dyn Engine>>) -> Self {
        let Shared { engine, place, work, .. } = &*self.0;
        let store = |engine| Self::new(engine, place.clone(), work.clone());
        let builders = builders.into_iter().map(store).collect();
        let (engine, place, work) = (Arc::clone(engine), place.clone(), work.clone());
        Self(Arc::new(Shared { engine, place, builders, work, arch: self.0.arch.clone() }))
    }

    /// The same, of whose engine it is known already which architecture it has.
    #[must_use]
    pub fn with_arch(self, arch: &str) -> Self {
        // It may be known already.
        let _ = self.0.arch.set(arch.to_owned());
        self
    }

    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.0.engine
    }

    /// The engine's architecture, which does not change while it is there.
    pub(super) async fn arch(&self) -> Result<&str, EngineError> {
        let arch = self.0.arch.get_or_try_init(async || Ok(self.engine().info().await?.arch)).await?;
        Ok(arch)
    }

    /// What an image has in it: as it was found before, else found out now, without running anything of it, once for all
    /// who ask at the same time. Dropping the future lets that go on: it takes a moment, and removes what it made.
    ///
    /// # Errors
    /// Those of the engine.
    pub async fn look(&self, image: &Image) -> Result<ImageFacts> {
        let (data_dir, id) = (self.0.place.data_dir.clone(), image.id.clone());
        if let Ok(Some(known)) = blocking::short(move || facts::load(&data_dir, &id)).await {
            return Ok(known);
        }
        let (store, id, piece) = (self.clone(), image.id.clone(), self.0.work.pending.begin());
        let key = format!("{} {id}", self.engine().endpoint());
        let looking = tokio::spawn(async move {
            let _piece = piece;
            let looks = store.0.work.looks.clone();
            looks.join(key, &BuildSink::ignore(), |_| async move { store.look_now(&id).await }).await.0
        });
        looking.await.unwrap_or_else(|error| {
            Err(EngineError::Answer { engine: self.engine().kind(), message: error.to_string() }.into())
        })
    }

    async fn look_now(&self, id: &str) -> Result<ImageFacts> {
        let Place { data_dir, instance, prefix } = &self.0.place;
        let (now, number) = now();
        let labels = [(label::LOOK, "1"), (label::INSTANCE, instance.as_str())];
        // What is left there is no reason not to look.
        if let Err(error) = look::sweep(self.engine(), &labels, now).await {
            tracing::debug!(%error, "containers that were made to look cannot be swept");
        }
        let name = format!("{prefix}-look-{:.16}", recipe::hex(&Sha256::digest(format!("{id} {number}"))));
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let facts = look::look(&self.0.engine, id, Look { name, labels }).await?;
        let (data_dir, id, found) = (data_dir.clone(), id.to_owned(), facts.clone());
        match blocking::short(move || facts::save(&data_dir, &id, &found)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "what an image has in it cannot be kept"),
            Err(error) => tracing::warn!(%error, "what an image has in it cannot be kept"),
        }
        Ok(facts)
    }
}

impl Work {
    /// Waits until what calls made for a moment, also such calls as were given up, is removed again; for this long at
    /// most. Whether it is.
    pub async fn settled(&self, patience: Duration) -> bool {
        self.pending.settled(patience).await
    }
}

/// Seconds since 1970, and something that no other call of any process has.
pub(super) fn now() -> (u64, String) {
    use std::sync::atomic::{AtomicU64, Ordering};

    static NEXT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    (since.as_secs(), format!("{}-{}-{number}", since.as_nanos(), std::process::id()))
}

#[async_trait]
impl Images for ImageStore {
    async fn is_ready(&self, image: &ImageChoice) -> Result<bool> {
        Ok(self.found(image).await?.is_some())
    }

    async fn build(&self, request: &BuildRequest, progress: &BuildSink) -> Result<BuiltImage> {
        let Ready { image, reference, new } = self.ensure(&request.image, request.fresh, progress).await?;
        Ok(BuiltImage { tag: reference, id: image.id, new })
    }

    async fn list(&self) -> Result<Vec<ImageInfo>> {
        self.listed().await
    }

    async fn remove(&self, tag: &str) -> Result<()> {
        self.removed(tag).await
    }

    async fn clean(&self, in_use: &[ImageChoice]) -> Result<Cleaned> {
        self.cleaned(in_use).await
    }

    async fn settled(&self) {
        self.0.work.settled(SETTLING).await;
    }

    async fn check(&self, reference: &str) -> Result<()> {
        super::reference::see(reference)?;
        match self.engine().image(reference).await.map_err(Error::from)? {
            Some(image) => self.see_platform(reference, &image).await,
            None => Ok(()),
        }
    }
}
