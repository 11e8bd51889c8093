//! Keys that this version reads and does not use: what they are for is not built yet.
//!
//! The table is the truth: whoever builds what a key is for takes its line away.

use moltis_sandbox::{Diagnosis, Origin};

use crate::load::Loaded;
use crate::schema;

/// Paths of keys; one that ends with `*` stands for all that begin so.
///
/// Only keys whose absence takes no protection away may stand here. One that demands something must be refused where
/// it cannot be kept.
const UNUSED: [&str; 0] = [];

/// Whether this version uses the key of this path.
pub fn is_used(path: &str) -> bool {
    !UNUSED.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == *pattern,
    })
}

/// The warning for whoever set it; `name` says what was set, and where.
pub fn warning(name: &str) -> Diagnosis {
    Diagnosis::new("setting-unused", format!("{name} is not used by this version"))
        .fix("it does nothing yet: leave it for a later version, or remove it")
}

impl Loaded {
    /// A warning for each key that somebody set and that this version does not use. Plain variables such as
    /// `VERCEL_TOKEN` are set for other tools too and give none.
    pub fn unused(&self) -> Vec<Diagnosis> {
        schema::keys()
            .filter(|key| !is_used(key.path))
            .filter_map(|key| {
                let (_, origin) = (key.get)(&self.config)?;
                let place = self.places.get(key.path)?;
                (!matches!(origin, Origin::Default | Origin::Alias))
                    .then(|| warning(&format!("{place}: `{}`", key.path)))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_names_what_was_set_and_has_a_fix() {
        let told = warning("moltis.toml:1:1: `a.b`");
        assert_eq!((told.code.as_ref(), told.fix.is_some()), ("setting-unused", true));
        assert_eq!(told.message, "moltis.toml:1:1: `a.b` is not used by this version");
    }

    #[test]
    fn every_line_of_the_table_is_of_a_key() {
        for pattern in UNUSED {
            let start = pattern.strip_suffix('*').unwrap_or(pattern);
            assert!(schema::keys().any(|key| key.path.starts_with(start)), "{pattern}");
        }
        for used in ["data_dir", "tools.exec.sandbox.backend", "tools.exec.sandbox.network"] {
            assert!(is_used(used), "{used}");
        }
    }
}
