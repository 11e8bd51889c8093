//! Which images are ours, and which of them nobody needs any more.

use std::collections::BTreeSet;

use moltis_sandbox::{Cleaned, Diagnosis, Error, ImageChoice, ImageInfo, Result, blocking};

use super::facts;
use super::recipe::repository;
use super::store::ImageStore;
use super::{label, packages, reference};
use crate::engine::{Container, EngineError, EngineKind, Image};

/// Containers that are named at most.
const NAMED: usize = 8;

impl ImageStore {
    async fn ours(&self) -> Result<Vec<Image>> {
        let labels = [(label::IMAGE, "1"), (label::INSTANCE, self.0.place.instance.as_str())];
        let mut images = self.engine().images(&labels).await?;
        images.sort_by(|a, b| (b.created_secs, &b.id).cmp(&(a.created_secs, &a.id)));
        images.dedup_by(|a, b| a.id == b.id);
        Ok(images)
    }

    /// Ids of the images that containers of whoever's are made of.
    async fn used(&self) -> Result<BTreeSet<String>> {
        Ok(self.engine().containers(&[]).await?.into_iter().map(|container| container.image).collect())
    }

    /// Our images, newest first.
    pub(super) async fn listed(&self) -> Result<Vec<ImageInfo>> {
        let images = self.ours().await?;
        let used = if images.is_empty() { BTreeSet::new() } else { self.used().await? };
        Ok(images.iter().map(|image| info(image, used.contains(&image.id))).collect())
    }

    /// Removes one of our images by its tag, by the part of that behind the colon, or by its id.
    pub(super) async fn removed(&self, tag: &str) -> Result<()> {
        let name = match tag.contains([':', '/', '@']) {
            true => tag.to_owned(),
            false => format!("{}:{tag}", repository(&self.0.place.prefix)),
        };
        reference::see(&name)?;
        let Some(image) = self.engine().image(&name).await? else {
            return Err(Error::Invalid(
                Diagnosis::new("image-missing", format!("there is no image {name}"))
                    .fix("`moltis sandbox list` names those that there are"),
            ));
        };
        let is = |name, value: &str| image.labels.get(name).is_some_and(|label| label == value);
        if !is(label::IMAGE, "1") || !is(label::INSTANCE, &self.0.place.instance) {
            let engine = self.engine().kind();
            let fix = match engine {
                EngineKind::Docker => format!("docker image rm {name}"),
                EngineKind::Podman => format!("podman image rm {name}"),
                EngineKind::Apple => format!("container image delete {name}"),
            };
            return Err(Error::Refused(
                Diagnosis::new(
                    "image-not-ours",
                    format!("the image {name} was not built for this data directory"),
                )
                .cause("it has no label that says so")
                .fix(format!("if you are sure, remove it by {engine} itself: {fix}")),
            ));
        }
        let users: Vec<_> = self.users(&image.id).await?;
        if !users.is_empty() {
            return Err(in_use(&name, &users.join(", ")));
        }
        match self.engine().remove_image(&name).await {
            Ok(()) => {}
            Err(EngineError::Conflict { message }) => return Err(in_use(&name, &message)),
            Err(error) => return Err(error.into()),
        }
        self.forget(&image.id).await;
        Ok(())
    }

    /// The containers that are made of an image, by what people know them by.
    async fn users(&self, id: &str) -> Result<Vec<String>> {
        let all = self.engine().containers(&[]).await?;
        let mut names: Vec<_> = all.iter().filter(|container| container.image == id).map(known_as).collect();
        names.sort();
        if names.len() > NAMED {
            let more = names.len() - NAMED;
            names.truncate(NAMED);
            names.push(format!("{more} more"));
        }
        Ok(names)
    }

    /// Removes those of our images that are not what one of these would start from, and that no container uses.
    pub(super) async fn cleaned(&self, in_use: &[ImageChoice]) -> Result<Cleaned> {
        let ours = self.ours().await?;
        let mut wanted = Vec::new();
        for choice in in_use.iter().filter(|choice| !choice.packages().is_empty()) {
            wanted.push(self.wanted(choice).await?);
        }
        let used = if ours.is_empty() { BTreeSet::new() } else { self.used().await? };
        let mut cleaned = Cleaned::default();
        for image in ours {
            let names = if image.tags.is_empty() { vec![image.id.clone()] } else { image.tags.clone() };
            let named = in_use.iter().any(|choice| {
                let name = &choice.reference().value;
                *name == image.id || image.tags.contains(&reference::with_tag(name))
            });
            if named || used.contains(&image.id) || wanted.iter().any(|wanted| wanted.is(&image)) {
                cleaned.kept.extend(names);
                continue;
            }
            let mut gone = true;
            for name in names {
                match self.engine().remove_image(&name).await {
                    Ok(()) => cleaned.removed.push(name),
                    // A container was made of it meanwhile.
                    Err(EngineError::Conflict { .. }) => {
                        gone = false;
                        cleaned.kept.push(name);
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            if gone {
                cleaned.freed_bytes = cleaned.freed_bytes.saturating_add(image.size_bytes);
                self.forget(&image.id).await;
            }
        }
        Ok(cleaned)
    }

    async fn wanted(&self, choice: &ImageChoice) -> Result<Wanted> {
        let (name, written) = (choice.reference().value.clone(), choice.packages().to_vec());
        packages::see(&written)?;
        // Apple's is given what other engines built, whose ids are not its own.
        if self.engine().kind() != EngineKind::Apple
            && let Some(base) = self.engine().image(&name).await?
        {
            return Ok(Wanted::Tag(self.recipe(&name, &base, &written).tag()));
        }
        // The base is gone: whatever was built on it may be all that is left of it.
        Ok(Wanted::Labels { base: name, packages: written.join(" ") })
    }

    async fn forget(&self, id: &str) {
        let (data_dir, id) = (self.0.place.data_dir.clone(), id.to_owned());
        // What is not forgotten takes a few kilobytes.
        let _ = blocking::short(move || facts::forget(&data_dir, &id)).await;
    }
}

/// What a session would start from.
enum Wanted {
    Tag(String),
    Labels { base: String, packages: String },
}

impl Wanted {
    fn is(&self, image: &Image) -> bool {
        match self {
            Self::Tag(tag) => image.tags.contains(tag),
            Self::Labels { base, packages } => {
                image.labels.get(label::BASE) == Some(base)
                    && image.labels.get(label::PACKAGES) == Some(packages)
            }
        }
    }
}

fn info(image: &Image, in_use: bool) -> ImageInfo {
    let label = |name| image.labels.get(name).cloned().unwrap_or_default();
    ImageInfo {
        tag: image.tags.first().unwrap_or(&image.id).clone(),
        id: image.id.clone(),
        size_bytes: image.size_bytes,
        created_secs: image.created_secs,
        packages: label(label::INSTALLED).split_whitespace().map(str::to_owned).collect(),
        base: label(label::BASE),
        in_use,
    }
}

/// A sandbox by its id, another container by its name.
fn known_as(container: &Container) -> String {
    match container.labels.get(crate::labels::SESSION) {
        Some(id) => format!("sandbox {:.12}", id),
        None if container.name.is_empty() => format!("container {:.12}", container.id),
        None => format!("container {}", container.name),
    }
}

fn in_use(name: &str, users: &str) -> Error {
    Error::Refused(
        Diagnosis::new("image-in-use", format!("the image {name} is in use"))
            .cause(users.to_owned())
            .fix("end what uses it first: `moltis sandbox ps`, `moltis sandbox rm`"),
    )
}
