//! What an earlier program left in the engines: found by its labels and discarded, or by a likely name and only listed.

use moltis_sandbox::{BackendName, Legacy, Result};
use serde::Serialize;

use crate::runtime::Runtime;

/// Something that an earlier program left, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LegacyContainer {
    /// Which backend's engine holds it.
    pub backend: BackendName,
    /// What it is.
    #[serde(flatten)]
    pub legacy: Legacy,
}

impl Runtime {
    /// What an earlier program left in the engines that can be asked.
    pub async fn legacy(&self) -> Vec<LegacyContainer> {
        let mut all = Vec::new();
        for backend in self.registry().all() {
            match backend.legacy().await {
                Ok(found) => all.extend(
                    found.into_iter().map(|legacy| LegacyContainer { backend: backend.name(), legacy }),
                ),
                Err(error) => {
                    tracing::debug!(backend = %backend.name(), %error, "what is legacy cannot be listed")
                }
            }
        }
        all
    }

    /// Removes what an earlier program left, by its own label: for the start of a gateway, and for `prune`. Homes stay.
    /// What merely has a likely name is left alone. What cannot be removed now stays for the next time.
    pub async fn discard_legacy(&self) -> Vec<LegacyContainer> {
        let mut discarded = Vec::new();
        for found in self.legacy().await.into_iter().filter(|found| found.legacy.ours_by_label) {
            match self.discard(&found).await {
                Ok(()) => discarded.push(found),
                Err(error) => {
                    tracing::warn!(backend = %found.backend, name = found.legacy.name, %error, "a legacy container stays");
                }
            }
        }
        discarded
    }

    /// Removes one of those that [`legacy`](Self::legacy) found.
    ///
    /// # Errors
    /// Those of the backend.
    pub async fn discard(&self, found: &LegacyContainer) -> Result<()> {
        match self.registry().get(found.backend) {
            Some(backend) => backend.discard_legacy(&found.legacy).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use moltis_config::BackendChoice;

    use super::*;
    use crate::fakes::{Machine, open};

    fn legacy(name: &str, ours_by_label: bool) -> Legacy {
        Legacy { id: name.to_owned(), name: name.to_owned(), why: "told".to_owned(), ours_by_label }
    }

    #[tokio::test]
    async fn only_what_carries_a_label_goes_without_a_word() {
        let machine = Machine::new(&[BackendName::Podman, BackendName::Docker], BackendChoice::Auto);
        let runtime = machine.start().await;
        let left = || vec![legacy("moltis-old", true), legacy("moltis-likely", false)];
        *machine.engine(BackendName::Docker).legacy.lock().unwrap() = left();
        assert_eq!(runtime.legacy().await.len(), 2);
        let labelled = LegacyContainer { backend: BackendName::Docker, legacy: legacy("moltis-old", true) };
        assert_eq!(runtime.discard_legacy().await, std::slice::from_ref(&labelled));
        let likely = LegacyContainer { backend: BackendName::Docker, legacy: legacy("moltis-likely", false) };
        assert_eq!(runtime.legacy().await, std::slice::from_ref(&likely));
        // Commands do not look for them; a prune does.
        *machine.engine(BackendName::Docker).legacy.lock().unwrap() = left();
        open(&runtime, "s").await.unwrap();
        assert_eq!(runtime.legacy().await.len(), 2);
        assert_eq!(runtime.prune(false).await.unwrap().legacy, [labelled]);
        assert_eq!(runtime.legacy().await, std::slice::from_ref(&likely));
        runtime.discard(&likely).await.unwrap();
        assert_eq!(runtime.legacy().await, []);
        let told = serde_json::to_value(&likely).unwrap();
        assert_eq!(
            told,
            serde_json::json!({
                "backend": "docker", "id": "moltis-likely", "name": "moltis-likely", "why": "told",
                "oursByLabel": false
            })
        );
    }
}
