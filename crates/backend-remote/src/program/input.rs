//! Input of a program, as files that the script around it takes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, DuplexStream};
use tokio::sync::{oneshot, watch};

use super::LONGEST;
use crate::http::Failure;
use crate::machine::{Machine, Run};
use crate::scripts;

/// Input that is sent at once.
pub(super) const INPUT: usize = 1 << 20;
/// Pieces of input after which it is waited until the last but these were taken.
const AHEAD: u64 = 4;
/// How long the end of a program may be on its way after input of it was refused.
const GRACE: Duration = Duration::from_secs(2);

/// Why input does not arrive; waits for ever if it does.
pub(super) async fn unfed(told: &mut Option<oneshot::Receiver<Failure>>) -> Failure {
    if let Some(waiting) = told
        && let Ok(why) = waiting.await
    {
        return why;
    }
    *told = None;
    std::future::pending().await
}

/// Carries input, piece by piece, and no faster than it is taken.
pub(super) async fn feed(
    machine: Arc<dyn Machine>,
    all: &'static str,
    tag: String,
    mut input: DuplexStream,
    mut is_over: watch::Receiver<bool>,
    tell: oneshot::Sender<Failure>,
) {
    let room = format!("{all}/{tag}");
    let mut buffer = vec![0; INPUT];
    let mut number = 0u64;
    loop {
        let count = tokio::select! {
            count = input.read(&mut buffer) => count,
            // Whoever ran it is gone, or it is over.
            _ = is_over.changed() => return,
        };
        let Ok(count) = count else { return };
        let put = if count == 0 {
            machine.put(vec![(format!("{room}/in/{number}.end"), Bytes::new())]).await
        } else {
            let piece = Bytes::copy_from_slice(&buffer[..count]);
            machine
                .put(vec![
                    (format!("{room}/in/{number}"), piece),
                    (format!("{room}/in/{number}.ok"), Bytes::new()),
                ])
                .await
        };
        if let Err(why) = put {
            // It may be over, and only the word for that on its way. Else it would wait for ever.
            tokio::select! {
                () = tokio::time::sleep(GRACE) => drop(tell.send(why)),
                _ = is_over.changed() => {}
            }
            return;
        }
        if count == 0 {
            return;
        }
        // At most twice as many wait inside.
        if let Some(waited) = (number + 1).checked_sub(AHEAD).filter(|waited| waited % AHEAD == 0) {
            let taken = scripts::taken(all);
            let argv = ["/bin/sh", "-c", &taken, "sh", &tag, &waited.to_string()].map(str::to_owned).to_vec();
            let run = Run { argv, env: Vec::new(), within: LONGEST, quiet: false };
            let mut output = match machine.run(run).await {
                Ok(output) => output,
                Err(why) => {
                    tokio::select! {
                        () = tokio::time::sleep(GRACE) => drop(tell.send(why)),
                        _ = is_over.changed() => {}
                    }
                    return;
                }
            };
            tokio::select! {
                () = async { while let Ok(Some(_)) = output.next().await {} } => {}
                _ = is_over.changed() => return,
            }
        }
        number += 1;
    }
}
