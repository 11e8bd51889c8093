//! What developers of Moltis run.
fn main() {}
