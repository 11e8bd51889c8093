//! Questions about hosts that no rule names, from whichever process asks to whichever process answers.

use std::time::Duration;

use moltis_egress::{Asked, Protocol, Verdict};
use moltis_sandbox::{DomainPattern, HostPattern, SessionKey};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row, Transaction, params};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::Result;
use super::rules::{self, RuleAction};
use super::sessions::{limit, malformed, millis, since_1970};

/// Questions of one session that may wait at the same time.
pub const MAX_WAITING: u64 = 16;

/// Questions that one session may ask within an hour.
pub const MAX_PER_HOUR: u64 = 60;

const HOUR_MILLIS: u64 = 3600 * 1000;

/// Milliseconds for which a question is remembered once it is over: a day.
const KEPT_MILLIS: u64 = 24 * HOUR_MILLIS;

/// How many old questions go with each new one.
const TRIM_STEP: usize = 32;

/// Number of a question in this store; never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ApprovalId(pub u64);

impl std::fmt::Display for ApprovalId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// What a person says to a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Decision {
    /// Those who wait may go through.
    Once,
    /// The host is let through for as long as the session is there.
    Session,
    /// The host is let through for good.
    Always,
    /// Those who wait may not go through.
    Deny,
    /// The host is not let through for as long as the session is there.
    DenySession,
    /// The host is never let through.
    DenyAlways,
}

impl Decision {
    const ALL: [Self; 6] =
        [Self::Once, Self::Session, Self::Always, Self::Deny, Self::DenySession, Self::DenyAlways];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Session => "session",
            Self::Always => "always",
            Self::Deny => "deny",
            Self::DenySession => "denySession",
            Self::DenyAlways => "denyAlways",
        }
    }

    /// What those who wait are told.
    pub fn verdict(self) -> Verdict {
        match self {
            Self::Once => Verdict::Once,
            Self::Session => Verdict::Session,
            Self::Always => Verdict::Always,
            Self::Deny | Self::DenySession | Self::DenyAlways => Verdict::Denied,
        }
    }

    fn action(self) -> RuleAction {
        match self {
            Self::Once | Self::Session | Self::Always => RuleAction::Allow,
            Self::Deny | Self::DenySession | Self::DenyAlways => RuleAction::Deny,
        }
    }
}

/// How a question ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "result", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Said {
    /// Somebody said so.
    Decided {
        /// What.
        decision: Decision,
        /// Who.
        decided_by: Caller,
        /// When, in milliseconds since 1970.
        decided_millis: u64,
    },
    /// Nobody said anything in time.
    Expired,
    /// Nobody wanted to know any more.
    Withdrawn,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Approval {
    /// Its number.
    pub id: ApprovalId,
    /// The session that wants to reach it. It need not be stored.
    pub session: SessionKey,
    /// The host: ASCII, an IDN in punycode; or an address.
    pub host: String,
    /// The port.
    pub port: u16,
    /// How the program asked.
    pub protocol: Protocol,
    /// Since when it waits, in milliseconds since 1970.
    pub asked_millis: u64,
    /// Until when it waits, in milliseconds since 1970.
    pub expires_millis: u64,
    /// What came of it; absent while it waits.
    #[serde(flatten)]
    pub said: Option<Said>,
}

/// What became of asking.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asking {
    /// It waits.
    Waiting {
        /// The question.
        approval: Approval,
        /// Whether it is new: otherwise another one asks the same.
        is_new: bool,
    },
    /// The session asks too much: nobody is asked.
    TooMany,
}

/// What became of deciding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decided {
    /// It holds. These are the questions that it answers, the one that was named first.
    Done(Vec<Approval>),
    /// There is no such question.
    Missing,
    /// It was over before.
    Over(Approval),
}

/// For whom a pattern is allowed or denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// For those who wait.
    Waiting,
    /// For one session.
    Session(SessionKey),
    /// For good.
    Good,
}

