//! Who asks, what he may do, and which sessions he sees.

use std::sync::Arc;

use moltis_runtime::store::{ApiKey, Caller, KeyScope};
use moltis_sandbox::SessionKey;

/// Name under which the holder of the admin token is written down. No API key has it.
pub const ADMIN: &str = "admin";

/// Who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// Somebody without a credential.
    Nobody,
    /// The user who runs the gateway, by the private socket.
    Owner {
        /// User id.
        uid: u32,
    },
    /// The holder of the admin token.
    Admin,
    /// An API key.
    Key {
        /// Its name.
        name: String,
    },
}

/// A caller of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    who: Who,
    scope: Option<KeyScope>,
    sessions: Option<Arc<[String]>>,
}

impl Identity {
    /// Somebody without a credential.
    pub fn nobody() -> Self {
        Self { who: Who::Nobody, scope: None, sessions: None }
    }

    /// The user who runs the gateway.
    pub fn owner(uid: u32) -> Self {
        Self { who: Who::Owner { uid }, scope: Some(KeyScope::Admin), sessions: None }
    }

    /// The holder of the admin token.
    pub fn admin() -> Self {
        Self { who: Who::Admin, scope: Some(KeyScope::Admin), sessions: None }
    }

    /// An API key.
    pub fn key(key: ApiKey) -> Self {
        let ApiKey { name, scope, sessions, .. } = key;
        Self { who: Who::Key { name }, scope: Some(scope), sessions: sessions.map(Arc::from) }
    }

    /// Who it is.
    pub fn who(&self) -> &Who {
        &self.who
    }

    /// What he may do.
    pub fn scope(&self) -> Option<KeyScope> {
        self.scope
    }

    /// Patterns of the sessions that he sees, if he is bound to some.
    pub fn sessions(&self) -> Option<&[String]> {
        self.sessions.as_deref()
    }

    /// Whether he may do this much.
    pub fn has(&self, scope: KeyScope) -> bool {
        self.scope.is_some_and(|own| own >= scope)
    }

    /// Whether he is the user who runs the gateway.
    pub fn is_owner(&self) -> bool {
        matches!(self.who, Who::Owner { .. })
    }

    /// Whether he sees the session of this key.
    pub fn sees(&self, key: &SessionKey) -> bool {
        self.sees_named(key.as_str())
    }

    /// [`sees`](Self::sees) for a key that is not checked.
    pub fn sees_named(&self, key: &str) -> bool {
        match &self.sessions {
            None => true,
            Some(patterns) => patterns.iter().any(|pattern| matches(pattern, key)),
        }
    }

    /// As whom what he does is written down.
    pub fn caller(&self) -> Caller {
        match &self.who {
            Who::Owner { uid } => Caller::Cli { uid: *uid },
            Who::Admin | Who::Nobody => Caller::ApiKey { name: ADMIN.to_owned() },
            Who::Key { name } => Caller::ApiKey { name: name.clone() },
        }
    }

    /// One word for him, by which what is counted of him is found again.
    pub fn name(&self) -> String {
        match &self.who {
            Who::Nobody => "nobody".to_owned(),
            other => match other {
                Who::Owner { uid } => format!("cli:{uid}"),
                Who::Key { name } => format!("key:{name}"),
                _ => ADMIN.to_owned(),
            },
        }
    }
}

/// Whether a pattern, in which `*` stands for any text, is of this key.
pub fn matches(pattern: &str, key: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = key.strip_prefix(first) else { return false };
    let mut parts: Vec<_> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_of_whole_keys() {
        for (pattern, key, is) in [
            ("a", "a", true),
            ("a", "ab", false),
            ("a", "", false),
            ("*", "anything/at all", true),
            ("team/*", "team/", true),
            ("team/*", "team/x", true),
            ("team/*", "teams/x", false),
            ("*/x", "team/x", true),
            ("*/x", "x", false),
            ("a*b*c", "abc", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("**", "", true),
        ] {
            assert_eq!(matches(pattern, key), is, "{pattern} {key}");
        }
    }

    #[test]
    fn a_bound_key_sees_its_sessions_alone() {
        let key = ApiKey {
            name: "ci".into(),
            scope: KeyScope::Write,
            sessions: Some(vec!["ci/*".into(), "one".into()]),
            created_millis: 0,
            expires_millis: None,
            last_used_millis: None,
        };
        let ci = Identity::key(key);
        let sees = |text: &str| ci.sees(&SessionKey::new(text).unwrap());
        assert!(sees("ci/1") && sees("one") && !sees("two") && !sees("xci/1"));
        assert!(ci.has(KeyScope::Read) && ci.has(KeyScope::Write) && !ci.has(KeyScope::Admin));
        assert!(!Identity::nobody().has(KeyScope::Read));
    }
}
