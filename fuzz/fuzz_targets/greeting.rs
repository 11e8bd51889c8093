//! TLS greetings, whole and in pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moltis_egress::hello::{Greeting, Sniffer};

fn found(bytes: &[u8], step: usize) -> Greeting {
    let mut sniffer = Sniffer::default();
    for part in bytes.chunks(step) {
        match sniffer.take(part) {
            Greeting::Unfinished => {}
            known => return known,
        }
    }
    Greeting::Unfinished
}

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let whole = found(bytes, bytes.len().max(1));
    // A bound may be met sooner in small pieces; within it all pieces say the same.
    if bytes.len() < 60_000 {
        assert_eq!(found(bytes, usize::from(step).max(1)), whole);
    }
});