impl Database {
    /// Asks, or joins those who ask the same for the same session. Whoever is answered `Waiting` says with
    /// [`leave_approval`](Self::leave_approval) that he is gone.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn ask_approval(&mut self, session: &SessionKey, asked: &Asked, now_millis: u64) -> Result<Asking> {
        let timeout = u64::try_from(asked.timeout.as_millis()).unwrap_or(u64::MAX);
        let expires = millis(now_millis.saturating_add(timeout));
        self.write(|t| {
            expire(t, now_millis)?;
            let joined = t
                .prepare_cached(&format!(
                    "UPDATE approvals SET waiting = waiting + 1, expires = max(expires, ?4)
                     WHERE session = ?1 AND host = ?2 AND port = ?3 AND decision IS NULL RETURNING {COLUMNS}"
                ))?
                .query_row(params![session.as_str(), asked.host, asked.port, expires], read)
                .optional()?;
            if let Some(approval) = joined {
                return Ok(Asking::Waiting { approval, is_new: false });
            }
            let hour = millis(now_millis.saturating_sub(HOUR_MILLIS));
            let (waiting, recent): (i64, i64) = t
                .prepare_cached(
                    "SELECT coalesce(sum(decision IS NULL), 0), coalesce(sum(asked > ?2), 0)
                     FROM approvals WHERE session = ?1",
                )?
                .query_row(params![session.as_str(), hour], |row| Ok((row.get(0)?, row.get(1)?)))?;
            if since_1970(waiting) >= MAX_WAITING || since_1970(recent) >= MAX_PER_HOUR {
                return Ok(Asking::TooMany);
            }
            let approval = t
                .prepare_cached(&format!(
                    "INSERT INTO approvals (session, host, port, protocol, asked, expires, waiting)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1) RETURNING {COLUMNS}"
                ))?
                .query_row(
                    params![
                        session.as_str(),
                        asked.host,
                        asked.port,
                        asked.protocol.as_str(),
                        millis(now_millis),
                        expires
                    ],
                    read,
                )?;
            t.prepare_cached(
                "DELETE FROM approvals WHERE id IN
                     (SELECT id FROM approvals WHERE asked < ?1 AND decision IS NOT NULL LIMIT ?2)",
            )?
            .execute(params![millis(now_millis.saturating_sub(KEPT_MILLIS)), limit(TRIM_STEP)])?;
            Ok(Asking::Waiting { approval, is_new: true })
        })
    }

    /// A question by its number.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn approval(&self, id: ApprovalId) -> Result<Option<Approval>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE id = ?1"))?;
            Ok(query.query_row([millis(id.0)], read).optional()?)
        })
    }

    /// Says that one who asked waits no longer. The last one ends the question. What was said in time is the answer
    /// still.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn leave_approval(&mut self, id: ApprovalId, now_millis: u64) -> Result<Option<Approval>> {
        self.write(|t| {
            let left = t
                .prepare_cached(&format!(
                    "UPDATE approvals SET waiting = max(waiting - 1, 0), decision = coalesce(decision, iif(
                         expires <= ?2, 'expired', iif(waiting <= 1, 'withdrawn', NULL)))
                     WHERE id = ?1 RETURNING {COLUMNS}"
                ))?
                .query_row(params![millis(id.0), millis(now_millis)], read)
                .optional()?;
            Ok(left)
        })
    }

    /// Questions that wait, the oldest first; those of one session, or of all.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn waiting_approvals(&self, session: Option<&SessionKey>, now_millis: u64) -> Result<Vec<Approval>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!(
                "SELECT {COLUMNS} FROM approvals
                 WHERE decision IS NULL AND expires > ?1 AND (?2 IS NULL OR session = ?2) ORDER BY id"
            ))?;
            let rows = query.query_map(params![millis(now_millis), session.map(SessionKey::as_str)], read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// Answers a question. The first answer holds. One for the session or for good makes a rule of the host, whatever
    /// its port, and answers all questions that the rule decides.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn decide_approval(
        &mut self,
        id: ApprovalId,
        decision: Decision,
        by: &Caller,
        now_millis: u64,
    ) -> Result<Decided> {
        self.write(|t| {
            expire(t, now_millis)?;
            let found = t
                .prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE id = ?1"))?
                .query_row([millis(id.0)], read)
                .optional()?;
            let Some(approval) = found else { return Ok(Decided::Missing) };
            if approval.said.is_some() {
                return Ok(Decided::Over(approval));
            }
            let answer = Answer { decision, by, now_millis };
            let mut done = vec![answer.give(t, approval.id)?];
            let pattern = DomainPattern { port: None, ..approval.target().ok_or_else(|| malformed(2))? };
            let word = match decision {
                Decision::Once | Decision::Deny => Word::Waiting,
                Decision::Session | Decision::DenySession => Word::Session(approval.session),
                Decision::Always | Decision::DenyAlways => Word::Good,
            };
            if word != Word::Waiting {
                done.extend(answer.make_rule(t, &pattern, &word)?.1);
            }
            Ok(Decided::Done(done))
        })
    }

    /// Allows or denies a pattern, and answers the questions that wait and that it decides. Gives the rule for good
    /// that it takes the place of, and those questions.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn rule(
        &mut self,
        pattern: &DomainPattern,
        action: RuleAction,
        word: &Word,
        by: &Caller,
        now_millis: u64,
    ) -> Result<(Option<RuleAction>, Vec<Approval>)> {
        let decision = match (action, word) {
            (RuleAction::Allow, Word::Waiting) => Decision::Once,
            (RuleAction::Allow, Word::Session(_)) => Decision::Session,
            (RuleAction::Allow, Word::Good) => Decision::Always,
            (RuleAction::Deny, Word::Waiting) => Decision::Deny,
            (RuleAction::Deny, Word::Session(_)) => Decision::DenySession,
            (RuleAction::Deny, Word::Good) => Decision::DenyAlways,
        };
        self.write(|t| {
            expire(t, now_millis)?;
            Answer { decision, by, now_millis }.make_rule(t, pattern, word)
        })
    }

    /// Whether a session is known: it is stored, or has asked something that is remembered.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn has_asked(&self, session: &SessionKey) -> Result<bool> {
        self.read(|c| {
            let mut query = c.prepare_cached("SELECT 1 FROM approvals WHERE session = ?1 LIMIT 1")?;
            Ok(query.exists([session.as_str()])?)
        })
    }
}

