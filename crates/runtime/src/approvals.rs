//! Questions about hosts that no rule names: put by the process that runs the proxy, answered by any other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_egress::host::{Host, NoHost};
use moltis_egress::{Approvals, Asked, Verdict};
use moltis_sandbox::{Diagnosis, DomainPattern, Error, HostPattern, Result, SessionKey};

use crate::runtime::Runtime;
use crate::store::{
    Approval, ApprovalId, Asking, Caller, Decided, Decision, NetworkRule, RuleAction, Said, SessionRules,
    Store, Word, now_millis,
};

/// How often it is looked whether there is an answer.
const LOOK: Duration = Duration::from_millis(150);

/// Who is told of a new question, such as the terminal of the command that waits.
pub type Listener = Arc<dyn Fn(&Approval) + Send + Sync>;

/// Puts the unknown hosts of one session before a person, through the store.
pub struct SessionApprovals {
    store: Store,
    session: SessionKey,
    listener: Option<Listener>,
}

impl SessionApprovals {
    /// Those of this session, which need not be stored.
    pub fn new(store: Store, session: SessionKey) -> Self {
        Self { store, session, listener: None }
    }

    /// The same, with somebody who is told of each new question. He must not block.
    #[must_use]
    pub fn telling(self, listener: Listener) -> Self {
        Self { listener: Some(listener), ..self }
    }

    async fn wait(&self, asked: &Asked) -> crate::store::Result<Verdict> {
        let until = Instant::now() + asked.timeout;
        let (key, question) = (self.session.clone(), asked.clone());
        let asking = self.store.run(move |db| db.ask_approval(&key, &question, now_millis())).await?;
        let Asking::Waiting { approval, is_new } = asking else { return Ok(Verdict::TooMany) };
        let asker = Asker { store: self.store.clone(), id: Some(approval.id) };
        if let Some(listener) = self.listener.as_ref().filter(|_| is_new) {
            listener(&approval);
        }
        let id = approval.id;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return asker.leave().await;
            }
            tokio::time::sleep(left.min(LOOK)).await;
            let said = self.store.run(move |db| db.approval(id)).await?;
            match said.map(|approval| approval.said) {
                Some(None) => {}
                // It is over for all who asked: nobody need be told that this one leaves.
                over => {
                    asker.forget();
                    return Ok(verdict(over.flatten()));
                }
            }
        }
    }
}

#[async_trait]
impl Approvals for SessionApprovals {
    async fn ask(&self, asked: &Asked) -> Verdict {
        self.wait(asked).await.unwrap_or_else(|error| {
            // Without a store nobody can be asked.
            tracing::warn!(code = error.code(), "cannot ask about a host: {error}");
            Verdict::Unavailable
        })
    }
}

fn verdict(said: Option<Said>) -> Verdict {
    match said {
        Some(Said::Decided { decision, .. }) => decision.verdict(),
        Some(Said::Expired | Said::Withdrawn) | None => Verdict::TimedOut,
    }
}

/// One who waits for an answer. When he goes without a word, as with his connection, his question goes with him.
struct Asker {
    store: Store,
    id: Option<ApprovalId>,
}

impl Asker {
    /// His time is up. What was said in time holds still.
    async fn leave(mut self) -> crate::store::Result<Verdict> {
        let Some(id) = self.id.take() else { return Ok(Verdict::TimedOut) };
        let left = self.store.run(move |db| db.leave_approval(id, now_millis())).await?;
        Ok(verdict(left.and_then(|approval| approval.said)))
    }

    fn forget(mut self) {
        self.id = None;
    }
}

impl Drop for Asker {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id, tokio::runtime::Handle::try_current()) else {
            // Where nothing runs any more the question ends by its time.
            return;
        };
        let store = self.store.clone();
        runtime.spawn(async move {
            // As above when it cannot be written.
            let _ = store.run(move |db| db.leave_approval(id, now_millis())).await;
        });
    }
}

/// What came of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruled {
    /// What the pattern's rule for good did before, if there was one.
    pub before: Option<RuleAction>,
    /// The questions that it answered.
    pub answered: Vec<Approval>,
}

impl Store {
    /// What a session may reach besides what the configuration says. It need not be stored.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn network_rules(&self, session: &SessionKey) -> crate::store::Result<SessionRules> {
        let session = session.clone();
        self.run(move |db| db.network_rules(&session)).await
    }

    /// A number that grows whenever what any session may reach has changed, by whichever process.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn network_generation(&self) -> crate::store::Result<u64> {
        self.run(|db| db.network_generation()).await
    }
}

