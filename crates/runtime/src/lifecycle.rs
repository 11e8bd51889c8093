//! A session's sandbox from its first command to its end: found, opened, made anew, ended, and room made for it.
//!
//! What is about to be done is written down first. Whoever has the session's lock and finds something begun knows that
//! the process which began it has died, and cleans up before it goes on.

mod kept;
mod list;
mod moved;
mod open_session;
mod running;
#[cfg(test)]
mod stopped_tests;

use std::sync::Arc;
use std::time::Duration;

use moltis_config::BackendChoice;
use moltis_sandbox::{
    Backend, BackendName, BuildSink, Diagnosis, Error, Lifetime, NotEnforced, Origin, Result, Sandbox,
    SandboxSpec, Setting,
};
use sha2::{Digest, Sha256};

pub use kept::{Adopted, Kept};
pub use list::{Pruned, SandboxInfo};
pub use running::Stopped;

use crate::error::RuntimeError;
use crate::failover::{self, Asks};
use crate::pool::Pooled;
use crate::router::{self, Barred, Route};
use crate::runtime::{Opened, Runtime, host_memory, off_thread};
use crate::sessions::{SessionRequest, agree, first_settings, missing, overrides};
use crate::settings::{self, Settings};
use crate::store::{
    Database, EnvValue, Gone, Judged, LostCommand, NewSandbox, SandboxState, Session, SessionLock,
    StoreError, StoredSandbox, now_millis,
};
use crate::{homes, image, snapshots};

/// Time that others may take to start or end the session's sandbox.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(60);

/// Time that the remains of a sandbox have to end whose engine has failed.
const LEAVE: Duration = Duration::from_secs(5);

/// A session whose sandbox runs.
pub struct OpenSession {
    runtime: Runtime,
    request: SessionRequest,
    /// The session as it is stored.
    pub session: Session,
    /// The sandbox.
    pub sandbox: Arc<dyn Sandbox>,
    /// What holds it.
    pub backend: BackendName,
    /// Built-in defaults that are not kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// Why the sandbox before this one ended, if this one is new and there was one.
    pub restarted: Option<Gone>,
    /// Commands of this session whose caller died; nobody was told of them before.
    pub lost: Vec<LostCommand>,
    env: Vec<(String, EnvValue)>,
    spec: Box<SandboxSpec>,
    generation: u64,
}

/// A session as it was read, with what follows from it.
struct Known {
    session: Session,
    env: Vec<(String, EnvValue)>,
    lost: Vec<LostCommand>,
    settings: Settings,
    choice: Setting<BackendChoice>,
    /// Whether this very call made the session.
    made: bool,
    /// Which opening is to be ended first. One that somebody has made since is not.
    recreate: Option<u64>,
}

/// A session as it is stored, its variables, what of it is lost, and whether it was made just now.
type Read = (Session, Vec<(String, EnvValue)>, Vec<LostCommand>, bool);

/// A sandbox of a session, however it was come by.
struct Place {
    opened: Opened,
    generation: u64,
    restarted: Option<Gone>,
}

/// What came of opening a session's sandbox.
enum Opening {
    /// It runs.
    Done(Box<(Known, Place)>),
    /// The session was removed meanwhile.
    SessionGone,
    /// It is to be opened on this route, once the image is there.
    NeedsImage(Box<(Known, Route)>),
}

impl Runtime {
    /// The session's sandbox: the one that runs, or a new one. The session is made if it is missing, unless the
    /// request says otherwise.
    ///
    /// # Errors
    /// Those of [`open`](Self::open); `session-differs` when the request does not agree with the session;
    /// `session-missing`; `sandbox-busy` when what the sandbox is to be has changed and something runs in it;
    /// `max-sandboxes`; those of the store.
    pub async fn open_session(&self, request: &SessionRequest) -> Result<OpenSession> {
        self.open_session_with(request, &BuildSink::ignore()).await
    }

    /// [`open_session`](Self::open_session), with somebody who looks on while an image is built or fetched.
    ///
    /// # Errors
    /// Those of [`open_session`](Self::open_session).
    pub async fn open_session_with(
        &self,
        request: &SessionRequest,
        progress: &BuildSink,
    ) -> Result<OpenSession> {
        self.open_without(request, None, progress).await
    }

