//! The messages inside control frames. Paths and strings of commands are bytes: nothing on a Unix system promises
//! that they are UTF-8.

use serde::{Deserialize, Serialize};

/// A path, argument or variable as bytes.
pub type ByteString = serde_bytes::ByteBuf;

/// The port that the proxy variables name, if it is free when the sandbox begins.
pub const PROXY_PORT: u16 = 3128;

/// What a host says, outside of any frame, when it takes a connection of [`Request::Carry`] over.
pub const TAKEN: [u8; 1] = [1];

/// What a host says after `Standing`, outside of any frame, with up to [`MAX_ENDS`] descriptors.
pub const ENDS: [u8; 1] = [2];

/// Descriptors that go along with [`ENDS`], at most.
pub const MAX_ENDS: usize = 32;

/// What the host asks for; the first control frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Run a command. Answers `Started`, then output, then `Exited`; or `Failed`.
    /// While it runs the host may send `Data`, `Eof` (standard input) and [`Order`]s. The host's end of the
    /// connection closing is the loss of the caller, unless the command is a background one.
    Exec(ExecStart),
    /// Background commands. Answers `Processes`.
    Processes,
    /// Watch a background command. Answers `Started`, `Missed` if bytes are gone, output, and `Exited` once it is
    /// over; without `follow` it ends with `Done` where the output ends. The host may send `Data` and `Eof` to its
    /// standard input, and [`Order`]s. The connection closing ends nothing.
    Attach {
        /// Number of the command.
        process: u32,
        /// First byte of standard output that is wanted.
        stdout: u64,
        /// First byte of standard error that is wanted.
        stderr: u64,
        /// Whether to go on until the command is over.
        follow: bool,
    },
    /// Say something to a running command, past the input that waits on its own connection. Answers `Done`, or
    /// `Failed` with `NotFound` when it is over.
    Order {
        /// Number of the command.
        process: u32,
        /// What to say.
        order: Order,
    },
    /// End the whole descent of a command. Answers `Exited`, also when it was over already.
    Stop {
        /// Number of the command.
        process: u32,
    },
    /// A file operation.
    File(FileRequest),
    /// Connect to a port on the sandbox's loopback. Answers `Connected`, after which the connection is the raw stream
    /// in both directions with half-close.
    Connect {
        /// TCP port.
        port: u16,
    },
    /// Listen on the sandbox's loopback. Answers `Listening`, then an `Incoming` for each connection made inside,
    /// until the host closes.
    Listen {
        /// TCP port, 0 for any.
        port: u16,
    },
    /// Take over an incoming connection. Answers `Connected`, then as for `Connect`.
    Accept {
        /// The listener's number.
        listener: u32,
        /// The connection's token.
        token: u64,
    },
    /// Stand behind the proxy port. Answers `Standing`, and nothing more until the host closes; or `Failed` with
    /// `Unsupported` where there is no such port. Standing there is no use.
    ///
    /// Over a Unix socket the host may then say [`ENDS`], any number of times: each descriptor is one end of a pair of
    /// Unix stream sockets, and on the pair all is as for `Carry`, from `Connected` on. Ends are used in the order in
    /// which they came. One that is closed will never be used.
    ///
    /// Each host that stands there at the same time as others has a port of its own: what comes by it is that host's
    /// as long as it stands there, and any other's after that.
    Egress {
        /// The port that it had before, which it gets if it can be had; 0 for none.
        port: u16,
    },
    /// Wait for a connection that a program makes to the proxy port. Answers `Connected` once there is one, which is
    /// followed by what the program has sent already, if anything. The host says [`TAKEN`], and from then on it is as
    /// for `Connect`. Until then another host may get it. Waiting is no use.
    Carry {
        /// The host's number, as `Standing` says.
        host: u64,
    },
    /// What the agent knows of itself. Answers `Status`.
    Status,
    /// Change what the agent enforces by itself, and begin its idle time anew. Answers `Done`.
    Configure {
        /// Idle time in milliseconds after which the agent ends itself; 0 for never.
        idle_millis: u64,
    },
    /// End the sandbox. Answers `Done`, then everything in it is killed.
    Shutdown,
    /// End the sandbox if nothing uses it. Answers `Done`, and nothing more is accepted from then on; or `Failed` with
    /// `Busy`, and all goes on.
    ShutdownIfIdle,
    /// Hold the sandbox. Answers `Done`, or `Failed` with `Busy` if another connection holds it; when this connection
    /// ends, the sandbox does. Holding is no use.
    Hold,
    /// What everything in the sandbox takes. Answers `Usage`, or `Failed`: with `Invalid` an older agent, which has no
    /// such message, and with `Exhausted` one that has too many processes to count. Asking is no use.
    Usage,
}

