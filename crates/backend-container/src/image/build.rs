//! Making sure that what a sandbox starts from is there: what is missing is pulled, and built.

use moltis_sandbox::{BuildSink, Error, ImageChoice, Result, blocking};

use super::facts::ImageFacts;
use super::progress::{Listener, Teller};
use super::recipe::Recipe;
use super::store::{self, ImageStore};
use super::{error, facts, label, lock, packages, reference};
use crate::engine::{EngineError, EngineKind, Image};

/// An image that a container can be started from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ready {
    /// As the engine has it.
    pub image: Image,
    /// What it is called: our tag, or the reference that was named.
    pub reference: String,
    /// Whether this call made or fetched it; otherwise it was there, or another call that it waited for did so.
    pub new: bool,
}

/// An image that a container can be started from, and what is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// As the engine has it.
    pub image: Image,
    /// Whether it is a base of the configuration with what was baked on it, whose files no sandbox changes.
    pub prebuilt: bool,
    /// What it has in it.
    pub facts: ImageFacts,
}

impl ImageStore {
    /// What a sandbox starts from, pulled or built if it is not there, and looked into.
    ///
    /// # Errors
    /// As [`ensure`](Self::ensure).
    pub async fn resolve(&self, choice: &ImageChoice, progress: &BuildSink) -> Result<Resolved> {
        let Ready { image, .. } = self.ensure(choice, false, progress).await?;
        let facts = self.look(&image).await?;
        Ok(Resolved { image, prebuilt: matches!(choice, ImageChoice::Base { .. }), facts })
    }

    /// What a sandbox starts from, pulled or built if it is not there, or anyway if it is to be `fresh`. Calls for the
    /// same share the work; dropping the last of them ends it.
    ///
    /// # Errors
    /// `Invalid` for what is no reference or no package; `Refused` with `image-no-package-manager` and
    /// `image-wrong-architecture`; `Unavailable` with `image-unavailable` where it cannot be fetched, with
    /// `image-build-failed` where a package cannot be installed, with `engine-disk-full`; those of the engine.
    pub async fn ensure(&self, choice: &ImageChoice, fresh: bool, progress: &BuildSink) -> Result<Ready> {
        see(choice)?;
        if !fresh && let Some(ready) = self.found(choice).await? {
            return Ok(ready);
        }
        let kind = matches!(choice, ImageChoice::Base { .. });
        // An engine that builds for another one shares its work, and must not wait for itself.
        let engine = (self.engine().kind(), self.engine().endpoint());
        let key = format!("{engine:?} {kind} {fresh} {} {:?}", choice.reference().value, choice.packages());
        let work = |teller| {
            let (store, choice) = (self.clone(), choice.clone());
            async move { store.make(&choice, fresh, &teller).await }
        };
        let (ready, began) = self.0.work.runs.join(key, progress, work).await;
        ready.map(|ready| Ready { new: ready.new && began, ..ready })
    }

    /// What a sandbox starts from, if it is there. Asks only the engine.
    ///
    /// # Errors
    /// As [`ensure`](Self::ensure), as far as that can be known.
    pub async fn found(&self, choice: &ImageChoice) -> Result<Option<Ready>> {
        see(choice)?;
        let name = &choice.reference().value;
        let packages = choice.packages();
        if self.engine().kind() == EngineKind::Apple && !packages.is_empty() {
            return self.found_by_labels(name, packages).await;
        }
        let Some(image) = self.engine().image(name).await? else { return Ok(None) };
        self.see_platform(name, &image).await?;
        if packages.is_empty() {
            return Ok(Some(Ready { image, reference: name.clone(), new: false }));
        }
        let recipe = self.recipe(name, &image, packages);
        self.built(&recipe).await
    }

    /// The image of a recipe, if it is there and was made by it.
    async fn built(&self, recipe: &Recipe<'_>) -> Result<Option<Ready>> {
        let tag = recipe.tag();
        let image = self.engine().image(&tag).await?;
        let ours = |image: &Image| {
            let is = |name, value: &str| image.labels.get(name).is_some_and(|label| label == value);
            is(label::IMAGE, "1") && is(label::BASE_ID, &recipe.image.id)
        };
        Ok(image.filter(ours).map(|image| Ready { image, reference: tag, new: false }))
    }

    /// The newest image of ours with these packages on a base of this name, whichever engine built it.
    async fn found_by_labels(&self, name: &str, packages: &[String]) -> Result<Option<Ready>> {
        let base = Image { arch: self.arch().await?.to_owned(), ..Image::default() };
        let hash = self.recipe(name, &base, packages).hash_by_name();
        let labels = [(label::IMAGE, "1"), (label::RECIPE, hash.as_str())];
        let newest = self.engine().images(&labels).await?.into_iter().max_by_key(|image| image.created_secs);
        Ok(newest.map(|image| {
            let reference = image.tags.first().unwrap_or(&image.id).clone();
            Ready { image, reference, new: false }
        }))
    }

