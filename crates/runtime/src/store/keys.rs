//! API keys and logins of the gateway. What is secret is handed out once, and only its hash is kept.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use rusqlite::{OptionalExtension, Row, params};
use serde::{Deserialize, Serialize};

use super::database::Database;
use super::error::{Result, StoreError};
use super::sessions::{json, malformed, millis, since_1970};

/// API keys that there may be.
pub const MAX_KEYS: usize = 1000;

/// People who may be logged in at once; the oldest login gives way.
const MAX_LOGINS: i64 = 100;

/// How precisely the last use of a key is known, in milliseconds.
const USE_STEP: u64 = 60_000;

/// Name under which the hash of the admin token stands.
const ADMIN_TOKEN: &str = "adminToken";

/// What a key may do. Each may do what the ones before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum KeyScope {
    /// Look.
    #[serde(rename = "operator.read")]
    Read,
    /// Run commands and change sessions, within what the configuration lets callers do.
    #[serde(rename = "operator.write")]
    Write,
    /// Everything.
    #[serde(rename = "operator.admin")]
    Admin,
}

impl KeyScope {
    /// Every one, the weakest first.
    pub const ALL: [Self; 3] = [Self::Read, Self::Write, Self::Admin];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "operator.read",
            Self::Write => "operator.write",
            Self::Admin => "operator.admin",
        }
    }
}

impl FromSql for KeyScope {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let word = value.as_str()?;
        Self::ALL.into_iter().find(|scope| scope.as_str() == word).ok_or(FromSqlError::InvalidType)
    }
}

impl ToSql for KeyScope {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.as_str().into())
    }
}

/// An API key, without what is secret of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiKey {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scope: KeyScope,
    /// Patterns of the sessions that it sees; absent: every session, and what belongs to none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<String>>,
    /// When it was made, in milliseconds since 1970.
    pub created_millis: u64,
    /// From when on it is refused, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_millis: Option<u64>,
    /// When it was last used, to the minute, in milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_used_millis: Option<u64>,
}

/// An API key that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewApiKey {
    /// Its name.
    pub name: String,
    /// What it may do.
    pub scope: KeyScope,
    /// Patterns of the sessions that it sees; absent: every session.
    pub sessions: Option<Vec<String>>,
    /// From when on it is refused, in milliseconds since 1970.
    pub expires_millis: Option<u64>,
}

/// A person who is logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Hash of the cookie.
    pub hash: String,
    /// Hash of the secret that the page holds.
    pub secret_hash: String,
    /// When it ends, in milliseconds since 1970.
    pub expires_millis: u64,
    /// Hash of the API key that it was begun with; absent: it was the admin token.
    pub key_hash: Option<String>,
}

const COLUMNS: &str = "name, scope, sessions, created, expires, last_used FROM api_keys";

impl Database {
    /// Makes an API key of which the hash of the secret is given.
    ///
    /// # Errors
    /// `KeyExists`, `TooManyKeys`, and those of [`StoreError`].
    pub fn create_key(&mut self, new: &NewApiKey, hash: &str, now_millis: u64) -> Result<ApiKey> {
        self.write(|t| {
            let count: i64 = t.query_row("SELECT count(*) FROM api_keys", [], |row| row.get(0))?;
            if since_1970(count) >= MAX_KEYS as u64 {
                return Err(StoreError::TooManyKeys(MAX_KEYS).into());
            }
            let sessions = new.sessions.as_ref().map(json).transpose()?;
            let made = t
                .prepare_cached(
                    "INSERT INTO api_keys (name, hash, scope, sessions, created, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (name) DO NOTHING",
                )?
                .execute(params![
                    new.name,
                    hash,
                    new.scope,
                    sessions,
                    millis(now_millis),
                    new.expires_millis.map(millis)
                ])?;
            if made == 0 {
                return Err(StoreError::KeyExists(new.name.clone()).into());
            }
            let NewApiKey { name, scope, sessions, expires_millis } = new.clone();
            Ok(ApiKey {
                name,
                scope,
                sessions,
                created_millis: now_millis,
                expires_millis,
                last_used_millis: None,
            })
        })
    }

    /// The API keys, by name, also those whose time is over.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn keys(&self) -> Result<Vec<ApiKey>> {
        self.read(|c| {
            let mut query = c.prepare_cached(&format!("SELECT {COLUMNS} ORDER BY name"))?;
            let rows = query.query_map([], read)?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }

    /// The API key of this hash, unless its time is over; its use is noted.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn key_of(&mut self, hash: &str, now_millis: u64) -> Result<Option<ApiKey>> {
        let found: Option<ApiKey> = self.read(|c| {
            let mut query = c.prepare_cached(&format!("SELECT {COLUMNS} WHERE hash = ?1"))?;
            Ok(query.query_row([hash], read).optional()?)
        })?;
        let Some(key) = found.filter(|key| key.expires_millis.is_none_or(|expires| now_millis < expires))
        else {
            return Ok(None);
        };
        if key.last_used_millis.is_none_or(|last| last.saturating_add(USE_STEP) <= now_millis) {
            self.write(|t| {
                t.prepare_cached("UPDATE api_keys SET last_used = ?2 WHERE hash = ?1")?
                    .execute(params![hash, millis(now_millis)])?;
                Ok(())
            })?;
        }
        Ok(Some(key))
    }

