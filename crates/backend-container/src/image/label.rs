//! Labels that images of ours, and the containers that look into images, carry.

/// `1` on every image that we built.
pub const IMAGE: &str = "org.moltis.image";
/// The base as it was named.
pub const BASE: &str = "org.moltis.image.base";
/// Id of the base.
pub const BASE_ID: &str = "org.moltis.image.base-id";
/// The packages and groups as they were written, with spaces between.
pub const PACKAGES: &str = "org.moltis.image.packages";
/// The packages that were installed, with spaces between.
pub const INSTALLED: &str = "org.moltis.image.installed";
/// What the tag is a hash of, as a hash.
pub const RECIPE: &str = "org.moltis.image.recipe";
/// `1` on a container that was made to look into an image. It is never started.
pub const LOOK: &str = "org.moltis.look";
pub use crate::labels::INSTANCE;
