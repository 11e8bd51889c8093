//! The proxy against real servers on loopback.
#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used)]

mod ask;
mod connect;
mod http;
mod limits;
mod live;
mod socks;
mod tested;
mod upstream;
mod world;
