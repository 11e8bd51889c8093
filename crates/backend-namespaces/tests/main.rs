//! Sandboxes of the built-in backend, through the public traits. As root every test runs a second time as an ordinary
//! user, by the test `ordinary::everything_holds_for_an_ordinary_user`.

mod confinement;
mod lifecycle;
mod limits;
mod mounts;
mod network;
mod ordinary;
mod processes;
mod sources;
mod support;
mod visible;
