//! The guest agent.

mod connection;

fn main() {}
