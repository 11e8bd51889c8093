//! Vercel Sandbox: one microVM for each sandbox.

mod backend;
mod client;
mod wire;

pub use backend::{VercelConfig, backend};
