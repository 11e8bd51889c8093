//! Builds the guest agent as a static binary of its own and puts it where `binary` embeds it from.
//!
//! The guest is an ordinary member of the workspace for clippy and tests; what is embedded is built here by a second
//! cargo with its own target directory, profile and flags, so that the flags and wrappers of the outer build (clippy,
//! sanitizers, coverage) do not reach it and one guest build serves them all. `MOLTIS_GUEST=path` embeds another
//! file instead.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use sha2::{Digest, Sha256};

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            for line in problem.lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MOLTIS_GUEST");
    let guest = match env::var_os("MOLTIS_GUEST").filter(|path| !path.is_empty()) {
        Some(path) => given(Path::new(&path))?,
        // Elsewhere the agent runs in a Linux machine of the engine's and is found beside the program.
        None if variable("CARGO_CFG_TARGET_OS")? != "linux" => Vec::new(),
        None => compiled()?,
    };
    let hash: String = Sha256::digest(&guest).iter().map(|byte| format!("{byte:02x}")).collect();
    let target = PathBuf::from(variable("OUT_DIR")?).join("moltis-guest");
    // A new file would make everything above it compile again.
    if fs::read(&target).ok().as_deref() != Some(&guest[..]) {
        fs::write(&target, &guest).map_err(|e| format!("cannot write {}: {e}", target.display()))?;
    }
    println!("cargo::rustc-env=MOLTIS_GUEST_SHA256={hash}");
    Ok(())
}

fn given(path: &Path) -> Result<Vec<u8>, String> {
    println!("cargo::rerun-if-changed={}", path.display());
    let guest = fs::read(path)
        .map_err(|e| format!("MOLTIS_GUEST names {}, which cannot be read: {e}", path.display()))?;
    if !guest.starts_with(b"\x7fELF") {
        return Err(format!("MOLTIS_GUEST names {}, which is no Linux program", path.display()));
    }
    Ok(guest)
}

/// Builds the guest and returns its bytes.
fn compiled() -> Result<Vec<u8>, String> {
    let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    let workspace = package
        .ancestors()
        .nth(2)
        .ok_or_else(|| format!("{} does not lie in the workspace", package.display()))?;
    for source in [
        "Cargo.toml",
        "Cargo.lock",
        "crates/agent-guest/Cargo.toml",
        "crates/agent-guest/src",
        "crates/agent-protocol/Cargo.toml",
        "crates/agent-protocol/src",
    ] {
        println!("cargo::rerun-if-changed={}", workspace.join(source).display());
    }

    let triple = triple()?;
    let directory = target_directory()?.join("guest");
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(&cargo);
    command
        .current_dir(workspace)
        .args(["build", "--quiet", "--locked", "--package", "moltis-agent-guest", "--bin", "moltis-guest"])
        .args(["--profile", "guest", "--target", &triple, "--target-dir"])
        .arg(&directory);
    for (name, _) in env::vars_os() {
        if is_of_the_outer_build(&name) {
            command.env_remove(&name);
        }
    }
    command.env("CARGO_ENCODED_RUSTFLAGS", "-Ctarget-feature=+crt-static");

    let output = command
        .output()
        .map_err(|e| format!("cannot start {} to build the guest agent: {e}", Path::new(&cargo).display()))?;
    if !output.status.success() {
        return Err(format!(
            "the guest agent does not build for {triple} ({})\n{}\n\
             fix: mend what cargo names above, install the target with `rustup target add {triple}`, or set \
             MOLTIS_GUEST to a guest binary built elsewhere",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim_end(),
        ));
    }
    let guest = directory.join(&triple).join("guest/moltis-guest");
    fs::read(&guest).map_err(|e| format!("the guest agent was built, but {}: {e}", guest.display()))
}

/// The static target: musl where it is installed, else glibc linked statically.
fn triple() -> Result<String, String> {
    let arch = variable("CARGO_CFG_TARGET_ARCH")?;
    let musl = format!("{arch}-unknown-linux-musl");
    Ok(if is_installed(&musl) { musl } else { format!("{arch}-unknown-linux-gnu") })
}

fn is_installed(triple: &str) -> bool {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let output = Command::new(rustc).args(["--print", "target-libdir", "--target", triple]).output();
    output.is_ok_and(|output| {
        let directory = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success() && !directory.is_empty() && Path::new(&directory).is_dir()
    })
}

/// The target directory of the outer build: the one above `OUT_DIR` that cargo marked.
fn target_directory() -> Result<PathBuf, String> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    let marked = out.ancestors().find(|directory| directory.join("CACHEDIR.TAG").is_file());
    Ok(marked.unwrap_or(&out).to_path_buf())
}

/// Variables that would carry settings of the outer build into the inner one.
fn is_of_the_outer_build(name: &OsStr) -> bool {
    const KEPT: [&str; 4] = ["CARGO_HOME", "CARGO_NET_OFFLINE", "CARGO_MAKEFLAGS", "CARGO_TERM_COLOR"];
    const PREFIXES: [&str; 7] = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY", "NEXTEST", "DEP_"];
    let Some(name) = name.to_str() else { return false };
    let is_prefixed = PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    // Registries and their sources may be configured by the environment; they decide where crates come from only.
    let is_source = ["CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_HTTP_", "CARGO_NET_"];
    let is_kept = KEPT.contains(&name) || is_source.iter().any(|prefix| name.starts_with(prefix));
    is_prefixed && !is_kept
        || ["OUT_DIR", "TARGET", "HOST", "PROFILE", "OPT_LEVEL", "DEBUG", "NUM_JOBS"].contains(&name)
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|e| format!("{name}: {e}"))
}
