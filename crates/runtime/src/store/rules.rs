//! What sessions may reach besides what the configuration says: rules that a person made for good, and each session's
//! own.

use moltis_config::words::OnUnknown;
use moltis_egress::{Origin, Rule};
use moltis_sandbox::{DomainPattern, SessionKey};
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use serde::{Serialize, Serializer};

use super::caller::Caller;
use super::database::{Database, Fault};
use super::error::{Result, StoreError};
use super::sessions::{find, json, malformed, millis, since_1970};

/// Rules for good that there can be. All of them are read whenever one changes.
pub const MAX_RULES: usize = 4096;

/// Rules that a session of its own can have on one list.
pub const MAX_SESSION_RULES: usize = 1024;

/// Milliseconds for which the rules of a session that is not stored are kept: 30 days.
const KEPT_MILLIS: u64 = 30 * 24 * 3600 * 1000;

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RuleAction {
    /// It lets through.
    Allow,
    /// It forbids, whatever else lets through.
    Deny,
}

impl RuleAction {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

impl ToSql for RuleAction {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

impl FromSql for RuleAction {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "allow" => Ok(Self::Allow),
            "deny" => Ok(Self::Deny),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

/// A rule that a person made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NetworkRule {
    /// Which hosts and ports.
    #[serde(serialize_with = "as_text")]
    pub pattern: DomainPattern,
    /// What it does.
    pub action: RuleAction,
    /// When it was made, in milliseconds since 1970.
    pub made_millis: u64,
    /// By whom.
    pub made_by: Caller,
}

fn as_text<S: Serializer>(pattern: &DomainPattern, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(pattern)
}

/// What a session may reach besides what the configuration says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRules {
    /// What is let through.
    pub trusted: Vec<Rule>,
    /// What is never let through.
    pub denied: Vec<Rule>,
    /// What happens to a host on no list, where the session says so.
    pub on_unknown: Option<OnUnknown>,
    /// The state of all rules that this was read from.
    pub generation: u64,
}

impl SessionRules {
    fn add(&mut self, action: RuleAction, pattern: DomainPattern, origin: Origin) {
        let list = match action {
            RuleAction::Allow => &mut self.trusted,
            RuleAction::Deny => &mut self.denied,
        };
        list.push(Rule { pattern, origin });
    }
}

impl Database {
    /// A number that grows with every change of rules and of what sessions set, by whichever process. Cheap.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn network_generation(&self) -> Result<u64> {
        self.read(|c| Ok(generation(c)?))
    }

    /// What a session may reach besides what the configuration says: the rules for good, and its own. The session need
    /// not be stored.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn network_rules(&self, key: &SessionKey) -> Result<SessionRules> {
        self.read(|c| {
            let moment = c.unchecked_transaction()?;
            let mut rules = SessionRules { generation: generation(c)?, ..SessionRules::default() };
            for rule in all(c)? {
                rules.add(rule.action, rule.pattern, Origin::Rule);
            }
            for rule in of_session(c, key)? {
                rules.add(rule.action, rule.pattern, Origin::Session);
            }
            if let Some(session) = find(c, key)? {
                let set = session.overrides;
                for pattern in set.trusted_domains.into_iter().flatten() {
                    rules.add(RuleAction::Allow, pattern, Origin::Session);
                }
                for pattern in set.denied_domains.into_iter().flatten() {
                    rules.add(RuleAction::Deny, pattern, Origin::Session);
                }
                rules.on_unknown = set.on_unknown;
            }
            moment.finish()?;
            Ok(rules)
        })
    }

    /// The rules for good, by their patterns.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn rules_for_good(&self) -> Result<Vec<NetworkRule>> {
        self.read(|c| Ok(all(c)?))
    }

    /// The rules of a session that is not stored, by their patterns.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn rules_of_unstored(&self, key: &SessionKey) -> Result<Vec<NetworkRule>> {
        self.read(|c| Ok(of_session(c, key)?))
    }

    /// Forgets a rule for good; gives what it was.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn remove_rule(&mut self, pattern: &DomainPattern) -> Result<Option<NetworkRule>> {
        self.write(|t| {
            let mut query = t.prepare_cached(
                "DELETE FROM network_rules WHERE pattern = ?1 RETURNING pattern, action, made, made_by",
            )?;
            Ok(query.query_row([pattern.to_string()], read).optional()?)
        })
    }
}

