//! The contract that every backend of Moltis meets, what hostile commands try, and stand-ins.
//!
//! A [`Case`] is one promise, judged through the public traits of `moltis-sandbox` alone. It knows no backend: what one
//! may lack is read from its [`Guarantees`](moltis_sandbox::Guarantees), and then the case holds it to the refusal.
//! [`Attack`](case::Control) cases carry a positive control, so that none of them passes because the attack was wrong.

// The whole crate is test code: a broken expectation here is a failed test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

pub mod apple;
pub mod attack;
pub mod broken;
pub mod case;
pub mod context;
pub mod contract;
pub mod leak;
pub mod marker;
pub mod matrix;
pub mod need;
pub mod pace;
pub mod process;
pub mod program;
pub mod remote;
pub mod run;
pub mod runner;
pub mod subject;
pub mod tree;

pub use case::{Case, Fail, Verdict};
pub use context::{Ctx, Place};
pub use leak::Leak;
pub use marker::Marker;
pub use pace::patience;
pub use run::{Live, Ran};
pub use subject::Subject;

/// Every case of the contract, in the order of the matrix.
pub fn contract() -> Vec<Case> {
    contract::all()
}

/// Every attack, in the order of the matrix.
pub fn attacks() -> Vec<Case> {
    attack::all()
}

/// Contract and attacks.
pub fn all() -> Vec<Case> {
    let mut all = contract();
    all.extend(attacks());
    all
}
