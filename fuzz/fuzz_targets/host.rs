//! Hosts, authorities and patterns.
#![no_main]

use libfuzzer_sys::fuzz_target;
use moltis_egress::{Host, Target};

fuzz_target!(|text: &str| {
    if let Ok(host) = text.parse::<Host>() {
        let form = host.to_string();
        assert!(form.is_ascii() && form.len() <= 253 && !form.is_empty());
        assert!(form.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._:".contains(&b)));
        assert_eq!(form.parse::<Host>().as_ref(), Ok(&host));
    }
    if let Ok(target) = text.parse::<Target>() {
        assert_eq!(target.to_string().parse::<Target>().as_ref(), Ok(&target));
    }
});