impl Runtime {
    /// Questions that wait for an answer, the oldest first.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn waiting_approvals(&self, session: Option<&SessionKey>) -> Result<Vec<Approval>> {
        let session = session.cloned();
        let waiting = self.store().run(move |db| db.waiting_approvals(session.as_ref(), now_millis()));
        Ok(waiting.await?)
    }

    /// A question by its number.
    ///
    /// # Errors
    /// `approval-missing`, and those of the store.
    pub async fn approval(&self, id: ApprovalId) -> Result<Approval> {
        self.store().run(move |db| db.approval(id)).await?.ok_or_else(|| missing(id))
    }

    /// Answers a question; gives all that were answered by it, this one first.
    ///
    /// # Errors
    /// `approval-missing`, `approval-over` when somebody has answered it or its time was up, and those of the store.
    pub async fn decide(&self, id: ApprovalId, decision: Decision, caller: &Caller) -> Result<Vec<Approval>> {
        let caller = caller.clone();
        let decided =
            self.store().run(move |db| db.decide_approval(id, decision, &caller, now_millis())).await?;
        match decided {
            Decided::Done(answered) => Ok(answered),
            Decided::Missing => Err(missing(id)),
            Decided::Over(approval) => Err(over(&approval)),
        }
    }

    /// Allows or denies a pattern, and answers the questions that wait and that it decides.
    ///
    /// # Errors
    /// `session-missing` for a session that is not stored and has asked nothing, `approval-missing` when nobody waits
    /// who could be answered, and those of the store.
    pub async fn rule(
        &self,
        pattern: &DomainPattern,
        action: RuleAction,
        word: Word,
        caller: &Caller,
    ) -> Result<Ruled> {
        let (pattern, caller) = (pattern.clone(), caller.clone());
        let named = pattern.to_string();
        let only_waiting = word == Word::Waiting;
        let ruled = self.store().run(move |db| {
            if let Word::Session(key) = &word
                && db.session(key)?.is_none()
                && !db.has_asked(key)?
            {
                return Ok(Err(key.clone()));
            }
            db.rule(&pattern, action, &word, &caller, now_millis()).map(Ok)
        });
        let (before, answered) = ruled.await?.map_err(|key| crate::sessions::missing(&key))?;
        if only_waiting && answered.is_empty() {
            return Err(Error::Invalid(
                Diagnosis::new("approval-missing", format!("no question about {named} waits for an answer"))
                    .fix("`moltis network pending` lists those that wait"),
            ));
        }
        Ok(Ruled { before, answered })
    }

    /// The rules for good, by their patterns.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn rules_for_good(&self) -> Result<Vec<NetworkRule>> {
        Ok(self.store().run(|db| db.rules_for_good()).await?)
    }

    /// Forgets a rule for good; gives what it was.
    ///
    /// # Errors
    /// `rule-missing`, and those of the store.
    pub async fn remove_rule(&self, pattern: &DomainPattern) -> Result<NetworkRule> {
        let removed = pattern.clone();
        self.store().run(move |db| db.remove_rule(&removed)).await?.ok_or_else(|| {
            Error::Invalid(
                Diagnosis::new("rule-missing", format!("there is no rule for {pattern}"))
                    .fix("`moltis network rules` lists those that there are"),
            )
        })
    }
}

/// A pattern in the form in which it is compared, stored and shown: lower-case ASCII, an IDN in punycode.
///
/// # Errors
/// Its name has no such form.
pub fn as_compared(pattern: &DomainPattern) -> Result<DomainPattern, NoHost> {
    let host = match &pattern.host {
        HostPattern::Name(name) => match name.parse()? {
            Host::Name(name) => HostPattern::Name(name),
            Host::Address(address) => HostPattern::Address(address),
        },
        // Below an address there is nothing, whatever it is called.
        HostPattern::Below(name) => HostPattern::Below(name.parse::<Host>()?.to_string()),
        other => other.clone(),
    };
    Ok(DomainPattern { host, port: pattern.port })
}

fn missing(id: ApprovalId) -> Error {
    Error::Invalid(
        Diagnosis::new("approval-missing", format!("there is no question {id}"))
            .fix("`moltis network pending` lists those that wait for an answer"),
    )
}

