//! A sandbox on a rented machine, as it is handed out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use moltis_agent::{Closer, Place};
use moltis_agentless::{ScriptFiles, plain};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Diagnosis, Duplex, Error, Exec, ExecRequest, Files, Forwarder, GuestPath, Outcome, ProcessInfo,
    Result, Sandbox, SandboxId,
};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::program::{script, script_within};
use crate::tools::Tools;
use crate::{background, exec, failure, scripts};

/// Why there is no terminal.
pub const NO_TERMINAL: &str = "the provider carries the output of programs and no terminals";
/// Why no port is forwarded.
pub const NO_FORWARD: &str = "the provider carries the output of programs and no connections";

/// What a use of the machine needs of its life beyond the command's own time.
const MARGIN: Duration = Duration::from_secs(120);
/// How often its life is made longer while it is used.
const LONGER: Duration = Duration::from_secs(30);

/// What all uses of one machine share.
pub struct Remote {
    pub(crate) machine: Arc<dyn Machine>,
    /// What commands find around them.
    pub(crate) place: Place,
    /// What starts a program with its usual signals.
    pub(crate) launch: String,
    /// Where what belongs to commands lies.
    pub(crate) room: &'static str,
    /// Where what belongs to background commands lies.
    pub(crate) kept: &'static str,
    /// Whether this process sees to it that they go on.
    keeps: AtomicBool,
    operations: AtomicU32,
    created_millis: u64,
}

/// One use of it, as long as this lives.
pub struct Busy {
    remote: Arc<Remote>,
    keeping: tokio::task::AbortHandle,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.keeping.abort();
        self.remote.operations.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Remote {
    /// Looks what there is on a machine.
    ///
    /// # Errors
    /// `image-unsuitable`; those of the provider.
    pub async fn look(machine: &dyn Machine) -> Result<Told> {
        let argv = ["/bin/sh", "-c", scripts::LOOK].map(str::to_owned).to_vec();
        let said = script(machine, argv).await.map_err(|error| failure::unavailable(&error))?;
        let word = |name: &str| said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        if let Some(missing) = word("missing") {
            return Err(failure::unsuitable(missing, "commands and files are worked on with it"));
        }
        if said.lines().last() != Some("done") {
            let why = plain(said.as_bytes());
            return Err(failure::unsuitable("shell that does what is asked", &why));
        }
        Ok(Told {
            home: word("home").unwrap_or_default().to_owned(),
            path: word("path").unwrap_or_default().to_owned(),
            room: word("room").unwrap_or_default().to_owned(),
            kept: word("kept").unwrap_or_default().to_owned(),
            launch: word("launch").unwrap_or_default().trim().to_owned(),
        })
    }

    /// A machine that was looked at; the directory is where the provider starts programs.
    pub fn new(machine: Arc<dyn Machine>, directory: &str, told: &Told, created_millis: u64) -> Self {
        let or = |text: &str, other: &str| if text.is_empty() { other.to_owned() } else { text.to_owned() };
        let mut env = vec![
            ("HOME".into(), or(&told.home, directory).into()),
            ("PATH".into(), or(&told.path, "/usr/local/bin:/usr/bin:/bin").into()),
            ("LANG".into(), "C.UTF-8".into()),
        ];
        if let Some(zone) = std::env::var_os("TZ").filter(|zone| !zone.is_empty() && zone.to_str().is_some())
        {
            env.push(("TZ".into(), zone));
        }
        Self {
            machine,
            place: Place { env, cwd: GuestPath::new(directory), shell: "/bin/sh".into() },
            launch: told.launch.clone(),
            room: scripts::room(&told.room).unwrap_or("/tmp/.moltis"),
            kept: background::folder(&told.kept).unwrap_or("/tmp/.moltis-kept"),
            keeps: AtomicBool::new(false),
            operations: AtomicU32::new(0),
            created_millis,
        }
    }

    /// How much runs inside, commands until now, when the last one ended and the time there.
    async fn uses(&self) -> Result<[f64; 4]> {
        let argv = ["/bin/sh", "-c", &scripts::uses(self.room, self.kept)].map(str::to_owned).to_vec();
        let said = script_within(&*self.machine, argv, Duration::from_secs(120), true);
        let said = said.await.map_err(|error| match failure::before(&error) {
            Error::Lost(diagnosis) => Error::Unavailable(diagnosis),
            error => error,
        })?;
        let numbers: Vec<f64> = said
            .lines()
            .find_map(|line| line.strip_prefix("uses "))
            .map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect())
            .unwrap_or_default();
        <[f64; 4]>::try_from(numbers)
            .map_err(|_| failure::unavailable(&crate::http::Failure::Unlike(plain(said.as_bytes()))))
    }

