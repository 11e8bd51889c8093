//! `moltis config`: check it, show it, write a first one.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

use moltis_config::{Loaded, init, paths, show};
use moltis_sandbox::Diagnosis;

use crate::args::{Config, Global};
use crate::failure::Failure;
use crate::{output, render};

/// Runs one of them; gives the exit status.
pub fn run(global: &Global, command: &Config) -> Result<i32, Failure> {
    match command {
        Config::Check(args) => check(global, args.json).map_err(|failure| failure.in_json(args.json)),
        Config::Show(args) => show(global, args.json).map_err(|failure| failure.in_json(args.json)),
        Config::Init(args) => init(global, args.json).map_err(|failure| failure.in_json(args.json)),
    }
}

fn check(global: &Global, json: bool) -> Result<i32, Failure> {
    let loaded = super::load(&super::options(global))?;
    let warnings = warnings(&loaded);
    if json {
        let files = &loaded.files_read;
        return output::print_json(&serde_json::json!({ "files": files, "warnings": warnings }));
    }
    warnings.iter().for_each(render::warning);
    let files: Vec<_> = loaded.files_read.iter().map(|file| file.display().to_string()).collect();
    let from = if files.is_empty() { "no file, all defaults".to_owned() } else { files.join(", ") };
    output::print(&render::printable(&format!("The configuration is right ({from}).\n")))
}

/// What is right and still worth a word: what all commands say, and what does nothing in this version.
fn warnings(loaded: &Loaded) -> Vec<Diagnosis> {
    loaded.warnings.iter().cloned().chain(loaded.unused()).collect()
}

fn show(global: &Global, json: bool) -> Result<i32, Failure> {
    let loaded = super::load(&super::options(global))?;
    if json {
        let (files, keys, warnings) = (&loaded.files_read, show::rows(&loaded), warnings(&loaded));
        output::print_json(&serde_json::json!({ "files": files, "keys": keys, "warnings": warnings }))
    } else {
        output::print(&render::printable(&show::text(&loaded)))
    }
}

/// Writes the file where `--config` says, else into the user's configuration directory. One that is there stays.
fn init(global: &Global, json: bool) -> Result<i32, Failure> {
    let options = super::options(global);
    let Some(file) = paths::config_file(options.config_path.as_deref(), &options.env) else {
        return Err(Failure::invalid(
            Diagnosis::new("config-no-home", "there is no place for a configuration file: HOME is not set")
                .fix("set HOME, or name the file by --config"),
        ));
    };
    let path = file.path;
    let unwritable = |error: std::io::Error| {
        let shown = path.display();
        Failure::invalid(match error.kind() {
            ErrorKind::AlreadyExists => Diagnosis::new("config-exists", format!("{shown} is there already"))
                .fix("edit it, or name another file by --config"),
            _ => Diagnosis::new("config-unwritable", format!("cannot write {shown}"))
                .cause(error)
                .fix("name a file that can be written by --config"),
        })
    };
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(unwritable)?;
    }
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path).map_err(unwritable)?;
    file.write_all(init::text().as_bytes()).map_err(unwritable)?;
    if json {
        return output::print_json(&serde_json::json!({ "file": path }));
    }
    output::print(&render::printable(&format!("{}\n", path.display())))
}