fn over(approval: &Approval) -> Error {
    let how = match &approval.said {
        Some(Said::Decided { decision, decided_by, .. }) => {
            let word = match decision {
                Decision::Once => "allowed, this once",
                Decision::Session => "allowed for the session",
                Decision::Always => "allowed for good",
                Decision::Deny => "denied, this once",
                Decision::DenySession => "denied for the session",
                Decision::DenyAlways => "denied for good",
            };
            format!("it was {word}, by {decided_by}")
        }
        Some(Said::Withdrawn) => "whoever asked has gone".to_owned(),
        Some(Said::Expired) | None => "its time was up".to_owned(),
    };
    Error::Invalid(
        Diagnosis::new(
            "approval-over",
            format!("the question {} about {} is over", approval.id, approval.host),
        )
        .cause(how)
        .fix(format!(
            "make a rule, for one session or for good: moltis network allow {} [--session KEY]",
            approval.host
        )),
    )
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use moltis_egress::Protocol;

    use super::*;

    const ME: Caller = Caller::Cli { uid: 7 };

    fn key() -> SessionKey {
        SessionKey::new("s").unwrap()
    }

    fn question(timeout: Duration) -> Asked {
        Asked { host: "a.example".into(), port: 443, protocol: Protocol::Https, timeout }
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        asking: Store,
        answering: Store,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let store = || Store::new(folder.path().join("data"));
            Self { asking: store(), answering: store(), _folder: folder }
        }

        fn asker(&self) -> SessionApprovals {
            SessionApprovals::new(self.asking.clone(), key())
        }

        async fn waiting(&self) -> Vec<Approval> {
            self.answering.run(|db| db.waiting_approvals(None, now_millis())).await.unwrap()
        }

        /// Waits until this many questions wait.
        async fn see(&self, count: usize) -> Vec<Approval> {
            for _ in 0..500 {
                let waiting = self.waiting().await;
                if waiting.len() == count {
                    return waiting;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("{:?}", self.waiting().await);
        }
    }

    #[test]
    fn patterns_have_one_form() {
        for (text, form) in [
            ("bücher.example", "xn--bcher-kva.example"),
            ("*.BÜCHER.example:443", "*.xn--bcher-kva.example:443"),
            ("a.example", "a.example"),
            ("*:443", "*:443"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("[::1]:80", "[::1]:80"),
        ] {
            let pattern: DomainPattern = text.parse().unwrap();
            assert_eq!(as_compared(&pattern).unwrap().to_string(), form);
        }
        let none: DomainPattern = "xn--a.example".parse().unwrap();
        assert!(as_compared(&none).is_err());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_answer_of_another_process_is_heard_by_all_who_wait() {
        let f = Fixture::new();
        let told = Arc::new(Mutex::new(Vec::new()));
        let listener: Listener = {
            let told = Arc::clone(&told);
            Arc::new(move |approval| told.lock().unwrap().push(approval.clone()))
        };
        let asker = Arc::new(f.asker().telling(listener));
        let tasks: Vec<_> = (0..5)
            .map(|_| {
                let asker = Arc::clone(&asker);
                tokio::spawn(async move { asker.ask(&question(Duration::from_secs(60))).await })
            })
            .collect();
        let first = f.see(1).await.remove(0);
        assert_eq!(told.lock().unwrap()[0].id, first.id);
        tokio::time::sleep(Duration::from_millis(300)).await;
        let since = Instant::now();
        f.answering
            .run(move |db| db.decide_approval(first.id, Decision::Session, &ME, now_millis()))
            .await
            .unwrap();
        for task in tasks {
            assert_eq!(task.await.unwrap(), Verdict::Session);
        }
        assert_eq!(told.lock().unwrap().len(), 1);
        assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
        assert_eq!(f.answering.network_rules(&key()).await.unwrap().trusted.len(), 1);
    }

    #[tokio::test]
    async fn time_that_is_up_and_a_connection_that_goes_end_the_question() {
        let f = Fixture::new();
        assert_eq!(f.asker().ask(&question(Duration::from_millis(200))).await, Verdict::TimedOut);
        assert_eq!(f.waiting().await, []);
        let asker = f.asker();
        let task = tokio::spawn(async move { asker.ask(&question(Duration::from_secs(60))).await });
        f.see(1).await;
        task.abort();
        f.see(0).await;
    }

    #[tokio::test]
    async fn too_many_questions_and_a_store_that_fails_let_nothing_through() {
        let f = Fixture::new();
        let asker = f.asker();
        for number in 0..crate::store::approvals::MAX_WAITING {
            let question = Asked { port: 1000 + number as u16, ..question(Duration::from_secs(60)) };
            f.answering.run(move |db| db.ask_approval(&key(), &question, now_millis())).await.unwrap();
        }
        assert_eq!(asker.ask(&question(Duration::from_secs(60))).await, Verdict::TooMany);
        let nowhere = SessionApprovals::new(Store::new("/dev/null/data"), key());
        assert_eq!(nowhere.ask(&question(Duration::from_secs(60))).await, Verdict::Unavailable);
    }
}
