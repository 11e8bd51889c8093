//! Requests that are to run once, however often they are sent: each is written down before it runs, and so is its answer.

use rusqlite::{OptionalExtension, params};

use super::database::Database;
use super::error::Result;
use super::sessions::{millis, since_1970};

/// Milliseconds for which a request is remembered: a day.
pub const KEPT_MILLIS: u64 = 24 * 3600 * 1000;

/// How many old requests go with each new one.
const TRIM_STEP: i64 = 16;

/// A request as its sender names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// Whose: keys of one caller mean nothing to another.
    pub caller: String,
    /// Its sender's name for it.
    pub key: String,
    /// Hash of all that it asks for: the same name for another request is a mistake.
    pub request: String,
}

/// An answer that was written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// HTTP status.
    pub status: u16,
    /// Media type.
    pub kind: String,
    /// The body.
    pub answer: Vec<u8>,
}

/// What is known of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Nothing: it is written down now, and whoever asked runs it.
    New,
    /// It runs.
    Running,
    /// It ran, and this was the answer.
    Done(Finished),
    /// It began, and who ran it died: what came of it is not known.
    Lost,
    /// Another request had this name.
    Differs,
}

impl Database {
    /// Writes down that a request is about to run, unless something is known of it.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn begin_once(&mut self, once: &Once, now_millis: u64) -> Result<Begun> {
        let owner = self.owner()?;
        type Row = (String, i64, i64, Option<u16>, Option<String>, Option<Vec<u8>>);
        let found: Option<Row> = self.write(|t| {
            let horizon = millis(now_millis.saturating_sub(KEPT_MILLIS));
            t.prepare_cached(
                "DELETE FROM idempotent WHERE rowid IN
                     (SELECT rowid FROM idempotent WHERE begun < ?1 ORDER BY begun LIMIT ?2)",
            )?
            .execute([horizon, TRIM_STEP])?;
            let mut query = t.prepare_cached(
                "SELECT request, begun, owner, status, kind, answer FROM idempotent WHERE caller = ?1 AND key = ?2",
            )?;
            let found: Option<Row> = query
                .query_row([&once.caller, &once.key], |row| {
                    Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
                })
                .optional()?
                .filter(|found: &Row| found.1 >= horizon);
            if found.is_none() {
                t.prepare_cached(
                    "INSERT INTO idempotent (caller, key, request, begun, owner) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (caller, key) DO UPDATE SET request = excluded.request, begun = excluded.begun,
                         owner = excluded.owner, status = NULL, kind = NULL, answer = NULL",
                )?
                .execute(params![once.caller, once.key, once.request, millis(now_millis), owner])?;
            }
            Ok(found)
        })?;
        Ok(match found {
            None => Begun::New,
            Some((request, ..)) if request != once.request => Begun::Differs,
            Some((_, _, _, Some(status), kind, answer)) => Begun::Done(Finished {
                status,
                kind: kind.unwrap_or_default(),
                answer: answer.unwrap_or_default(),
            }),
            Some((_, _, owner, None, ..)) if self.lives(owner)? => Begun::Running,
            Some(_) => Begun::Lost,
        })
    }

    /// Writes the answer of a request down.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn finish_once(&mut self, once: &Once, finished: &Finished) -> Result<()> {
        self.write(|t| {
            t.prepare_cached(
                "UPDATE idempotent SET status = ?3, kind = ?4, answer = ?5 WHERE caller = ?1 AND key = ?2",
            )?
            .execute(params![
                once.caller,
                once.key,
                finished.status,
                finished.kind,
                finished.answer
            ])?;
            Ok(())
        })
    }

    /// Forgets a request that did not run, so that it may be tried again.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn forget_once(&mut self, once: &Once) -> Result<()> {
        self.write(|t| {
            t.prepare_cached("DELETE FROM idempotent WHERE caller = ?1 AND key = ?2 AND status IS NULL")?
                .execute([&once.caller, &once.key])?;
            Ok(())
        })
    }

    /// How many requests are remembered.
    ///
    /// # Errors
    /// Those of [`StoreError`](super::StoreError).
    pub fn remembered_requests(&self) -> Result<u64> {
        self.read(|c| Ok(since_1970(c.query_row("SELECT count(*) FROM idempotent", [], |row| row.get(0))?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn once(key: &str, request: &str) -> Once {
        Once { caller: "api:ci".into(), key: key.into(), request: request.into() }
    }

    #[test]
    fn a_request_begins_once_and_its_answer_stays() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let (mut db, _) = Database::open(&data, false).unwrap();
        let (mut other, _) = Database::open(&data, false).unwrap();
        assert_eq!(db.begin_once(&once("k", "r"), 1).unwrap(), Begun::New);
        assert_eq!(other.begin_once(&once("k", "r"), 2).unwrap(), Begun::Running);
        assert_eq!(db.begin_once(&once("k", "another"), 2).unwrap(), Begun::Differs);
        let finished = Finished { status: 200, kind: "application/json".into(), answer: b"{}".to_vec() };
        db.finish_once(&once("k", "r"), &finished).unwrap();
        assert_eq!(other.begin_once(&once("k", "r"), 3).unwrap(), Begun::Done(finished));
        // Whoever ran it dies.
        assert_eq!(db.begin_once(&once("l", "r"), 4).unwrap(), Begun::New);
        drop(db);
        assert_eq!(other.begin_once(&once("l", "r"), 5).unwrap(), Begun::Lost);
        // What did not run may be tried again.
        other.begin_once(&once("m", "r"), 6).unwrap();
        other.forget_once(&once("m", "r")).unwrap();
        assert_eq!(other.begin_once(&once("m", "r"), 7).unwrap(), Begun::New);
        // After its time it is another request.
        assert_eq!(other.begin_once(&once("k", "another"), KEPT_MILLIS + 10).unwrap(), Begun::New);
        assert_eq!(other.remembered_requests().unwrap(), 1);
    }
}
