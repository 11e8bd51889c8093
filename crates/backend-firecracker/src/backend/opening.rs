//! Opening one machine: its folder held, its intent written, its process started, booted or begun from a snapshot, woken and
//! handed out; or all of it removed.

use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use moltis_agent::client::Patience;
use moltis_agent::presence::Presence;
use moltis_agent::sandbox;
use moltis_host::record::Whereabouts;
use moltis_sandbox::{Lifetime, Network, Sandbox, SandboxId, SandboxSpec};

use super::{Served, State, ask, ssh_to, transport_to, vsock_to};
use crate::blueprint::Blueprint;
use crate::claims::Claims;
use crate::detect::Found;
use crate::disk::Store;
use crate::error::{Error, Result, long};
use crate::machine::{Jail, Machine, Program, Spawned, end};
use crate::record::{self, Folder, JAIL, Record, WORK};
use crate::snapshot::Snapshot;
use crate::ssh;
use crate::tap::{self, PIECES, Passes, Tap};
use crate::{Config, Step};

/// The first of the users that machines have where Moltis is root: far above those of people and of containers.
const FIRST_USER: u32 = 1_830_000_000;

/// How many there are.
const USERS: u32 = 1 << 20;

/// Users of machines.
pub(super) fn users(config: &Config) -> Result<Claims> {
    Claims::make(config.data_dir.join(record::RUN).join(".users"), "user", USERS)
}

/// Pieces of network of machines.
pub(super) fn pieces(config: &Config) -> Result<Claims> {
    Claims::make(config.data_dir.join(record::RUN).join(".networks"), "piece of network", PIECES)
}

/// The number of a user among the claims.
pub(super) fn number_of(user: u32) -> u32 {
    user.saturating_sub(FIRST_USER)
}

/// A machine that serves. Dropping a new one that nobody claimed ends it.
pub(super) struct Opened {
    served: Option<Served>,
    is_new: bool,
    state: Arc<State>,
    id: SandboxId,
}

impl Opened {
    /// Hands it out.
    pub fn claim(mut self) -> Arc<dyn Sandbox> {
        let Some(served) = self.served.take() else { unreachable!("it is claimed once") };
        self.state.hand_out(self.id.clone(), self.is_new, served)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let Some(served) = self.served.take().filter(|_| self.is_new) else { return };
        let (state, id) = (Arc::clone(&self.state), self.id.clone());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                drop(served.held);
                // What of it cannot be removed now is swept later.
                state.remove(&id).await
            });
        }
    }
}

