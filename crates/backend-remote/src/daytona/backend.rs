//! Sandboxes at Daytona: what it takes to make one, and what is asked of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agentless::plain;
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, BackendName, Diagnosis, Error, Guarantees, ImageChoice, Lifetime, Network, Promise, Result,
    SandboxId, SandboxSpec,
};

use super::client::Daytona;
use super::machine::DaytonaMachine;
use super::provision;
use super::wire::{Build, Create, Told};
use crate::failure;
use crate::http::Failure;
use crate::journal::{Entry, Ready};
use crate::machine::Machine;
use crate::rented::{Listed, Provider, Rented};
use crate::sandbox::Remote;

/// How long a sandbox may take to start: from a snapshot, and from an image, which is built first.
const STARTS_WITHIN: Duration = Duration::from_secs(180);
const BUILDS_WITHIN: Duration = Duration::from_secs(1200);
/// Between two looks at one that starts; it grows.
const LOOK: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Minutes after which one that ends with its opener stops, should nobody end it.
const FORSAKEN: u64 = 15;
/// Minutes after which one that stopped for want of use is removed.
const REMOVED_AFTER: i64 = 60;
/// The label whose value is the word for a data directory.
const LABEL: &str = "moltis";
/// The label that says when it was made, in seconds since 1970.
const MADE: &str = "moltis-made";

/// What the backend is set up with.
#[derive(Clone, Debug)]
pub struct DaytonaConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The folder of the user's configuration.
    pub config_dir: Option<PathBuf>,
    /// Where the API answers.
    pub api_url: String,
    /// API key.
    pub key: Option<Secret>,
    /// Region.
    pub target: Option<String>,
    /// Image (with a tag or digest) or snapshot (without) that sandboxes start from; absent: the account's default
    /// snapshot.
    pub image: Option<String>,
}

/// Daytona, for this configuration. Nothing is asked before it is used.
pub fn backend(config: DaytonaConfig) -> impl Backend {
    let (data_dir, config_dir) = (config.data_dir.clone(), config.config_dir.clone());
    let provider = match config.key.clone() {
        Some(key) => {
            Ok(DaytonaProvider { daytona: Arc::new(Daytona::new(&config.api_url, key.clone())), key, config })
        }
        None => Err(unconfigured()),
    };
    Rented::new(BackendName::Daytona, data_dir, config_dir, provider, guarantees())
}

fn unconfigured() -> Diagnosis {
    Diagnosis::new("daytona-not-configured", "there is no key (`daytona_api_key` or DAYTONA_API_KEY)").fix(
        "make a key in the dashboard at https://app.daytona.io (or of your own server) and set DAYTONA_API_KEY; for a \
         server of your own set DAYTONA_API_URL, too",
    )
}

fn guarantees() -> Guarantees {
    let not = |why: &str| Promise::not_enforced(why);
    let size = |what: &str| not(&format!("{what} is that of the snapshot or of the account's default size"));
    let container = || not("it is a matter of containers and of this machine");
    Guarantees {
        filesystem: Promise::Held,
        kernel: not("Daytona's usual sandboxes are containers, which share a kernel with others"),
        environment: Promise::Held,
        network_blocked: Promise::Held,
        network_trusted: Promise::Held,
        network_open: Promise::Held,
        memory: size("memory"),
        cpus: size("processor time"),
        pids: not("the provider has no such limit"),
        terminal: not(crate::sandbox::NO_TERMINAL),
        background: Promise::Held,
        forward: not(crate::sandbox::NO_FORWARD),
        workspace: Promise::Held,
        home: not("the home is the sandbox's and ends with it; nothing of a home here is carried there"),
        managed_files: not("only the workspace is carried to the provider"),
        adopt: Promise::Held,
        images: Promise::Held,
        packages: Promise::Held,
        rootfs: container(),
        runtime: container(),
        gpus: container(),
        host_podman: container(),
        nested_podman: container(),
    }
}

/// One account at Daytona.
struct DaytonaProvider {
    config: DaytonaConfig,
    key: Secret,
    daytona: Arc<Daytona>,
}

/// What a sandbox starts from.
#[derive(Debug, PartialEq, Eq)]
enum Source<'a> {
    /// The account's own choice.
    Default,
    Snapshot(&'a str),
    Image(&'a str),
}

impl Source<'_> {
    /// What somebody asked for, else what is set up.
    fn of<'a>(spec: &'a SandboxSpec, configured: Option<&'a str>) -> Source<'a> {
        let asked = spec.image.as_ref().map(ImageChoice::reference).filter(|image| image.origin.is_demand());
        match (asked, configured) {
            (Some(image), _) => Source::Image(&image.value),
            // Daytona takes images with a tag or digest only, and names of snapshots have none.
            (None, Some(word))
                if word.contains('@') || word.rsplit('/').next().unwrap_or_default().contains(':') =>
            {
                Source::Image(word)
            }
            (None, Some(word)) => Source::Snapshot(word),
            (None, None) => Source::Default,
        }
    }
}

