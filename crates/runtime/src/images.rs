//! Images of all backends: built when somebody asks for it, listed, and removed when nobody needs them.

use std::sync::Arc;

use moltis_config::BackendChoice;
use moltis_config::value::image::ImageReference;
use moltis_sandbox::{
    Backend, BackendName, BuildRequest, BuildSink, BuiltImage, Detection, Diagnosis, Error, ImageChoice,
    ImageInfo, Images, Lifetime, Prepared, Result, Setting,
};

use crate::error::RuntimeError;
use crate::failover::Asks;
use crate::image::build;
use crate::runtime::{Runtime, ephemeral_key, host_memory};
use crate::settings::{self, Overrides};

/// What image is to be made ready, and for what.
#[derive(Clone, Debug, Default)]
pub struct BuildRequested {
    /// The backend; absent: the one that a command would run on.
    pub backend: Option<Setting<BackendChoice>>,
    /// A base instead of the configuration's.
    pub base: Option<Setting<ImageReference>>,
    /// Fetch and build although it is there.
    pub fresh: bool,
}

/// What came of making an image ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildOutcome {
    /// For which backend.
    pub backend: BackendName,
    /// The image; absent: the backend has none.
    pub image: Option<BuiltImage>,
    /// Programs that were made ready.
    pub prepared: Vec<Prepared>,
}

/// An image, and what holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageOf<T> {
    /// The backend.
    pub backend: BackendName,
    /// The image.
    pub image: T,
}

/// Images of all backends that could be asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImagesListed {
    /// Those that we built, by backend, newest first.
    pub images: Vec<ImageOf<ImageInfo>>,
    /// Why others could not be asked.
    pub unasked: Vec<Diagnosis>,
}

/// What a clean-up of images did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanedImages {
    /// Tags that were removed.
    pub removed: Vec<ImageOf<String>>,
    /// Tags that stay because a session or a container uses them.
    pub kept: Vec<ImageOf<String>>,
    /// Bytes that the removed ones took, shared layers counted.
    pub freed_bytes: u64,
    /// Why others could not be asked.
    pub unasked: Vec<Diagnosis>,
}

impl Runtime {
    /// Makes the configuration's image ready: fetches its base and builds its packages on it. Once whoever looks on goes
    /// away it is given up.
    ///
    /// # Errors
    /// Those of finding a backend, and of its images.
    pub async fn build_image(&self, asked: &BuildRequested, progress: &BuildSink) -> Result<BuildOutcome> {
        let overrides = Overrides { backend: asked.backend, ..Overrides::default() };
        let choice = settings::choice(self.config(), &overrides);
        let backend = match choice.value {
            BackendChoice::Named(name) => {
                let backend = self.registry().get(name).ok_or(RuntimeError::NotBuilt(name))?;
                if backend.images().is_some()
                    && let Detection::Unusable(why) | Detection::Failing(why) = backend.detect().await
                {
                    return Err(Error::Unavailable(why));
                }
                Arc::clone(backend)
            }
            BackendChoice::Auto => {
                let settings = self.settings(overrides.clone(), ephemeral_key(), Lifetime::Ephemeral).await?;
                let (asks, memory) = (Asks { choice, key: None }, host_memory());
                self.route_past(&asks, &[], |name| settings.on(name, memory)).await?.backend
            }
        };
        let name = backend.name();
        let prepared = backend.prepare(progress).await?;
        let Some(images) = backend.images() else {
            return Ok(BuildOutcome { backend: name, image: None, prepared });
        };
        let mut image = settings::image(self.config(), &Overrides::default());
        if let (ImageChoice::Base { reference, .. }, Some(base)) = (&mut image, &asked.base) {
            *reference = base.clone().map(|base| base.to_string());
        }
        let request = BuildRequest { image, fresh: asked.fresh };
        let image = build(images, &request, progress).await?;
        Ok(BuildOutcome { backend: name, image: Some(image), prepared })
    }

