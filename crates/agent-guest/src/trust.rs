//! Which process inside is the relay: the first one to show a secret before any code of the sandbox has run, and every
//! later one that shows the same.

use moltis_agent_protocol::relay::Secret;

/// The secret, once one has been shown.
#[derive(Default)]
pub enum Trust {
    /// None was shown, and nothing has run that could show one of its own.
    #[default]
    First,
    /// This one.
    Only(Box<Secret>),
    /// None was shown in time.
    Nobody,
}

impl Trust {
    /// Whether whoever shows this is the relay.
    pub fn accepts(&mut self, shown: &Secret) -> bool {
        match self {
            Self::First => {
                *self = Self::Only(Box::new(*shown));
                true
            }
            // Every byte is looked at, so that the time taken tells nothing of those that are right.
            Self::Only(secret) => {
                let wrong = secret.iter().zip(shown).fold(0, |wrong, (a, b)| wrong | (a ^ b));
                std::hint::black_box(wrong) == 0
            }
            Self::Nobody => false,
        }
    }

    /// Code of the sandbox begins to run.
    pub fn close(&mut self) {
        if matches!(self, Self::First) {
            *self = Self::Nobody;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_secret_is_the_only_one() {
        let mut trust = Trust::default();
        let secret = [1; 32];
        assert!(trust.accepts(&secret));
        trust.close();
        assert!(trust.accepts(&secret));
        for at in 0..32 {
            let mut other = secret;
            other[at] ^= 0x80;
            assert!(!trust.accepts(&other), "{at}");
        }
        assert!(trust.accepts(&secret));
    }

    #[test]
    fn no_secret_is_taken_once_code_has_run() {
        let mut trust = Trust::default();
        trust.close();
        assert!(!trust.accepts(&[1; 32]));
    }
}
