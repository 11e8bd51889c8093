//! Getting out where the network is `blocked` or `trusted`: past the proxy, and through it to where nobody allowed.

mod load;
mod naive;
mod road;
mod walls;
mod world;

use crate::Case;

pub(super) fn cases() -> Vec<Case> {
    [walls::cases(), road::cases(), load::cases()].concat()
}