/// A running machine for this spec: the one that is there, or a new one.
///
/// # Errors
/// Those of every step; nothing is left then.
pub(super) async fn open(state: &Arc<State>, spec: &SandboxSpec) -> Result<Opened> {
    let found = state.found().await?;
    if spec.network.value == Network::Open {
        long(|| Ok(tap::possible())).await?.map_err(no_open)?;
    }
    let id = spec.id();
    state.sweep_if_due(&id).await;
    let data_dir = state.config.data_dir.clone();
    let run = long(move || record::make(&data_dir)).await?;
    let folder = run.lock(&id).await?;
    state.config.tell(Step::Locked);
    let (looked, mut folder) = long(move || Ok((folder.look(), folder))).await?;
    let opened =
        |served, is_new| Opened { served: Some(served), is_new, state: Arc::clone(state), id: id.clone() };
    match looked {
        Some((record, Whereabouts::Elsewhere)) => {
            folder.keep(true);
            return Err(moltis_host::Error::Elsewhere(record.pid).into());
        }
        Some((record, Whereabouts::Here(process))) => {
            folder.keep(true);
            if record.served && record.fingerprint == spec.fingerprint() {
                let handle = process.try_clone().map_err(Error::folder(&record.work))?;
                let transport = transport_to(&state.config, &record, &process);
                match ask(handle, transport, record.ssh.clone(), Some(spec)).await {
                    (Presence::Answers, Some(served)) => return Ok(opened(served, false)),
                    // It may be in use.
                    (Presence::Silent(error), _) => return Err(error.into()),
                    // It is over, or cannot be used any more.
                    _ => {}
                }
            }
            end(&process).await?;
            state.clear(&id, folder, Some(&record)).await?;
            folder = run.lock(&id).await?;
        }
        Some((record, Whereabouts::Over)) => {
            state.clear(&id, folder, Some(&record)).await?;
            folder = run.lock(&id).await?;
        }
        None => {}
    }
    let (blueprint, store) = Blueprint::make(&state.config, spec).await?;
    let fingerprint = blueprint.fingerprint(&found.version, found.jailer.is_some());
    let fingerprint = fingerprint.filter(|_| state.config.snapshots);
    let find = async |fingerprint: &Option<String>| {
        let (store, Some(fingerprint)) = (store.clone(), fingerprint.clone()) else { return Ok(None) };
        long(move || Ok(Snapshot::find(&store, &fingerprint))).await
    };
    let mut snapshot = find(&fingerprint).await?;
    let making = Making { state, spec, found: &found, blueprint: &blueprint, store: &store, fingerprint };
    if let (None, Some(fingerprint)) = (&snapshot, &making.fingerprint)
        && making.has_room().await?
    {
        making.make(folder, Purpose::Template(fingerprint)).await?;
        folder = run.lock(&id).await?;
        snapshot = find(&making.fingerprint).await?;
    }
    if let Some(snapshot) = snapshot {
        match making.make(folder, Purpose::Restore(&snapshot)).await {
            Ok(served) => return served.map(|served| opened(served, true)).ok_or_else(unserved),
            // Nothing ran in it. A snapshot that cannot be begun from, as on another processor, is of no use.
            Err(error) if error.is_the_machine() => {
                tracing::warn!(%error, "a machine could not be begun from its snapshot, and is booted");
                let discard = snapshot.clone();
                long(move || {
                    discard.discard();
                    Ok(())
                })
                .await?;
                folder = run.lock(&id).await?;
            }
            Err(error) => return Err(error),
        }
    }
    making.make(folder, Purpose::Boot).await?.map(|served| opened(served, true)).ok_or_else(unserved)
}

/// What a machine is made for.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// To be booted and used.
    Boot,
    /// To be booted, written down under this name, and ended: Firecracker resets the way to a guest that it has written
    /// down, and what goes on in the original is not what the others begin from.
    Template(&'a str),
    /// To be begun from this, and used.
    Restore(&'a Snapshot),
}

fn unserved() -> Error {
    Error::Died { said: String::new() }
}

fn no_open(why: String) -> Error {
    let what = moltis_sandbox::Diagnosis::new(
        "firecracker-network-open",
        "a machine cannot have network `open` here",
    );
    Error::Refused(what.cause(why).fix("use `network = \"trusted\"` with `trusted_domains = [\"*\"]`"))
}

/// What an opening has in hand.
struct Making<'a> {
    state: &'a Arc<State>,
    spec: &'a SandboxSpec,
    found: &'a Found,
    blueprint: &'a Blueprint,
    store: &'a Store,
    fingerprint: Option<String>,
}

