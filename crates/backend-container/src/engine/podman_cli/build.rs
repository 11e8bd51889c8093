//! Building an image by `podman build`.

use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::Child;
use tokio::sync::mpsc;

use super::run::{Program, code};
use crate::engine::abandoned::Mark;
use crate::engine::api::build::Log;
use crate::engine::api::shapes::image_id;
use crate::engine::words::{is_full, message};
use crate::engine::{BuildSpec, EngineError, EngineKind, ProgressSink, Result};

/// Pieces of the log that wait to be told.
const QUEUE: usize = 16;

/// Builds one, and answers with the id that Podman names last.
pub(super) async fn build(
    program: &Program,
    spec: &BuildSpec,
    progress: &dyn ProgressSink,
) -> Result<String> {
    let mark = Mark::new();
    let mut arguments: Vec<String> =
        ["build", "--force-rm", "--layers=false", "--pull=never"].map(str::to_owned).into();
    arguments.push(format!("--tag={}", spec.tag));
    if !program.is_remote() {
        arguments.push(format!("--add-host={}", mark.host()));
    }
    arguments.extend(spec.labels.iter().map(|(name, value)| format!("--label={name}={value}")));
    // Without a context, the Dockerfile comes by the input.
    arguments.push("-".to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut command = program.command(&arguments);
    command.stdin(Stdio::piped());
    let child = command.spawn().map_err(|error| program.not_started(&error))?;
    let (sender, mut receiver) = mpsc::channel(QUEUE);
    let task = tokio::spawn(watch(child, spec.dockerfile.clone(), sender));
    let mut log = Log::new(progress);
    // Whichever stream a piece came by: the steps print to both.
    while let Some(piece) = receiver.recv().await {
        log.push(&String::from_utf8_lossy(&piece));
    }
    let ended = task.await;
    mark.finish();
    let status = match ended {
        Ok(Ok(status)) => status,
        Ok(Err(error)) => return Err(program.unreachable(&error.to_string())),
        Err(error) => return Err(program.unreachable(&error.to_string())),
    };
    if code(status) == 0 {
        log.flush();
        return Ok(image_id(log.last().unwrap_or_default().trim()));
    }
    let last = log.end();
    let text = last.iter().rev().find(|line| line.starts_with("Error: ")).or(last.last());
    let message = message(text.map_or("", String::as_str));
    if is_full(&message) {
        return Err(EngineError::Full { engine: EngineKind::Podman, message });
    }
    Err(EngineError::BuildFailed { message, log: last })
}

/// Reads what the program writes, to its end even if nobody wants it any more: it must not be ended by that, for it has
/// to clean up.
async fn watch(
    mut child: Child,
    dockerfile: String,
    sender: mpsc::Sender<Vec<u8>>,
) -> std::io::Result<std::process::ExitStatus> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // One that does not read says why by its exit code.
            let _ = stdin.write_all(dockerfile.as_bytes()).await;
            let _ = stdin.shutdown().await;
        }
    };
    tokio::join!(feed, pass_on(stdout, sender.clone()), pass_on(stderr, sender));
    child.wait().await
}

async fn pass_on<R: AsyncRead + Unpin>(stream: Option<R>, sender: mpsc::Sender<Vec<u8>>) {
    let Some(mut stream) = stream else { return };
    let mut piece = [0; 16 << 10];
    while let Ok(count) = stream.read(&mut piece).await
        && count > 0
    {
        // Nobody listens to a build that was let go of.
        let _ = sender.send(piece[..count].to_vec()).await;
    }
}
