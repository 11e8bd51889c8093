//! What a module finds around it: streams, arguments, variables, folders. Nothing else of the host is linked to it.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use tokio::io::{DuplexStream, duplex};
use wasmtime::Result;
use wasmtime_wasi::cli::{AsyncStdinStream, AsyncStdoutStream};
use wasmtime_wasi::p1::WasiP1Ctx;
use wasmtime_wasi::{FsPerms, WasiCtxBuilder};

use super::limiter::Limiter;
use crate::meter::Meter;
use crate::tree::{Follow, Spot, Tree};

/// Bytes that wait in a stream.
const WAITING: usize = 64 * 1024;

/// What belongs to one running module.
pub struct State {
    /// What WASI gives it.
    pub wasi: WasiP1Ctx,
    /// What it may grow to.
    pub limiter: Limiter,
}

/// The other ends of its streams.
pub struct Ends {
    /// What it reads is written here.
    pub stdin: DuplexStream,
    /// What it writes is read here.
    pub stdout: DuplexStream,
    /// And its errors.
    pub stderr: DuplexStream,
}

/// What a module is started with.
pub struct Setting<'a> {
    /// Its name and its arguments.
    pub args: Vec<&'a str>,
    /// Variables.
    pub env: Vec<(&'a str, &'a str)>,
    /// Directory in which relative paths begin.
    pub cwd: &'a str,
    /// Files.
    pub tree: &'a Tree,
    /// Memory.
    pub meter: &'a Arc<Meter>,
}

/// Makes it.
///
/// # Errors
/// When a folder cannot be opened.
pub fn state(setting: &Setting<'_>) -> Result<(State, Ends)> {
    let (stdin, reads) = duplex(WAITING);
    let (writes, stdout) = duplex(WAITING);
    let (complains, stderr) = duplex(WAITING);
    let mut wasi = WasiCtxBuilder::new();
    wasi.stdin(AsyncStdinStream::new(reads))
        .stdout(AsyncStdoutStream::new(WAITING, writes))
        .stderr(AsyncStdoutStream::new(WAITING, complains))
        .args(&setting.args)
        .envs(&setting.env)
        // The thread is this command's own.
        .allow_blocking_current_thread(true);
    for root in setting.tree.roots().iter().filter(|root| root.directory) {
        let path = String::from_utf8_lossy(&root.path()).into_owned();
        // Modules open files by themselves: where something is protected, they read only.
        let writes = root.writable && root.protected.is_empty();
        wasi.preopened_dir(in_proc(root.handle()), path, permissions(writes))?;
    }
    if let Some((here, writes)) = directory(setting.tree, setting.cwd) {
        wasi.preopened_dir(in_proc(&here), ".", permissions(writes))?;
    }
    let state = State { wasi: wasi.build_p1(), limiter: Limiter::new(Arc::clone(setting.meter)) };
    Ok((state, Ends { stdin, stdout, stderr }))
}

fn permissions(writes: bool) -> FsPerms {
    if writes { FsPerms::ReadWrite } else { FsPerms::ReadOnly }
}

/// The directory that commands are in, and whether modules may write there.
fn directory(tree: &Tree, cwd: &str) -> Option<(OwnedFd, bool)> {
    let spot = tree.walk(cwd.as_bytes(), Follow::All).ok()?;
    let (Spot::Root { root } | Spot::Entry { root, .. }) = &spot else { return None };
    let root = tree.roots().get(*root)?;
    let writes = root.writable && root.protected.is_empty();
    Some((tree.open_directory(&spot).ok()?, writes))
}

/// The path by which the kernel finds what a handle stands for.
fn in_proc(handle: impl AsFd) -> String {
    format!("/proc/self/fd/{}", handle.as_fd().as_raw_fd())
}
