//! Sandboxes at Vercel: what it takes to make one, and what is asked of it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use base64::Engine as _;
use moltis_agentless::plain;
use moltis_config::value::secret::Secret;
use moltis_sandbox::{
    Backend, BackendName, Diagnosis, Error, Guarantees, Network, Promise, Result, SandboxId, SandboxSpec,
};

use super::client::Vercel;
use super::machine::VercelMachine;
use super::wire::{Create, Created, Policy, Resources, Session, Source};
use crate::failure;
use crate::http::{Client, Failure};
use crate::journal::{Entry, Ready};
use crate::machine::Machine;
use crate::rented::{Listed, Provider, Rented};
use crate::sandbox::Remote;

/// How long a machine may take to start.
const STARTS_WITHIN: Duration = Duration::from_secs(120);
/// Time of a machine that is taken for over before it is, since two clocks never agree.
const SLACK: Duration = Duration::from_secs(15);

/// Code of the error for a snapshot that is not there any more.
const SNAPSHOT_GONE: &str = "vercel-snapshot-gone";

/// Words that a machine carries at the provider.
pub type Tags = BTreeMap<&'static str, String>;

/// What the backend is set up with.
#[derive(Clone, Debug)]
pub struct VercelConfig {
    /// The data directory.
    pub data_dir: PathBuf,
    /// The folder of the user's configuration.
    pub config_dir: Option<PathBuf>,
    /// Where the API answers.
    pub api_url: String,
    /// Access token, or an OIDC token, which names team and project itself.
    pub token: Option<Secret>,
    /// Project that machines belong to.
    pub project: Option<String>,
    /// Team that the project belongs to.
    pub team: Option<String>,
    /// What is installed.
    pub runtime: String,
    /// Life of a machine without use.
    pub timeout: Duration,
    /// Processors.
    pub vcpus: u32,
    /// Snapshot that machines start from, instead of a runtime.
    pub snapshot: Option<String>,
}

/// Vercel Sandbox, for this configuration. Nothing is asked before it is used.
pub fn backend(config: VercelConfig) -> impl Backend {
    let claims = config.token.as_ref().map(|token| Claims::of(token.expose())).unwrap_or_default();
    let (guarantees, data_dir) = (config.guarantees(), config.data_dir.clone());
    let config_dir = config.config_dir.clone();
    let project = config.project.clone().or(claims.project);
    let team = config.team.clone().or(claims.team);
    let provider = match (config.token.clone(), project) {
        (Some(token), Some(project)) => {
            let client = Client::new(&config.api_url, token.clone(), Vec::new());
            Ok(VercelProvider { vercel: Arc::new(Vercel::new(client, project, team)), token, config })
        }
        _ => Err(config.unconfigured()),
    };
    Rented::new(BackendName::Vercel, data_dir, config_dir, provider, guarantees)
}

impl VercelConfig {
    fn unconfigured(&self) -> Diagnosis {
        let mut missing = Vec::new();
        let mut fixes = Vec::new();
        if self.token.is_none() {
            missing.push("no token (`vercel_token`, VERCEL_TOKEN or VERCEL_OIDC_TOKEN)");
            fixes.push("make a token at https://vercel.com/account/tokens and set VERCEL_TOKEN");
        }
        if self.project.is_none() {
            missing.push("no project id (`vercel_project_id` or VERCEL_PROJECT_ID)");
            fixes.push(
                "copy the id from the project's Settings → General → Project ID and set VERCEL_PROJECT_ID",
            );
        }
        Diagnosis::new("vercel-not-configured", format!("there is {}", missing.join(" and ")))
            .fix(fixes.join("; "))
    }

    fn guarantees(&self) -> Guarantees {
        let not = |why: &str| Promise::not_enforced(why);
        let size = |what: &str| {
            let vcpus = self.vcpus;
            not(&format!(
                "{what} is that of the machine: {vcpus} processors with 2 GiB each (`vercel_vcpus`)"
            ))
        };
        let container = || not("it is a matter of containers and of this machine");
        Guarantees {
            filesystem: Promise::Held,
            kernel: Promise::Held,
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
            home: not("the home is the machine's and ends with it; nothing of a home here is carried there"),
            managed_files: not("only the workspace is carried to the provider"),
            adopt: Promise::Held,
            images: not("it starts from `vercel_runtime` or `vercel_snapshot_id`"),
            packages: Promise::Held,
            rootfs: container(),
            runtime: container(),
            gpus: container(),
            host_podman: container(),
            nested_podman: container(),
        }
    }
}

