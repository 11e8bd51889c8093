//! Sandboxes at a provider: machines that are rented by the minute and spoken to over HTTP alone.
//!
//! No agent of ours runs there. A provider starts programs and carries their output; everything else that a sandbox
//! promises is done by a small shell script around each command ([`scripts`]), and by a journal on this side that knows of
//! every machine before it is made.

mod background;
pub mod daytona;
mod exec;
mod failure;
mod http;
mod journal;
mod machine;
mod program;
mod rented;
mod retry;
mod sandbox;
mod scripts;
mod sync;
mod tools;
pub mod vercel;
mod workspace;

pub use daytona::DaytonaConfig;
pub use vercel::VercelConfig;
