//! Tools that work on files: run as commands are, but not counted as such.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_agentless::{Running, Runs, Sink, Stream};
use moltis_sandbox::{Error, Result};

use crate::failure;
use crate::program::{Program, Wanted};
use crate::sandbox::{Busy, Remote};

/// Tools of one machine.
pub struct Tools(pub Arc<Remote>);

#[async_trait]
impl Runs for Tools {
    async fn start(&self, argv: &[&[u8]], input: bool) -> Result<Box<dyn Running>> {
        let remote = &self.0;
        let busy = remote.begin(None).await?;
        let path = remote.place.env.iter().find(|(name, _)| name == "PATH");
        let path = path.and_then(|(_, path)| path.to_str()).unwrap_or("/usr/bin:/bin").to_owned();
        let wanted = Wanted {
            argv,
            env: vec![("LC_ALL".to_owned(), "C".to_owned()), ("PATH".to_owned(), path)],
            directory: b"",
            stdin: input,
            timeout: None,
            counts: false,
        };
        let program = Program::start(&remote.machine, &remote.launch, remote.room, wanted).await?;
        Ok(Box::new(Tool { program, _busy: busy }))
    }

    fn unsuitable(&self, what: &str, why: &str) -> Error {
        failure::unsuitable(what, why)
    }
}

struct Tool {
    program: Program,
    _busy: Busy,
}

#[async_trait]
impl Running for Tool {
    fn input(&mut self) -> Option<Sink> {
        self.program.stdin.take()
    }

    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>> {
        self.program.next().await
    }

    async fn end(&mut self) -> Result<i32> {
        self.program.descent().leave();
        self.program.end.as_ref().map(|end| end.code).ok_or_else(failure::broke)
    }
}
