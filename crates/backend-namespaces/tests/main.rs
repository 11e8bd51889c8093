//! Sandboxes of the built-in backend, through the public traits. As root every test runs a second time as an ordinary
//! user, by the test `ordinary::everything_holds_for_an_ordinary_user`.

// Clippy knows the functions marked as tests, and not those that they share.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod confinement;
mod idle;
mod lifecycle;
mod limits;
mod mounts;
mod network;
mod ordinary;
mod places;
mod presence;
mod processes;
mod protection;
mod shared_home;
mod sources;
mod support;
mod visible;
