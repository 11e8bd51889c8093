//! A stand-in of a test's own, which leaves nothing behind.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::state::State;
use super::{STATE, Version};
use crate::process;

/// A folder for the search path, with a state.
#[derive(Debug)]
pub struct Standin {
    folder: tempfile::TempDir,
}

impl Standin {
    /// One of this version. `program` is an executable whose `main` calls [`main`](super::main).
    ///
    /// # Panics
    /// When its folder cannot be made.
    #[allow(clippy::expect_used)]
    pub fn new(program: &Path, version: Version) -> Self {
        let folder =
            tempfile::Builder::new().prefix("moltis-apple-").tempdir().expect("a folder for the stand-in");
        for name in ["bin", "state", "state/containers", "state/registry"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder for the stand-in");
        }
        assert!(
            program.is_file(),
            "{} is missing: it is an example of the crate that is tested",
            program.display()
        );
        std::os::unix::fs::symlink(program, folder.path().join("bin/container"))
            .expect("a link to the stand-in");
        let standin = Self { folder };
        std::fs::write(standin.state().join("version"), format!("{}.{}", version.0, version.1))
            .expect("a version");
        standin
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// The executable.
    pub fn program(&self) -> PathBuf {
        self.folder.path().join("bin/container")
    }

    /// The folder of the executable.
    pub fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// The environment of whatever runs it.
    pub fn variables(&self) -> BTreeMap<String, String> {
        let path = std::env::var("PATH").unwrap_or_default();
        [
            ("PATH", format!("{}:{path}:/usr/sbin:/sbin", self.bin().display())),
            (STATE, self.state().display().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }

    /// Lets a subcommand (or `*`) fail in a way from now on.
    ///
    /// # Panics
    /// When it cannot be written down.
    #[allow(clippy::expect_used)]
    pub fn fail(&self, command: &str, kind: &str) {
        std::fs::write(self.state().join("faults"), format!("{command} {kind}\n")).expect("a fault");
    }

    /// Lets everything succeed again.
    pub fn heal(&self) {
        let _ = std::fs::remove_file(self.state().join("faults"));
        let _ = std::fs::remove_file(self.state().join("down"));
    }

    /// Stops the service.
    pub fn down(&self) {
        let _ = std::fs::write(self.state().join("down"), "");
    }

    /// Whether an image was fetched without having been asked for.
    pub fn fetched(&self) -> bool {
        self.state().join("fetched").exists()
    }

    /// Makes an image that has a shell (a static `busybox`, which is given) and these files in it.
    ///
    /// # Panics
    /// When it cannot be made.
    #[allow(clippy::expect_used)]
    pub fn image(&self, name: &str, busybox: Option<&Path>, files: &[(&str, &str)]) {
        let mut layer = tar::Builder::new(Vec::new());
        let mut add = |name: &str, bytes: &[u8], mode: u32| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(mode);
            header.set_cksum();
            layer.append_data(&mut header, name, bytes).expect("a file of an image");
        };
        if let Some(busybox) = busybox {
            add("bin/busybox", &std::fs::read(busybox).expect("busybox"), 0o755);
        }
        for (name, text) in files {
            add(name, text.as_bytes(), 0o644);
        }
        let programs = [
            "sh", "cat", "echo", "ls", "id", "tar", "sleep", "true", "false", "touch", "mkdir", "pwd", "env",
            "head", "readlink", "seq", "uname", "hostname", "ps", "kill", "stat", "test", "rm", "dd", "tr",
            "wc", "grep",
        ];
        for program in programs.iter().filter(|_| busybox.is_some()) {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            layer.append_link(&mut header, format!("bin/{program}"), "busybox").expect("a link of an image");
        }
        let layer = layer.into_inner().expect("a layer");
        let about =
            json!({"Env": ["PATH=/bin", "IMAGE=yes"], "Cmd": ["/bin/sh"], "Labels": {"made": "by test"}});
        let state = State::at(&self.state());
        if let Err(failed) = state.make_image(name, &[layer], &about) {
            panic!("{}", failed.words);
        }
    }

    /// Puts an image into the registry from which images are fetched.
    ///
    /// # Panics
    /// When there is none of that name.
    pub fn publish(&self, name: &str) {
        let state = State::at(&self.state());
        let full = super::store::normal(name);
        let place = self.state().join("registry").join(full.replace(['/', ':'], "_"));
        if let Err(failed) = state.save(&[full], &place) {
            panic!("{}", failed.words);
        }
    }

    /// Ids of containers that there are.
    pub fn containers(&self) -> Vec<String> {
        State::at(&self.state()).containers().into_iter().map(|kept| kept.id).collect()
    }

    /// Processes of its machines and of itself that there are.
    pub fn processes(&self) -> Vec<u32> {
        let mark = format!("{STATE}={}", self.state().display());
        let marked = |pid: &u32| {
            let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|pair| pair == mark.as_bytes())
        };
        process::pids().into_iter().filter(marked).collect()
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        // Whoever keeps a machine ends it when its folder goes.
        let _ = std::fs::remove_dir_all(self.state());
        let end = Instant::now() + Duration::from_secs(10);
        while !self.processes().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
