//! `moltis process output`: what a background command printed, from any offset on.

use moltis_runtime::answer::{Collected, text_or_base64};
use moltis_runtime::json::Ended;
use moltis_runtime::{Capped, Runtime};
use moltis_sandbox::Exec;
use moltis_sandbox::exec::{ExecEvent, Outcome};
use serde_json::{Map, Value, json};

use super::{missing, next, which};
use crate::args;
use crate::failure::Failure;
use crate::output::{BROKEN_PIPE, print_json};
use crate::printer::Printer;

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Output) -> Result<i32, Failure> {
    let (key, process) = which(&args.which)?;
    let (_, sandbox) = runtime.running_sandbox(&key).await?;
    let watch = sandbox.attach(process, args.stdout_from, args.stderr_from, args.follow).await;
    let mut watch = watch.map_err(|error| missing(process, error))?;
    if !args.json {
        return printed(&mut watch, args.follow).await;
    }
    let most = usize::try_from(runtime.max_output_bytes()).unwrap_or(usize::MAX);
    let from = [args.stdout_from, args.stderr_from];
    let (streams, outcome) =
        if args.follow { whole(&mut watch, from, most).await? } else { part(&mut watch, from, most).await? };
    let status = outcome.as_ref().filter(|_| args.follow).map_or(0, Outcome::exit_code);
    let mut told = Map::new();
    told.insert("session".to_owned(), json!(key));
    told.insert("process".to_owned(), json!(process));
    for (name, stream) in ["stdout", "stderr"].into_iter().zip(streams) {
        stream.tell(name, &mut told);
    }
    if let Some(Value::Object(ended)) = outcome.as_ref().map(|outcome| json!(Ended::from(outcome))) {
        told.extend(ended);
    }
    Ok(match print_json(&told)? {
        0 => status,
        gone => gone,
    })
}

async fn printed(watch: &mut Exec, follow: bool) -> Result<i32, Failure> {
    let mut printer = Printer::new(None);
    let mut status = 0;
    while let Some(event) = next(watch, follow).await? {
        match event {
            ExecEvent::Missed { stdout, stderr } => {
                for (bytes, name) in [(stdout, "output"), (stderr, "error")] {
                    if bytes > 0 {
                        crate::say!("moltis: {bytes} bytes of standard {name} are not kept any more");
                    }
                }
            }
            ExecEvent::Exit(outcome) => {
                status = if follow { outcome.exit_code() } else { 0 };
                break;
            }
            event => {
                if printer.print(event).await.is_err() {
                    break;
                }
            }
        }
    }
    Ok(if printer.finish().await? { status } else { BROKEN_PIPE })
}

/// One stream of the answer.
struct Stream {
    from: u64,
    bytes: Vec<u8>,
    /// Bytes that the sandbox did not keep.
    missed: u64,
    /// Bytes that it kept and the answer has no room for.
    cut: u64,
    /// Where to go on.
    next: u64,
}

impl Stream {
    fn new(from: u64) -> Self {
        Self { from, bytes: Vec::new(), missed: 0, cut: 0, next: from }
    }

    fn tell(self, name: &str, told: &mut Map<String, Value>) {
        let (text, encoding) = text_or_base64(&self.bytes);
        let mut add = |suffix: &str, value: Value| told.insert(format!("{name}{suffix}"), value);
        add("", text.into());
        if let Some(encoding) = encoding {
            add("Encoding", encoding.into());
        }
        add("From", self.from.into());
        add("Missed", self.missed.into());
        add("Cut", self.cut.into());
        add("Next", self.next.into());
    }
}

/// What is there, up to a size; what is beyond it comes with the next call.
async fn part(
    watch: &mut Exec,
    from: [u64; 2],
    most: usize,
) -> Result<([Stream; 2], Option<Outcome>), Failure> {
    let mut streams = from.map(Stream::new);
    let mut outcome = None;
    // Another one's bytes do not end this one's.
    let mut full = [false; 2];
    while full != [true; 2] {
        let (index, bytes) = match next(watch, false).await? {
            Some(ExecEvent::Stdout(bytes)) => (0, bytes),
            Some(ExecEvent::Stderr(bytes)) => (1, bytes),
            Some(ExecEvent::Missed { stdout, stderr }) => {
                for (index, missed) in [stdout, stderr].into_iter().enumerate() {
                    // A gap in the middle would not be seen in the text: the next call begins after it.
                    full[index] |= missed > 0 && !streams[index].bytes.is_empty();
                    if !full[index] {
                        streams[index].missed += missed;
                        streams[index].next += missed;
                    }
                }
                continue;
            }
            Some(ExecEvent::Exit(over)) => {
                outcome = Some(over);
                break;
            }
            Some(ExecEvent::Started(_)) => continue,
            None => break,
        };
        if full[index] {
            continue;
        }
        let stream = &mut streams[index];
        let taken = bytes.len().min(most - stream.bytes.len());
        stream.bytes.extend_from_slice(&bytes[..taken]);
        stream.next += taken as u64;
        full[index] = taken < bytes.len() || stream.bytes.len() == most;
    }
    for (stream, full) in streams.iter_mut().zip(full) {
        if full || outcome.is_none() {
            leave_half_a_character(stream);
        }
    }
    // It is over only for a caller who has all of it.
    Ok((streams, outcome.filter(|_| full == [false; 2])))
}

/// A character that is cut in the middle comes whole with the next call, unless it is all there is.
fn leave_half_a_character(stream: &mut Stream) {
    if let Err(error) = std::str::from_utf8(&stream.bytes)
        && error.error_len().is_none()
        && error.valid_up_to() > 0
    {
        stream.next -= (stream.bytes.len() - error.valid_up_to()) as u64;
        stream.bytes.truncate(error.valid_up_to());
    }
}

/// All of it to the end, with head and tail kept.
async fn whole(
    watch: &mut Exec,
    from: [u64; 2],
    most: usize,
) -> Result<([Stream; 2], Option<Outcome>), Failure> {
    let mut kept = [Capped::new(most), Capped::new(most)];
    let mut missed = [0; 2];
    let outcome = loop {
        match next(watch, true).await? {
            Some(ExecEvent::Stdout(bytes)) => drop(kept[0].push(&bytes)),
            Some(ExecEvent::Stderr(bytes)) => drop(kept[1].push(&bytes)),
            Some(ExecEvent::Missed { stdout, stderr }) => missed = [missed[0] + stdout, missed[1] + stderr],
            Some(ExecEvent::Exit(outcome)) => break Some(outcome),
            Some(ExecEvent::Started(_)) => {}
            None => break None,
        }
    };
    let [stdout, stderr] = kept;
    let stream = |capped: Capped, index: usize| {
        let Collected { bytes, total, cut } = capped.into();
        let next = from[index] + missed[index] + total;
        Stream { from: from[index], bytes, missed: missed[index], cut, next }
    };
    Ok(([stream(stdout, 0), stream(stderr, 1)], outcome))
}
