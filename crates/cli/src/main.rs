//! The `moltis` program.
fn main() {}
