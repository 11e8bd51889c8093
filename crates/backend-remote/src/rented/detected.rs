//! Whether a provider can be used, remembered for a while.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_agentless::hex;
use moltis_sandbox::{Detection, Usable, blocking};
use sha2::{Digest, Sha256};

use super::{Inner, Provider};
use crate::failure;

/// How long a good answer to the question whether the token is good is remembered.
const REMEMBERED: Duration = Duration::from_secs(60);

impl<P: Provider> Inner<P> {
    /// Where it is remembered whether the token was good a moment ago, and a word for what was asked with, of which it is
    /// no part.
    pub(super) fn remembered(&self, provider: &P) -> (PathBuf, String) {
        let mut hash = Sha256::new();
        for part in [provider.api(), provider.account(), provider.secret()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let path = self.data_dir.join("remote").join(self.name.as_str()).join("detected");
        (path, hex(&hash.finalize()[..16]))
    }

    pub(super) async fn detect(&self) -> Detection {
        let provider = match &self.provider {
            Ok(provider) => provider,
            Err(why) => return Detection::Unusable(why.clone()),
        };
        let (path, word) = self.remembered(provider);
        let asked = (path.clone(), word.clone());
        let fresh = blocking::short(move || is_fresh(&asked.0, &asked.1)).await.unwrap_or(false);
        if !fresh {
            if let Err(failure) = provider.try_out().await {
                return Detection::Failing(failure::unavailable(&failure).diagnosis().clone());
            }
            let _ = blocking::short(move || remember(&path, &word)).await;
        }
        Detection::Usable(Box::new(Usable {
            version: provider.version(),
            guarantees: self.guarantees.clone(),
            left_off: Vec::new(),
            notes: provider.notes(),
        }))
    }
}

fn is_fresh(path: &Path, word: &str) -> bool {
    let age =
        std::fs::metadata(path).and_then(|about| about.modified()).ok().and_then(|at| at.elapsed().ok());
    age.is_some_and(|age| age < REMEMBERED) && std::fs::read_to_string(path).is_ok_and(|there| there == word)
}

fn remember(path: &Path, word: &str) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    if let Some(folder) = path.parent() {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(word.as_bytes())
}
