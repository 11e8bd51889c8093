//! Packages, installed once on a machine of its own, which is kept as a snapshot: machines of sessions start from that, and
//! their network is never opened for it.

use std::sync::Arc;
use std::time::Duration;

use moltis_agentless::{hex, plain};
use moltis_config::packages::{Manager, spelled_out};
use moltis_sandbox::{Diagnosis, Error, ImageChoice, Lifetime, Result, SandboxSpec, Setting, blocking};
use sha2::{Digest, Sha256};

use super::backend::{Tags, VercelProvider};
use super::machine::VercelMachine;
use super::shelf::{Kept, Shelf};
use super::wire::Policy;
use crate::failure;
use crate::http::Failure;
use crate::journal::{Entry, now_millis};
use crate::machine::{Machine, Piece};

/// How long all of it may take.
const INSTALLS_WITHIN: Duration = Duration::from_secs(900);
/// How long a snapshot is kept, in milliseconds.
const KEPT: u64 = 7 * 24 * 3_600_000;
/// How long it is remembered that the usual packages cannot be had, in milliseconds.
const NOT_HAD: u64 = 24 * 3_600_000;
/// Most that a script says.
const MAX_SAID: usize = 64 << 10;

/// Which of these are missing.
const MISSING: &str = r#"for p; do rpm -q --whatprovides "$p" >/dev/null 2>&1 || echo "missing $p"; done
echo done"#;

/// Installs.
const INSTALL: &str = r#"log=$(mktemp) || exit
env LC_ALL=C dnf install -q -y --setopt=install_weak_deps=False -- "$@" >"$log" 2>&1 </dev/null && echo installed || tail -n 20 "$log"
rm -f "$log""#;

const FAILED: &str = "packages-failed";

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Unavailable(
        Diagnosis::new(FAILED, "the packages could not be installed at Vercel")
            .cause(what)
            .fix("look at the names in `packages`: they are those of `dnf` (Amazon Linux 2023) there; `packages = []` installs none"),
    )
}

/// What a sandbox is to have, if that is worth its time: what nobody asked for only where it is used again.
fn wanted(spec: &SandboxSpec) -> Option<&Setting<Vec<String>>> {
    let Some(ImageChoice::Base { packages, .. }) = &spec.image else { return None };
    let is_worth = packages.origin.is_demand() || spec.lifetime != Lifetime::Ephemeral;
    (is_worth && !packages.value.is_empty()).then_some(packages)
}

impl VercelProvider {
    fn shelf(&self) -> Shelf {
        Shelf::new(&self.config.data_dir)
    }

