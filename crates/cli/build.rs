//! Packs the program's relative relocations where the C library can read them.
//!
//! The tables of the WASM compiler are full of pointers, which a position-independent program has to mend one by one
//! before `main`: packed, that takes half as long. glibc reads the packed form from 2.36 on.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|is| is == value);
    let for_this_machine = std::env::var("HOST").ok() == std::env::var("TARGET").ok();
    let glibc = is("CARGO_CFG_TARGET_OS", "linux") && is("CARGO_CFG_TARGET_ENV", "gnu");
    if for_this_machine && glibc && glibc_version().is_some_and(|version| version >= (2, 36)) {
        println!("cargo::rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

/// Of the machine that builds: `glibc 2.36` is what it answers.
fn glibc_version() -> Option<(u32, u32)> {
    let answer = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok()?;
    let answer = String::from_utf8(answer.stdout).ok()?;
    let (major, minor) = answer.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
}
