//! Whether one home is shared by sessions that may reach different things.

use std::collections::BTreeMap;

use moltis_config::words::HomePersistence;
use moltis_sandbox::{Diagnosis, Result};

use crate::runtime::Runtime;

impl Runtime {
    /// What a person should know when `home_persistence = "shared"` and the stored sessions have different network
    /// policies: what one of them leaves in the home, another may carry away or run.
    ///
    /// # Errors
    /// Those of the store, which is not made for this.
    pub async fn shared_home_warning(&self) -> Result<Option<Diagnosis>> {
        let sandbox = &self.config().tools.exec.sandbox;
        if sandbox.home_persistence.value != HomePersistence::Shared || !self.store().is_there() {
            return Ok(None);
        }
        let mut policies: BTreeMap<&'static str, usize> = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.sessions(after.as_ref()).await?;
            for session in &page {
                let network = session.overrides.network.unwrap_or(sandbox.network.value);
                *policies.entry(network.as_str()).or_default() += 1;
            }
            match page.last() {
                Some(last) => after = Some(last.key.clone()),
                None => break,
            }
        }
        if policies.len() < 2 {
            return Ok(None);
        }
        let counted: Vec<_> = policies.iter().map(|(policy, count)| format!("{count} {policy}")).collect();
        let message = format!(
            "one home is shared by sessions of different network policy ({}): what one leaves there, another may \
             carry away or run",
            counted.join(", ")
        );
        Ok(Some(
            Diagnosis::new("shared-home-mixed", message)
                .fix("set `home_persistence = \"session\"`, or give all sessions one policy"),
        ))
    }
}
