//! What sessions may reach, and the proxy of this process that sees to it.

mod listed;
mod proxied;
mod standing;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use moltis_config::{Config, words};
use moltis_egress::{
    AuditLog, OnUnknown, Origin, Own, Policy, Proxy, ProxyLimits, ProxySettings, Refusal, Rule,
    SystemResolver, Tested, Upstream, host,
};
use moltis_sandbox::{
    Diagnosis, DomainPattern, Error, Network, NotEnforced, Result, Sandbox, SandboxId, SandboxSpec,
    SessionKey,
};

use tokio::sync::watch;

use crate::approvals::Listener;
use crate::runtime::{Runtime, off_thread};
use crate::store::SessionRules;
use listed::Listed;
use proxied::Proxied;
pub(crate) use standing::Behind;
use standing::Standing;

/// Time that is given to entries of the log that are not written yet when the program ends.
const LAST_ENTRIES: Duration = Duration::from_secs(2);

/// How often it is looked whether the last connections are gone.
const LAST_LOOK: Duration = Duration::from_millis(2);

/// The proxy of this process. Nothing is made before a sandbox needs it.
#[derive(Default)]
pub struct Road {
    made: OnceLock<Made>,
    questions: OnceLock<Listener>,
    own: OnceLock<Own>,
    /// In a runtime that lives long: what stands behind each sandbox, for as long as the sandbox runs.
    kept: Mutex<HashMap<Opening, Stand>>,
    /// The configuration that holds now, if it is another than the one of the start, and how often it has changed.
    now: Mutex<Option<Arc<Config>>>,
    changes: AtomicU64,
}

/// A sandbox, and which opening of it: the next one has the same id.
type Opening = (SandboxId, u64);

/// What stands behind one sandbox, once something does.
pub(crate) type Stand = Arc<tokio::sync::Mutex<Option<Standing>>>;

struct Made {
    proxy: Proxy,
    audit: Arc<AuditLog>,
    /// How many sandboxes this process stands behind.
    standing: watch::Sender<usize>,
}

impl Road {
    /// The proxy, made if it is not there yet.
    fn made(&self, data_dir: &Path) -> Result<&Made> {
        if let Some(made) = self.made.get() {
            return Ok(made);
        }
        let upstream = upstream()?;
        Ok(self.made.get_or_init(|| {
            let audit = Arc::new(AuditLog::new(data_dir));
            let settings = ProxySettings {
                limits: ProxyLimits::default(),
                upstream,
                resolver: Arc::new(SystemResolver),
                own: self.own.get().cloned().unwrap_or_else(|| Arc::new(|_| false)),
                audit: Arc::clone(&audit) as _,
            };
            Made { proxy: Proxy::new(settings), audit, standing: watch::Sender::new(0) }
        }))
    }

    /// What is reached goes by this configuration from now on.
    pub(crate) fn now_by(&self, config: Config) {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
        self.changes.fetch_add(1, Ordering::SeqCst);
    }

    /// How often the configuration has changed.
    fn changes(&self) -> u64 {
        self.changes.load(Ordering::SeqCst)
    }

    fn now(&self) -> Option<Arc<Config>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The place of what stands behind this sandbox. Places of which nothing stands any more, and which nobody holds, go.
    fn stand(&self, opening: Opening) -> Stand {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|other, stand| {
            *other == opening
                || Arc::strong_count(stand) > 1
                || stand.try_lock().is_ok_and(|stand| stand.as_ref().is_some_and(Standing::stands))
        });
        Arc::clone(kept.entry(opening).or_default())
    }

    /// Nothing stands behind any sandbox any more but for commands that run.
    fn leave_all(&self) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// Counts one more sandbox that this process stands behind, until it is dropped.
struct Counted(watch::Sender<usize>);