/// A command to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    /// Program and arguments, never empty. The program is looked up on `PATH` of `env` if it holds no slash.
    pub argv: Vec<ByteString>,
    /// The whole environment, in order; the last of two equal names wins.
    pub env: Vec<(ByteString, ByteString)>,
    /// Directory to run in; absent: the agent's default directory.
    pub cwd: Option<ByteString>,
    /// Whether the host will send standard input; otherwise it is `/dev/null`.
    pub stdin: bool,
    /// Milliseconds until the whole descent is ended; 0 for never.
    pub timeout_millis: u64,
    /// Rows and columns of a terminal to run it on.
    pub terminal: Option<(u16, u16)>,
    /// Whether it goes on without the caller.
    pub background: bool,
}

/// What the host may say while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The terminal's new size.
    Resize {
        /// Lines.
        rows: u16,
        /// Characters a line.
        columns: u16,
    },
    /// Send this signal to the command's process group.
    Signal(i32),
    /// End the whole descent; `Exited` still comes.
    Cancel,
}

/// A file operation. Paths are absolute guest paths.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileRequest {
    /// Answers `Metadata`.
    Stat {
        /// What to look at.
        path: ByteString,
        /// Look through a link at its target.
        follow: bool,
    },
    /// Answers `Entries` any number of times, then `Done`.
    List {
        /// The directory.
        path: ByteString,
    },
    /// Answers `Metadata`, then `Data` frames, then `Eof`.
    Read {
        /// A regular file.
        path: ByteString,
        /// First byte.
        offset: u64,
        /// Bytes at most; absent: to the end.
        length: Option<u64>,
    },
    /// The host sends `Data` frames, then `Eof`. Answers `Metadata` of the new file.
    Write {
        /// Where.
        path: ByteString,
        /// Permission bits of a new file; an existing one keeps its own unless this is set.
        mode: Option<u32>,
        /// Whether an existing file may be replaced.
        overwrite: bool,
        /// Whether to make missing directories above.
        parents: bool,
    },
    /// Answers `Done`.
    Mkdir {
        /// Where.
        path: ByteString,
        /// Also those above; an existing one is no error.
        parents: bool,
    },
    /// Answers `Done`.
    Remove {
        /// What.
        path: ByteString,
        /// A whole tree, never following links.
        recursive: bool,
    },
    /// Answers `Done`.
    Rename {
        /// What.
        from: ByteString,
        /// To where.
        to: ByteString,
        /// Whether an existing target may be replaced.
        replace: bool,
    },
    /// Answers `Done` once found, then `Data` frames that are a tar stream, then `Eof`; or `Failed`.
    Download {
        /// A directory (names relative to it) or one file (its own name).
        path: ByteString,
    },
    /// The host sends a tar stream in `Data` frames, then `Eof`. Answers `Unpacked`.
    Upload {
        /// The directory to unpack beneath; made if missing.
        path: ByteString,
    },
}

/// What the agent answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The operation did not happen, or broke off.
    Failed(Failure),
    /// It is done.
    Done,
    /// The command runs.
    Started {
        /// Its number.
        process: u32,
        /// Process id inside the sandbox.
        pid: u32,
    },
    /// Bytes at the start of each stream that a watcher comes too late for.
    Missed {
        /// Of standard output.
        stdout: u64,
        /// Of standard error.
        stderr: u64,
    },
    /// The command is over, and all its output has been sent.
    Exited(Exited),
    /// Background commands.
    Processes(Vec<Process>),
    /// A file's metadata.
    Metadata(Metadata),
    /// Some entries of a directory.
    Entries(Vec<Entry>),
    /// An archive was unpacked.
    Unpacked {
        /// Files, directories and links made.
        entries: u64,
        /// Bytes of content.
        bytes: u64,
    },
    /// The raw stream begins.
    Connected,
    /// The listener stands.
    Listening {
        /// Its number.
        listener: u32,
        /// Its port.
        port: u16,
    },
    /// Something inside connected; take it over with `Accept`.
    Incoming {
        /// The connection's token.
        token: u64,
    },
    /// What the agent knows of itself.
    Status(Status),
    /// The host stands behind the proxy port.
    Standing {
        /// The host's number.
        host: u64,
        /// The port, the same for as long as the sandbox lives.
        port: u16,
    },
    /// What everything in the sandbox takes.
    Usage(Usage),
}

