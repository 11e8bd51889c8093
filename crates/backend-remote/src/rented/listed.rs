//! Which machines there are: those that are written down, and those that the provider alone knows of.

use std::collections::HashMap;
use std::sync::PoisonError;

use moltis_sandbox::{Provided, Result, SandboxId, SandboxRecord, SessionKey};

use super::{Inner, Listed, Provider};
use crate::journal::Entry;

impl<P: Provider> Inner<P> {
    pub(super) async fn list(&self) -> Result<Vec<SandboxRecord>> {
        // The provider first: what is written down after this is made after this.
        let mut listed = self.listed().await;
        let mut records = Vec::new();
        let all = self.on_disk(|journal| journal.all()).await?;
        for error in &all.unreadable {
            tracing::warn!(%error, provider = self.title(), "a sandbox is listed as one that nobody knows of, if at all");
        }
        for entry in all.entries {
            // One that cannot be asked after may run.
            let running = self.provider.is_err() || !matches!(self.running(&entry, false).await, Ok(None));
            let Entry { id, name, fingerprint, created_millis, .. } = entry;
            let created_secs = created_millis / 1000;
            let provider =
                listed.remove(&name).map(|Listed { name, state, .. }| Provided { name, state, known: true });
            records.push(SandboxRecord { id, fingerprint, running, created_secs, provider });
        }
        let mut strays: HashMap<SandboxId, Vec<String>> = HashMap::new();
        for Listed { name, id, state, runs, created_secs } in listed.into_values() {
            // One that does not say whose it is can be named, and removed, all the same.
            let Some(id) = id.or_else(|| Some(SandboxId::of(&SessionKey::new(&name)?))) else { continue };
            strays.entry(id.clone()).or_default().push(name.clone());
            let provider = Some(Provided { name, state, known: false });
            records.push(SandboxRecord {
                id,
                fingerprint: String::new(),
                running: runs,
                created_secs,
                provider,
            });
        }
        *self.strays.lock().unwrap_or_else(PoisonError::into_inner) = strays;
        records.sort_by(|one, other| one.id.cmp(&other.id));
        Ok(records)
    }

    /// What the provider lists under the label of this data directory, by name; nothing if it cannot be asked.
    async fn listed(&self) -> HashMap<String, Listed> {
        let Ok(provider) = self.provider() else { return HashMap::new() };
        let Ok(instance) = self.on_disk(|journal| journal.instance_if_any()).await else {
            return HashMap::new();
        };
        // Without a word nothing was ever made.
        let Some(instance) = instance else { return HashMap::new() };
        match provider.labelled(&instance).await {
            Ok(listed) => listed.into_iter().map(|one| (one.name.clone(), one)).collect(),
            Err(error) => {
                tracing::warn!(%error, provider = self.title(), "the provider's list of sandboxes cannot be had");
                HashMap::new()
            }
        }
    }
}