impl Counted {
    fn new(all: &watch::Sender<usize>) -> Self {
        all.send_modify(|count| *count += 1);
        Self(all.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The proxy for one sandbox, or none.
pub(crate) struct WayOut {
    proxied: Option<(Behind, Stand)>,
    /// Everything is reached, and nothing of it is ours to say.
    open: bool,
}

impl WayOut {
    /// The sandbox, whose commands are told of the proxy if there is one.
    pub fn of(self, sandbox: Arc<dyn Sandbox>) -> Arc<dyn Sandbox> {
        match self.proxied {
            _ if self.open => sandbox,
            proxied if sandbox.takes_list() => {
                Arc::new(Listed::new(sandbox, proxied.map(|(behind, _)| behind)))
            }
            Some((behind, stand)) => Arc::new(Proxied::new(sandbox, behind, stand)),
            None => sandbox,
        }
    }
}

impl Runtime {
    /// Names who is told of each question about an unknown host that this process puts, such as the terminal of the
    /// command that waits. The first one stays. He must not block.
    pub fn on_question(&self, listener: Listener) {
        // Whoever came first stays.
        let _ = self.road().questions.set(listener);
    }

    /// What puts this process behind a sandbox's proxy port, if its network is `trusted` and that is enforced there; and
    /// says what a person should know of what it may reach.
    pub(crate) async fn way_out(
        &self,
        spec: &SandboxSpec,
        generation: u64,
        not_enforced: &[NotEnforced],
        notes: &mut Vec<String>,
    ) -> Result<WayOut> {
        match spec.network.value {
            Network::Blocked => return Ok(WayOut { proxied: None, open: false }),
            Network::Open => {
                notes.push(OPEN.to_owned());
                return Ok(WayOut { proxied: None, open: true });
            }
            Network::Trusted if !is_carried(spec, not_enforced) => {
                return Ok(WayOut { proxied: None, open: false });
            }
            Network::Trusted => {}
        }
        // What is wrong with it is better said before anything runs.
        self.proxy()?;
        let policy = self.policy(&spec.key).await?;
        see_rules(&policy)?;
        if policy.trusted.is_empty() && policy.on_unknown == OnUnknown::Deny {
            notes.push(NOTHING_TRUSTED.to_owned());
        }
        let behind = Behind { runtime: self.clone(), session: spec.key.clone() };
        let stand = match self.failover() {
            Some(_) => self.road().stand((spec.id(), generation)),
            None => Stand::default(),
        };
        Ok(WayOut { proxied: Some((behind, stand)), open: false })
    }

    /// Says which addresses are this program's own, such as what a gateway listens on: no sandbox reaches them through the
    /// proxy. To be said before anything runs; what is said first stays.
    pub fn set_own_addresses(&self, own: Own) {
        // Whoever came first stays.
        let _ = self.road().own.set(own);
    }

    /// Stands behind a sandbox that was found running, so that what runs in its background reaches what it may.
    ///
    /// # Errors
    /// Those of the sandbox and of the store.
    pub(crate) async fn stand_behind(
        &self,
        session: &SessionKey,
        generation: u64,
        sandbox: &dyn Sandbox,
    ) -> Result<()> {
        if sandbox.takes_list() {
            return Ok(());
        }
        let stand = self.road().stand((sandbox.id().clone(), generation));
        let behind = Behind { runtime: self.clone(), session: session.clone() };
        proxied::port(&behind, &stand, sandbox).await.map(drop)
    }

    /// The configuration by which it is judged what sandboxes reach.
    pub(crate) fn network_config(&self) -> Arc<Config> {
        self.road().now().unwrap_or_else(|| Arc::new(self.config().clone()))
    }

    pub(crate) fn network_changes(&self) -> u64 {
        self.road().changes()
    }

    /// What a session with the network `trusted` may reach now.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn policy(&self, session: &SessionKey) -> Result<Policy> {
        Ok(policy(self.config(), self.added_rules(session).await?))
    }

    /// What sessions and people have added. Asking makes no store.
    pub(crate) async fn added_rules(&self, session: &SessionKey) -> Result<SessionRules> {
        match self.store().is_there() {
            true => Ok(self.store().network_rules(session).await?),
            false => Ok(SessionRules::default()),
        }
    }

    /// What would be said of a host if a program of this session asked for it. The name is resolved; nothing is
    /// connected to, nobody asked, and nothing written down.
    ///
    /// # Errors
    /// The host is none; those of the store.
    pub async fn test_network(&self, session: Option<&SessionKey>, host: &str, port: u16) -> Result<Tested> {
        let none = crate::runtime::ephemeral_key();
        let policy = self.policy(session.unwrap_or(&none)).await?;
        self.proxy()?.test(&policy, host, port).await.map_err(|refusal| {
            let told = Diagnosis::new(refusal.code(), format!("{host:?} is no host: {refusal}"));
            Error::Invalid(told.fix("name a host, such as example.com, or an address"))
        })
    }

    /// Waits until nothing of this process stands behind a sandbox any more and what its proxy has said is written down,
    /// for a moment at most; says what of it is not. Whoever is about to end the process drops its sandboxes and calls
    /// this.
    pub async fn finish_network(&self) -> Option<Diagnosis> {
        let made = self.road().made.get()?;
        self.road().leave_all();
        let mut standing = made.standing.subscribe();
        let ended = async {
            // It is not dropped while we wait.
            let _ = standing.wait_for(|standing| *standing == 0).await;
            // What was cut with them says so when it is gone, which may be a moment later.
            while made.proxy.connections() > 0 {
                tokio::time::sleep(LAST_LOOK).await;
            }
        };
        let _ = tokio::time::timeout(LAST_ENTRIES, ended).await;
        let audit = Arc::clone(&made.audit);
        let is_flushed = off_thread(move || Ok(audit.flush(LAST_ENTRIES))).await.unwrap_or(false);
        let what = match made.audit.untold() {
            0 if is_flushed => return None,
            0 => "the last entries".to_owned(),
            1 => "one entry".to_owned(),
            untold => format!("{untold} entries"),
        };
        let told = Diagnosis::new("audit-incomplete", format!("not written to the network's log: {what}"));
        let told = told.fix("see that the data directory can be written, and has room");
        Some(match made.audit.trouble() {
            Some(trouble) => told.cause(trouble),
            None => told.cause("another process holds the log"),
        })
    }

    /// The proxy in front of ours, as the environment names it, to be shown. It resolves the names that go through it.
    ///
    /// # Errors
    /// `upstream-invalid`.
    pub fn upstream(&self) -> Result<Option<String>> {
        Ok(upstream()?.as_ref().map(Upstream::to_string))
    }

    fn proxy(&self) -> Result<&Proxy> {
        Ok(&self.made_road()?.proxy)
    }

    fn made_road(&self) -> Result<&Made> {
        self.road().made(&self.config().data_dir.value)
    }
}

const OPEN: &str = "network `open`: commands reach everything, private addresses of this machine's networks included, and \
                    nothing of it is judged or logged; `trusted` with trusted_domains = [\"*\"] reaches every public host \
                    through the proxy";

const NOTHING_TRUSTED: &str = "network `trusted` with no trusted domains: nothing can be reached; set `trusted_domains`, or \
                               allow one: moltis network allow DOMAIN";

/// Whether commands of such a sandbox have the proxy.
pub(crate) fn is_carried(spec: &SandboxSpec, not_enforced: &[NotEnforced]) -> bool {
    spec.network.value == Network::Trusted && !not_enforced.iter().any(|listed| listed.key == "network")
}

/// Sees that each pattern can match something: one that denies nothing would deny nothing in silence.
fn see_rules(policy: &Policy) -> Result<()> {
    for rule in policy.trusted.iter().chain(&policy.denied) {
        host::usable(&rule.pattern).map_err(|why| {
            let whose = match rule.origin {
                Origin::Config => "the configuration",
                Origin::Session => "the session",
                Origin::Rule => "a rule for good",
            };
            Error::Invalid(
                Diagnosis::new(
                    "domain-unusable",
                    format!("the domain `{}` of {whose} stands for no host", rule.pattern),
                )
                .cause(why.to_string())
                .fix("correct it, or remove it"),
            )
        })?;
    }
    Ok(())
}

fn upstream() -> Result<Option<Upstream>> {
    // What is no text is no URL, and said to be none.
    let get = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Upstream::from_environment(get).map_err(wrong_upstream)
}

fn wrong_upstream(refusal: Refusal) -> Error {
    Error::Invalid(
        Diagnosis::new(
            refusal.code(),
            "the proxy that the environment names for Moltis itself cannot be used",
        )
        .cause(refusal.to_string())
        .fix("set it to the http:// URL of a proxy, or unset it where Moltis runs"),
    )
}

/// The configuration's lists, and what sessions and people have added.
fn policy(config: &Config, rules: SessionRules) -> Policy {
    let sandbox = &config.tools.exec.sandbox;
    let with = |configured: &[DomainPattern], added: Vec<Rule>| -> Vec<Rule> {
        let configured = configured.iter().cloned().map(|pattern| Rule { pattern, origin: Origin::Config });
        configured.chain(added).collect()
    };
    Policy {
        trusted: with(&sandbox.trusted_domains.value, rules.trusted),
        denied: with(&sandbox.denied_domains.value, rules.denied),
        on_unknown: match rules.on_unknown.unwrap_or(sandbox.on_unknown.value) {
            words::OnUnknown::Deny => OnUnknown::Deny,
            words::OnUnknown::Ask => OnUnknown::Ask(sandbox.approval_timeout.value),
        },
    }
}