    /// Removes an API key; what it was, if it was there.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn revoke_key(&mut self, name: &str) -> Result<Option<ApiKey>> {
        self.write(|t| {
            let mut query = t.prepare_cached(
                "DELETE FROM api_keys WHERE name = ?1
                 RETURNING name, scope, sessions, created, expires, last_used",
            )?;
            Ok(query.query_row([name], read).optional()?)
        })
    }

    /// Hash of the admin token, once there is one.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn admin_token(&self) -> Result<Option<String>> {
        self.meta(ADMIN_TOKEN)
    }

    /// Puts another admin token in the place of the one before, and ends every login.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn set_admin_token(&mut self, hash: &str) -> Result<()> {
        self.write(|t| {
            t.prepare_cached(
                "INSERT INTO meta VALUES (?1, ?2) ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            )?
            .execute([ADMIN_TOKEN, hash])?;
            t.execute("DELETE FROM logins", [])?;
            Ok(())
        })
    }

    /// Notes that somebody has logged in.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn add_login(&mut self, login: &Login, now_millis: u64) -> Result<()> {
        self.write(|t| {
            t.prepare_cached("DELETE FROM logins WHERE expires <= ?1")?.execute([millis(now_millis)])?;
            t.prepare_cached(
                "DELETE FROM logins WHERE hash IN
                     (SELECT hash FROM logins ORDER BY created DESC LIMIT -1 OFFSET ?1)",
            )?
            .execute([MAX_LOGINS - 1])?;
            t.prepare_cached("INSERT INTO logins VALUES (?1, ?2, ?3, ?4, ?5)")?.execute(params![
                login.hash,
                login.secret_hash,
                millis(now_millis),
                millis(login.expires_millis),
                login.key_hash
            ])?;
            Ok(())
        })
    }

    /// The login of a cookie of this hash, unless it is over.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn login_of(&self, hash: &str, now_millis: u64) -> Result<Option<Login>> {
        self.read(|c| {
            let mut query = c.prepare_cached(
                "SELECT hash, secret, expires, key FROM logins WHERE hash = ?1 AND expires > ?2",
            )?;
            let found = query.query_row(params![hash, millis(now_millis)], |row| {
                Ok(Login {
                    hash: row.get(0)?,
                    secret_hash: row.get(1)?,
                    expires_millis: since_1970(row.get(2)?),
                    key_hash: row.get(3)?,
                })
            });
            Ok(found.optional()?)
        })
    }

    /// Ends a login.
    ///
    /// # Errors
    /// Those of [`StoreError`].
    pub fn end_login(&mut self, hash: &str) -> Result<()> {
        self.write(|t| {
            t.prepare_cached("DELETE FROM logins WHERE hash = ?1")?.execute([hash])?;
            Ok(())
        })
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<ApiKey> {
    let sessions: Option<String> = row.get(2)?;
    let sessions = sessions.map(|text| serde_json::from_str(&text).map_err(|_| malformed(2))).transpose()?;
    Ok(ApiKey {
        name: row.get(0)?,
        scope: row.get(1)?,
        sessions,
        created_millis: since_1970(row.get(3)?),
        expires_millis: row.get::<_, Option<i64>>(4)?.map(since_1970),
        last_used_millis: row.get::<_, Option<i64>>(5)?.map(since_1970),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn database() -> (tempfile::TempDir, Database) {
        let folder = tempfile::tempdir().unwrap();
        let (database, _) = Database::open(&folder.path().join("data"), false).unwrap();
        (folder, database)
    }

    fn new(name: &str) -> NewApiKey {
        NewApiKey { name: name.into(), scope: KeyScope::Write, sessions: None, expires_millis: None }
    }

    #[test]
    fn a_key_is_found_by_its_hash_until_it_is_revoked_or_over() {
        let (_folder, mut db) = database();
        let bound = NewApiKey {
            sessions: Some(vec!["team/*".into()]),
            expires_millis: Some(5_000_000),
            ..new("bound")
        };
        let made = db.create_key(&bound, "h1", 7).unwrap();
        db.create_key(&new("a"), "h2", 8).unwrap();
        assert!(matches!(db.create_key(&new("a"), "h3", 9), Err(StoreError::KeyExists(name)) if name == "a"));
        assert_eq!(db.keys().unwrap().iter().map(|key| &*key.name).collect::<Vec<_>>(), ["a", "bound"]);
        assert_eq!(db.key_of("h1", 100).unwrap(), Some(made.clone()));
        assert_eq!(db.key_of("h1", 101).unwrap(), Some(ApiKey { last_used_millis: Some(100), ..made }));
        assert_eq!(db.key_of("h1", 5_000_000).unwrap(), None);
        assert_eq!(db.key_of("h3", 100).unwrap(), None);
        assert!(db.revoke_key("a").unwrap().is_some() && db.revoke_key("a").unwrap().is_none());
        assert_eq!(db.key_of("h2", 100).unwrap(), None);
    }

    #[test]
    fn logins_end_by_their_time_by_word_and_with_the_token() {
        let (_folder, mut db) = database();
        let login = |hash: &str| Login {
            hash: hash.into(),
            secret_hash: "s".into(),
            expires_millis: 1000,
            key_hash: (hash == "c").then(|| "k".into()),
        };
        assert_eq!(db.admin_token().unwrap(), None);
        for hash in ["a", "b", "c"] {
            db.add_login(&login(hash), 1).unwrap();
        }
        assert_eq!(db.login_of("a", 999).unwrap(), Some(login("a")));
        assert_eq!(db.login_of("c", 999).unwrap(), Some(login("c")));
        assert_eq!(db.login_of("a", 1000).unwrap(), None);
        db.end_login("b").unwrap();
        assert_eq!(db.login_of("b", 2).unwrap(), None);
        db.set_admin_token("t").unwrap();
        assert_eq!((db.admin_token().unwrap().as_deref(), db.login_of("a", 2).unwrap()), (Some("t"), None));
        for number in 0..150 {
            db.add_login(&login(&number.to_string()), number).unwrap();
        }
        assert_eq!(
            (db.login_of("0", 200).unwrap(), db.login_of("149", 200).unwrap()),
            (None, Some(login("149")))
        );
    }
}
