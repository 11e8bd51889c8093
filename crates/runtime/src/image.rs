//! Images that sandboxes start from: made ready before a sandbox is opened, so that whoever waits sees it happen.

use moltis_config::BackendChoice;
use moltis_config::value::image::ImageReference;
use moltis_sandbox::{
    BuildRequest, BuildSink, BuiltImage, Detection, Diagnosis, Error, Images, Lifetime, Result, SessionKey,
};

use crate::failover::Asks;
use crate::router::Route;
use crate::runtime::{Runtime, ephemeral_key, host_memory};
use crate::settings::Overrides;
use crate::store::{Patch, SessionPatch};
use crate::{sessions, settings};

/// Builds or fetches the image of a route that is not there yet. Nothing else waits for it: no lock is held meanwhile.
///
/// # Errors
/// Those of the backend; `image-unavailable` and `image-build-failed` when it cannot be had;
/// `image-build-cancelled` when whoever looked on has gone away.
pub(crate) async fn make_ready(route: &Route, progress: &BuildSink) -> Result<()> {
    let (Some(images), Some(image)) = (route.backend.images(), &route.spec.image) else { return Ok(()) };
    if has_root_of_its_own(route) {
        return Ok(());
    }
    if images.is_ready(image).await? {
        return Ok(());
    }
    let request = BuildRequest { image: image.clone(), fresh: false };
    build(images, &request, progress).await.map(drop)
}

/// Builds as long as somebody looks on.
pub(crate) async fn build(
    images: &dyn Images,
    request: &BuildRequest,
    progress: &BuildSink,
) -> Result<BuiltImage> {
    tokio::select! {
        biased;
        () = progress.closed() => {}
        built = images.build(request, progress) => return built,
    }
    images.settled().await;
    let name = &request.image.reference().value;
    Err(Error::Unavailable(Diagnosis::new(
        "image-build-cancelled",
        format!("the work on {name} was given up"),
    )))
}

/// Whether a sandbox could be opened at once, as far as its image goes.
///
/// # Errors
/// Those of the backend.
pub(crate) async fn is_ready(route: &Route) -> Result<bool> {
    match (route.backend.images(), &route.spec.image) {
        (Some(images), Some(image)) if !has_root_of_its_own(route) => images.is_ready(image).await,
        _ => Ok(true),
    }
}

/// Whether it starts from what was kept of another sandbox's root, whatever became of its image.
fn has_root_of_its_own(route: &Route) -> bool {
    route.spec.begins.as_ref().is_some_and(|begins| begins.root.is_some())
}

impl Runtime {
    /// Whether a sandbox of its own could be opened at once, as far as its image goes. Nothing is built, fetched or opened.
    ///
    /// # Errors
    /// Those of finding a backend, and of its images.
    pub async fn is_image_ready(&self, overrides: &Overrides) -> Result<bool> {
        let asks = Asks { choice: settings::choice(self.config(), overrides), key: None };
        let settings = self.settings(overrides.clone(), ephemeral_key(), Lifetime::Ephemeral).await?;
        let memory = host_memory();
        let route = self.route_past(&asks, &[], |name| settings.on(name, memory)).await?;
        is_ready(&route).await
    }

    /// Sees whether the image that a session is about to name could be used, as far as its backend can tell now: with
    /// `auto` one that can use it is enough. What cannot be asked, or has no images, says nothing here.
    ///
    /// # Errors
    /// `Refused` or `Invalid` for an image that cannot be used.
    pub(crate) async fn check_image(&self, key: &SessionKey, patch: &SessionPatch) -> Result<()> {
        let Patch::Set(image) = &patch.sandbox_image else { return Ok(()) };
        let BackendChoice::Named(name) = self.choice_after(key, patch).await? else {
            return self.check_image_on_any(image).await;
        };
        let Some(images) = self.registry().get(name).and_then(|backend| backend.images()) else {
            return Ok(());
        };
        told(images.check(image.as_str()).await)
    }

    /// The backend that a session would ask for once it is changed.
    async fn choice_after(&self, key: &SessionKey, patch: &SessionPatch) -> Result<BackendChoice> {
        let stored = self.session(key).await?.map(|session| session.overrides).unwrap_or_default();
        let mut overrides = sessions::overrides(&stored);
        match &patch.sandbox_backend {
            Patch::Set(choice) => {
                overrides.backend =
                    Some(moltis_sandbox::Setting::new(*choice, moltis_sandbox::Origin::Session));
            }
            Patch::Clear => overrides.backend = None,
            Patch::Keep => {}
        }
        Ok(settings::choice(self.config(), &overrides).value)
    }

    async fn check_image_on_any(&self, image: &ImageReference) -> Result<()> {
        let mut refused = Ok(());
        for backend in self.registry().all().iter().filter(|backend| backend.name().in_auto()) {
            let Some(images) = backend.images() else { continue };
            if !matches!(backend.detect().await, Detection::Usable(_)) {
                continue;
            }
            match told(images.check(image.as_str()).await) {
                Ok(()) => return Ok(()),
                Err(error) if refused.is_ok() => refused = Err(error),
                Err(_) => {}
            }
        }
        refused
    }
}

/// What says something of the image, not of the engine at this moment.
fn told(checked: Result<()>) -> Result<()> {
    match checked {
        Err(error @ (Error::Refused(_) | Error::Invalid(_))) => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::BackendName::{Docker, Namespaces};

    use super::*;
    use crate::fakes::Machine;
    use crate::store::Caller;

    #[tokio::test]
    async fn an_image_is_checked_when_it_is_set_as_far_as_that_can_be_told() {
        let machine = Machine::new(&[Docker, Namespaces], BackendChoice::Auto);
        let runtime = machine.start().await;
        let key = SessionKey::new("s").unwrap();
        let set = async |json: serde_json::Value| {
            let patch: SessionPatch = serde_json::from_value(json).unwrap();
            let done = runtime.set_session(&key, patch, &Caller::this_user()).await;
            done.map(drop).map_err(|error| error.code().to_owned())
        };
        let wrong = || Err("image-wrong-architecture".to_owned());
        assert_eq!(set(serde_json::json!({ "sandboxImage": "wrong:arch" })).await, wrong());
        assert_eq!(runtime.session(&key).await.unwrap(), None);
        assert_eq!(set(serde_json::json!({ "sandboxImage": "debian:12" })).await, Ok(()));
        assert_eq!(
            set(serde_json::json!({ "sandboxImage": "wrong:arch", "sandboxBackend": "docker" })).await,
            wrong()
        );
        // One that has no images tells nothing; it refuses when a command is to run.
        assert_eq!(
            set(serde_json::json!({ "sandboxImage": "wrong:arch", "sandboxBackend": "namespaces" })).await,
            Ok(())
        );
        // Nor does one that does not answer.
        assert_eq!(set(serde_json::json!({ "sandboxBackend": null })).await, Ok(()));
        machine.down(Docker, true);
        assert_eq!(set(serde_json::json!({ "sandboxImage": "wrong:arch" })).await, Ok(()));
    }
}