    /// [`open_session`](Self::open_session), but never the sandbox of this opening.
    async fn open_without(
        &self,
        request: &SessionRequest,
        tampered: Option<u64>,
        progress: &BuildSink,
    ) -> Result<OpenSession> {
        let mut recreate = tampered;
        let mut asked = false;
        let mut barred = Vec::new();
        // A session that is removed by somebody else meanwhile is made anew, once; an image that is removed as soon as it
        // is there is not built for ever.
        let (mut removed, mut built) = (0, 0);
        let (mut made, mut lost) = (None, Vec::new());
        while removed < 3 && built < 16 {
            let mut known = self.know(request).await?;
            if !asked && request.recreate {
                recreate = known.session.sandbox.as_ref().map(|row| row.generation);
            }
            asked = true;
            known.recreate = recreate;
            known.lost.splice(0..0, std::mem::take(&mut lost));
            if known.made {
                made = Some(known.session.number);
            }
            let opened = match self.adopt(&known).await {
                Ok(Some(place)) => return self.hand_out(request, known, place).await,
                Ok(None) => Box::pin(self.open_locked(request, known, &mut barred)).await,
                Err(error) => Err(error),
            };
            let failed = match opened {
                Ok(Opening::Done(done)) => return self.hand_out(request, done.0, done.1).await,
                Ok(Opening::SessionGone) => {
                    removed += 1;
                    continue;
                }
                Ok(Opening::NeedsImage(needs)) => {
                    let (known, route) = *needs;
                    built += 1;
                    lost = known.lost;
                    match image::make_ready(&route, progress).await {
                        Ok(()) => continue,
                        Err(error) if self.goes_on(known.choice.value, &route, &error, &mut barred).await => {
                            continue;
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => error,
            };
            if let Some(number) = made {
                // What never had a sandbox has set nothing that anybody could rely on.
                let _ = self.store().run(move |db| db.forget_unused_session(number)).await;
            }
            return Err(failed);
        }
        Err(StoreError::NoSession.into())
    }

    async fn hand_out(&self, request: &SessionRequest, known: Known, place: Place) -> Result<OpenSession> {
        let Known { session, env, lost, .. } = known;
        let Place { opened, generation, restarted } = place;
        let Opened { sandbox, backend, not_enforced, notes, spec } = opened;
        let mut notes = self.news(notes).await;
        let sandbox = self.way_out(&spec, generation, &not_enforced, &mut notes).await?.of(sandbox);
        let (runtime, request) = (self.clone(), request.clone());
        Ok(OpenSession {
            runtime,
            request,
            session,
            sandbox,
            backend,
            not_enforced,
            notes,
            restarted,
            lost,
            env,
            spec,
            generation,
        })
    }

    /// Reads the session, or makes it, and sees that the request agrees with it.
    async fn know(&self, request: &SessionRequest) -> Result<Known> {
        let asked = request.clone();
        if let Some(choice) = request.settings.backend {
            self.registry().known(choice.value)?;
        }
        let read = move |db: &mut Database| {
            let session = match db.session(&asked.key)? {
                Some(session) => Some((session, false)),
                None if asked.must_exist => None,
                None => {
                    let first = first_settings(&asked.settings);
                    Some(db.create_session(&asked.key, &first, &asked.caller, now_millis())?)
                }
            };
            let Some((session, made)) = session else { return Ok(None) };
            let env = if session.env.is_empty() { Vec::new() } else { db.session_env(session.number)? };
            let lost = if made { Vec::new() } else { db.tell_lost(session.number)? };
            Ok(Some((session, env, lost, made)))
        };
        let (runtime, request) = (self.clone(), request.clone());
        let follows = move |read: Result<Option<Read>, StoreError>| {
            let (session, env, lost, made) = read?.ok_or_else(|| missing(&request.key))?;
            let stored = overrides(&session.overrides);
            if !made {
                agree(&request.key, &request.settings, &stored, runtime.config())?;
            }
            // The values are the same; but what was a default is a demand once it is asked for.
            let wanted = stored.with(&request.settings);
            let idle = runtime.idle_ttl(&session);
            let choice = snapshots::held(settings::choice(runtime.config(), &wanted), &session)?;
            let settings = runtime.settings_here(&wanted, request.key, Lifetime::Idle(idle))?;
            let settings = settings.beginning(session.begins.as_ref());
            Ok(Known { session, env, lost, settings, choice, made, recreate: None })
        };
        self.store().run_then(read, follows).await?
    }

    /// The sandbox that runs and is as it should be: the common case, without the session's lock and with nothing
    /// judged anew.
    async fn adopt(&self, known: &Known) -> Result<Option<Place>> {
        let Some(row) = known.session.sandbox.as_ref().filter(|row| row.state == SandboxState::Running)
        else {
            return Ok(None);
        };
        if known.recreate == Some(row.generation) {
            return Ok(None);
        }
        // Not in the spec, so that it could change without it.
        known.settings.unkept()?;
        let Some(backend) = self.registry().get(row.backend).filter(|_| self.may_stay(known.choice, row))
        else {
            return Ok(None);
        };
        let spec = known.settings.on(row.backend, host_memory());
        if spec.fingerprint() != row.fingerprint
            || settings_hash(&spec, &row.judged.choice) != row.judged.settings
        {
            return Ok(None);
        }
        let sandbox = match backend.adopt(&spec).await {
            Ok(Some(sandbox)) => sandbox,
            Ok(None) => return Ok(None),
            Err(error) if self.fail_over(row.backend, error.diagnosis()).await => return Ok(None),
            Err(error) => return Err(error),
        };
        let Judged { not_enforced, notes, .. } = row.judged.clone();
        let (backend, spec) = (row.backend, Box::new(spec));
        let opened = Opened { sandbox, backend, not_enforced, notes, spec };
        Ok(Some(Place { opened, generation: row.generation, restarted: None }))
    }

    /// Opens the session's sandbox with the right to do so.
    async fn open_locked(
        &self,
        request: &SessionRequest,
        known: Known,
        barred: &mut Vec<Barred>,
    ) -> Result<Opening> {
        let lock = self.store().lock_session(known.session.number, LOCK_PATIENCE).await?;
        // Whoever had the lock before may have done it all.
        let Known { lost, made, recreate, .. } = known;
        let mut known = match self.session(&request.key).await? {
            Some(session) if session.number == lock.session() => self.know(request).await?,
            _ => return Ok(Opening::SessionGone),
        };
        known.lost.extend(lost);
        (known.made, known.recreate) = (made, recreate);
        let unkept = known.settings.unkept()?;
        let mut restarted = known.session.ended;
        let mut row = known.session.sandbox.clone();
        let was = self.was_on(&known.session).await?;
        loop {
            let route = self.route(&known, row.as_ref(), barred).await?;
            let Route { backend, spec, without, .. } = &route;
            let choice = failover::chosen(known.choice.value, without);
            let judged = Judged {
                settings: settings_hash(spec, &choice),
                choice,
                not_enforced: [unkept.clone(), route.not_enforced.clone()].concat(),
                notes: route.notes.clone(),
            };
            if let Some(old) = &row {
                let unwanted = known.recreate == Some(old.generation);
                let same = old.state == SandboxState::Running
                    && old.backend == backend.name()
                    && old.fingerprint == spec.fingerprint();
                let mut revived = false;
                let found = match same && !unwanted {
                    true => match backend.adopt(spec).await? {
                        None => {
                            let found = backend.revive(spec).await?;
                            revived = found.is_some();
                            found
                        }
                        found => found,
                    },
                    false => None,
                };
                if let Some(sandbox) = found {
                    let generation = old.generation;
                    if revived {
                        // What ran in it has ended with it.
                        self.settle_in(&known.session, &*sandbox).await;
                    }
                    self.judged_anew(lock, generation, judged.clone()).await?;
                    let Judged { not_enforced, mut notes, .. } = judged;
                    if revived {
                        notes.push(format!("{}: {REVIVED}", backend.name()));
                    }
                    let (backend, spec) = (backend.name(), Box::new(route.spec));
                    let opened = Opened { sandbox, backend, not_enforced, notes, spec };
                    let place = Place { opened, generation, restarted: None };
                    return Ok(Opening::Done(Box::new((known, place))));
                }
            }
            match image::is_ready(&route).await {
                Ok(true) => {}
                Ok(false) => return Ok(Opening::NeedsImage(Box::new((known, route)))),
                Err(error) if self.goes_on(known.choice.value, &route, &error, barred).await => continue,
                Err(error) => return Err(error),
            }
            let moved = match row.take() {
                Some(old) => {
                    let (why, moved) = self.end_for_new(&lock, &known, &old, &route).await?;
                    restarted = Some(why);
                    moved
                }
                None => false,
            };
            match self.open_new(&lock, request, &known.session, &**backend, spec, judged).await {
                Ok((mut opened, generation)) => {
                    opened.notes.extend(self.home_note(&known, was.as_ref(), &route));
                    let was_elsewhere =
                        !without.is_empty() && restarted.is_some_and(|why| why != Gone::Failover);
                    if moved || (was_elsewhere && self.last_ran_on(&known.session, without).await?) {
                        restarted = Some(Gone::Failover);
                    }
                    let place = Place { opened, generation, restarted };
                    return Ok(Opening::Done(Box::new((known, place))));
                }
                Err(error) if self.goes_on(known.choice.value, &route, &error, barred).await => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Ends the sandbox that was written down, so that a new one can be opened; says why it is gone, and whether the
    /// session moves because of a failover, or back after one.
    async fn end_for_new(
        &self,
        lock: &SessionLock,
        known: &Known,
        old: &StoredSandbox,
        route: &Route,
    ) -> Result<(Gone, bool)> {
        if self.has_failed(old.backend) {
            self.leave(lock, &known.session, old).await?;
            return Ok((Gone::Failover, true));
        }
        let moved = old.backend != route.backend.name() && failover::stood_in(&old.judged.choice);
        let end = match known.recreate == Some(old.generation) {
            true => End::Always(Gone::Recreated),
            false if moved => End::IfUnused(Gone::Failover),
            false => End::IfUnused(Gone::Spec),
        };
        let ended = self.end_known(lock, &known.session, old, end).await;
        match ended {
            Ok(why) => Ok((why, moved && why == Gone::Failover)),
            // Its engine has failed at this very moment.
            Err(error) if self.fail_over(old.backend, error.diagnosis()).await => {
                self.leave(lock, &known.session, old).await?;
                Ok((Gone::Failover, true))
            }
            Err(error) => Err(error),
        }
    }

    /// Whether the session's last command ran on one of these.
    async fn last_ran_on(&self, session: &Session, backends: &[BackendName]) -> Result<bool> {
        let number = session.number;
        let last = self.store().run(move |db| db.last_backend(number)).await?;
        Ok(last.is_some_and(|last| backends.contains(&last)))
    }

    /// Which backend: the one that was named; with `auto` the one that the session's sandbox is on, as long as it keeps
    /// what is demanded, else the first that does.
    async fn route(&self, known: &Known, row: Option<&StoredSandbox>, barred: &[Barred]) -> Result<Route> {
        let memory = host_memory();
        let spec = |name| known.settings.on(name, memory);
        if let Some(route) = self.kept_route(row, known.choice, &spec).await {
            return Ok(route);
        }
        let asks = Asks { choice: known.choice, key: Some(&known.session.key) };
        let route = self.route_past(&asks, barred, spec).await?;
        if known.choice.value == BackendChoice::Auto && !route.isolates {
            // What it did while it was isolated may lie in wait for the host.
            let number = known.session.number;
            let was = self.store().run(move |db| db.last_backend(number)).await?;
            // Under `failover = "any"` a session follows its failed engine to the host nevertheless: that is what the
            // word says, and every answer says it too.
            let stays = |was: &BackendName| on_host(*was) || route.without.contains(was);
            if let Some(was) = was.filter(|was| !stays(was)) {
                let key = known.session.key.to_string();
                return Err(RuntimeError::IsolationLost { key, was, now: route.backend.name() }.into());
            }
        }
        Ok(route)
    }

    /// With `auto`, the backend that the session's sandbox is on, as long as it keeps what is demanded.
    pub(crate) async fn kept_route(
        &self,
        row: Option<&StoredSandbox>,
        choice: Setting<BackendChoice>,
        spec: impl Fn(BackendName) -> SandboxSpec,
    ) -> Option<Route> {
        let row = row.filter(|row| row.state == SandboxState::Running)?;
        // One that was named, or came of a sandbox that was switched off, is not what `auto` would choose.
        let by_auto = choice.value == BackendChoice::Auto && self.may_stay(choice, row);
        if !by_auto || self.registry().get(row.backend).is_none() {
            return None;
        }
        let mut route = router::named_route(self.registry(), row.backend, spec).await.ok()?;
        // Only while it is there: a new sandbox goes to the best backend there is then.
        let id = route.spec.id();
        if route.backend.find(&id).await.ok().flatten().is_none() {
            route.backend.is_stopped(&id).await.ok().filter(|stopped| *stopped)?;
        }
        if failover::stood_in(&row.judged.choice) {
            route.without = failover::without(&row.judged.choice);
            route.notes.clone_from(&row.judged.notes);
        }
        Some(route)
    }

    /// Whether a sandbox may stay on the backend that it is on, as far as the choice of the backend goes.
    fn may_stay(&self, choice: Setting<BackendChoice>, row: &StoredSandbox) -> bool {
        let failed = self.failed_over();
        let stored = &row.judged.choice;
        if failed.iter().any(|failed| failed.from == row.backend)
            || !failover::still_chosen(stored, choice.value, &failed)
        {
            return false;
        }
        match choice.value {
            // A session that names the one that has failed is taken to no other.
            BackendChoice::Named(_) if failover::stood_in(stored) => !failover::by_the_session(choice.origin),
            choice => may_be(choice, row.backend),
        }
    }

    /// Lets go of a sandbox whose engine has failed: what can be ended without the engine is, and what cannot is left for
    /// a later clean-up.
    async fn leave(&self, lock: &SessionLock, session: &Session, row: &StoredSandbox) -> Result<()> {
        if let Some(backend) = self.registry().get(row.backend) {
            let ending = async {
                if let Ok(Some(running)) = backend.find(&session.sandbox_id).await {
                    self.settle_in(session, &*running).await;
                    let _ = running.close().await;
                }
                backend.remove(&session.sandbox_id).await
            };
            match tokio::time::timeout(LEAVE, ending).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::info!(%error, "what a failed engine held is left to it"),
                Err(_) => tracing::info!("a failed engine does not answer: what it held is left to it"),
            }
        }
        self.gone(lock, row.generation, Some(Gone::Failover)).await.map(drop)
    }

    /// Opens a new sandbox and writes it down, before and after.
    async fn open_new(
        &self,
        lock: &SessionLock,
        request: &SessionRequest,
        session: &Session,
        backend: &dyn Backend,
        spec: &SandboxSpec,
        judged: Judged,
    ) -> Result<(Opened, u64)> {
        let new = NewSandbox { backend: backend.name(), fingerprint: spec.fingerprint(), judged };
        let pooled = self.pool().take(backend.name(), spec);
        let generation = match self.claim(lock, request, &new).await {
            Ok(generation) => generation,
            Err(error) => {
                if let Some(pooled) = &pooled {
                    self.end_pooled(pooled).await;
                }
                return Err(error);
            }
        };
        let sandbox = match self.assign_or_open(backend, pooled, spec).await {
            Ok(sandbox) => sandbox,
            Err(error) => {
                self.gone(lock, generation, None).await?;
                return Err(error);
            }
        };
        if let Some(begins) = &session.begins
            && let Err(error) = self.unpack_snapshot(lock, &*sandbox, spec, begins).await
        {
            // Half of what it begins from is worse than nothing.
            if let Err(error) = sandbox.close().await {
                tracing::debug!(%error, "a sandbox that could not be filled cannot be ended");
            }
            backend.remove(sandbox.id()).await?;
            self.gone(lock, generation, None).await?;
            return Err(error);
        }
        self.state(lock, generation, SandboxState::Running).await?;
        let Judged { not_enforced, notes, .. } = new.judged;
        let (backend, spec) = (new.backend, Box::new(spec.clone()));
        let opened = Opened { sandbox, backend, not_enforced, notes, spec };
        Ok((opened, generation))
    }

    /// Hands a pooled sandbox over to the session, which is written down as its own already, or opens a new one.
    async fn assign_or_open(
        &self,
        backend: &dyn Backend,
        pooled: Option<Pooled>,
        spec: &SandboxSpec,
    ) -> Result<Arc<dyn Sandbox>> {
        let owned = spec.clone();
        off_thread(move || homes::make(&owned)).await?;
        let Some(pooled) = pooled else { return backend.open(spec).await };
        match backend.assign(&pooled.spec, spec).await {
            Ok(sandbox) => Ok(sandbox),
            Err(error) => {
                // It may have ended itself. Nothing ran in it.
                tracing::debug!(%error, "a pooled sandbox cannot be handed over");
                self.end_pooled(&pooled).await;
                backend.open(spec).await
            }
        }
    }

    /// Writes down that a sandbox is about to be opened; if there are too many, the longest unused idle one goes first.
    async fn claim(&self, lock: &SessionLock, request: &SessionRequest, new: &NewSandbox) -> Result<u64> {
        let all = self.config().tools.exec.sandbox.max_sandboxes.value;
        loop {
            // Those that wait in the pool count too; the one that this session gets is not there any more.
            let most = all.saturating_sub(self.pool().ready());
            let (new, by, number) = (new.clone(), request.caller.clone(), lock.session());
            let lock = lock.share();
            let claimed =
                self.store().run(move |db| match db.sandbox_opening(&lock, &new, most, &by, now_millis()) {
                    Err(full @ StoreError::TooMany(_)) => Ok(Err(full)),
                    other => other.map(Ok),
                });
            match claimed.await? {
                Ok(generation) => return Ok(generation),
                Err(full) => {
                    if let Some(spare) = self.pool().take_any() {
                        self.end_pooled(&spare).await;
                        continue;
                    }
                    if !self.evict(number).await? {
                        return Err(full.into());
                    }
                }
            }
        }
    }

    async fn state(&self, lock: &SessionLock, generation: u64, state: SandboxState) -> Result<()> {
        let lock = lock.share();
        Ok(self.store().run(move |db| db.sandbox_state(&lock, generation, state)).await?)
    }

    async fn gone(&self, lock: &SessionLock, generation: u64, why: Option<Gone>) -> Result<usize> {
        let lock = lock.share();
        Ok(self.store().run(move |db| db.sandbox_gone(&lock, generation, why)).await?)
    }

    async fn judged_anew(&self, lock: SessionLock, generation: u64, judged: Judged) -> Result<()> {
        Ok(self.store().run(move |db| db.sandbox_judged(&lock, generation, &judged)).await?)
    }
}

/// Whether commands run on the host itself.
fn on_host(backend: BackendName) -> bool {
    matches!(backend, BackendName::RestrictedHost | BackendName::None)
}

/// Whether a sandbox on this backend may stay where it is.
fn may_be(choice: BackendChoice, backend: BackendName) -> bool {
    match choice {
        BackendChoice::Named(name) => name == backend,
        BackendChoice::Auto => backend.in_auto(),
    }
}

/// Hash of all that a judgement depends on: every setting with who set it, and how the backend was chosen.
fn settings_hash(spec: &SandboxSpec, choice: &str) -> String {
    let mut spec = spec.clone();
    // How long it lives is told to the running one.
    spec.lifetime = Lifetime::Ephemeral;
    // Which demand it is makes no difference, but for the configuration file's.
    let settled = |origin: &mut Origin| {
        if !matches!(*origin, Origin::Default | Origin::File) {
            *origin = Origin::Session;
        }
    };
    settled(&mut spec.network.origin);
    settled(&mut spec.workspace_mode);
    let limits = &mut spec.limits;
    limits.memory.iter_mut().for_each(|limit| settled(&mut limit.origin));
    limits.cpus.iter_mut().for_each(|limit| settled(&mut limit.origin));
    limits.pids.iter_mut().for_each(|limit| settled(&mut limit.origin));
    spec.workspace.iter_mut().for_each(|workspace| settled(&mut workspace.origin));
    spec.image.iter_mut().for_each(|image| image.map_origins(settled));
    let version = env!("CARGO_PKG_VERSION");
    let digest = Sha256::digest(format!("{version} {choice} {spec:?}").as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is said of a sandbox that had been stopped.
const REVIVED: &str = "the sandbox had been stopped there and was started again: its files are as they were, and what ran in \
                       it has ended";

/// Whether a sandbox is ended though something runs in it, and what is then said of why.
#[derive(Clone, Copy)]
pub(crate) enum End {
    Always(Gone),
    IfUnused(Gone),
}

/// Code of the refusal to end what is in use.
const BUSY: &str = "sandbox-busy";

/// Some of the background commands that run in a sandbox, by number and line.
pub(crate) async fn named(sandbox: &dyn Sandbox) -> Vec<String> {
    let processes = sandbox.processes().await.unwrap_or_default();
    let running = processes.into_iter().filter(|process| process.outcome.is_none());
    running.map(|process| format!("{} ({})", process.id, process.command)).take(8).collect()
}

/// Something runs in a sandbox that would have to be made anew.
pub(crate) fn busy(session: &Session, operations: u32, running: &[String]) -> Error {
    let key = session.key.as_str();
    let what = match running {
        [] if operations == 1 => "one operation".to_owned(),
        [] => format!("{operations} operations"),
        named => named.join(", "),
    };
    Error::Refused(
        Diagnosis::new(
            BUSY,
            format!("what the sandbox of the session {key:?} is to be has changed, and something runs in it"),
        )
        .cause(format!("running: {what}"))
        .fix("wait until it ends (`moltis process list`, `moltis process stop`), or end it all with --recreate"),
    )
}

impl Runtime {
    /// Ends a sandbox that was written down, whatever state it is in, and says why it is gone: for the reason that is
    /// given if it ran, else for one of its own.
    ///
    /// # Errors
    /// `sandbox-busy` when it is in use and was to be spared then; those of the store and of the backend.
    pub(crate) async fn end_known(
        &self,
        lock: &SessionLock,
        session: &Session,
        row: &StoredSandbox,
        end: End,
    ) -> Result<Gone> {
        let Some(backend) = self.registry().get(row.backend) else {
            return Err(RuntimeError::NotBuilt(row.backend).into());
        };
        let found = match (row.state, end) {
            (SandboxState::Running, End::IfUnused(_)) => backend.find(&session.sandbox_id).await?,
            // Also one that does not answer.
            (SandboxState::Running, End::Always(_)) => {
                backend.find(&session.sandbox_id).await.unwrap_or(None)
            }
            // Whoever was at it has died, and what there is of it is half made or half gone.
            (SandboxState::Opening | SandboxState::Closing, _) => None,
        };
        let why = match (&found, end) {
            (Some(_), End::Always(why) | End::IfUnused(why)) => why,
            (None, _) => self.why_gone(session, row).await?,
        };
        if let Some(running) = &found {
            self.settle_in(session, &**running).await;
            let ended = match end {
                End::Always(_) => {
                    // It ends though that cannot be written down: it may be what fills the disk.
                    if let Err(error) = self.state(lock, row.generation, SandboxState::Closing).await {
                        tracing::warn!(error = %error, "the end of a sandbox cannot be written down");
                    }
                    running.close().await.map(|()| true)?
                }
                // Nothing is written down before: as long as it may stay, nobody may take it for half gone.
                End::IfUnused(_) => running.close_if_idle().await?,
            };
            if !ended {
                let operations = running.activity().await.map_or(1, |activity| activity.operations);
                return Err(busy(session, operations, &named(&**running).await));
            }
        }
        // Also what a sandbox left that died, or that did not answer.
        backend.remove(&session.sandbox_id).await?;
        self.gone(lock, row.generation, Some(why)).await?;
        Ok(why)
    }

    /// Time without use after which a session's sandbox ends.
    pub(crate) fn idle_ttl(&self, session: &Session) -> Duration {
        match session.overrides.idle_ttl_secs {
            Some(seconds) => Duration::from_secs(seconds),
            None => self.config().tools.exec.sandbox.idle_ttl.value,
        }
    }

    /// Why a sandbox that is written down as running does not run: by its own clock, or not.
    async fn why_gone(&self, session: &Session, row: &StoredSandbox) -> Result<Gone> {
        let number = session.number;
        let last_end = self.store().run(move |db| db.last_end(number)).await?;
        let last_use = session.last_used_millis.max(last_end);
        let unused = Duration::from_millis(now_millis().saturating_sub(last_use));
        let idle = row.state == SandboxState::Running && unused >= self.idle_ttl(session);
        Ok(if idle { Gone::Idle } else { Gone::Crash })
    }
}
