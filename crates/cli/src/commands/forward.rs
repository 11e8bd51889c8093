//! `moltis forward`: ports of a session's sandbox on this machine's loopback, as long as it runs.

mod carry;
mod listeners;
mod ports;
mod target;

use std::sync::Arc;

use moltis_runtime::SessionRequest;
use moltis_sandbox::Error;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::args::{self, Global};
use crate::failure::Failure;
use crate::place::{Opening, Place};
use crate::signals::Signals;
use crate::{flags, output, render};
use carry::SESSION_MISSING;
use listeners::Bound;
use ports::Wanted;
use target::Target;

/// Runs it; gives the exit status, which is that of the signal that ended it.
pub async fn run(global: &Global, args: args::Forward) -> Result<i32, Failure> {
    let key = flags::session_key(&args.session)?;
    let wanted = ports::parse(&args.ports)?;
    let runtime = super::runtime(global)?;
    ports::spare_gateway(&wanted, runtime.config().gateway.port.value)?;
    let mut signals = Signals::catch().map_err(Failure::runtime)?;
    // Before the sandbox is opened: what comes already waits in the kernel's queue.
    let bound = listeners::bind(&wanted).await?;
    let wanted: Vec<_> = bound.iter().map(|bound| bound.wanted).collect();
    let request = SessionRequest { must_exist: true, ..SessionRequest::new(key.clone()) };
    let place = match Place::open_here(&runtime, request, &mut signals).await? {
        Opening::Open(place) => place,
        Opening::Told(number) => return Ok(128 + number),
    };
    let target = Arc::new(Target::new(runtime, key, Arc::clone(place.sandbox())));
    let forwarded = forward(&place, target, wanted, bound, args.json, &mut signals).await;
    let forwarded = forwarded.map_err(|failure| place.failed(failure, args.json));
    place.put_away().await;
    forwarded
}

async fn forward(
    place: &Place,
    target: Arc<Target>,
    wanted: Vec<Wanted>,
    bound: Vec<Bound>,
    json: bool,
    signals: &mut Signals,
) -> Result<i32, Failure> {
    ports::spare_itself(&wanted, place.backend())?;
    target.touch().await?;
    place.note_use().await;
    tell(place, &wanted, json)?;
    let room = Arc::new(Semaphore::new(carry::AT_ONCE));
    let (end, mut ended) = mpsc::channel(1);
    let mut serving = JoinSet::new();
    for bound in bound {
        serving.spawn(carry::serve(bound, Arc::clone(&target), Arc::clone(&room), end.clone()));
    }
    tokio::select! {
        number = signals.next() => Ok(128 + number),
        error = keep(place, &target) => Err(error.into()),
        // The other end is held here.
        Some(error) = ended.recv() => Err(error.into()),
    }
}

/// Says where it listens.
fn tell(place: &Place, wanted: &[Wanted], json: bool) -> Result<(), Failure> {
    let address = |host_port| format!("127.0.0.1:{host_port}");
    if json {
        let told: Vec<Value> = wanted
            .iter()
            .map(|Wanted { port, host_port }| {
                json!({ "port": port, "hostPort": host_port, "address": address(host_port) })
            })
            .collect();
        let mut line = place.told();
        line.insert("forwards".to_owned(), told.into());
        return output::print_json(&line).map(drop);
    }
    // No command runs: what binds commands is not worth a word here.
    place.tell_news();
    let session = place.session().map_or("-".to_owned(), |key| render::name(key.as_str()));
    let lines = wanted.iter().map(|Wanted { port, host_port }| {
        format!("{} is port {port} of the sandbox of {session}\n", address(host_port))
    });
    // Whoever has seen enough of it may still want the ports.
    output::print(&lines.collect::<String>()).map(drop)
}

/// Keeps the sandbox in use; ends when there is nothing any more that it could be the sandbox of.
async fn keep(place: &Place, target: &Target) -> Error {
    loop {
        match target.pause().await {
            Ok(pause) => tokio::time::sleep(pause).await,
            Err(error) if error.code() == SESSION_MISSING => return error,
            Err(error) => {
                target.say(None, &error);
                tokio::time::sleep(target::SELDOM).await;
            }
        }
        match target.touch().await {
            Ok(()) => {
                target.is_well(None);
                place.note_use().await;
            }
            Err(error) if error.code() == SESSION_MISSING => return error,
            // It may be started again, and is found then.
            Err(error) => target.say(None, &error),
        }
    }
}
