//! What a caller of the API may ask of a sandbox: what takes isolation away needs `operator.admin`, images must be among
//! those that are allowed, and folders of the host lie beneath those that are named for the API.

use std::path::Path;

use moltis_config::BackendChoice;
use moltis_config::value::image::ImageReference;
use moltis_runtime::Runtime;
use moltis_runtime::store::KeyScope;
use moltis_sandbox::{BackendName, Network};

use crate::identity::Identity;
use crate::problem::Problem;

/// What is asked for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked<'a> {
    /// Whether there is to be a sandbox at all.
    pub enabled: Option<bool>,
    /// The backend.
    pub backend: Option<BackendChoice>,
    /// The network.
    pub network: Option<Network>,
    /// A finished image.
    pub image: Option<&'a ImageReference>,
    /// A folder of the host.
    pub workspace: Option<&'a Path>,
}

/// Sees that a caller may ask for this.
///
/// # Errors
/// `admin-needed`, `image-not-allowed`, `workspace-not-allowed`.
pub async fn see(runtime: &Runtime, who: &Identity, asked: Asked<'_>) -> Result<(), Problem> {
    if who.is_owner() {
        return Ok(());
    }
    if !who.has(KeyScope::Admin) {
        let host = |choice: BackendChoice| {
            matches!(choice, BackendChoice::Named(BackendName::None | BackendName::RestrictedHost))
        };
        let needs = [
            (asked.enabled == Some(false), "sandboxEnabled = false"),
            (asked.backend.is_some_and(host), "a backend that runs on the host"),
            (asked.network == Some(Network::Open), "network `open`"),
        ];
        if let Some((_, what)) = needs.into_iter().find(|(asked, _)| *asked) {
            return Err(Problem::forbidden(
                "admin-needed",
                format!("{what} needs a key with `operator.admin`"),
            )
            .cause("it takes isolation away from every command that follows")
            .fix("ask whoever runs the gateway to set it"));
        }
        if let Some(image) = asked.image {
            see_image(runtime, image)?;
        }
    }
    match asked.workspace {
        Some(folder) => see_folder(runtime, folder).await,
        None => Ok(()),
    }
}

fn see_image(runtime: &Runtime, image: &ImageReference) -> Result<(), Problem> {
    let allowed = &runtime.config().tools.exec.sandbox.allowed_images.value;
    if allowed.is_empty() || allowed.iter().any(|pattern| pattern.covers(image.as_str().as_bytes())) {
        return Ok(());
    }
    let allowed: Vec<_> = allowed.iter().map(ToString::to_string).collect();
    Err(Problem::forbidden(
        "image-not-allowed",
        format!("the image {image} is not among those that are allowed"),
    )
    .fix(format!("use one of {}", allowed.join(", "))))
}

/// A folder of the host lies beneath one of `workspace_roots`, wherever links lead.
///
/// # Errors
/// `workspace-not-allowed`.
pub async fn see_folder(runtime: &Runtime, folder: &Path) -> Result<(), Problem> {
    let roots = runtime.config().gateway.workspace_roots.value.clone();
    let shown = folder.display().to_string();
    let folder = folder.to_owned();
    let looked = tokio::task::spawn_blocking(move || {
        let place = folder.canonicalize().ok()?;
        let is_beneath =
            |root: &std::path::PathBuf| root.canonicalize().is_ok_and(|root| place.starts_with(root));
        roots.iter().any(is_beneath).then_some(())
    });
    match looked.await {
        Ok(Some(())) => Ok(()),
        // One that is missing is told from one that is elsewhere to nobody.
        _ => Err(Problem::forbidden(
            "workspace-not-allowed",
            format!("{shown} is beneath no folder that callers of the API may name"),
        )
        .fix("name a folder beneath one of `workspace_roots` in [gateway], or add one there")),
    }
}
