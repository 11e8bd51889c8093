//! SOCKS requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moltis_egress::socks5::{Request, request};

fuzz_target!(|bytes: &[u8]| {
    let whole = request(bytes);
    if let Request::Connect(_, end) = whole {
        assert!(end <= bytes.len() && end <= 262);
        assert_eq!(request(&bytes[..end]), whole);
        assert_eq!(request(&bytes[..end - 1]), Request::Unfinished);
    }
    if whole == Request::Unfinished {
        assert!(bytes.len() < 262);
    }
});
