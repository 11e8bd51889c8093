//! What earlier versions left in an engine.

use moltis_sandbox::{Legacy, Result};

use crate::engine::{Container, Engine};
use crate::labels;

/// How names of containers began in earlier versions.
const NAMES: [&str; 2] = ["moltis-sandbox-", "moltis-"];

/// Containers with a label of an earlier version and none of ours, and those that merely have a likely name.
///
/// # Errors
/// Those of the engine.
pub async fn list(engine: &dyn Engine) -> Result<Vec<Legacy>> {
    let mut found: Vec<Legacy> = Vec::new();
    for container in engine.containers(&[]).await? {
        if container.labels.contains_key(labels::INSTANCE) {
            continue;
        }
        let why = match label_of(&container) {
            Some(label) => (format!("it has the label {label}"), true),
            None if NAMES.iter().any(|name| container.name.starts_with(name)) => {
                ("its name is like those of an earlier version".to_owned(), false)
            }
            None => continue,
        };
        let Container { id, name, .. } = container;
        found.push(Legacy { id, name, why: why.0, ours_by_label: why.1 });
    }
    Ok(found)
}

fn label_of(container: &Container) -> Option<&'static str> {
    labels::LEGACY.into_iter().find(|label| container.labels.contains_key(*label))
}

/// Removes one that was listed, unless it turns out to be a sandbox of ours, or not to bear the label any more.
///
/// # Errors
/// Those of the engine.
pub async fn discard(engine: &dyn Engine, legacy: &Legacy) -> Result<()> {
    let Some(container) = engine.inspect(&legacy.id).await? else { return Ok(()) };
    let is_same = container.id == legacy.id && !container.labels.contains_key(labels::INSTANCE);
    if is_same && (!legacy.ours_by_label || label_of(&container).is_some()) {
        engine.remove(&container.id).await?;
    }
    Ok(())
}
