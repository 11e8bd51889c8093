//! Machines by real Firecracker and a real `/dev/kvm`. What boots in them is a few bytes of our own, which print and count:
//! that is enough for all that the host does. Whole guests are run by the contract, where a kernel for them is there.

// Clippy knows the functions marked as tests, and not those that they share.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backend;
mod crash;
mod jail;
mod machine;
mod payload;
mod restore;
#[cfg(feature = "ssh")]
mod ssh;
#[cfg(feature = "ssh")]
mod ssh_server;
mod support;