/// What somebody says.
struct Answer<'a> {
    decision: Decision,
    by: &'a Caller,
    now_millis: u64,
}

impl Answer<'_> {
    /// To one question that waits.
    fn give(&self, t: &Transaction<'_>, id: ApprovalId) -> Result<Approval, Fault> {
        let answered = t
            .prepare_cached(&format!(
                "UPDATE approvals SET decision = ?2, decided = ?3, decided_by = ?4 WHERE id = ?1 RETURNING {COLUMNS}"
            ))?
            .query_row(params![millis(id.0), self.decision, millis(self.now_millis), self.by], read)?;
        Ok(answered)
    }

    /// As a rule, which answers every question that it decides.
    fn make_rule(
        &self,
        t: &Transaction<'_>,
        pattern: &DomainPattern,
        word: &Word,
    ) -> Result<(Option<RuleAction>, Vec<Approval>), Fault> {
        let (action, mut before) = (self.decision.action(), None);
        match word {
            Word::Waiting => {}
            Word::Session(key) => rules::put_of_session(t, key, action, pattern, self.by, self.now_millis)?,
            Word::Good => before = rules::put(t, action, pattern, self.by, self.now_millis)?,
        }
        let waiting: Vec<Approval> = t
            .prepare_cached(&format!("SELECT {COLUMNS} FROM approvals WHERE decision IS NULL ORDER BY id"))?
            .query_map([], read)?
            .collect::<rusqlite::Result<_>>()?;
        let mut answered = Vec::new();
        for approval in waiting {
            let is_of = match word {
                Word::Session(key) => approval.session == *key,
                Word::Waiting | Word::Good => true,
            };
            if is_of && approval.target().is_some_and(|target| pattern.covers(&target)) {
                answered.push(self.give(t, approval.id)?);
            }
        }
        Ok((before, answered))
    }
}

/// Ends questions whose time is up, whether somebody still waits or not.
fn expire(t: &Transaction<'_>, now_millis: u64) -> Result<(), Fault> {
    t.prepare_cached("UPDATE approvals SET decision = 'expired' WHERE decision IS NULL AND expires <= ?1")?
        .execute([millis(now_millis)])?;
    Ok(())
}