    /// Makes the machine's life longer for as long as something runs in it and this process uses it.
    pub(crate) fn keep_while_used(self: &Arc<Self>) {
        if self.keeps.swap(true, Ordering::SeqCst) {
            return;
        }
        let remote = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(LONGER).await;
                let Some(remote) = remote.upgrade() else { return };
                // One that begins now is kept by whoever begins it.
                remote.keeps.store(false, Ordering::SeqCst);
                if remote.uses().await.is_ok_and(|[inside, ..]| inside == 0.0)
                    || remote.keeps.swap(true, Ordering::SeqCst)
                {
                    return;
                }
                let _ = remote.machine.keep(MARGIN).await;
            }
        });
    }

    /// Begins a use of it that takes this long at most; absent: nobody knows.
    pub(crate) async fn begin(self: &Arc<Self>, time: Option<Duration>) -> Result<Busy> {
        self.operations.fetch_add(1, Ordering::SeqCst);
        let machine = Arc::clone(&self.machine);
        let until = time.map(|time| Instant::now() + time);
        let keeping = tokio::spawn(async move {
            loop {
                tokio::time::sleep(LONGER).await;
                let left =
                    until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()));
                let _ = machine.keep(left + MARGIN).await;
            }
        });
        let busy = Busy { remote: Arc::clone(self), keeping: keeping.abort_handle() };
        match self.machine.keep(time.unwrap_or_default() + MARGIN).await {
            Ok(()) => Ok(busy),
            Err(error) => Err(match failure::before(&error) {
                // Nothing of the request has run.
                Error::Lost(diagnosis) => {
                    Error::Unavailable(Diagnosis { code: "provider-failed".into(), ..diagnosis })
                }
                error => error,
            }),
        }
    }
}

/// What a machine said of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    home: String,
    path: String,
    room: String,
    #[serde(default)]
    kept: String,
    launch: String,
}

impl Told {
    /// Its user's home.
    pub fn home(&self) -> &str {
        &self.home
    }
}

/// A running sandbox on a rented machine.
pub struct RemoteSandbox {
    id: SandboxId,
    is_new: bool,
    remote: Arc<Remote>,
    files: ScriptFiles,
    closer: Arc<dyn Closer>,
}

impl RemoteSandbox {
    /// Hands it out.
    pub fn new(id: SandboxId, is_new: bool, remote: Arc<Remote>, closer: Arc<dyn Closer>) -> Self {
        let files = ScriptFiles::new(Arc::new(Tools(Arc::clone(&remote))));
        Self { id, is_new, remote, files, closer }
    }
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn id(&self) -> &SandboxId {
        &self.id
    }

    fn is_new(&self) -> bool {
        self.is_new
    }

    fn directory(&self) -> Option<GuestPath> {
        self.remote.place.cwd.clone()
    }

    async fn activity(&self) -> Result<Activity> {
        let [inside, commands, last, now] = self.remote.uses().await?;
        if inside > 0.0 {
            // What runs goes on as long as somebody looks.
            let _ = self.remote.machine.remind(MARGIN).await;
        }
        // What is no number of something counts as much of it.
        let operations = (inside as u32).max(self.remote.operations.load(Ordering::SeqCst));
        let idle = Duration::try_from_secs_f64((now - last).max(0.0)).unwrap_or_default();
        let uptime = crate::journal::now_millis().saturating_sub(self.remote.created_millis);
        Ok(Activity {
            operations,
            idle: if operations > 0 { Duration::ZERO } else { idle },
            commands: commands as u64,
            uptime: Duration::from_millis(uptime),
        })
    }

    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        exec::start(&self.remote, request).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        background::list(&self.remote).await
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        background::attach(&self.remote, process, [stdout, stderr], follow).await
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        background::stop(&self.remote, process).await
    }

    fn files(&self) -> &dyn Files {
        &self.files
    }

    async fn connect(&self, _: u16) -> Result<Box<dyn Duplex>> {
        Err(failure::declared("forward", NO_FORWARD))
    }

    async fn listen(&self, _: u16) -> Result<Box<dyn Forwarder>> {
        Err(failure::declared("forward", NO_FORWARD))
    }

    fn takes_list(&self) -> bool {
        self.remote.machine.takes_list()
    }

    async fn allow(&self, hosts: &[String]) -> Result<()> {
        if !self.takes_list() {
            return Err(moltis_sandbox::sandbox::no_egress());
        }
        self.remote.machine.allow(hosts).await.map_err(|error| failure::unavailable(&error))
    }

    async fn close(&self) -> Result<()> {
        self.closer.close().await
    }
}