/// Makes a rule for good; it takes the place of one of the same pattern, which is the answer.
pub(super) fn put(
    t: &Transaction<'_>,
    action: RuleAction,
    pattern: &DomainPattern,
    by: &Caller,
    now_millis: u64,
) -> Result<Option<RuleAction>, Fault> {
    let pattern = pattern.to_string();
    let before = t
        .prepare_cached("SELECT action FROM network_rules WHERE pattern = ?1")?
        .query_row([&pattern], |row| row.get(0))
        .optional()?;
    if before == Some(action) {
        return Ok(before);
    }
    let count: i64 =
        t.prepare_cached("SELECT count(*) FROM network_rules")?.query_row([], |row| row.get(0))?;
    if before.is_none() && since_1970(count) >= MAX_RULES as u64 {
        return Err(StoreError::TooManyRules(MAX_RULES).into());
    }
    t.prepare_cached(
        "INSERT INTO network_rules (pattern, action, made, made_by) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (pattern) DO UPDATE SET action = excluded.action, made = excluded.made,
             made_by = excluded.made_by",
    )?
    .execute(params![pattern, action, millis(now_millis), by])?;
    Ok(before)
}

/// Makes a rule of a session: among its overrides if it is stored, else by its key.
pub(super) fn put_of_session(
    t: &Transaction<'_>,
    key: &SessionKey,
    action: RuleAction,
    pattern: &DomainPattern,
    by: &Caller,
    now_millis: u64,
) -> Result<(), Fault> {
    let Some(session) = find(t, key)? else {
        return put_of_unstored(t, key, action, pattern, by, now_millis);
    };
    let mut set = session.overrides;
    let (name, list, other) = match action {
        RuleAction::Allow => ("trustedDomains", &mut set.trusted_domains, &mut set.denied_domains),
        RuleAction::Deny => ("deniedDomains", &mut set.denied_domains, &mut set.trusted_domains),
    };
    // What was said before of the same hosts holds no more.
    if let Some(other) = other {
        other.retain(|one| one != pattern);
    }
    let list = list.get_or_insert_default();
    if !list.contains(pattern) {
        if list.len() >= MAX_SESSION_RULES {
            return Err(StoreError::Override { name, why: "use at most 1024 entries" }.into());
        }
        list.push(pattern.clone());
    }
    if set.trusted_domains.as_ref().is_some_and(Vec::is_empty) {
        set.trusted_domains = None;
    }
    if set.denied_domains.as_ref().is_some_and(Vec::is_empty) {
        set.denied_domains = None;
    }
    t.prepare_cached("UPDATE sessions SET overrides = ?2 WHERE id = ?1")?
        .execute(params![session.number.0, json(&set)?])?;
    Ok(())
}

fn put_of_unstored(
    t: &Transaction<'_>,
    key: &SessionKey,
    action: RuleAction,
    pattern: &DomainPattern,
    by: &Caller,
    now_millis: u64,
) -> Result<(), Fault> {
    t.prepare_cached("DELETE FROM network_session_rules WHERE made < ?1")?
        .execute([millis(now_millis.saturating_sub(KEPT_MILLIS))])?;
    if of_session(t, key)?.len() >= MAX_SESSION_RULES {
        return Err(StoreError::TooManyRules(MAX_SESSION_RULES).into());
    }
    t.prepare_cached(
        "INSERT INTO network_session_rules (session, pattern, action, made, made_by) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (session, pattern) DO UPDATE SET action = excluded.action, made = excluded.made,
             made_by = excluded.made_by",
    )?
    .execute(params![key.as_str(), pattern.to_string(), action, millis(now_millis), by])?;
    Ok(())
}

fn generation(connection: &Connection) -> rusqlite::Result<u64> {
    let mut query = connection
        .prepare_cached("SELECT CAST(value AS INTEGER) FROM meta WHERE name = 'networkGeneration'")?;
    Ok(since_1970(query.query_row([], |row| row.get(0))?))
}

fn all(connection: &Connection) -> rusqlite::Result<Vec<NetworkRule>> {
    let mut query = connection
        .prepare_cached("SELECT pattern, action, made, made_by FROM network_rules ORDER BY pattern")?;
    query.query_map([], read)?.collect()
}

fn of_session(connection: &Connection, key: &SessionKey) -> rusqlite::Result<Vec<NetworkRule>> {
    let mut query = connection.prepare_cached(
        "SELECT pattern, action, made, made_by FROM network_session_rules WHERE session = ?1 ORDER BY pattern",
    )?;
    query.query_map([key.as_str()], read)?.collect()
}