    /// A word for what a machine with these has in it.
    fn word(&self, names: &[String]) -> String {
        let config = &self.config;
        let from = config.snapshot.as_ref().unwrap_or(&config.runtime);
        let mut hash = Sha256::new();
        for part in [config.api_url.as_str(), self.vercel.project(), from]
            .into_iter()
            .chain(names.iter().map(String::as_str))
        {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        hex(&hash.finalize()[..16])
    }

    /// Forgets a snapshot that is not there any more.
    pub(super) async fn forget_snapshot(&self, spec: &SandboxSpec) -> Result<()> {
        let Some(packages) = wanted(spec) else { return Ok(()) };
        let (shelf, word) = (self.shelf(), self.word(&spelled_out(&packages.value, Manager::Dnf)?));
        on_disk(move || {
            let _lock = shelf.lock()?;
            shelf.put(&word, None)
        })
        .await
    }

    /// The snapshot that a machine for this spec starts from: with its packages, made now if there is none. `None`: none of
    /// its own.
    ///
    /// # Errors
    /// `packages-failed` for packages that somebody asked for; those of the provider.
    pub(super) async fn prepared(
        &self,
        entry: &Entry,
        spec: &SandboxSpec,
        tags: &Tags,
    ) -> Result<Option<String>> {
        let Some(packages) = wanted(spec) else { return Ok(None) };
        let names = spelled_out(&packages.value, Manager::Dnf)?;
        let word = self.word(&names);
        let (shelf, asked) = (self.shelf(), word.clone());
        if let Some(kept) = on_disk(move || Ok(shelf.find(&asked))).await? {
            return Ok(kept.snapshot);
        }
        let (shelf, asked) = (self.shelf(), word.clone());
        let (_lock, found) = on_disk(move || Ok((shelf.lock()?, shelf.find(&asked)))).await?;
        if let Some(kept) = found {
            return Ok(kept.snapshot);
        }
        tracing::info!(packages = names.join(" "), "packages are installed at Vercel, once");
        let (machine, _) = self.start(entry, self.config.snapshot.as_deref(), Policy::ALL, tags).await?;
        let done = self.install(&machine, names, packages.origin.is_demand()).await;
        // It was for this alone. A snapshot has ended it already.
        match self.vercel.delete(&entry.name).await {
            Err(failure) if !matches!(failure.status(), Some(404 | 410)) => {
                return Err(failure::unavailable(&failure));
            }
            _ => {}
        }
        let kept = match done {
            Ok(kept) => kept,
            Err(error) if error.code() == FAILED && !packages.origin.is_demand() => {
                tracing::warn!(%error, "the usual packages could not be installed at Vercel");
                Kept { snapshot: None, expires_millis: now_millis() + NOT_HAD }
            }
            Err(error) => return Err(error),
        };
        let (shelf, told) = (self.shelf(), kept.clone());
        on_disk(move || shelf.put(&word, Some(told))).await?;
        Ok(kept.snapshot)
    }

    async fn install(
        &self,
        machine: &Arc<VercelMachine>,
        mut names: Vec<String>,
        is_demand: bool,
    ) -> Result<Kept> {
        machine.keep(INSTALLS_WITHIN).await.map_err(|failure| failure::unavailable(&failure))?;
        let said = say(machine, MISSING, &names, false).await?;
        names.retain(|name| said.lines().any(|line| line.strip_prefix("missing ") == Some(name)));
        if names.is_empty() {
            return Ok(Kept { snapshot: None, expires_millis: now_millis() + KEPT });
        }
        let mut said = say(machine, INSTALL, &names, true).await?;
        let unknown = unmatched(&said, &names);
        if !unknown.is_empty() {
            let told = failed(format!("dnf knows no {}", unknown.join(", ")));
            if is_demand {
                return Err(told);
            }
            tracing::warn!(error = %told, "the other usual packages are installed");
            names.retain(|name| !unknown.contains(name));
            if names.is_empty() {
                return Err(told);
            }
            said = say(machine, INSTALL, &names, true).await?;
        }
        if said.lines().last() != Some("installed") {
            let from = said.len().saturating_sub(300);
            return Err(failed(plain(said.get(from..).unwrap_or(&said).as_bytes())));
        }
        let made = self.vercel.snapshot(machine.session(), KEPT).await;
        let snapshot = made.map_err(|failure| failure::unavailable(&failure))?;
        if snapshot.status != "created" {
            let status = plain(snapshot.status.as_bytes());
            return Err(failure::unavailable(&Failure::Unlike(format!("the snapshot is {status}"))));
        }
        let expires_millis = snapshot.expires_at.unwrap_or_else(|| now_millis() + KEPT);
        Ok(Kept { snapshot: Some(snapshot.id), expires_millis })
    }
}

/// The names that an installer knew no package for.
fn unmatched(said: &str, names: &[String]) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for line in said.lines() {
        let rest = ["No match for argument: ", "Error: Unable to find a match: "]
            .iter()
            .find_map(|start| line.trim().strip_prefix(start));
        for name in rest.unwrap_or_default().split_whitespace() {
            if names.iter().any(|known| known == name) && !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
        }
    }
    found
}

async fn say(machine: &Arc<VercelMachine>, script: &str, names: &[String], sudo: bool) -> Result<String> {
    let mut argv = ["/bin/sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    argv.extend(names.iter().cloned());
    let work = async {
        let mut output = machine.command(argv, &[], INSTALLS_WITHIN, sudo).await?;
        let mut said = String::new();
        while let Some(piece) = output.next().await? {
            if let Piece::Stdout(text) = piece {
                said.push_str(&text);
            }
            if said.len() > MAX_SAID {
                return Err(Failure::Unlike("a script printed more than it should".to_owned()));
            }
        }
        Ok(said)
    };
    tokio::time::timeout(INSTALLS_WITHIN, work)
        .await
        .unwrap_or_else(|_| Err(Failure::Broken("the sandbox is silent".to_owned())))
        .map_err(|failure| failure::unavailable(&failure))
}

async fn on_disk<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    blocking::long(work).await.map_err(|broke| {
        Error::Unavailable(Diagnosis::new("system-error", "work on the disk broke off").cause(broke))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_dnf_does_not_know_are_told_from_what_it_prints() {
        let names = ["tree", "nope", "ripgrep"].map(str::to_owned);
        let said =
            "Last metadata\nNo match for argument: nope\nError: Unable to find a match: nope ripgrep evil\n";
        assert_eq!(unmatched(said, &names), ["nope", "ripgrep"]);
        assert_eq!(unmatched("installed\n", &names), Vec::<String>::new());
    }
}
