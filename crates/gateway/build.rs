//! Builds the web page in `ui/` and writes the table by which `assets` embeds it.
//!
//! The sources are copied into `OUT_DIR` and built there by npm, so that nothing is written into the source tree. Where
//! npm is not there, or fails, a page that says so is embedded: the program works without. `MOLTIS_UI=off` leaves the
//! page out on purpose, `MOLTIS_UI=folder` embeds one that is built already.

use std::env;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// What a build of the page reads. The lock comes first: what is installed is installed anew when it changes.
const SOURCES: [&str; 8] = [
    "package-lock.json",
    "package.json",
    "tsconfig.json",
    "vite.config.ts",
    "index.html",
    "public",
    "scripts",
    "src",
];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            println!("cargo::error={problem}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MOLTIS_UI");
    let out = PathBuf::from(variable("OUT_DIR")?);
    let source = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../../ui");
    let (folder, missing) = match env::var("MOLTIS_UI").unwrap_or_default().as_str() {
        "off" => (None, "This gateway was built without its page (<code>MOLTIS_UI=off</code>)."),
        "" => match made(&source, &out.join("ui")) {
            Ok(folder) => (Some(folder), ""),
            Err(problem) => {
                for line in problem.lines() {
                    println!("cargo::warning=the web page is left out: {line}");
                }
                (
                    None,
                    "This gateway was built where the page could not be: <code>npm</code> was missing, or failed.",
                )
            }
        },
        given => {
            let folder = PathBuf::from(given);
            if !folder.join("index.html").is_file() {
                return Err(format!("MOLTIS_UI names {given}, in which there is no index.html"));
            }
            println!("cargo::rerun-if-changed={given}");
            (Some(folder), "")
        }
    };
    let table = match folder {
        Some(folder) => table(&folder).map_err(|error| format!("cannot read the built page: {error}"))?,
        None => "static FILES: &[File] = &[];\n".to_owned(),
    };
    let written = format!("{table}const MISSING: &str = {missing:?};\n");
    let place = out.join("page.rs");
    if fs::read_to_string(&place).ok().as_deref() != Some(&written) {
        fs::write(&place, written).map_err(|error| format!("cannot write {}: {error}", place.display()))?;
    }
    Ok(())
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|_| format!("cargo has not set {name}"))
}

/// Builds the page in a folder of ours. Gives where it is then.
fn made(source: &Path, here: &Path) -> Result<PathBuf, String> {
    for name in SOURCES {
        println!("cargo::rerun-if-changed={}", source.join(name).display());
    }
    if !source.join("package.json").is_file() {
        return Err(format!("{} is not there", source.display()));
    }
    let failed = |error: io::Error| format!("cannot copy {}: {error}", source.display());
    fs::create_dir_all(here).map_err(failed)?;
    for name in SOURCES {
        let (from, to) = (source.join(name), here.join(name));
        if from.is_dir() {
            match fs::remove_dir_all(&to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                _ => copy(&from, &to).map_err(failed)?,
            }
        } else {
            fs::copy(&from, &to).map_err(failed)?;
        }
    }
    // What is installed belongs to one lock.
    let stamp = here.join("installed");
    let lock = fs::read(here.join(SOURCES[0])).map_err(failed)?;
    if fs::read(&stamp).ok().as_ref() != Some(&lock) {
        let _ = fs::remove_file(&stamp);
        npm(
            here,
            &["ci", "--include=dev", "--ignore-scripts", "--prefer-offline", "--no-audit", "--no-fund"],
        )?;
        fs::write(&stamp, lock).map_err(failed)?;
    }
    npm(here, &["run", "--silent", "build"])?;
    let built = here.join("dist");
    if built.join("index.html").is_file() { Ok(built) } else { Err("npm has built nothing".to_owned()) }
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?
        } else {
            fs::copy(entry.path(), to).map(drop)?
        }
    }
    Ok(())
}

fn npm(here: &Path, arguments: &[&str]) -> Result<(), String> {
    let done = Command::new("npm")
        .args(arguments)
        .current_dir(here)
        .stdin(Stdio::null())
        .env_remove("NODE_ENV")
        .env("CI", "1")
        // Without a network it is to give up soon.
        .env("npm_config_fetch_retries", "1")
        .env("npm_config_fetch_retry_mintimeout", "1000")
        .env("npm_config_fetch_retry_maxtimeout", "2000")
        .env("npm_config_update_notifier", "false")
        .output();
    let called = format!("npm {}", arguments.join(" "));
    let output = done.map_err(|error| format!("`{called}` cannot run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    // What is wrong comes before the calls that led there.
    let told = |line: &&str| !line.trim().is_empty() && !line.trim_start().starts_with("at ");
    let lines: Vec<_> = said.lines().filter(told).take(10).collect();
    Err(format!("`{called}` failed ({})\n{}", output.status, lines.join("\n")))
}

/// The files of a built page as Rust.
fn table(folder: &Path) -> io::Result<String> {
    let mut files = Vec::new();
    find(folder, "", &mut files)?;
    files.sort();
    let mut table = "static FILES: &[File] = &[\n".to_owned();
    for (name, place) in files {
        let with = |ending: &str| {
            let mut packed = place.clone().into_os_string();
            packed.push(ending);
            match fs::canonicalize(packed) {
                Ok(packed) => format!("Some(include_bytes!({:?}))", packed.display().to_string()),
                Err(_) => "None".to_owned(),
            }
        };
        let plain = fs::canonicalize(&place)?.display().to_string();
        let _ = writeln!(
            table,
            "    File {{ path: {name:?}, plain: include_bytes!({plain:?}), gzip: {}, brotli: {} }},",
            with(".gz"),
            with(".br")
        );
    }
    table.push_str("];\n");
    Ok(table)
}

fn find(folder: &Path, above: &str, files: &mut Vec<(String, PathBuf)>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, place) = (format!("{above}/{}", entry.file_name().to_string_lossy()), entry.path());
        if entry.file_type()?.is_dir() {
            find(&place, &name, files)?;
        } else if !matches!(place.extension().and_then(OsStr::to_str), Some("br" | "gz")) {
            files.push((name, place));
        }
    }
    Ok(())
}
