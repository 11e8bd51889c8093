//! What one session may do: its policy as it is now, what it has open, what it asks.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::approval::Verdict;
use crate::ask::Questions;
use crate::audit::{Protocol, Source};
use crate::client::Presence;
use crate::connect::TRIED;
use crate::host::{Host, Target};
use crate::journal::{Journal, Passage};
use crate::judge::{Barred, Judge, Judgement};
use crate::policy::{OnUnknown, Policy, Rule};
use crate::proxy::Shared;
use crate::refusal::{self, Refusal};

/// How long a connection waits for the rule that a person's word is made.
const RULE: Duration = Duration::from_secs(1);

/// One session of a proxy.
pub(crate) struct Session {
    pub(crate) shared: Arc<Shared>,
    pub(crate) journal: Arc<Journal>,
    pub(crate) open: Arc<AtomicUsize>,
    policy: watch::Receiver<Policy>,
    current: Mutex<(watch::Receiver<Policy>, Arc<Judge>)>,
    questions: Questions,
    waiting: Semaphore,
    lookups: Arc<Semaphore>,
}

/// A person's part in letting something through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// None: a rule says so.
    None,
    /// For this time.
    Once,
    /// For longer: a rule will say so.
    Lasting,
}

/// Where a connection goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To one of these addresses.
    Direct(Vec<IpAddr>),
    /// To the proxy in front of ours.
    Upstream,
}

/// What was let through, and why.
pub(crate) struct Admitted {
    pub(crate) watch: Watch,
    judge: Arc<Judge>,
    source: Source,
    reason: Option<String>,
}

impl Admitted {
    pub(crate) fn passage(&self, protocol: Protocol) -> Passage {
        let session = &self.watch.session;
        session.journal.passage(&self.watch.target, protocol, self.source, self.reason.clone())
    }

    /// Where to connect to. Names are resolved here, and their addresses judged.
    pub(crate) async fn route(&self) -> Result<Route, Refusal> {
        self.watch.session.route(&self.judge, &self.watch.target).await
    }

    /// The policy that let it through.
    pub(crate) fn judge(&self) -> &Arc<Judge> {
        &self.judge
    }

    /// Whether an address that was connected to by another policy may be by this one. The kernel is asked about it only
    /// if they are not the same.
    pub(crate) fn may_go_on(&self, address: IpAddr, before: &Arc<Judge>) -> bool {
        Arc::ptr_eq(&self.judge, before)
            || self.watch.session.shared.reach(&self.judge, address, self.watch.target.port).is_ok()
    }

    /// A person's part in it.
    pub(crate) fn word(&self) -> Word {
        self.watch.word
    }
}

impl Session {
    pub(crate) fn new(
        shared: Arc<Shared>,
        journal: Journal,
        mut policy: watch::Receiver<Policy>,
        questions: Questions,
    ) -> Self {
        let judge = Arc::new(Judge::new(&policy.borrow_and_update()));
        Self {
            journal: Arc::new(journal),
            open: Arc::default(),
            current: Mutex::new((policy.clone(), judge)),
            policy,
            questions,
            waiting: Semaphore::new(shared.limits.waiting),
            lookups: Arc::new(Semaphore::new(shared.limits.session_lookups)),
            shared,
        }
    }

    /// Follows the policy.
    pub(crate) fn policy(&self) -> watch::Receiver<Policy> {
        let mut policy = self.policy.clone();
        policy.mark_unchanged();
        policy
    }

