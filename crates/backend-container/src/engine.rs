//! What this backend asks of a container engine, in words that no engine owns. The drivers translate; what to ask for
//! is decided above them.

mod abandoned;
mod api;
mod container;
mod endpoint;
mod error;
mod image;
mod info;
mod podman_cli;
mod words;

use async_trait::async_trait;
use tokio::io::AsyncRead;

pub use container::{Bind, Container, ContainerSpec, ContainerState, Gpus, NetworkMode, Relabel, Tmpfs};
pub use endpoint::{Environment, connect};
pub use error::{EngineError, Result};
pub use image::{BuildSpec, Committed, Image, Progress, ProgressSink};
pub use info::{Confinement, EngineInfo, EngineKind, Place, ProcessLimit, Support};
pub use moltis_agentless::{Sink, Stream};

/// Bytes that come from an engine.
pub type Bytes = Box<dyn AsyncRead + Send + Unpin>;

/// A program that an engine runs beside the first process of a container.
pub struct ExecSpec {
    /// Program and arguments, never empty.
    pub argv: Vec<String>,
    /// User and group inside; absent: the container's own.
    pub user: Option<(u32, u32)>,
    /// Directory; absent: the container's own.
    pub directory: Option<String>,
    /// Variables on top of the container's own, which the engine keeps where anybody with access to it can read them.
    pub env: Vec<(String, String)>,
    /// Rows and columns of a terminal to run it on.
    pub terminal: Option<(u16, u16)>,
}

/// The output of a program, in the order in which the engine told it.
#[async_trait]
pub trait Output: Send {
    /// The next piece (at most a few hundred KiB); `None` when there is no more.
    ///
    /// # Errors
    /// When the connection to the engine breaks.
    async fn next(&mut self) -> Result<Option<(Stream, Vec<u8>)>>;
}

/// A program that an engine runs. Dropping it lets go of its streams; the engine does not end it because of that.
pub struct Execution {
    /// The engine's id of it.
    pub id: String,
    /// Its standard input. Dropping it, or shutting it down, ends that.
    pub stdin: Sink,
    /// Its output.
    pub output: Box<dyn Output>,
}

/// A container engine.
///
/// Every call has a time limit of the driver's own (seconds for questions, a minute for changes; a build or a pull has
/// none) and ends what it started when it is dropped. Nothing that a container printed decides what an answer means:
/// only exit codes, status codes and the engine's own messages do.
#[async_trait]
pub trait Engine: Send + Sync {
    /// Which one.
    fn kind(&self) -> EngineKind;

    /// Where it is spoken to, for people: `unix:///var/run/docker.sock`, `podman` and so on. Holds no secret.
    fn endpoint(&self) -> String;

    /// What it is and what it can do here. One or two round trips.
    async fn info(&self) -> Result<EngineInfo>;

    /// Makes a container, without starting it, and answers with its id. Images are never pulled by this.
    ///
    /// # Errors
    /// [`EngineError::NoSuchImage`], [`EngineError::Conflict`] for a name that is taken, [`EngineError::Refused`] with the
    /// engine's words for options that it does not take.
    async fn create(&self, spec: &ContainerSpec) -> Result<String>;

    /// Starts it. When this returns, its first process runs, or has run.
    ///
    /// # Errors
    /// [`EngineError::CannotStart`] with the engine's words when the program cannot be executed or a mount fails.
    async fn start(&self, id: &str) -> Result<()>;

    /// Its state by id or name; `None` if there is none.
    async fn inspect(&self, id: &str) -> Result<Option<Container>>;

    /// All containers, running or not, that carry all these labels. An empty value stands for any.
    async fn containers(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>>;

    /// Kills it, if it runs, and removes it with its anonymous volumes. One that is not there is no error; one that is
    /// being removed is waited for. After a fork bomb this takes more than one attempt, which is the driver's business.
    async fn remove(&self, id: &str) -> Result<()>;

    /// Waits until it is over: removed, or not running.
    async fn wait(&self, id: &str) -> Result<()>;

    /// What its first process printed, at most the last `limit` bytes of both streams together; empty where the engine
    /// keeps none.
    async fn logs(&self, id: &str, limit: usize) -> Result<Vec<u8>>;

    /// Runs a program in it.
    async fn exec(&self, id: &str, spec: &ExecSpec) -> Result<Execution>;

    /// How a program that was run is doing: its exit code if it is over.
    async fn exec_result(&self, exec: &str) -> Result<Option<i32>>;

    /// Gives the terminal of a program that was run another size.
    async fn exec_resize(&self, exec: &str, rows: u16, columns: u16) -> Result<()>;

    /// Unpacks a tar stream beneath a directory of a container, running or not.
    async fn put_archive(&self, id: &str, directory: &str, tar: Vec<u8>) -> Result<()>;

    /// A file or directory of a container, running or not, as a tar stream whose names begin with its own.
    ///
    /// # Errors
    /// [`EngineError::NoSuchPath`].
    async fn get_archive(&self, id: &str, path: &str) -> Result<Bytes>;

    /// An image by reference or id; `None` if it is not here.
    async fn image(&self, reference: &str) -> Result<Option<Image>>;

    /// All images that carry all these labels. An empty value stands for any.
    async fn images(&self, labels: &[(&str, &str)]) -> Result<Vec<Image>>;

    /// Fetches an image. Dropping the future ends that.
    ///
    /// # Errors
    /// [`EngineError::CannotPull`] with the engine's words.
    async fn pull(&self, reference: &str, progress: &dyn ProgressSink) -> Result<()>;

    /// Builds an image and answers with its id. Dropping the future ends the build.
    ///
    /// # Errors
    /// [`EngineError::BuildFailed`] with the last lines of its log.
    async fn build(&self, spec: &BuildSpec, progress: &dyn ProgressSink) -> Result<String>;

    /// Keeps what was written to a container's root as an image, without the container's mounts.
    ///
    /// # Errors
    /// [`EngineError::NoSuchContainer`], [`EngineError::Refused`] where the engine has no such thing.
    async fn commit(&self, id: &str, _image: &Committed<'_>) -> Result<()> {
        let message = format!("the container {id} cannot be kept as an image by this engine");
        Err(EngineError::Refused { engine: self.kind(), message })
    }

    /// Removes a tag, and the image with its last one. One that is not there is no error.
    ///
    /// # Errors
    /// [`EngineError::Conflict`] while a container uses it.
    async fn remove_image(&self, reference: &str) -> Result<()>;

    /// Loads images from an archive as `docker save` writes it.
    async fn load(&self, archive: Bytes) -> Result<()>;

    /// An image as an archive that [`load`](Self::load) takes.
    async fn save(&self, reference: &str) -> Result<Bytes>;
}