impl Making<'_> {
    /// Whether there is room for a snapshot. Asked before: the boot of a template is for nothing without.
    async fn has_room(&self) -> Result<bool> {
        let (store, blueprint) = (self.store.clone(), self.blueprint.clone());
        let has = long(move || Snapshot::has_room(&store, &blueprint)).await?;
        if !has {
            tracing::warn!("there is no room for a snapshot: machines are booted");
        }
        Ok(has)
    }

    /// Makes it, or removes what was made.
    async fn make(&self, folder: Folder, purpose: Purpose<'_>) -> Result<Option<Served>> {
        let id = self.spec.id();
        let mut folder = folder;
        // From here on it is removed by name, with all that belongs to it.
        folder.keep(true);
        let mut record = None;
        match self.steps(&mut folder, &mut record, purpose).await {
            Ok(Some(served)) => Ok(Some(served)),
            // A template has served its turn.
            Ok(None) => {
                self.state.clear(&id, folder, record.as_ref()).await?;
                Ok(None)
            }
            Err(error) => {
                // What cannot be removed now is swept later.
                let _ = self.state.clear(&id, folder, record.as_ref()).await;
                Err(error)
            }
        }
    }

    async fn steps(
        &self,
        folder: &mut Folder,
        written: &mut Option<Record>,
        purpose: Purpose<'_>,
    ) -> Result<Option<Served>> {
        let config = &self.state.config;
        let id = self.spec.id();
        let mut record = self.claim(folder, matches!(purpose, Purpose::Restore(_))).await?;
        *written = Some(record.clone());
        config.tell(Step::Claimed);
        folder.write(&record)?;
        config.tell(Step::Recorded);
        let tap = record.tap.clone().map(|(name, piece)| Tap { name, piece });
        if let Some(tap) = &tap {
            let user = record.user.unwrap_or_else(|| rustix::process::geteuid().as_raw());
            tap.make(user, self.passes()).await?;
        }
        config.tell(Step::Connected);
        self.furnish(folder, &record, purpose).await?;
        config.tell(Step::Furnished);
        let program = self.program(folder, &record);
        let (work, name) = (record.work.clone(), id.as_str().to_owned());
        let spawned = long(move || Spawned::start(&program, &work, &name)).await?;
        config.tell(Step::Spawned);
        (record.pid, record.started) = spawned.number().ok_or_else(|| Error::Died { said: String::new() })?;
        *written = Some(record.clone());
        folder.rewrite(&record)?;
        config.tell(Step::Numbered);
        let mut machine = spawned.listens().await?;
        config.tell(Step::Listening);
        let begun = self.begin(&machine, &record, tap.as_ref(), purpose);
        let served = match purpose {
            // All of it within one time, whatever does not answer: there is another way to begin.
            Purpose::Restore(_) => {
                let within = config.serves_within;
                let silent = |_| Err(Error::GuestSilent { within, said: String::new() });
                tokio::time::timeout(within, begun).await.unwrap_or_else(silent)
            }
            Purpose::Boot | Purpose::Template(_) => begun.await,
        };
        let served = match served {
            Ok(Some(served)) => served,
            Ok(None) => {
                machine.kill().await?;
                return Ok(None);
            }
            Err(error) => {
                let error = with_words(machine.why(error).await, &machine);
                machine.kill().await?;
                return Err(error);
            }
        };
        machine.console.close();
        record.ssh.clone_from(&served.ssh);
        record.served = true;
        *written = Some(record.clone());
        folder.rewrite(&record)?;
        config.tell(Step::Served);
        Ok(Some(served))
    }

    /// Takes the machine's numbers.
    async fn claim(&self, folder: &Folder, restored: bool) -> Result<Record> {
        let (config, id) = (self.state.config.clone(), self.spec.id());
        let base = folder.path().to_owned();
        let passes = self.passes();
        let (jailed, device) = (self.found.jailer.is_some(), passes.open || passes.ssh);
        let created_secs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let fingerprint = self.spec.fingerprint();
        let firecracker = config.firecracker.clone();
        long(move || {
            let mut record = Record::intent(fingerprint, created_secs, base.join(WORK));
            record.restored = restored;
            if jailed {
                let user = FIRST_USER + users(&config)?.take(&id, |_| true)?;
                record.user = Some(user);
                let jail = Jail { jailer: PathBuf::new(), base: base.join(JAIL), uid: user };
                record.work = jail.root(&firecracker, id.as_str());
            }
            if device {
                let piece = pieces(&config)?.take(&id, |number| !tap::in_use(tap::piece(number)));
                let tap = Tap::new(&config.data_dir, &id, piece?);
                record.tap = Some((tap.name, tap.piece));
            }
            Ok(record)
        })
        .await
    }

    /// What the machine's network device lets through, if it has one.
    fn passes(&self) -> Passes {
        let ssh = self.state.config.ssh_key.is_some();
        Passes { open: self.spec.network.value == Network::Open, ssh }
    }

    fn program(&self, folder: &Folder, record: &Record) -> Program {
        let jail = self.found.jailer.clone().zip(record.user);
        let jail = jail.map(|(jailer, uid)| Jail { jailer, base: folder.path().join(JAIL), uid });
        Program { firecracker: self.state.config.firecracker.clone(), jail }
    }

    async fn furnish(&self, folder: &Folder, record: &Record, purpose: Purpose<'_>) -> Result<()> {
        let top = if record.user.is_some() { JAIL } else { WORK };
        folder.make_folder(top, 0o700)?;
        let (work, user) = (record.work.clone(), record.user);
        let snapshot = match purpose {
            Purpose::Restore(snapshot) => Some(snapshot.clone()),
            Purpose::Boot | Purpose::Template(_) => None,
        };
        let blueprint = self.blueprint.clone();
        long(move || {
            let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&work);
            made.map_err(Error::folder(&work))?;
            match snapshot {
                Some(snapshot) => snapshot.furnish(&blueprint, &work, user),
                None => blueprint.furnish(&work, user),
            }
        })
        .await
    }

    /// Boots it or begins it from a snapshot, wakes it, and takes it; a template is written down instead.
    async fn begin(
        &self,
        machine: &Machine,
        record: &Record,
        tap: Option<&Tap>,
        purpose: Purpose<'_>,
    ) -> Result<Option<Served>> {
        let config = &self.state.config;
        match purpose {
            Purpose::Restore(_) => Snapshot::load(machine).await?,
            Purpose::Boot | Purpose::Template(_) => self.blueprint.boot(&machine.api, tap).await?,
        }
        config.tell(Step::Started);
        let process = machine.process.try_clone().map_err(Error::folder(&record.work))?;
        if let (Some(key), Some(tap)) = (&config.ssh_key, tap) {
            return self.move_in(key, tap, record, process).await.map(Some);
        }
        let transport = Arc::new(vsock_to(&record.work, &process)?);
        transport.wake(config.serves_within).await?;
        if let Purpose::Template(fingerprint) = purpose {
            if let Err(error) = Snapshot::take(machine, self.store, fingerprint, &record.work).await {
                tracing::warn!(%error, "no snapshot could be taken: machines are booted");
            }
            return Ok(None);
        }
        let patience = Patience::default();
        let held = match self.spec.lifetime {
            Lifetime::Ephemeral => {
                let held = sandbox::hold(&*transport, patience).await?;
                sandbox::configure(&*transport, 0, patience).await?;
                Some(held)
            }
            Lifetime::Idle(idle) => {
                sandbox::configure(&*transport, millis(idle), patience).await?;
                None
            }
        };
        Ok(Some(Served { process, transport, ssh: None, held }))
    }

    /// Brings the agent into a machine of somebody's own, and takes it.
    async fn move_in(
        &self,
        key: &std::path::Path,
        tap: &Tap,
        record: &Record,
        process: moltis_host::process::Process,
    ) -> Result<Served> {
        let config = &self.state.config;
        let owned = key.to_owned();
        let key = long(move || ssh::read_key(&owned)).await?;
        let settings = ssh::Settings {
            held: self.spec.lifetime == Lifetime::Ephemeral,
            egress: self.spec.network.value != Network::Open,
            pids: self.spec.limits.pids.map(|pids| pids.value),
        };
        let address = (tap.guest(), ssh::PORT).into();
        let moving = ssh::move_in(address, &key, settings, config.serves_within);
        let died = async { while !process.ends_within(Duration::from_secs(3600)).await {} };
        let reach = tokio::select! {
            reach = moving => reach?,
            () = died => return Err(Error::Died { said: String::new() }),
        };
        let transport = ssh_to(config, record, &reach)?;
        let patience = Patience::default();
        let held = match self.spec.lifetime {
            Lifetime::Ephemeral => Some(sandbox::hold(&*transport, patience).await?),
            Lifetime::Idle(idle) => {
                sandbox::configure(&*transport, millis(idle), patience).await?;
                None
            }
        };
        Ok(Served { process, transport, ssh: Some(reach), held })
    }
}

/// The same error with what the console said.
fn with_words(error: Error, machine: &Machine) -> Error {
    match error {
        Error::GuestSilent { within, .. } => Error::GuestSilent { within, said: machine.console.words() },
        Error::Died { said } if said.is_empty() => Error::Died { said: machine.console.words() },
        error => error,
    }
}

/// A time as the protocol has it; never 0, which would mean for ever.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1)
}
