//! The contract, chapter by chapter.

pub mod adopt;
pub mod background;
pub mod concurrency;
pub mod egress;
pub mod ends;
pub mod exec;
pub mod files;
pub mod forward;
pub mod homes;
pub mod lifetime;
pub mod limits;
pub mod network;
pub mod secrets;
pub mod stdin;
pub mod streams;
pub mod terminal;

use crate::Case;

/// Every case, in the order of the matrix.
pub fn all() -> Vec<Case> {
    [
        exec::cases(),
        streams::cases(),
        stdin::cases(),
        ends::cases(),
        terminal::cases(),
        background::cases(),
        files::cases(),
        homes::cases(),
        lifetime::cases(),
        adopt::cases(),
        forward::cases(),
        network::cases(),
        egress::cases(),
        limits::cases(),
        concurrency::cases(),
        secrets::cases(),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_used_once_and_every_law_of_this_level_is_covered() {
        let all = crate::all();
        let ids: BTreeSet<_> = all.iter().map(|c| c.id).collect();
        assert_eq!(ids.len(), all.len());
        let laws: BTreeSet<u8> = all.iter().filter_map(|c| c.law).collect();
        for law in [1, 3, 4, 5, 6, 7, 8, 9] {
            assert!(laws.contains(&law), "no case for law {law}");
        }
        for case in all.iter().filter(|c| c.chapter() == "attack") {
            assert!(case.control.is_some(), "{} has no control", case.id);
        }
    }
}
