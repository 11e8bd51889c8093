//! A module as a command of the shell.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bashkit::{
    Command, CommandContext, CommandInput, CommandOutput, CommandStatus, Error, Result, async_trait,
};

use super::Switch;
use crate::engine::Source;
use crate::module::{self, Call, End, Modules};
use crate::shown::{TMP, TMP_ROOM};
use crate::tree::Tree;

/// Most notes of one command.
const MAX_NOTES: usize = 16;

/// What became of the modules of one command.
#[derive(Debug, Default)]
pub struct Told {
    notes: Mutex<Vec<String>>,
    ran_out: AtomicBool,
}

impl Told {
    fn note(&self, note: String) {
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < MAX_NOTES && !notes.contains(&note) {
            notes.push(note);
        }
    }

    /// What a person should know.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether one of them used up the memory.
    pub fn ran_out(&self) -> bool {
        self.ran_out.load(Ordering::Relaxed)
    }
}

/// A module under one of its names.
pub struct Program {
    /// All modules.
    pub modules: Arc<Modules>,
    /// The sandbox's files.
    pub tree: Arc<Tree>,
    /// By which it is ended.
    pub switch: Switch,
    /// Told of how it ended.
    pub told: Arc<Told>,
}

struct Streams {
    stdin: CommandInput,
    stdout: CommandOutput,
    stderr: CommandOutput,
}

impl module::Streams for Streams {
    async fn read(&self) -> Option<Vec<u8>> {
        self.stdin.read_chunk().await.ok().flatten()
    }

    async fn out(&self, piece: &[u8]) -> bool {
        self.stdout.write_all(piece).await.is_ok()
    }

    async fn err(&self, piece: &[u8]) -> bool {
        self.stderr.write_all(piece).await.is_ok()
    }
}

#[async_trait]
impl Command for Program {
    async fn execute(&self, ctx: CommandContext<'_>) -> Result<CommandStatus> {
        let cwd = ctx.cwd.to_string_lossy().into_owned();
        let source = match self.modules.commands.get(ctx.name) {
            Some(path) => Source::Configured(path.clone()),
            None if ctx.name.starts_with('/') => Source::Inside(ctx.name.to_owned()),
            None => Source::Inside(format!("{cwd}/{}", ctx.name)),
        };
        let program = match self.modules.room.program(source, &self.tree).await {
            Ok(program) => program,
            Err(why) => {
                ctx.stderr.write_all(format!("{}: {why}\n", ctx.name).as_bytes()).await?;
                return Ok(CommandStatus::with_code(why.code()));
            }
        };
        let args: Vec<&str> = std::iter::once(ctx.name).chain(ctx.args.iter().map(String::as_str)).collect();
        let env = ctx.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let call = Call {
            program: &program,
            setting: module::Setting { args, env, cwd: &cwd, tree: &self.tree, meter: &self.modules.meter },
            fuel: self.modules.fuel,
            switch: &self.switch,
            ticking: self.modules.room.ticking(),
        };
        let streams =
            Streams { stdin: ctx.stdin.clone(), stdout: ctx.stdout.clone(), stderr: ctx.stderr.clone() };
        let end = module::call(call, &streams).await;
        let (code, word, what) = match end {
            End::Exit(code) => return Ok(CommandStatus::with_code(code)),
            End::Ended => return Err(Error::Cancelled),
            End::Fuel => {
                let fuel = self.modules.fuel;
                (
                    137,
                    "wasm-fuel-exhausted",
                    format!("it used up its {fuel} instructions (`wasm_fuel_limit`)"),
                )
            }
            End::Memory => {
                self.told.ran_out.store(true, Ordering::Relaxed);
                let limit = self.modules.meter.limit();
                (
                    137,
                    "wasm-memory-exhausted",
                    format!("it asked for more than the sandbox's {limit} bytes (`memory_limit`)"),
                )
            }
            End::Disk => (
                137,
                "wasm-quota-exhausted",
                format!("it wrote more than {TMP} may hold ({} MiB)", TMP_ROOM >> 20),
            ),
            End::Trap(what) => (134, "wasm-trap", what),
            End::Refused(what) => (126, "wasm-not-started", what),
        };
        self.told.note(format!("{word}: {}: {what}", ctx.name));
        // Its errors may go where nobody takes them.
        let _ = ctx.stderr.write_all(format!("{}: {word}: {what}\n", ctx.name).as_bytes()).await;
        Ok(CommandStatus::with_code(code))
    }
}