/// What an OIDC token says of itself.
#[derive(Debug, Default, PartialEq, Eq)]
struct Claims {
    project: Option<String>,
    team: Option<String>,
}

impl Claims {
    fn of(token: &str) -> Self {
        let parts: Vec<&str> = token.split('.').collect();
        let [_, claims, _] = parts[..] else { return Self::default() };
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims.trim_end_matches('='));
        let claims: serde_json::Value =
            claims.ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let word = |name: &str| claims.get(name).and_then(|word| word.as_str()).map(str::to_owned);
        Self { project: word("project_id"), team: word("owner_id") }
    }
}

/// One project at Vercel.
pub(super) struct VercelProvider {
    pub(super) config: VercelConfig,
    pub(super) token: Secret,
    pub(super) vercel: Arc<Vercel>,
}

fn policy(network: Network) -> Policy {
    match network {
        // With `trusted` nothing is reached before the list is told.
        Network::Blocked | Network::Trusted => Policy::NONE,
        Network::Open => Policy::ALL,
    }
}

impl VercelProvider {
    fn machine(&self, session: &Session) -> Arc<VercelMachine> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let left = Duration::from_millis(session.ends_at()).saturating_sub(now).saturating_sub(SLACK);
        let left = left.min(Duration::from_millis(session.timeout));
        VercelMachine::new(&self.vercel, session, left)
    }
    /// Makes a machine from a snapshot or the usual runtime, and waits until it runs.
    pub(super) async fn start(
        &self,
        entry: &Entry,
        snapshot: Option<&str>,
        policy: Policy,
        tags: &Tags,
    ) -> Result<(Arc<VercelMachine>, Session)> {
        let (config, vercel) = (&self.config, &self.vercel);
        let create = Create {
            project_id: vercel.project(),
            ports: [],
            timeout: u64::try_from(config.timeout.as_millis()).unwrap_or(u64::MAX),
            resources: Resources { vcpus: config.vcpus },
            runtime: snapshot.is_none().then_some(config.runtime.as_str()),
            source: snapshot.map(|snapshot_id| Source::Snapshot { snapshot_id }),
            name: &entry.name,
            persistent: false,
            network_policy: policy,
            env: BTreeMap::new(),
            tags: tags.clone(),
        };
        let created = create_once(vercel, &create).await.map_err(|failure| refused(&failure, snapshot))?;
        let Created { sandbox, mut session } = created;
        let end = Instant::now() + STARTS_WITHIN;
        while session.status == "pending" && Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(500)).await;
            session = vercel.session(&session.id).await.map_err(|failure| failure::unavailable(&failure))?;
        }
        if session.status != "running" {
            let status = plain(session.status.as_bytes());
            return Err(failure::unavailable(&Failure::Unlike(format!(
                "the new sandbox is {status}, not running"
            ))));
        }
        let is_so = session.network_policy.as_ref().is_some_and(|told| told.is(&create.network_policy));
        if !is_so || sandbox.persistent || sandbox.name != entry.name {
            return Err(Error::Unavailable(
                Diagnosis::new("provider-other-terms", "Vercel made another sandbox than it was asked for")
                    .cause("its network policy, its name or its persistence is not what was asked for; it was removed")
                    .fix("look at the project's settings, or use another backend"),
            ));
        }
        // It has just been made: its time is all there, whatever the clocks say.
        let machine = VercelMachine::new(vercel, &session, config.timeout.saturating_sub(SLACK));
        Ok((machine, session))
    }

    /// Looks at a machine that runs.
    async fn ready(
        &self,
        (machine, session): (Arc<VercelMachine>, Session),
    ) -> Result<(Arc<dyn Machine>, Ready)> {
        let told = Remote::look(&*machine).await?;
        Ok((machine, Ready { machine: session.id, directory: session.cwd, told }))
    }
}