/// Why an operation did not happen. The codes are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FailureCode {
    /// The request cannot be right (a relative path, an empty command, an environment name with `=`).
    Invalid,
    /// The program was not found: a shell's 127.
    ProgramMissing,
    /// The program cannot be run: a shell's 126.
    ProgramNotExecutable,
    /// The command line or environment is longer than the kernel takes.
    TooLong,
    /// The working directory does not exist or cannot be entered.
    Cwd,
    /// The sandbox is out of processes, memory or descriptors.
    Exhausted,
    /// No such file, process, listener or token.
    NotFound,
    /// It exists already.
    Exists,
    /// Not a regular file where one is needed, not a directory where one is needed, or a directory that is not empty.
    WrongKind,
    /// The sandbox's own permissions forbid it.
    Denied,
    /// Read-only.
    ReadOnly,
    /// The disk or the quota is full.
    Full,
    /// A name in an archive leads outside.
    Escapes,
    /// Nothing listens on that port.
    ConnectionRefused,
    /// Anything else that the kernel said.
    Io,
    /// A mount of the sandbox is no longer where it must be: another sandbox took it away. Nothing ran.
    MountLost,
    /// Something uses the sandbox, or somebody is on the way in. It goes on.
    Busy,
    /// This sandbox has no such thing.
    Unsupported,
}

/// A failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Which kind.
    pub code: FailureCode,
    /// One sentence that names the thing.
    pub message: String,
    /// The kernel's error number, if it was the kernel.
    pub errno: Option<i32>,
}

/// How the main process left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Left {
    /// With this exit code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Why the command is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ending {
    /// By itself.
    Exited,
    /// Its time was up.
    TimedOut,
    /// The host said so.
    Cancelled,
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exited {
    /// How the main process left.
    pub left: Left,
    /// Why.
    pub ending: Ending,
    /// Microseconds from start to end.
    pub micros: u64,
    /// Bytes of standard output.
    pub stdout_bytes: u64,
    /// Bytes of standard error.
    pub stderr_bytes: u64,
    /// Children that live on, 64 at most.
    pub leftovers: Vec<Leftover>,
    /// How many live on.
    pub leftovers_total: u32,
}

/// A child that lives on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leftover {
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Its command line, spaces between arguments, 256 bytes at most.
    pub command: ByteString,
}

/// A background command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub process: u32,
    /// Process id inside the sandbox.
    pub pid: u32,
    /// Arguments with spaces between, 256 bytes at most.
    pub command: ByteString,
    /// Whether it was started to go on without a caller.
    pub background: bool,
    /// Milliseconds since 1970.
    pub started_millis: u64,
    /// Its end, if it has come.
    pub exited: Option<Exited>,
}

/// What a directory entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO, socket or device.
    Other,
}

/// A file's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metadata {
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits.
    pub mode: u32,
    /// Nanoseconds since 1970.
    pub modified_nanos: i64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Target, of a link.
    pub target: Option<ByteString>,
}

/// A directory entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Name.
    pub name: ByteString,
    /// Metadata of the entry itself.
    pub metadata: Metadata,
}

/// What everything in the sandbox takes, the agent included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Memory that is held now: by the sandbox's own control group, without files that could be given back; where it can
    /// read none, the resident memory of its processes, in which what they share counts for each.
    pub memory_bytes: u64,
    /// Processor time since the start, of what has ended too.
    pub cpu_micros: u64,
}

/// What the agent knows of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Operations that run and count as use (leftovers do not).
    pub busy: u32,
    /// Milliseconds since the last use ended; 0 while busy.
    pub idle_millis: u64,
    /// Commands since the start.
    pub commands: u64,
    /// Milliseconds since the start.
    pub uptime_millis: u64,
}