/// Forgets what a session has asked, and what was said to it alone.
pub(super) fn forget(t: &Transaction<'_>, session: &SessionKey) -> Result<(), Fault> {
    t.prepare_cached("DELETE FROM approvals WHERE session = ?1")?.execute([session.as_str()])?;
    t.prepare_cached("DELETE FROM network_session_rules WHERE session = ?1")?.execute([session.as_str()])?;
    Ok(())
}

const COLUMNS: &str = "id, session, host, port, protocol, asked, expires, decision, decided, decided_by";

fn read(row: &Row<'_>) -> rusqlite::Result<Approval> {
    let session: String = row.get(1)?;
    let protocol: String = row.get(4)?;
    let decision: Option<String> = row.get(7)?;
    let said = match decision.as_deref() {
        None => None,
        Some("expired") => Some(Said::Expired),
        Some("withdrawn") => Some(Said::Withdrawn),
        Some(_) => Some(Said::Decided {
            decision: row.get(7)?,
            decided_by: row.get(9)?,
            decided_millis: since_1970(row.get(8)?),
        }),
    };
    Ok(Approval {
        id: ApprovalId(since_1970(row.get(0)?)),
        session: SessionKey::new(session).ok_or_else(|| malformed(1))?,
        host: row.get(2)?,
        port: row.get(3)?,
        protocol: Protocol::ALL
            .into_iter()
            .find(|one| one.as_str() == protocol)
            .ok_or_else(|| malformed(4))?,
        asked_millis: since_1970(row.get(5)?),
        expires_millis: since_1970(row.get(6)?),
        said,
    })
}

impl Approval {
    /// The host and port as a pattern of this one alone.
    fn target(&self) -> Option<DomainPattern> {
        let host = match self.host.parse() {
            Ok(address) => HostPattern::Address(address),
            // Other texts are no names, and none comes from the proxy.
            Err(_) => self.host.parse::<DomainPattern>().ok()?.host,
        };
        Some(DomainPattern { host, port: Some(self.port) })
    }

    /// Time that is left to answer it.
    pub fn left(&self, now_millis: u64) -> Duration {
        Duration::from_millis(self.expires_millis.saturating_sub(now_millis))
    }
}

impl ToSql for Decision {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for Decision {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::ALL.into_iter().find(|one| one.as_str() == word).ok_or(FromSqlError::InvalidType)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{SessionPatch, Store};
    use super::*;

    const NOW: u64 = 1_800_000_000_000;
    const ME: Caller = Caller::Cli { uid: 7 };

    fn key(text: &str) -> SessionKey {
        SessionKey::new(text).unwrap()
    }

    fn question(host: &str, port: u16) -> Asked {
        Asked { host: host.to_owned(), port, protocol: Protocol::Connect, timeout: Duration::from_secs(60) }
    }

    struct Fixture {
        _folder: tempfile::TempDir,
        /// Two processes as far as the database can tell.
        stores: [Store; 2],
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let stores = [(); 2].map(|()| Store::new(folder.path().join("data")));
            Self { _folder: folder, stores }
        }

        fn ask(&self, process: usize, session: &str, host: &str, port: u16, at: u64) -> (ApprovalId, bool) {
            match self.asking(process, session, host, port, at) {
                Asking::Waiting { approval, is_new } => (approval.id, is_new),
                Asking::TooMany => panic!("too many"),
            }
        }

        fn asking(&self, process: usize, session: &str, host: &str, port: u16, at: u64) -> Asking {
            let (key, asked) = (key(session), question(host, port));
            self.stores[process].run_blocking(|db| db.ask_approval(&key, &asked, at)).unwrap()
        }

        fn decide(&self, process: usize, id: ApprovalId, decision: Decision, at: u64) -> Decided {
            self.stores[process].run_blocking(|db| db.decide_approval(id, decision, &ME, at)).unwrap()
        }

        fn said(&self, id: ApprovalId) -> Option<Said> {
            self.stores[0].run_blocking(|db| db.approval(id)).unwrap().unwrap().said
        }

