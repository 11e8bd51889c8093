//! What is run inside besides programs: scripts of ours, and the one that ends a program's descent.

use std::sync::Arc;
use std::time::Duration;

use moltis_agentless::{hex, random_bytes};
use moltis_sandbox::Result;

use crate::http::Failure;
use crate::machine::{Machine, Piece, Run};
use crate::scripts;

/// By what a program's processes and files are known inside.
pub struct Named {
    /// The limit that its processes have.
    pub mark: String,
    /// The name of its folder.
    pub tag: String,
}

impl Named {
    /// One that nothing else has.
    ///
    /// # Errors
    /// When the kernel has no random numbers.
    pub fn new() -> Result<Self> {
        Ok(Self { mark: moltis_agentless::mark()?.to_string(), tag: hex(&random_bytes::<16>()?) })
    }
}

/// The processes of one program. Dropping it ends them, unless they were let go.
pub struct Descent {
    pub(super) machine: Arc<dyn Machine>,
    room: &'static str,
    mark: String,
    tag: String,
    is_over: bool,
}

impl Drop for Descent {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let other = self.take();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _ = other.end().await;
            });
        }
    }
}

impl Descent {
    /// Of a program whose folder is in this room.
    pub fn new(machine: &Arc<dyn Machine>, room: &'static str, Named { mark, tag }: Named) -> Self {
        Self { machine: Arc::clone(machine), room, mark, tag, is_over: false }
    }

    /// What lives on is let go.
    pub fn leave(&mut self) {
        self.is_over = true;
    }

    /// The same for somebody else to end.
    pub fn take(&mut self) -> Ending {
        self.is_over = true;
        Ending {
            machine: Arc::clone(&self.machine),
            room: self.room,
            mark: self.mark.clone(),
            tag: self.tag.clone(),
        }
    }
}

/// The end of a descent.
pub struct Ending {
    machine: Arc<dyn Machine>,
    room: &'static str,
    mark: String,
    tag: String,
}

impl Ending {
    /// Ends it, and says whether nothing is left.
    pub async fn end(&self) -> Result<bool, Failure> {
        let script_text = scripts::end(self.room);
        let argv =
            ["/bin/sh", "-c", &script_text, "sh", &self.mark, &self.tag, "c"].map(str::to_owned).to_vec();
        let said = script(&*self.machine, argv).await?;
        Ok(!said.contains("left"))
    }
}

/// Runs a script of ours as it is, without anything around it, and returns what it prints.
pub async fn script(machine: &dyn Machine, argv: Vec<String>) -> Result<String, Failure> {
    script_within(machine, argv, Duration::from_secs(120), false).await
}

/// The same for one that may take this long; `quiet`: it is no use of the machine.
pub async fn script_within(
    machine: &dyn Machine,
    argv: Vec<String>,
    within: Duration,
    quiet: bool,
) -> Result<String, Failure> {
    let run = Run { argv, env: vec![("LC_ALL".into(), "C".into())], within, quiet };
    let mut output = machine.run(run).await?;
    let mut said = String::new();
    let work = async {
        while let Some(piece) = output.next().await? {
            if let Piece::Stdout(text) = piece {
                said.push_str(&text);
                if said.len() > 1 << 20 {
                    return Err(Failure::Unlike("a script printed more than it should".to_owned()));
                }
            }
        }
        Ok(())
    };
    tokio::time::timeout(within + Duration::from_secs(30), work)
        .await
        .map_err(|_| Failure::Broken("the sandbox is silent".to_owned()))??;
    Ok(said)
}
