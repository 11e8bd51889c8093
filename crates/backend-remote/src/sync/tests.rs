//! Workspaces against a local directory as the far side, and against a far side that lies.

mod hostile;
mod merge;
mod rig;
mod rules;
