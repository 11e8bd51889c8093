//! Keys whose value is one of a few words.

use std::fmt;

use moltis_sandbox::{BackendName, MountMode, Network};

use crate::error::InvalidValue;
use crate::suggest::suggest;

/// A value that is one of a few words.
pub trait Words: Copy + PartialEq + 'static {
    /// Every word with what it means, in the order in which help texts name them.
    fn all() -> Vec<(&'static str, Self)>;

    /// The word that stands for this value.
    fn word(self) -> &'static str {
        Self::all().into_iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// The value that a word stands for.
    ///
    /// # Errors
    /// [`InvalidValue::UnknownWord`] with the nearest valid word.
    fn parse(word: &str) -> Result<Self, InvalidValue> {
        let all = Self::all();
        if let Some((_, value)) = all.iter().find(|(known, _)| *known == word) {
            return Ok(*value);
        }
        let valid: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        let nearest = suggest(word, valid.iter().copied()).map(str::to_owned);
        Err(InvalidValue::UnknownWord { word: word.to_owned(), nearest, valid })
    }
}

macro_rules! words {
    ($($(#[$meta:meta])* $name:ident { $( #[doc = $doc:literal] $variant:ident = $word:literal, )* })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $( #[doc = $doc] $variant, )*
        }

        impl Words for $name {
            fn all() -> Vec<(&'static str, Self)> {
                vec![$(($word, Self::$variant)),*]
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }
    )*};
}

words! {
    /// Whether sessions run in a sandbox unless they say otherwise.
    Mode {
        /// They do.
        All = "all",
        /// They do not.
        Off = "off",
    }

    /// Where a session may go when its backend fails.
    Failover {
        /// To the next backend of the chain, whatever it isolates.
        Any = "any",
        /// Only to a backend that isolates files.
        Isolated = "isolated",
        /// Nowhere.
        Off = "off",
    }

    /// What becomes of `/home/sandbox` when its sandbox ends.
    HomePersistence {
        /// It ends too.
        Off = "off",
        /// The session keeps its own.
        Session = "session",
        /// All sessions share one.
        Shared = "shared",
    }

    /// How a folder of the host shows inside.
    MountAccess {
        /// Not at all.
        None = "none",
        /// Read-only.
        Ro = "ro",
        /// Readable and writable.
        Rw = "rw",
    }

    /// What the egress proxy does about a domain on neither list.
    OnUnknown {
        /// It refuses.
        Deny = "deny",
        /// It asks a person.
        Ask = "ask",
    }

    /// What is installed in a Vercel sandbox.
    VercelRuntime {
        /// Node.js 24.
        Node24 = "node24",
        /// Node.js 22.
        Node22 = "node22",
        /// Python 3.13.
        Python313 = "python3.13",
    }
}

impl MountAccess {
    /// The mode of the mount, if there is one.
    pub fn mode(self) -> Option<MountMode> {
        match self {
            Self::None => None,
            Self::Ro => Some(MountMode::Ro),
            Self::Rw => Some(MountMode::Rw),
        }
    }
}

/// What `backend` may be: a named one, or the strongest that is usable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendChoice {
    /// The strongest that is usable and keeps what was asked for.
    #[default]
    Auto,
    /// This one and no other.
    Named(BackendName),
}

impl Words for BackendChoice {
    fn all() -> Vec<(&'static str, Self)> {
        let named = BackendName::ALL.into_iter().map(|name| (name.as_str(), Self::Named(name)));
        std::iter::once(("auto", Self::Auto)).chain(named).collect()
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl Words for Network {
    fn all() -> Vec<(&'static str, Self)> {
        Self::ALL.into_iter().map(|network| (network.as_str(), network)).collect()
    }
}