/// Whether a sandbox in this state runs, or is about to.
fn is_on(state: &str) -> bool {
    matches!(
        state,
        "started"
            | "starting"
            | "creating"
            | "restoring"
            | "resuming"
            | "pending_build"
            | "building_snapshot"
            | "pulling_snapshot"
    )
}

/// Whether the network is blocked at first. With `trusted` nothing is reached before the list is told.
fn is_blocked(network: Network) -> bool {
    network != Network::Open
}

/// Minutes without use after which it stops, and minutes after that until it is removed.
pub(super) fn minutes(lifetime: Lifetime) -> (u64, i64) {
    match lifetime {
        Lifetime::Ephemeral => (FORSAKEN, 0),
        Lifetime::Idle(idle) => (idle.as_secs().div_ceil(60).max(1), REMOVED_AFTER),
    }
}

#[async_trait]
impl Provider for DaytonaProvider {
    fn title(&self) -> &'static str {
        "Daytona"
    }

    fn api(&self) -> &str {
        &self.config.api_url
    }

    fn account(&self) -> &str {
        // A key is of one organization, which it does not tell.
        "of the key"
    }

    fn secret(&self) -> &str {
        self.key.expose()
    }

    fn version(&self) -> String {
        "API".to_owned()
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "commands and the files that are given to them go to {}, where they may cost money; a sandbox that is not used \
             stops by itself after `idle_ttl` and is removed {REMOVED_AFTER} minutes later",
            self.daytona.client().authority(),
        )]
    }

    async fn try_out(&self) -> Result<(), Failure> {
        self.daytona.try_out().await
    }

    async fn labelled(&self, instance: &str) -> Result<Vec<Listed>, Failure> {
        let all = self.daytona.labelled(LABEL, instance).await?;
        let listed = all.into_iter().map(|one| {
            let state = one.state.as_deref().unwrap_or("unknown");
            Listed {
                id: one.labels.get("moltis-id").and_then(|id| SandboxId::parse(id)),
                runs: is_on(state),
                state: plain(state.as_bytes()),
                created_secs: one.labels.get(MADE).and_then(|made| made.parse().ok()).unwrap_or(0),
                name: one.name,
            }
        });
        Ok(listed.collect())
    }

    fn judge(&self, _: &SandboxSpec) -> Result<()> {
        Ok(())
    }

    async fn make(
        &self,
        entry: &Entry,
        spec: &SandboxSpec,
        instance: String,
    ) -> Result<(Arc<dyn Machine>, Ready)> {
        let blocked = is_blocked(spec.network.value);
        let source = Source::of(spec, self.config.image.as_deref());
        let (stops, removed) = minutes(spec.lifetime);
        let labels = [
            (LABEL, instance),
            ("moltis-id", entry.id.to_string()),
            (MADE, (entry.created_millis / 1000).to_string()),
            ("moltis-spec", entry.fingerprint.chars().take(32).collect()),
        ];
        let create = Create {
            name: &entry.name,
            snapshot: if let Source::Snapshot(name) = source { Some(name) } else { None },
            build_info: if let Source::Image(image) = source {
                Some(Build { dockerfile_content: format!("FROM {image}\n") })
            } else {
                None
            },
            env: BTreeMap::new(),
            labels: BTreeMap::from(labels),
            target: self.config.target.as_deref(),
            public: false,
            auto_stop_interval: stops,
            auto_delete_interval: removed,
            network_block_all: blocked,
        };
        let told = self.create_once(&create).await.map_err(|failure| refused(&failure, &source))?;
        let limit = if matches!(source, Source::Image(_)) { BUILDS_WITHIN } else { STARTS_WITHIN };
        let told = self.started(told, limit).await?;
        let listed = told.domain_allow_list.as_deref().is_some_and(|list| !list.is_empty());
        if told.network_block_all != blocked || listed || told.public || told.name != entry.name {
            return Err(other_terms());
        }
        let machine = self.machine(&told).await.map_err(|failure| failure::unavailable(&failure))?;
        let looked = Remote::look(&*machine).await?;
        if let Some(ImageChoice::Base { packages, .. }) = &spec.image {
            // What nobody asked for is worth its time only where it is used again.
            if packages.origin.is_demand() || spec.lifetime != Lifetime::Ephemeral {
                provision::install(&self.daytona, &machine, &told.id, packages, blocked).await?;
            }
        }
        let directory =
            machine.toolbox().directory().await.map_err(|failure| failure::unavailable(&failure))?;
        let directory = directory.unwrap_or_else(|| looked.home().to_owned());
        Ok((machine, Ready { machine: told.id, directory, told: looked }))
    }

    async fn running(&self, ready: &Ready) -> Result<Option<Arc<dyn Machine>>, Failure> {
        match self.daytona.sandbox(&ready.machine).await {
            Ok(told) if told.state() == "started" => Ok(Some(self.machine(&told).await?)),
            Ok(_) => Ok(None),
            Err(failure) if failure.status() == Some(404) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    fn stops(&self) -> bool {
        true
    }

    async fn is_stopped(&self, ready: &Ready) -> Result<bool, Failure> {
        match self.daytona.sandbox(&ready.machine).await {
            Ok(told) => Ok(matches!(
                told.state(),
                "stopped" | "stopping" | "archived" | "archiving" | "paused" | "pausing"
                // Somebody starts it at this moment.
                | "starting" | "restoring" | "resuming"
            )),
            Err(failure) if failure.status() == Some(404) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn woken(&self, ready: &Ready) -> Result<Option<Arc<dyn Machine>>, Failure> {
        let end = Instant::now() + STARTS_WITHIN;
        let mut pause = LOOK.0;
        loop {
            let told = match self.daytona.sandbox(&ready.machine).await {
                Ok(told) => told,
                Err(failure) if failure.status() == Some(404) => return Ok(None),
                Err(failure) => return Err(failure),
            };
            match told.state() {
                "started" => return Ok(Some(self.machine(&told).await?)),
                "stopped" | "archived" | "paused" => match self.daytona.start(&ready.machine).await {
                    // It changes at this moment.
                    Ok(_) | Err(Failure::Answer { status: 400 | 409, .. }) => {}
                    Err(failure) if failure.status() == Some(404) => return Ok(None),
                    Err(failure) => return Err(failure),
                },
                "starting" | "stopping" | "restoring" | "archiving" | "pausing" | "resuming"
                | "pulling_snapshot" => {}
                // It failed, or is being removed.
                _ => return Ok(None),
            }
            if Instant::now() > end {
                // It has its files still, so it is none that is not there.
                let state = plain(told.state().as_bytes());
                let limit = STARTS_WITHIN.as_secs();
                return Err(Failure::Broken(format!("the sandbox is {state} after {limit} s, not started")));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 11 / 10).min(LOOK.1);
        }
    }

    async fn stop(&self, _: &Ready) -> Result<(), Failure> {
        // It is removed as it runs.
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<(), Failure> {
        self.daytona.delete(name).await
    }
}

impl DaytonaProvider {
    async fn machine(&self, told: &Told) -> Result<Arc<DaytonaMachine>, Failure> {
        let toolbox = self.daytona.toolbox(told).await?;
        Ok(Arc::new(DaytonaMachine::new(toolbox, told)))
    }

    /// Makes a sandbox, once, whatever becomes of the answer: its name tells whether there is one.
    async fn create_once(&self, create: &Create<'_>) -> Result<Told, Failure> {
        let mut tries = 0u32;
        loop {
            tries += 1;
            let failure = match self.daytona.create(create).await {
                Ok(told) => return Ok(told),
                Err(failure @ (Failure::Broken(_) | Failure::Answer { status: 409 | 500..=599, .. })) => {
                    failure
                }
                Err(failure) => return Err(failure),
            };
            match self.daytona.sandbox(create.name).await {
                Ok(told) => return Ok(told),
                Err(missing)
                    if missing.status() == Some(404) && tries < 3 && failure.status() != Some(409) =>
                {
                    tokio::time::sleep(Duration::from_millis(400 * u64::from(tries))).await;
                }
                Err(_) => return Err(failure),
            }
        }
    }

    /// Waits until it runs.
    async fn started(&self, mut told: Told, limit: Duration) -> Result<Told> {
        let end = Instant::now() + limit;
        let mut pause = LOOK.0;
        loop {
            match told.state() {
                "started" => return Ok(told),
                state @ ("error" | "build_failed" | "destroyed" | "destroying" | "stopped" | "archived") => {
                    let why = told.error_reason.as_deref().unwrap_or("no reason is given");
                    return Err(Error::Unavailable(
                        Diagnosis::new(
                            "provider-start-failed",
                            format!("the new sandbox at Daytona is {}, not started", plain(state.as_bytes())),
                        )
                        .cause(self.daytona.client().scrub(why))
                        .fix("look at the image or snapshot (`daytona_image`), the region and the account's limits"),
                    ));
                }
                _ if Instant::now() > end => {
                    return Err(Error::Unavailable(
                        Diagnosis::new(
                            "provider-slow",
                            format!(
                                "the new sandbox at Daytona did not start within {} s: it is {}",
                                limit.as_secs(),
                                plain(told.state().as_bytes())
                            ),
                        )
                        .fix("try again later, in another region, or with a smaller image"),
                    ));
                }
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 11 / 10).min(LOOK.1);
            told = self.daytona.sandbox(&told.id).await.map_err(|failure| failure::unavailable(&failure))?;
        }
    }
}

pub(super) fn other_terms() -> Error {
    Error::Unavailable(
        Diagnosis::new("provider-other-terms", "Daytona made another sandbox than it was asked for")
            .cause("its network, its name or who may see it is not what was asked for; it was removed")
            .fix("look at the organization's settings, or use another backend"),
    )
}

/// Why none was made. Daytona says all of this with one status and in words.
fn refused(failure: &Failure, source: &Source<'_>) -> Error {
    let Failure::Answer { status: 400 | 422, message, .. } = failure else {
        return failure::unavailable(failure);
    };
    let said = message.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| said.contains(word));
    let diagnosis = if has(&["limit exceeded", "exceeds maximum", "quota"]) {
        Diagnosis::new("provider-quota", "the account's limits at Daytona are used up")
            .fix("end sandboxes there, ask for higher limits in the dashboard, or use another backend")
    } else if has(&["snapshot"]) && has(&["not found"]) {
        let named = match source {
            Source::Snapshot(name) | Source::Image(name) => {
                format!("there is no snapshot `{name}` at Daytona")
            }
            Source::Default => "the account at Daytona has no default snapshot".to_owned(),
        };
        Diagnosis::new("daytona-snapshot-missing", named)
            .fix("set `daytona_image` to a snapshot of the account and its region, or to an image with a tag")
    } else if has(&["region", "target"]) {
        Diagnosis::new("daytona-region", "Daytona does not take the region")
            .fix("set `daytona_target` (DAYTONA_TARGET) to a region of the account, or remove it")
    } else {
        return failure::unavailable(failure);
    };
    Error::Unavailable(diagnosis.cause(failure))
}

#[cfg(test)]
mod tests {
    use moltis_sandbox::{Origin, SessionKey, Setting};

    use super::*;

    #[test]
    fn an_image_has_a_tag_and_a_snapshot_none() {
        let mut spec = SandboxSpec::new(SessionKey::new("s").unwrap(), Lifetime::Ephemeral);
        for (word, want) in [
            (None, Source::Default),
            (Some("daytona-small"), Source::Snapshot("daytona-small")),
            (Some("registry:5000/team/base"), Source::Snapshot("registry:5000/team/base")),
            (Some("ubuntu:24.04"), Source::Image("ubuntu:24.04")),
            (Some("x/y@sha256:1"), Source::Image("x/y@sha256:1")),
        ] {
            assert_eq!(Source::of(&spec, word), want);
        }
        let reference = |origin| ImageChoice::Base {
            reference: Setting::new("debian:12".to_owned(), origin),
            packages: Setting::built_in(Vec::new()),
        };
        spec.image = Some(reference(Origin::Default));
        assert_eq!(Source::of(&spec, None), Source::Default);
        spec.image = Some(reference(Origin::File));
        assert_eq!(Source::of(&spec, Some("daytona-small")), Source::Image("debian:12"));
    }

    #[test]
    fn what_daytona_says_in_words_is_told_apart() {
        let code = |message: &str| {
            let failure =
                Failure::Answer { status: 400, code: None, message: message.into(), retry_after: None };
            refused(&failure, &Source::Snapshot("x")).code().to_owned()
        };
        assert_eq!(code("Total CPU limit exceeded. Maximum allowed: 10."), "provider-quota");
        assert_eq!(code("CPU request 8 exceeds maximum allowed per sandbox (4)"), "provider-quota");
        assert_eq!(
            code("Snapshot x not found. Did you add it through the Daytona Dashboard?"),
            "daytona-snapshot-missing"
        );
        assert_eq!(code("Invalid region: mars"), "daytona-region");
        assert_eq!(code("name must be a string"), "provider-refused");
    }

    #[test]
    fn the_time_without_use_is_told_in_whole_minutes() {
        assert_eq!(minutes(Lifetime::Ephemeral), (15, 0));
        assert_eq!(minutes(Lifetime::Idle(Duration::from_secs(1800))), (30, 60));
        assert_eq!(minutes(Lifetime::Idle(Duration::from_secs(61))), (2, 60));
        assert_eq!(minutes(Lifetime::Idle(Duration::from_millis(1))), (1, 60));
    }
}