    pub(super) fn recipe<'a>(
        &'a self,
        base: &'a str,
        image: &'a Image,
        packages: &'a [String],
    ) -> Recipe<'a> {
        Recipe { base, image, packages, prefix: &self.0.place.prefix }
    }

    async fn make(&self, choice: &ImageChoice, fresh: bool, teller: &Teller) -> Result<Ready> {
        let (name, packages) = (&choice.reference().value, choice.packages());
        if !packages.is_empty()
            && self.engine().kind() == EngineKind::Apple
            && let Some(ready) = self.by_others(choice, fresh, teller).await?
        {
            return Ok(ready);
        }
        let (base, fetched) = self.present(choice, fresh, teller).await?;
        self.see_platform(name, &base).await?;
        if packages.is_empty() {
            return Ok(Ready { image: base, reference: name.clone(), new: fetched });
        }
        let recipe = self.recipe(name, &base, packages);
        let _lock = self.lock(&recipe, teller).await?;
        // Somebody else may have built it meanwhile.
        if !fresh && let Some(ready) = self.built(&recipe).await? {
            return Ok(ready);
        }
        teller.step(format!("looking into {name}"));
        let found = self.look(&base).await?;
        let Some(manager) = found.manager.filter(|_| found.has_shell) else {
            return Err(error::no_manager(name, &found.os_release.name, packages));
        };
        let nonce = if fresh { format!("-{}", store::now().1) } else { String::new() };
        let from = self.known_as(name, &base);
        let build = recipe.build(manager, &self.0.place.instance, &from, &nonce)?;
        let installed = build.packages.clone();
        teller.step(format!("building {} on {name}", build.spec.tag));
        let listener = Listener::build(teller.clone(), installed, manager.program());
        if let Err(failed) = self.engine().build(&build.spec, &listener).await {
            let (mut markers, heard) = listener.heard();
            if let EngineError::BuildFailed { log, .. } = &failed {
                log.iter().for_each(|line| markers.read(line, &build.packages));
            }
            return Err(error::build(failed, name, &markers, &heard));
        }
        match self.built(&recipe).await? {
            Some(ready) => Ok(Ready { new: true, ..ready }),
            None => Err(error::vanished(&build.spec.tag)),
        }
    }

    /// The image that was named, and whether it was fetched now.
    async fn present(&self, choice: &ImageChoice, fresh: bool, teller: &Teller) -> Result<(Image, bool)> {
        let name = &choice.reference().value;
        let here = self.engine().image(name).await?;
        let cannot_be_pulled = name.starts_with("localhost/") || reference::is_id(name);
        match here {
            Some(image) if !fresh || cannot_be_pulled => return Ok((image, false)),
            // It may be an engine for which others fetch.
            None if self.load_from_others(name, teller).await? => {}
            _ => {
                teller.step(format!("pulling {name}"));
                self.engine().pull(name, &Listener::pull(teller.clone())).await?;
            }
        }
        let image = self.engine().image(name).await?;
        image.map(|image| (image, true)).ok_or_else(|| error::vanished(name))
    }

    /// What the engine finds a base by when it builds: its id, so that it is the one that was looked into. Apple's knows
    /// images by name only.
    fn known_as(&self, name: &str, image: &Image) -> String {
        match self.engine().kind() {
            EngineKind::Docker | EngineKind::Podman => image.id.clone(),
            EngineKind::Apple => image.digests.first().map_or(name, String::as_str).to_owned(),
        }
    }

    /// Sees that the engine can run what is in an image.
    pub(super) async fn see_platform(&self, name: &str, image: &Image) -> Result<()> {
        let arch = self.arch().await?;
        if image.os == "linux" && image.arch == arch {
            return Ok(());
        }
        Err(error::wrong_platform(name, &image.os, &image.arch, self.engine().kind(), arch))
    }

    async fn lock(&self, recipe: &Recipe<'_>, teller: &Teller) -> Result<lock::Lock> {
        let data_dir = self.0.place.data_dir.clone();
        let folder = blocking::short(move || facts::make_folder(&data_dir)).await;
        let folder = folder.unwrap_or_else(|broke| Err(std::io::Error::other(broke)));
        let folder = folder.map_err(|error| error::folder(&error))?;
        let file =
            folder.join(format!("{:?}-{:.32}.lock", self.engine().kind(), recipe.hash()).to_lowercase());
        let waiting = || teller.step("waiting for another build of this image");
        lock::take(&file, waiting).await.map_err(|error| error::folder(&error))
    }
}

/// Sees that what is asked for can be right.
pub(super) fn see(choice: &ImageChoice) -> Result<()> {
    reference::see(&choice.reference().value)?;
    packages::see(choice.packages())
}

/// Whether an error says that an engine cannot be used now, so that another one may be asked.
pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error.code(), "engine-missing" | "engine-unreachable" | "engine-permission" | "engine-slow")
}
