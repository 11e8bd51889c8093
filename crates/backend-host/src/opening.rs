//! A sandbox between its folder's lock and its handle. What was made meanwhile goes when this is dropped, at whatever
//! moment that is: an error, an opening that nobody waits for any more, or the end of the async runtime.

use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use moltis_agent::UnixTransport;
use moltis_sandbox::SandboxId;
use rustix::pipe::PipeFlags;

use crate::error::{Error, Result};
use crate::folder::{RunFolder, SOCKET};
use crate::process::{self, Agent};
use crate::program::Program;
use crate::record::Record;
use crate::scratch;

/// How long an agent that was killed before it served may take to be gone.
const KILLED: Duration = Duration::from_secs(2);

/// A locked folder whose sandbox does not serve yet.
#[derive(Debug)]
pub struct Opening {
    // Dropped in this order: the folder and its lock go last.
    agent: Option<Agent>,
    lifeline: Option<OwnedFd>,
    data_dir: PathBuf,
    id: SandboxId,
    ephemeral: bool,
    folder: RunFolder,
}

/// An agent that was started and has not said yet that it listens.
#[derive(Debug)]
pub struct Launched {
    /// What has been made so far.
    pub opening: Opening,
    /// The record that was written of it.
    pub record: Record,
    /// Its process.
    pub agent: Agent,
    /// Where it says that it listens.
    pub ready: OwnedFd,
}

impl Opening {
    /// Begins in this folder; it is said there whether the scratch folder goes with the sandbox. Blocks.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn begin(data_dir: &Path, id: &SandboxId, ephemeral: bool, folder: RunFolder) -> Result<Self> {
        // A sandbox that is there has its mark; one that takes its place gets its own.
        if !folder.is_kept() {
            folder.mark(ephemeral)?;
        }
        let (data_dir, id) = (data_dir.to_owned(), id.clone());
        Ok(Self { agent: None, lifeline: None, data_dir, id, ephemeral, folder })
    }

    /// The folder.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }

    /// Says that the sandbox which was there has been ended. Blocks.
    ///
    /// # Errors
    /// When the disk is full.
    pub fn replace(&mut self) -> Result<()> {
        self.folder.keep(false);
        self.folder.mark(self.ephemeral)
    }

    /// Starts the agent and writes down who it is. `arguments` follow those that name its descriptors; `record` is made
    /// of its process. Blocks.
    ///
    /// # Errors
    /// When it cannot be started, or the disk is full.
    pub fn launch(
        mut self,
        program: &Program,
        arguments: Vec<OsString>,
        record: impl FnOnce(&Agent) -> io::Result<Record>,
    ) -> Result<Launched> {
        let out_of = |e: io::Error| Error::Start(e.to_string());
        let high = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 3).map_err(|e| out_of(e.into()));
        let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).map_err(|e| out_of(e.into()));
        let listener = high(self.folder.bind()?)?;
        let (ready, writer) = pipe()?;
        let writer = high(writer)?;
        let mut lifeline = None;
        if self.ephemeral {
            let (reader, writer) = pipe()?;
            lifeline = Some(high(reader)?);
            self.lifeline = Some(writer);
        }
        let mut words: Vec<OsString> = vec!["serve".into()];
        let mut say =
            |name: &str, fd: &OwnedFd| words.extend([name.into(), fd.as_raw_fd().to_string().into()]);
        say("--listener", &listener);
        say("--ready", &writer);
        if let Some(lifeline) = &lifeline {
            say("--lifeline", lifeline);
        }
        words.extend(arguments);
        let words = words.into_iter().map(|word| CString::new(word.into_vec()));
        let words = words.collect::<Result<Vec<_>, _>>().map_err(|e| Error::Start(e.to_string()))?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![listener.as_fd(), writer.as_fd()];
        descriptors.extend(lifeline.as_ref().map(AsFd::as_fd));
        let agent = process::spawn(program.path(), &words, &descriptors).map_err(out_of)?;
        self.agent = Some(agent.clone());
        // Before it listens: whoever finds the socket finds the record.
        let record = record(&agent).map_err(out_of)?;
        self.folder.write(&record)?;
        Ok(Launched { opening: self, record, agent, ready })
    }

    /// The way to the agent, which listens by now. Blocks on the disk alone.
    ///
    /// # Errors
    /// When its socket is not there any more.
    pub fn connect(&self, agent: &Agent) -> Result<UnixTransport> {
        Ok(UnixTransport::open(self.folder.directory(), SOCKET, agent.pid())?)
    }

    /// The sandbox serves, and from here on is its handle's to end, to which the lifeline goes.
    pub fn serves(mut self) -> Option<OwnedFd> {
        self.folder.keep(true);
        self.lifeline.take()
    }
}

impl Drop for Opening {
    /// Blocks on the disk and the end of a process that ran no command: a few milliseconds.
    fn drop(&mut self) {
        if self.folder.is_kept() {
            return;
        }
        if let Some(agent) = self.agent.take() {
            agent.kill();
            agent.wait(KILLED);
            agent.reap();
        }
        // What does not go now is swept later.
        if self.ephemeral && scratch::remove(&self.data_dir, &self.id).is_err() {
            self.folder.keep(true);
        }
    }
}