    /// The policy as it is now.
    pub(crate) fn judge(&self) -> Arc<Judge> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let (policy, judge) = &mut *current;
        // An error means that nobody will change it any more; it may still have been changed before.
        if policy.has_changed().unwrap_or(true) {
            let now = policy.borrow_and_update();
            if judge.policy != *now {
                *judge = Arc::new(Judge::new(&now));
            }
        }
        Arc::clone(judge)
    }

    /// Judges a host, and asks where that is to be done. `approved`: a person has already said
    /// yes for this connection.
    pub(crate) async fn admit(
        self: &Arc<Self>,
        target: &Target,
        protocol: Protocol,
        approved: bool,
        program: &Presence,
    ) -> Result<Admitted, Refusal> {
        let mut policy = self.policy.clone();
        let mut word = if approved { Word::Once } else { Word::None };
        let (judge, rule) = loop {
            policy.mark_unchanged();
            let judge = self.judge();
            match judge.host(&target.host, target.port) {
                Judgement::Allowed(rule) => {
                    word = Word::None;
                    break (judge, Some(rule));
                }
                Judgement::Denied(rule) => return Err(Refusal::Denied(rule)),
                Judgement::Refused(kind) => return Err(Refusal::Address(kind)),
                Judgement::Unknown if word != Word::None => break (judge, None),
                Judgement::Unknown => {}
            }
            let OnUnknown::Ask(patience) = judge.on_unknown else { return Err(Refusal::Unknown) };
            // What leads nowhere is not asked about.
            if let Host::Address(address) = target.host {
                self.shared.reach(&judge, address, target.port)?;
            }
            if let Some(said) = self.ask(target, protocol, patience, (&mut policy, program)).await? {
                word = said;
            }
        };
        let (source, reason) = match &rule {
            Some(rule) => described(rule),
            None => (Source::Approval, None),
        };
        let watch = Watch { session: Arc::clone(self), policy, target: target.clone(), address: None, word };
        Ok(Admitted { watch, judge, source, reason })
    }

    /// Asks a person; nothing if the policy has come to say something of the host itself.
    async fn ask(
        &self,
        target: &Target,
        protocol: Protocol,
        patience: Duration,
        (policy, program): (&mut watch::Receiver<Policy>, &Presence),
    ) -> Result<Option<Word>, Refusal> {
        let _waits = self.waiting.try_acquire().map_err(|_| Refusal::TooManyQuestions)?;
        let answer = self.questions.ask(target, protocol, patience);
        tokio::pin!(answer);
        loop {
            tokio::select! {
                biased;
                verdict = &mut answer => return match verdict {
                    Verdict::Once => Ok(Some(Word::Once)),
                    Verdict::Session | Verdict::Always => {
                        self.ruled(target, policy).await;
                        Ok(Some(Word::Lasting))
                    }
                    Verdict::Denied => Err(Refusal::Rejected),
                    Verdict::TimedOut => Err(Refusal::Unanswered),
                    Verdict::TooMany => Err(Refusal::TooManyQuestions),
                    Verdict::Unavailable => Err(Refusal::NobodyToAsk),
                },
                () = program.gone() => return Err(Refusal::Gone),
                () = changed(policy) => {
                    let judge = self.judge();
                    let asks = matches!(judge.on_unknown, OnUnknown::Ask(_));
                    if !asks || judge.host(&target.host, target.port) != Judgement::Unknown {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Waits, for a moment, until the policy says something of the host: what is let through by a rule goes when the rule
    /// does.
    async fn ruled(&self, target: &Target, policy: &mut watch::Receiver<Policy>) {
        let rule = async {
            while self.judge().host(&target.host, target.port) == Judgement::Unknown {
                changed(policy).await;
            }
        };
        // Without one the word itself has to do.
        let _ = timeout(RULE, rule).await;
    }

    async fn route(&self, judge: &Judge, target: &Target) -> Result<Route, Refusal> {
        self.shared.see_not_upstream(target).await?;
        let upstream = self.shared.through_upstream(target);
        let name = match &target.host {
            Host::Address(address) => {
                self.shared.reach(judge, *address, target.port)?;
                return Ok(if upstream { Route::Upstream } else { Route::Direct(vec![*address]) });
            }
            Host::Name(name) => name,
        };
        let found = self.shared.resolve(name, Some(&self.lookups)).await;
        if upstream {
            // A name that means nothing here may mean something there.
            if let Ok(addresses) = found {
                self.shared.reachable(judge, addresses, target.port)?;
            }
            return Ok(Route::Upstream);
        }
        self.shared.reachable(judge, found?, target.port).map(Route::Direct)
    }
}

/// A rule as the log names it.
pub(crate) fn described(rule: &Rule) -> (Source, Option<String>) {
    (refusal::source(rule.origin), Some(rule.pattern.to_string()))
}

/// Waits until the policy is another one; for ever if nobody can change it any more.
pub(crate) async fn changed(policy: &mut watch::Receiver<Policy>) {
    if policy.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Watches over what has been let through.
#[derive(Clone)]
pub(crate) struct Watch {
    session: Arc<Session>,
    policy: watch::Receiver<Policy>,
    pub(crate) target: Target,
    /// The address that is connected to, if it is known here.
    pub(crate) address: Option<IpAddr>,
    word: Word,
}

impl Watch {
    /// Waits until it is no longer let through.
    pub(crate) async fn revoked(&mut self) -> Refusal {
        loop {
            changed(&mut self.policy).await;
            if let Err(why) = self.again() {
                return why;
            }
        }
    }

    /// Judges it again if the policy has become another one since.
    pub(crate) fn still(&mut self) -> Result<(), Refusal> {
        match self.policy.has_changed() {
            Ok(false) => Ok(()),
            Ok(true) | Err(_) => {
                self.policy.mark_unchanged();
                self.again()
            }
        }
    }

    /// Judges it again.
    fn again(&mut self) -> Result<(), Refusal> {
        let judge = self.session.judge();
        match judge.host(&self.target.host, self.target.port) {
            Judgement::Allowed(_) => {
                if self.word == Word::Lasting {
                    self.word = Word::None;
                }
            }
            Judgement::Denied(rule) => return Err(Refusal::Denied(rule)),
            Judgement::Refused(kind) => return Err(Refusal::Address(kind)),
            Judgement::Unknown if self.word == Word::None => return Err(Refusal::Unknown),
            Judgement::Unknown => {}
        }
        match self.address {
            Some(address) => self.session.shared.reach(&judge, address, self.target.port),
            None => Ok(()),
        }
    }

    /// What the name in TLS is held against.
    pub(crate) fn names(&self) -> Names {
        Names { session: Arc::clone(&self.session), target: self.target.clone() }
    }
}

/// Judges names in TLS.
pub(crate) struct Names {
    session: Arc<Session>,
    target: Target,
}

impl Names {
    /// Whether the name in TLS may be there. To a name it must be that one; an address says nothing of names, so only what
    /// is forbidden is held against it. A greeting without a name says nothing that could be wrong.
    pub(crate) fn sni(&self, name: Option<Host>) -> Result<(), Refusal> {
        let Some(name) = name else { return Ok(()) };
        match &self.target.host {
            Host::Name(_) if name != self.target.host => Err(Refusal::Sni(name.to_string())),
            Host::Name(_) => Ok(()),
            Host::Address(_) => match self.session.judge().denies(&name, self.target.port) {
                Some(_) => Err(Refusal::Sni(name.to_string())),
                None => Ok(()),
            },
        }
    }
}

impl Shared {
    /// Whether the way to a host is through the proxy in front of ours.
    pub(crate) fn through_upstream(&self, target: &Target) -> bool {
        self.upstream.as_ref().is_some_and(|upstream| !upstream.passes_by(target))
    }

    /// Whether an address may be connected to.
    pub(crate) fn reach(&self, judge: &Judge, address: IpAddr, port: u16) -> Result<(), Refusal> {
        if (self.own)(SocketAddr::new(address, port)) || self.is_upstream(address, port) {
            return Err(Refusal::Own);
        }
        judge.address(address, port).map_err(|barred| match barred {
            Barred::Denied(rule) => Refusal::Denied(rule),
            Barred::Kind(kind) => Refusal::Address(kind),
        })
    }

    /// Those of a name's addresses that may be connected to.
    pub(crate) fn reachable(
        &self,
        judge: &Judge,
        addresses: Vec<IpAddr>,
        port: u16,
    ) -> Result<Vec<IpAddr>, Refusal> {
        let mut refused = Refusal::Unresolved;
        let mut passed = Vec::new();
        for address in addresses.into_iter().map(|address| address.to_canonical()).take(4 * TRIED) {
            match self.reach(judge, address, port) {
                Ok(()) => passed.push(address),
                Err(why) => refused = why,
            }
        }
        if passed.is_empty() { Err(refused) } else { Ok(passed) }
    }

    /// Resolves a name. Each lookup counts until it has ended, also if nobody waits for it any more.
    pub(crate) async fn resolve(
        &self,
        name: &str,
        session: Option<&Arc<Semaphore>>,
    ) -> Result<Vec<IpAddr>, Refusal> {
        let lookup = async {
            let own = match session {
                Some(session) => {
                    Some(Arc::clone(session).acquire_owned().await.map_err(|_| Refusal::Unresolved)?)
                }
                None => None,
            };
            let all = Arc::clone(&self.lookups).acquire_owned().await.map_err(|_| Refusal::Unresolved)?;
            let (resolver, name) = (Arc::clone(&self.resolver), name.to_owned());
            let lookup = tokio::spawn(async move {
                let found = resolver.resolve(&name).await;
                drop((own, all));
                found
            });
            lookup.await.map_err(|_| Refusal::Unresolved)?.map_err(|_| Refusal::Unresolved)
        };
        let found = timeout(self.limits.resolve_time, lookup).await.map_err(|_| Refusal::Late)??;
        if found.is_empty() { Err(Refusal::Unresolved) } else { Ok(found) }
    }
}