#[async_trait]
impl Provider for VercelProvider {
    fn title(&self) -> &'static str {
        "Vercel"
    }

    fn api(&self) -> &str {
        &self.config.api_url
    }

    fn account(&self) -> &str {
        self.vercel.project()
    }

    fn secret(&self) -> &str {
        self.token.expose()
    }

    fn version(&self) -> String {
        "API v2".to_owned()
    }

    fn notes(&self) -> Vec<String> {
        vec![format!(
            "commands and the files that are given to them go to {}, where they cost money; a machine that is not used \
             ends by itself after {} s (`vercel_timeout_ms`)",
            self.vercel.client().authority(),
            self.config.timeout.as_secs()
        )]
    }

    async fn try_out(&self) -> Result<(), Failure> {
        self.vercel.try_out().await
    }

    async fn labelled(&self, instance: &str) -> Result<Vec<Listed>, Failure> {
        let records = self.vercel.tagged(&format!("moltis:{instance}")).await?;
        let listed = records.into_iter().map(|record| Listed {
            id: record.tags.get("moltis-id").and_then(|id| SandboxId::parse(id)),
            runs: matches!(record.status.as_str(), "pending" | "running"),
            state: plain(record.status.as_bytes()),
            created_secs: record.created_at / 1000,
            name: record.name,
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
        let tags = [
            ("moltis", instance),
            ("moltis-id", entry.id.to_string()),
            ("moltis-spec", entry.fingerprint.chars().take(32).collect()),
        ];
        let tags = BTreeMap::from(tags);
        let policy = policy(spec.network.value);
        let mut prepared = self.prepared(entry, spec, &tags).await?;
        if let Some(snapshot) = &prepared {
            match self.start(entry, Some(snapshot), policy.clone(), &tags).await {
                // It has ended before its time.
                Err(error) if error.code() == SNAPSHOT_GONE => {
                    self.forget_snapshot(spec).await?;
                    prepared = self.prepared(entry, spec, &tags).await?;
                }
                started => return self.ready(started?).await,
            }
        }
        let from = prepared.as_deref().or(self.config.snapshot.as_deref());
        self.ready(self.start(entry, from, policy, &tags).await?).await
    }

    async fn running(&self, ready: &Ready) -> Result<Option<Arc<dyn Machine>>, Failure> {
        match self.vercel.session(&ready.machine).await {
            Ok(session) if session.status == "running" => Ok(Some(self.machine(&session))),
            Ok(_) => Ok(None),
            Err(failure) if matches!(failure.status(), Some(404 | 410)) => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    async fn stop(&self, ready: &Ready) -> Result<(), Failure> {
        self.vercel.stop(&ready.machine).await
    }

    async fn delete(&self, name: &str) -> Result<(), Failure> {
        self.vercel.delete(name).await
    }
}

/// Why no machine was made.
fn refused(failure: &Failure, snapshot: Option<&str>) -> Error {
    if let Failure::Answer { status: 410 | 404, .. } = failure
        && let Some(snapshot) = snapshot
    {
        return Error::Unavailable(
            Diagnosis::new(SNAPSHOT_GONE, format!("there is no snapshot `{snapshot}` at Vercel"))
                .cause(failure)
                .fix("it may have expired: remove `vercel_snapshot_id`, or name another one"),
        );
    }
    failure::unavailable(failure)
}

/// Makes a machine, once, whatever becomes of the answer: its name tells whether there is one.
async fn create_once(vercel: &Vercel, create: &Create<'_>) -> Result<Created, Failure> {
    let mut tries = 0u32;
    loop {
        tries += 1;
        let failure = match vercel.create(create).await {
            Ok(created) => return Ok(created),
            Err(failure @ (Failure::Broken(_) | Failure::Answer { status: 409 | 500..=599, .. })) => failure,
            Err(failure) => return Err(failure),
        };
        match vercel.named(create.name).await {
            Ok(created) => return Ok(created),
            Err(missing) if missing.status() == Some(404) && tries < 3 && failure.status() != Some(409) => {
                tokio::time::sleep(Duration::from_millis(400 * u64::from(tries))).await;
            }
            Err(_) => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oidc_token_names_team_and_project() {
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD
            .encode(r#"{"owner_id":"team_1","project_id":"prj_1"}"#);
        let told = Claims { project: Some("prj_1".into()), team: Some("team_1".into()) };
        assert_eq!(Claims::of(&format!("h.{claims}.s")), told);
        assert_eq!(Claims::of("plain"), Claims::default());
        assert_eq!(Claims::of("a.b.c"), Claims::default());
    }

    #[test]
    fn status_names_what_is_missing_and_where_to_get_it() {
        let config = VercelConfig {
            data_dir: "/nowhere".into(),
            config_dir: None,
            api_url: "https://x".into(),
            token: Some(Secret::new("t")),
            project: None,
            team: None,
            runtime: "node24".into(),
            timeout: Duration::from_secs(300),
            vcpus: 2,
            snapshot: None,
        };
        let why = config.unconfigured();
        assert_eq!(why.message, "there is no project id (`vercel_project_id` or VERCEL_PROJECT_ID)");
        assert!(why.fix.unwrap().contains("Project ID"));
    }
}