    /// The images that we built, of one backend or of all.
    ///
    /// # Errors
    /// Those of the backend that was named.
    pub async fn images(&self, of: Option<BackendName>) -> Result<ImagesListed> {
        let mut listed = ImagesListed::default();
        for (backend, images) in self.with_images(of)? {
            match images.list().await {
                Ok(found) => listed.images.extend(found.into_iter().map(|image| ImageOf { backend, image })),
                Err(error) => unasked(of, error, &mut listed.unasked)?,
            }
        }
        Ok(listed)
    }

    /// Removes an image that we built, from one backend or from whichever has it; says from which.
    ///
    /// # Errors
    /// `image-missing`, `image-not-ours`, `image-in-use`; those of the backends.
    pub async fn remove_image(&self, of: Option<BackendName>, tag: &str) -> Result<Vec<BackendName>> {
        let (mut removed, mut failed) = (Vec::new(), None);
        for (backend, images) in self.with_images(of)? {
            match images.remove(tag).await {
                Ok(()) => removed.push(backend),
                // Somebody else's is told only if no other engine has one of ours; that there is none, least of all.
                Err(error) if worse(&error) > failed.as_ref().map_or(0, worse) => failed = Some(error),
                Err(_) => {}
            }
        }
        match failed {
            Some(error) if removed.is_empty() || worse(&error) == IN_USE => Err(error),
            None if removed.is_empty() => Err(no_images(tag)),
            _ => Ok(removed),
        }
    }

    /// Removes the images that we built and that neither a session nor a container uses, of one backend or of all.
    ///
    /// # Errors
    /// Those of the backend that was named, and of the store.
    pub async fn clean_images(&self, of: Option<BackendName>) -> Result<CleanedImages> {
        let mut in_use: Vec<ImageChoice> = Vec::new();
        let mut last = None;
        loop {
            let page = self.sessions(last.as_ref()).await?;
            let Some(session) = page.last() else { break };
            last = Some(session.key.clone());
            for session in &page {
                let image = settings::image(self.config(), &crate::sessions::overrides(&session.overrides));
                if !in_use.contains(&image) {
                    in_use.push(image);
                }
            }
        }
        let mut cleaned = CleanedImages::default();
        for (backend, images) in self.with_images(of)? {
            match images.clean(&in_use).await {
                Ok(done) => {
                    let with =
                        |tags: Vec<String>| tags.into_iter().map(move |image| ImageOf { backend, image });
                    cleaned.removed.extend(with(done.removed));
                    cleaned.kept.extend(with(done.kept));
                    cleaned.freed_bytes = cleaned.freed_bytes.saturating_add(done.freed_bytes);
                }
                Err(error) => unasked(of, error, &mut cleaned.unasked)?,
            }
        }
        Ok(cleaned)
    }

    /// The backends that have images, or the one that is named, if it does.
    fn with_images(&self, of: Option<BackendName>) -> Result<Vec<(BackendName, &dyn Images)>> {
        if let Some(name) = of {
            self.registry().known(BackendChoice::Named(name))?;
        }
        let all = self.registry().all().iter().filter(|backend| of.is_none_or(|name| backend.name() == name));
        Ok(all.filter_map(|backend| Some((backend.name(), Backend::images(&**backend)?))).collect())
    }
}

/// Notes why a backend could not be asked, unless it is the one that was named. One that is not installed has no images.
fn unasked(of: Option<BackendName>, error: Error, unasked: &mut Vec<Diagnosis>) -> Result<()> {
    match of {
        Some(_) => return Err(error),
        None if error.code() == "engine-missing" => {}
        None => unasked.push(error.diagnosis().clone()),
    }
    Ok(())
}

const IN_USE: u32 = 4;

/// How much a failure to remove an image tells.
fn worse(error: &Error) -> u32 {
    match error.code() {
        "image-in-use" => IN_USE,
        "image-not-ours" => 3,
        "image-missing" => 2,
        _ => 1,
    }
}

fn no_images(tag: &str) -> Error {
    Error::Invalid(
        Diagnosis::new("image-missing", format!("there is no image {tag:?}: no backend here has images"))
            .fix("`moltis sandbox status` shows which backends there are"),
    )
}