        fn leave(&self, id: ApprovalId, at: u64) -> Option<Said> {
            self.stores[0].run_blocking(|db| db.leave_approval(id, at)).unwrap().unwrap().said
        }

        fn waiting(&self, at: u64) -> Vec<u64> {
            let waiting = self.stores[1].run_blocking(|db| db.waiting_approvals(None, at)).unwrap();
            waiting.iter().map(|approval| approval.id.0).collect()
        }
    }

    fn decided(decision: Decision, at: u64) -> Option<Said> {
        Some(Said::Decided { decision, decided_by: ME, decided_millis: at })
    }

    #[test]
    fn the_same_is_asked_once_and_the_first_answer_holds() {
        let f = Fixture::new();
        let (id, is_new) = f.ask(0, "s", "a.example", 443, NOW);
        assert!(is_new);
        assert_eq!(f.ask(1, "s", "a.example", 443, NOW + 5), (id, false));
        let (other, is_new) = f.ask(1, "s", "a.example", 80, NOW);
        assert!(is_new && other != id);
        let (elsewhere, is_new) = f.ask(1, "t", "a.example", 443, NOW);
        assert!(is_new && elsewhere != id);
        assert_eq!(f.waiting(NOW + 6), [id.0, other.0, elsewhere.0]);
        // The one who asked last may wait as long as he said.
        assert_eq!(f.waiting(NOW + 60_004), [id.0]);

        let approval = |said| Approval {
            id,
            session: key("s"),
            host: "a.example".into(),
            port: 443,
            protocol: Protocol::Connect,
            asked_millis: NOW,
            expires_millis: NOW + 60_005,
            said,
        };
        let done = approval(decided(Decision::Once, NOW + 7));
        assert_eq!(f.decide(1, id, Decision::Once, NOW + 7), Decided::Done(vec![done.clone()]));
        assert_eq!(f.decide(0, id, Decision::DenyAlways, NOW + 8), Decided::Over(done));
        assert_eq!(f.decide(0, ApprovalId(999), Decision::Once, NOW), Decided::Missing);
        assert_eq!(f.said(other), None);
        // Who comes after the answer asks anew.
        let (again, is_new) = f.ask(0, "s", "a.example", 443, NOW + 9);
        assert!(is_new && again > id);
        assert!(f.stores[0].run_blocking(|db| db.rules_for_good()).unwrap().is_empty());
    }

    #[test]
    fn a_question_ends_with_the_last_who_asked_and_with_its_time() {
        let f = Fixture::new();
        let (id, _) = f.ask(0, "s", "a.example", 443, NOW);
        f.ask(1, "s", "a.example", 443, NOW);
        assert_eq!(f.leave(id, NOW + 1), None);
        assert_eq!(f.leave(id, NOW + 2), Some(Said::Withdrawn));
        assert!(matches!(f.decide(0, id, Decision::Always, NOW + 3), Decided::Over(_)));
        // One whose asker was killed.
        let (id, _) = f.ask(0, "s", "b.example", 443, NOW);
        assert!(matches!(f.decide(0, id, Decision::Always, NOW + 60_000), Decided::Over(_)));
        assert_eq!(f.said(id), Some(Said::Expired));
        let (again, is_new) = f.ask(0, "s", "b.example", 443, NOW + 60_001);
        assert!(is_new && again != id);
        // An answer that came in time holds for one who leaves after it.
        f.decide(1, again, Decision::Session, NOW + 60_002);
        assert_eq!(f.leave(again, NOW + 200_000), decided(Decision::Session, NOW + 60_002));
    }

