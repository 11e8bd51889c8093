//! The images of a backend's engine, whichever it is by the time that somebody asks.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_sandbox::{
    BuildRequest, BuildSink, BuiltImage, Cleaned, Diagnosis, Error, ImageChoice, ImageInfo, Images, Result,
    SandboxSpec,
};

use crate::backend::State;
use crate::connected::Connected;
use crate::image::{ImageStore, Resolved};

/// The images of the engine that the backend finds.
pub struct EngineImages(pub(crate) Arc<State>);

impl EngineImages {
    async fn store(&self) -> Result<ImageStore> {
        Ok(self.0.connected().await?.images.clone())
    }
}

impl State {
    /// What a sandbox of this spec starts from. It is here already.
    ///
    /// # Errors
    /// `image-unavailable`; those of the engine.
    pub(crate) async fn image(&self, spec: &SandboxSpec, connected: &Connected) -> Result<Resolved> {
        if let Some(name) = spec.begins.as_ref().and_then(|begins| begins.root.as_ref()) {
            return self.committed(name, connected).await;
        }
        let choice = spec.image.as_ref().ok_or_else(|| {
            Error::Invalid(Diagnosis::new("image-missing", "nothing says what a container starts from"))
        })?;
        let Some(ready) = connected.images.found(choice).await? else {
            let name = &choice.reference().value;
            return Err(Error::Unavailable(
                Diagnosis::new("image-unavailable", format!("there is no image for {name}"))
                    .fix("moltis sandbox build"),
            ));
        };
        let facts = connected.images.look(&ready.image).await?;
        let prebuilt = matches!(choice, ImageChoice::Base { .. });
        Ok(Resolved { image: ready.image, facts, prebuilt })
    }
}

#[async_trait]
impl Images for EngineImages {
    async fn is_ready(&self, image: &ImageChoice) -> Result<bool> {
        self.store().await?.is_ready(image).await
    }

    async fn build(&self, request: &BuildRequest, progress: &BuildSink) -> Result<BuiltImage> {
        self.store().await?.build(request, progress).await
    }

    async fn list(&self) -> Result<Vec<ImageInfo>> {
        self.store().await?.list().await
    }

    async fn remove(&self, tag: &str) -> Result<()> {
        self.store().await?.remove(tag).await
    }

    async fn clean(&self, in_use: &[ImageChoice]) -> Result<Cleaned> {
        self.store().await?.clean(in_use).await
    }

    async fn settled(&self) {
        if let Ok(store) = self.store().await {
            Images::settled(&store).await;
        }
    }

    async fn check(&self, reference: &str) -> Result<()> {
        self.store().await?.check(reference).await
    }
}
