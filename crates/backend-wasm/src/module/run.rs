//! One run of a module: started, fed, listened to, and ended in one of five ways.

use std::future::Future;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wasmtime::{Error, InstancePre, Store, Trap, UpdateDeadline};
use wasmtime_wasi::I32Exit;

use super::host::{self, Ends, Setting, State};
use super::limiter::OutOfMemory;
use crate::engine::Ticking;
use crate::shell::Switch;
use crate::tree::Tree;

/// Bytes that are passed on at a time.
const PIECE: usize = 16 * 1024;

/// How often what it has written is counted, where that is bounded.
const COUNT: Duration = Duration::from_millis(250);

/// How a module ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this code.
    Exit(i32),
    /// It used up its instructions.
    Fuel,
    /// It wanted more memory than there is.
    Memory,
    /// It went on writing where there was no more room.
    Disk,
    /// It did what cannot be done.
    Trap(String),
    /// It cannot be started.
    Refused(String),
    /// It was ended from outside.
    Ended,
}

/// A module that is to be run.
pub struct Call<'a> {
    /// Compiled, and linked to WASI.
    pub program: &'a InstancePre<State>,
    /// What it finds.
    pub setting: Setting<'a>,
    /// Instructions that it may execute.
    pub fuel: u64,
    /// By which it is ended.
    pub switch: &'a Switch,
    /// Keeps its deadline.
    pub ticking: Ticking,
}

/// Where its input comes from, and where its output goes.
pub trait Streams: Sync {
    /// The next piece of its input; `None` at the end.
    fn read(&self) -> impl Future<Output = Option<Vec<u8>>> + Send;
    /// Takes a piece of its output; whether more is wanted.
    fn out(&self, piece: &[u8]) -> impl Future<Output = bool> + Send;
    /// Takes a piece of its errors; whether more is wanted.
    fn err(&self, piece: &[u8]) -> impl Future<Output = bool> + Send;
}

/// Runs it to its end.
pub async fn call(call: Call<'_>, streams: &impl Streams) -> End {
    let Call { program, setting, fuel, switch, ticking } = call;
    let (state, Ends { mut stdin, mut stdout, mut stderr }) = match host::state(&setting) {
        Ok(made) => made,
        Err(error) => return End::Refused(format!("{error:#}")),
    };
    let mut store = Store::new(program.module().engine(), state);
    store.limiter(|state| &mut state.limiter);
    if let Err(error) = store.set_fuel(fuel) {
        return End::Refused(format!("{error:#}"));
    }
    let stop = switch.clone();
    store.epoch_deadline_callback(move |_| {
        Ok(if stop.is_thrown() { UpdateDeadline::Interrupt } else { UpdateDeadline::Yield(1) })
    });
    store.set_epoch_deadline(1);
    let running = async move {
        let done = start(program, &mut store).await;
        // Its ends of the streams are closed, so that the others see the end.
        drop(store);
        drop(ticking);
        done
    };
    let feeding = async {
        while let Some(piece) = streams.read().await {
            if stdin.write_all(&piece).await.is_err() {
                break;
            }
        }
        drop(stdin);
        std::future::pending::<()>().await;
    };
    let listening = async {
        let out = async {
            let mut piece = vec![0; PIECE];
            while let Ok(count @ 1..) = stdout.read(&mut piece).await {
                if !streams.out(&piece[..count]).await {
                    break;
                }
            }
            drop(stdout);
        };
        let err = async {
            let mut piece = vec![0; PIECE];
            while let Ok(count @ 1..) = stderr.read(&mut piece).await {
                if !streams.err(&piece[..count]).await {
                    break;
                }
            }
            drop(stderr);
        };
        tokio::join!(out, err);
    };
    let filling = until_it_fills(setting.tree);
    let both = async { tokio::join!(running, listening).0 };
    let done = tokio::select! {
        done = both => done,
        () = feeding => return End::Ended,
        () = filling => return End::Disk,
    };
    match done {
        Ok(()) => End::Exit(0),
        Err(_) if switch.is_thrown() => End::Ended,
        Err(halt) => judge(&halt),
    }
}

/// Until a folder holds more than it may, and more than a moment before. The module writes by itself, and nobody is asked
/// before; what was too much when it began is not its doing.
async fn until_it_fills(tree: &Tree) {
    let (mut before, mut pause) = (0, COUNT);
    loop {
        tokio::time::sleep(pause).await;
        let began = Instant::now();
        let excess = tree.excess();
        if before > 0 && excess > before {
            return;
        }
        before = excess;
        pause = COUNT.max(began.elapsed() * 10);
    }
}

/// Why it did not come to its end.
enum Halt {
    /// It did not begin.
    Before(Error),
    /// It had begun.
    During(Error),
}

async fn start(program: &InstancePre<State>, store: &mut Store<State>) -> Result<(), Halt> {
    let instance = program.instantiate_async(&mut *store).await.map_err(Halt::Before)?;
    let start = instance.get_typed_func::<(), ()>(&mut *store, "_start").map_err(Halt::Before)?;
    start.call_async(&mut *store, ()).await.map_err(Halt::During)
}

fn judge(halt: &Halt) -> End {
    let (Halt::Before(error) | Halt::During(error)) = halt;
    if let Some(I32Exit(code)) = error.downcast_ref::<I32Exit>() {
        return End::Exit(*code & 0xff);
    }
    if error.downcast_ref::<OutOfMemory>().is_some() {
        return End::Memory;
    }
    match error.downcast_ref::<Trap>() {
        Some(Trap::OutOfFuel) => End::Fuel,
        Some(Trap::Interrupt) => End::Ended,
        Some(trap) => End::Trap(trap.to_string()),
        // A call that cannot be right: a flag that WASI has not, memory that the module has not.
        None if matches!(halt, Halt::During(_)) => End::Trap(format!("{error:#}")),
        None => End::Refused(format!("{error:#}")),
    }
}
