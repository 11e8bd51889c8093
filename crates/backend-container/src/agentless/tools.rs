//! Tools that work on files: run by the engine, marked as commands are, and looked at until they end.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use moltis_agentless::{Running, Runs, ScriptFiles};
use moltis_sandbox::{Diagnosis, Error, GuestPath, Result};

use super::failure;
use super::program::{Program, Wanted};
use super::sandbox::{Agentless, Busy};
use crate::engine::{Sink, Stream};

/// Most that is read of the list of all mounts.
const MAX_MOUNTS: usize = 4 << 20;

/// Between two looks at whether a tool is over.
const LOOK: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Tools of one sandbox.
pub struct Tools(pub Arc<Agentless>);

#[async_trait]
impl Runs for Tools {
    async fn start(&self, argv: &[&[u8]], input: bool) -> Result<Box<dyn Running>> {
        let sandbox = &self.0;
        let busy = sandbox.begin(false).await?;
        let place = sandbox.place();
        let path = place.env.iter().find(|(name, _)| name == "PATH");
        let path = path.and_then(|(_, path)| path.to_str()).unwrap_or("/usr/bin:/bin").to_owned();
        let wanted = Wanted {
            argv,
            env: vec![("LC_ALL".to_owned(), "C".to_owned()), ("PATH".to_owned(), path)],
            unset: &[],
            directory: b"",
            stdin: input,
            terminal: None,
        };
        let program = Program::start(&sandbox.engine, &sandbox.container, &sandbox.steward, wanted).await?;
        Ok(Box::new(Tool { program, _busy: busy }))
    }

    fn unsuitable(&self, what: &str, why: &str) -> Error {
        failure::image(what, why)
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
        // What came early comes first.
        if !self.program.first.is_empty() {
            return Ok(Some(self.program.first.remove(0)));
        }
        self.program.output.next().await.map_err(|error| failure::lost(&error))
    }

    async fn end(&mut self) -> Result<i32> {
        let mut pause = LOOK.0;
        loop {
            if let Some(code) = self.program.code().await? {
                self.program.descent().leave();
                return Ok(code);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK.1);
        }
    }
}

/// Looks whether at each of these paths something is mounted, and is this device and inode: the engine may have found a
/// link at either end.
pub async fn check_mounts(sandbox: &Arc<Agentless>, expected: &[(String, u64, u64)]) -> Result<()> {
    const SCRIPT: &str = r#"stat -c '%d %i' "$@" && exec cat /proc/self/mountinfo"#;
    let files = ScriptFiles::new(Arc::new(Tools(Arc::clone(sandbox))));
    let paths: Vec<&[u8]> = expected.iter().map(|(path, ..)| path.as_bytes()).collect();
    let root = GuestPath::new("/").ok_or_else(failure::gone)?;
    let said = files.run(SCRIPT, &paths, &root, MAX_MOUNTS).await?;
    let said = String::from_utf8_lossy(&said).into_owned();
    let mut lines = said.lines();
    let told: Vec<_> = lines.by_ref().take(expected.len()).collect();
    // The kernel writes blanks and backslashes of paths as octal numbers.
    let escaped = |path: &str| path.replace('\\', "\\134").replace(' ', "\\040").replace('\t', "\\011");
    let points: HashSet<_> = lines.filter_map(|line| line.split(' ').nth(4)).collect();
    for (number, (path, device, inode)) in expected.iter().enumerate() {
        let is_it = told.get(number) == Some(&format!("{device} {inode}").as_str());
        if !is_it || !points.contains(escaped(path).as_str()) {
            return Err(Error::Refused(
                Diagnosis::new("mount-changed", format!("what is mounted at {path} is not what was judged"))
                    .cause("its path led somewhere else by the time that the engine mounted it")
                    .fix("look at who changes the folders above it, and try again"),
            ));
        }
    }
    Ok(())
}
