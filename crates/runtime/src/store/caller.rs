//! On whose behalf something is done.

use std::fmt;

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use serde::{Deserialize, Serialize};

/// On whose behalf something is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum Caller {
    /// A user of this machine, by the command line or the library.
    Cli {
        /// User id.
        uid: u32,
    },
    /// An API key.
    ApiKey {
        /// Its name, never the key itself.
        name: String,
    },
    /// A model's client.
    Mcp {
        /// What the client calls itself.
        client: String,
    },
}

impl Caller {
    /// The user who runs this process.
    pub fn this_user() -> Self {
        Self::Cli { uid: rustix::process::geteuid().as_raw() }
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        match kind {
            "cli" => Some(Self::Cli { uid: rest.parse().ok()? }),
            "api" => Some(Self::ApiKey { name: rest.to_owned() }),
            "mcp" => Some(Self::Mcp { client: rest.to_owned() }),
            _ => None,
        }
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cli { uid } => write!(f, "cli:{uid}"),
            Self::ApiKey { name } => write!(f, "api:{name}"),
            Self::Mcp { client } => write!(f, "mcp:{client}"),
        }
    }
}

impl ToSql for Caller {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(self.to_string().into())
    }
}

impl FromSql for Caller {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        Self::parse(value.as_str()?).ok_or(FromSqlError::InvalidType)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_come_back_as_they_were() {
        for caller in [
            Caller::Cli { uid: 0 },
            Caller::ApiKey { name: "ci:nightly".into() },
            Caller::Mcp { client: String::new() },
        ] {
            assert_eq!(Caller::parse(&caller.to_string()), Some(caller));
        }
        assert_eq!(Caller::parse("root"), None);
        assert_eq!(Caller::parse("cli:-1"), None);
    }
}
