//! A stand-in for Apple's `container`, which runs on macOS alone: a strict executable that knows the documented
//! subcommands and flags of the versions it models, rejects every other one as Apple's does, keeps its state on disk,
//! runs real processes in namespaces of their own where Apple's runs virtual machines, and fails in the known ways when
//! it is told to.
//!
//! A test makes a [`Standin`] and puts its folder on the search path of whatever is tested; an executable whose `main`
//! calls [`main`] is what it finds there.

mod command;
mod fault;
mod flags;
mod images;
mod json;
mod machine;
mod say;
mod standin;
mod state;
mod store;

pub use command::main;
pub use standin::Standin;

/// Variable that names the folder of the state.
pub const STATE: &str = "MOLTIS_APPLE_STATE";

/// A version of the tool, with two numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32);

impl Version {
    /// Before single files could be mounted and containers be without a network.
    pub const V0_5: Self = Self(0, 5);
    /// With `--network none` and `--read-only`, without `--ulimit`.
    pub const V0_8: Self = Self(0, 8);
    /// With `--ulimit`.
    pub const V0_9: Self = Self(0, 9);
    /// With `--cap-drop` and JSON of another shape.
    pub const V1_1: Self = Self(1, 1);
    /// All that are modelled.
    pub const ALL: [Self; 4] = [Self::V0_5, Self::V0_8, Self::V0_9, Self::V1_1];
}