fn read(row: &Row<'_>) -> rusqlite::Result<NetworkRule> {
    let pattern: String = row.get(0)?;
    Ok(NetworkRule {
        pattern: pattern.parse().map_err(|_| malformed(0))?,
        action: row.get(1)?,
        made_millis: since_1970(row.get(2)?),
        made_by: row.get(3)?,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Store, Word};
    use super::*;
    use crate::store::{SessionPatch, schema};

    const NOW: u64 = 1_800_000_000_000;
    const ME: Caller = Caller::Cli { uid: 7 };

    fn key(text: &str) -> SessionKey {
        SessionKey::new(text).unwrap()
    }

    fn pattern(text: &str) -> DomainPattern {
        text.parse().unwrap()
    }

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path().join("data"));
        (folder, store)
    }

    fn rule(text: &str, action: RuleAction) -> NetworkRule {
        NetworkRule { pattern: pattern(text), action, made_millis: NOW, made_by: ME }
    }

    fn texts(rules: &[Rule]) -> Vec<(String, Origin)> {
        rules.iter().map(|rule| (rule.pattern.to_string(), rule.origin)).collect()
    }

    #[test]
    fn rules_for_good_are_made_changed_and_removed() {
        let (_folder, store) = store();
        let put = |text: &str, action| {
            store.run_blocking(|db| db.rule(&pattern(text), action, &Word::Good, &ME, NOW)).unwrap().0
        };
        assert_eq!(put("b.example", RuleAction::Allow), None);
        assert_eq!(put("*.a.example:443", RuleAction::Deny), None);
        assert_eq!(put("b.example", RuleAction::Deny), Some(RuleAction::Allow));
        assert_eq!(put("b.example", RuleAction::Deny), Some(RuleAction::Deny));
        let all = store.run_blocking(|db| db.rules_for_good()).unwrap();
        assert_eq!(all, [rule("*.a.example:443", RuleAction::Deny), rule("b.example", RuleAction::Deny)]);
        let removed = store.run_blocking(|db| db.remove_rule(&pattern("b.example"))).unwrap();
        assert_eq!(removed, Some(rule("b.example", RuleAction::Deny)));
        assert_eq!(store.run_blocking(|db| db.remove_rule(&pattern("b.example"))).unwrap(), None);
        assert_eq!(store.run_blocking(|db| db.rules_for_good()).unwrap().len(), 1);
    }

    #[test]
    fn there_can_be_so_many_rules_and_no_more() {
        let (_folder, store) = store();
        let put = |number: usize| {
            let pattern = pattern(&format!("n{number}.example"));
            store.run_blocking(|db| db.rule(&pattern, RuleAction::Allow, &Word::Good, &ME, NOW))
        };
        store
            .run_blocking(|db| {
                db.write(|t| {
                    for number in 0..MAX_RULES {
                        t.execute(
                            "INSERT INTO network_rules VALUES (?1, 'allow', 1, 'cli:0')",
                            [format!("n{number}.example")],
                        )?;
                    }
                    Ok(())
                })
            })
            .unwrap();
        assert!(matches!(put(MAX_RULES), Err(StoreError::TooManyRules(MAX_RULES))));
        assert_eq!(put(3).unwrap().0, Some(RuleAction::Allow));
    }

    #[test]
    fn a_session_has_the_rules_for_good_and_its_own() {
        let (_folder, store) = store();
        let patch: SessionPatch = serde_json::from_str(
            r#"{"trustedDomains": ["a.example"], "deniedDomains": ["*.b.example"], "onUnknown": "ask"}"#,
        )
        .unwrap();
        store.run_blocking(|db| db.create_session(&key("s"), &patch, &ME, NOW)).unwrap();
        let say = |text: &str, action, word| {
            store.run_blocking(|db| db.rule(&pattern(text), action, &word, &ME, NOW)).unwrap();
        };
        say("good.example", RuleAction::Allow, Word::Good);
        say("bad.example", RuleAction::Deny, Word::Good);
        say("mine.example", RuleAction::Allow, Word::Session(key("s")));
        say("mine.example", RuleAction::Allow, Word::Session(key("s")));
        say("one.example", RuleAction::Allow, Word::Session(key("unstored")));
        say("two.example", RuleAction::Deny, Word::Session(key("unstored")));
        say("one.example", RuleAction::Deny, Word::Session(key("unstored")));

        let of = |name: &str| store.run_blocking(|db| db.network_rules(&key(name))).unwrap();
        let stored = of("s");
        let good = ("good.example".to_owned(), Origin::Rule);
        let bad = ("bad.example".to_owned(), Origin::Rule);
        let own = |text: &str| (text.to_owned(), Origin::Session);
        assert_eq!(texts(&stored.trusted), [good.clone(), own("a.example"), own("mine.example")]);
        assert_eq!(texts(&stored.denied), [bad.clone(), own("*.b.example")]);
        assert_eq!(stored.on_unknown, Some(OnUnknown::Ask));
        let unstored = of("unstored");
        assert_eq!(texts(&unstored.trusted), std::slice::from_ref(&good));
        assert_eq!(texts(&unstored.denied), [bad.clone(), own("one.example"), own("two.example")]);
        assert_eq!(texts(&of("other").trusted), [good]);
        assert_eq!(store.run_blocking(|db| db.rules_of_unstored(&key("unstored"))).unwrap().len(), 2);

        // What is denied later is not allowed any more, and the other way round.
        say("a.example", RuleAction::Deny, Word::Session(key("s")));
        say("mine.example", RuleAction::Deny, Word::Session(key("s")));
        say("mine.example", RuleAction::Allow, Word::Session(key("s")));
        let stored = of("s");
        assert_eq!(texts(&stored.trusted)[1..], [own("mine.example")]);
        assert_eq!(texts(&stored.denied)[1..], [own("*.b.example"), own("a.example")]);

        // Nothing of a session that is removed comes back with its key.
        store.run_blocking(|db| db.remove_session(&key("s"))).unwrap();
        assert_eq!(of("s").trusted.len(), 1);
    }

    #[test]
    fn every_change_of_what_may_be_reached_is_seen_in_one_number() {
        let (folder, store) = store();
        let other = Store::new(folder.path().join("data"));
        let number = || store.run_blocking(|db| db.network_generation()).unwrap();
        type Change<'a> = &'a dyn Fn(&mut Database) -> Result<()>;
        let changes: [Change<'_>; 7] = [
            &|db| db.rule(&pattern("a.example"), RuleAction::Allow, &Word::Good, &ME, NOW).map(drop),
            &|db| db.rule(&pattern("a.example"), RuleAction::Deny, &Word::Good, &ME, NOW).map(drop),
            &|db| db.remove_rule(&pattern("a.example")).map(drop),
            &|db| {
                db.rule(&pattern("a.example"), RuleAction::Allow, &Word::Session(key("u")), &ME, NOW)
                    .map(drop)
            },
            &|db| {
                db.create_session(&key("s"), &SessionPatch::default(), &ME, NOW)?;
                db.rule(&pattern("a.example"), RuleAction::Allow, &Word::Session(key("s")), &ME, NOW)
                    .map(drop)
            },
            &|db| {
                let patch: SessionPatch = serde_json::from_str(r#"{"onUnknown": "ask"}"#).unwrap();
                db.patch_session(&key("s"), &patch).map(drop)
            },
            &|db| db.remove_session(&key("s")).map(drop),
        ];
        for (at, change) in changes.iter().enumerate() {
            let before = number();
            other.run_blocking(|db| change(db)).unwrap();
            assert!(number() > before, "change {at}");
        }
        let before = number();
        other.run_blocking(|db| db.create_session(&key("t"), &SessionPatch::default(), &ME, NOW)).unwrap();
        other.run_blocking(|db| db.patch_session(&key("t"), &SessionPatch::default())).unwrap();
        other
            .run_blocking(|db| {
                let session = db.session(&key("t"))?.unwrap();
                db.touch_session(session.number, &ME, NOW + 1)
            })
            .unwrap();
        assert_eq!(number(), before);
    }

    #[test]
    fn a_store_of_the_version_before_gets_its_tables() {
        let (folder, store) = store();
        let place = folder.path().join("data/moltis.db");
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let before = rusqlite::Connection::open(&place).unwrap();
        before.execute_batch(include_str!("schema/1.sql")).unwrap();
        before.execute_batch(include_str!("schema/2.sql")).unwrap();
        before.pragma_update(None, "user_version", 2).unwrap();
        before.pragma_update(None, "application_id", schema::APPLICATION_ID).unwrap();
        drop(before);
        assert_eq!(store.run_blocking(|db| db.network_generation()).unwrap(), 0);
        store.run_blocking(|db| db.rule(&pattern("a"), RuleAction::Allow, &Word::Good, &ME, NOW)).unwrap();
        assert_eq!(store.run_blocking(|db| db.network_generation()).unwrap(), 1);
    }
}
