//! What the runtime promises to those who use it.

// All of this is test code; the lint knows only functions marked as tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod library;
mod sessions;
mod snapshots;
mod store;