    #[test]
    fn a_word_for_a_session_or_for_good_answers_all_that_it_decides() {
        let f = Fixture::new();
        let session = |name: &str| {
            f.stores[0]
                .run_blocking(|db| db.create_session(&key(name), &SessionPatch::default(), &ME, NOW))
                .unwrap();
        };
        session("s");
        let (a, _) = f.ask(0, "s", "a.example", 443, NOW);
        let (b, _) = f.ask(0, "s", "a.example", 80, NOW);
        let (c, _) = f.ask(0, "t", "a.example", 443, NOW);
        let (d, _) = f.ask(0, "t", "sub.a.example", 443, NOW);
        let Decided::Done(done) = f.decide(1, b, Decision::Session, NOW) else { panic!() };
        assert_eq!(done.iter().map(|one| one.id).collect::<Vec<_>>(), [b, a]);
        assert_eq!((f.said(a), f.said(c)), (decided(Decision::Session, NOW), None));
        let stored = f.stores[0].run_blocking(|db| db.session(&key("s"))).unwrap().unwrap();
        assert_eq!(stored.overrides.trusted_domains, Some(vec!["a.example".parse().unwrap()]));

        // A session that is not stored keeps its word, too.
        f.decide(1, c, Decision::DenySession, NOW);
        let rules = f.stores[0].run_blocking(|db| db.network_rules(&key("t"))).unwrap();
        assert_eq!(rules.denied.len(), 1);

        let pattern: DomainPattern = "*.a.example:443".parse().unwrap();
        let ruled =
            |action| f.stores[1].run_blocking(|db| db.rule(&pattern, action, &Word::Good, &ME, NOW)).unwrap();
        let (before, answered) = ruled(RuleAction::Allow);
        assert_eq!((before, answered.iter().map(|one| one.id).collect::<Vec<_>>()), (None, vec![d]));
        assert_eq!(f.said(d), decided(Decision::Always, NOW));
        let (e, _) = f.ask(0, "t", "other.a.example", 443, NOW);
        let word = Word::Waiting;
        let (_, answered) =
            f.stores[1].run_blocking(|db| db.rule(&pattern, RuleAction::Deny, &word, &ME, NOW)).unwrap();
        assert_eq!(answered.len(), 1);
        assert_eq!(f.said(e), decided(Decision::Deny, NOW));
        assert_eq!(f.stores[0].run_blocking(|db| db.rules_for_good()).unwrap().len(), 1);
    }

    #[test]
    fn a_session_that_asks_too_much_is_not_heard() {
        let f = Fixture::new();
        let ask = |number: u64, at| f.asking(0, "s", &format!("n{number}.example"), 443, at);
        let mut ids = Vec::new();
        for number in 0..MAX_WAITING {
            let Asking::Waiting { approval, .. } = ask(number, NOW) else { panic!("{number}") };
            ids.push(approval.id);
        }
        assert_eq!(ask(99, NOW), Asking::TooMany);
        assert!(matches!(ask(0, NOW), Asking::Waiting { is_new: false, .. }));
        assert!(matches!(f.asking(0, "t", "a.example", 443, NOW), Asking::Waiting { .. }));
        // The time of those is up: there is room again, until there are too many within the hour.
        let mut asked = MAX_WAITING;
        let mut at = NOW;
        while asked < MAX_PER_HOUR {
            at += 60_001;
            for _ in 0..10.min(MAX_PER_HOUR - asked) {
                assert!(matches!(ask(asked, at), Asking::Waiting { .. }), "{asked}");
                asked += 1;
            }
        }
        assert_eq!(ask(asked, at + 60_001), Asking::TooMany);
        assert!(matches!(ask(asked, NOW + HOUR_MILLIS + 1), Asking::Waiting { .. }));
    }

    #[test]
    fn what_is_over_is_forgotten_after_a_day() {
        let f = Fixture::new();
        let (id, _) = f.ask(0, "s", "a.example", 443, NOW);
        let (next, _) = f.ask(0, "s", "b.example", 443, NOW + KEPT_MILLIS + 1);
        let found = |id| f.stores[0].run_blocking(|db| db.approval(id)).unwrap().is_some();
        assert_eq!((found(id), found(next)), (false, true));
    }

    #[test]
    fn of_many_who_answer_at_once_one_is_heard() {
        let f = Fixture::new();
        let (id, _) = f.ask(0, "s", "a.example", 443, NOW);
        let heard: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = Decision::ALL
                .into_iter()
                .enumerate()
                .map(|(at, decision)| {
                    let f = &f;
                    scope.spawn(move || matches!(f.decide(at % 2, id, decision, NOW), Decided::Done(_)))
                })
                .collect();
            threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
        });
        assert_eq!(heard, 1);
    }
}
