//! What would happen if a command were run, and why, without opening anything.

use std::path::PathBuf;
use std::time::Duration;

use moltis_config::BackendChoice;
use moltis_config::value::number::{write_duration, write_size};
use moltis_config::words::Words;
use moltis_egress::Rule;
use moltis_sandbox::{
    BackendName, DomainPattern, Error, ImageChoice, Lifetime, Mount, MountMode, Network, NotEnforced, Origin,
    Result, SandboxSpec, SessionKey, Setting,
};
use serde::{Serialize, Serializer};

use crate::failover::Asks;
use crate::lifecycle::{busy, named};
use crate::router::{self, PassedOver, Route, Survey};
use crate::runtime::{Runtime, ephemeral_key, host_memory, off_thread, see_space};
use crate::sessions::{agree, overrides};
use crate::settings::{self, Overrides, Settings};
use crate::store::{SandboxState, Session, StoreError};
use crate::{error::RuntimeError, snapshots, usage};

/// Which command is asked about.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExplainRequest {
    /// The session that it would be for; absent: a sandbox of its own.
    pub session: Option<SessionKey>,
    /// What its flags ask for.
    pub settings: Overrides,
}

/// What would happen, and why.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<SessionKey>,
    /// What would become of the session's sandbox, or of one of the command's own.
    #[serde(rename = "fate")]
    pub sandbox: Fate,
    /// What would hold it; absent when none is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend: Option<BackendName>,
    /// Why this one.
    pub because: String,
    /// Backends that come before it and would not be taken.
    pub passed_over: Vec<PassedOver>,
    /// Everything that decides what the sandbox is.
    pub settings: Vec<Explained>,
    /// Host folders that would show inside.
    pub mounts: Vec<Mount>,
    /// Built-in defaults that would not be kept.
    pub not_enforced: Vec<NotEnforced>,
    /// What else a person should know.
    pub notes: Vec<String>,
    /// What the command would be answered instead, if nothing would run.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "refusal")]
    pub refusal: Option<Error>,
}

/// What would become of the sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Fate {
    /// A new one would be made.
    New,
    /// The one that runs would be used.
    Used,
    /// The one that runs would be ended and made anew, because what it is to be has changed.
    MadeAnew,
}

/// A setting, its value as it is written in the configuration, and who set it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explained {
    /// Its key below `tools.exec.sandbox`.
    pub key: &'static str,
    /// Its value; absent: there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Who set it.
    pub origin: Origin,
}

fn refusal<S: Serializer>(error: &Option<Error>, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    let told = error.as_ref().map(|e| serde_json::json!({ "kind": e.kind(), "error": e.diagnosis() }));
    told.serialize(serializer)
}

/// A request with what is stored of its session.
struct Subject {
    session: Option<Session>,
    key: SessionKey,
    overrides: Overrides,
    idle: Option<Setting<Duration>>,
    refusal: Option<Error>,
}

impl Runtime {
    /// What would happen to a command with these flags, and why. Nothing is opened, made or stored.
    ///
    /// # Errors
    /// Those of the store. That the command would be refused is an answer, not an error.
    pub async fn explain(&self, request: &ExplainRequest) -> Result<Explanation> {
        let subject = self.subject(request).await?;
        let lifetime = match subject.idle {
            Some(idle) => Lifetime::Idle(idle.value),
            None => Lifetime::Ephemeral,
        };
        let mut choice = settings::choice(self.config(), &subject.overrides);
        let settings = Settings::new(self.config(), &subject.overrides, subject.key.clone(), lifetime);
        let settings =
            settings.beginning(subject.session.as_ref().and_then(|session| session.begins.as_ref()));
        let mut refusal = subject.refusal;
        if let Some(session) = &subject.session {
            match snapshots::held(choice, session) {
                Ok(held) => choice = held,
                Err(error) => drop(refusal.get_or_insert(error)),
            }
        }
        if refusal.is_none() {
            refusal = self.hidden(&settings).await.and(see_space(&self.config().data_dir.value)).err();
        }
        let mut not_enforced = match settings.unkept() {
            Ok(listed) => listed,
            Err(error) => {
                refusal.get_or_insert(error);
                Vec::new()
            }
        };
        let asks = Asks { choice, key: request.session.as_ref() };
        if refusal.is_none() {
            refusal = self.see_named(&asks).err();
        }
        let memory = host_memory();
        let on = |name| settings.on(name, memory);
        let kept = match &subject.session {
            Some(session) => self.kept_route(session.sandbox.as_ref(), choice, on).await,
            None => None,
        };
        let (survey, stays) = match kept {
            Some(route) => (Survey { route: Ok(route), passed_over: Vec::new(), failing: Vec::new() }, true),
            None => (router::survey(self.registry(), choice.value, &self.ways(), on).await, false),
        };
        let Survey { route, mut passed_over, .. } = survey;
        if choice.value == BackendChoice::Auto && !stays {
            passed_over = self.with_absent(passed_over, route.as_ref().ok().map(|r| r.backend.name()));
        }
        let mut explanation = Explanation {
            session: request.session.clone(),
            sandbox: Fate::New,
            backend: None,
            because: because(&subject.overrides, choice, stays, self.config()),
            passed_over,
            settings: Vec::new(),
            mounts: Vec::new(),
            not_enforced: Vec::new(),
            notes: Vec::new(),
            refusal: None,
        };
        let spec = match route {
            Ok(Route { backend, spec, not_enforced: left, notes, isolates, .. }) => {
                not_enforced.extend(left);
                explanation.backend = Some(backend.name());
                explanation.notes = notes;
                if isolates {
                    explanation.mounts = mounts(&spec);
                }
                if refusal.is_none() {
                    refusal = backend.check(&spec).await.err();
                }
                if refusal.is_none() {
                    refusal = usage::see_quota(&spec).await.err();
                }
                if subject.idle.is_some() && refusal.is_none() {
                    refusal = self.see_place(&subject.key, subject.session.as_ref()).await.err();
                }
                if let Some(session) = &subject.session {
                    match self.fate(session, backend.name(), &spec).await {
                        Ok(fate) => explanation.sandbox = fate,
                        Err(error) => drop(refusal.get_or_insert(error)),
                    }
                }
                spec
            }
            Err(error) => {
                refusal.get_or_insert(error);
                on(self.likely(choice.value))
            }
        };
        explanation.settings = self.explained(&spec, &subject.overrides, choice, subject.idle);
        if spec.network.value == Network::Trusted {
            explanation.settings.extend(self.reach(&subject.key).await?);
        }
        explanation.not_enforced = not_enforced;
        explanation.refusal = refusal;
        Ok(explanation)
    }

    /// Reads the session; what a new one would store counts as the session's.
    async fn subject(&self, request: &ExplainRequest) -> Result<Subject> {
        let Some(key) = request.session.clone() else {
            let overrides = request.settings.clone();
            return Ok(Subject { session: None, key: ephemeral_key(), overrides, idle: None, refusal: None });
        };
        let mut refusal = request.settings.backend.and_then(|b| self.registry().known(b.value).err());
        let session = if self.store().is_there() { self.session(&key).await? } else { None };
        let default_idle = self.config().tools.exec.sandbox.idle_ttl;
        let (overrides, idle) = match &session {
            None => (request.settings.clone(), default_idle),
            Some(session) => {
                let stored = overrides(&session.overrides);
                if refusal.is_none() {
                    refusal = agree(&key, &request.settings, &stored, self.config()).err();
                }
                let own = session.overrides.idle_ttl_secs.map(Duration::from_secs);
                (
                    stored.with(&request.settings),
                    own.map_or(default_idle, |own| Setting::new(own, Origin::Session)),
                )
            }
        };
        Ok(Subject { session, key, overrides, idle: Some(idle), refusal })
    }

    async fn hidden(&self, settings: &Settings) -> Result<()> {
        let (settings, files) = (settings.clone(), self.config_files().to_vec());
        off_thread(move || settings.hides(&files)).await
    }

    /// Sees that there is a place for a session's sandbox among all: a free one, its own, or that of one that is idle.
    async fn see_place(&self, key: &SessionKey, session: Option<&Session>) -> Result<()> {
        let most = self.config().tools.exec.sandbox.max_sandboxes.value;
        if !self.store().is_there() || session.is_some_and(|session| session.sandbox.is_some()) {
            return Ok(());
        }
        let all = self.store().run(|db| db.sandboxes()).await?;
        if (all.len() as u64) < most {
            return Ok(());
        }
        for other in all.iter().filter(|other| other.key != *key) {
            let starting = other.sandbox.as_ref().is_some_and(|row| row.state != SandboxState::Running);
            let in_use = match self.find_of(other).await {
                Ok(Some((_, running))) => running.activity().await.map_or(true, |now| now.operations > 0),
                Ok(None) => starting,
                // One that cannot be asked is in use.
                Err(_) => true,
            };
            if !in_use {
                return Ok(());
            }
        }
        Err(StoreError::TooMany(most).into())
    }

    /// What would become of the sandbox that is written down for a session.
    async fn fate(&self, session: &Session, backend: BackendName, spec: &SandboxSpec) -> Result<Fate> {
        let Some((on, running)) = self.find_of(session).await? else { return Ok(Fate::New) };
        let row = session.sandbox.as_ref().filter(|row| row.state == SandboxState::Running);
        if on == backend && row.is_some_and(|row| row.fingerprint == spec.fingerprint()) {
            return Ok(Fate::Used);
        }
        let operations = running.activity().await?.operations;
        if operations > 0 {
            return Err(busy(session, operations, &named(&*running).await));
        }
        Ok(Fate::MadeAnew)
    }

    /// Adds those that `auto` would have tried if this program had them.
    fn with_absent(&self, mut passed_over: Vec<PassedOver>, chosen: Option<BackendName>) -> Vec<PassedOver> {
        let order = |name: BackendName| BackendName::ALL.iter().position(|other| *other == name);
        let before = BackendName::ALL.into_iter().take_while(|name| Some(*name) != chosen);
        for name in before.filter(|name| name.in_auto() && self.registry().get(*name).is_none()) {
            let why = Error::from(RuntimeError::NotBuilt(name)).diagnosis().clone();
            passed_over.push(PassedOver { backend: name, why });
        }
        passed_over.sort_by_key(|passed| order(passed.backend));
        passed_over
    }

    /// The backend whose defaults are shown where none would be taken.
    fn likely(&self, choice: BackendChoice) -> BackendName {
        let first = self.registry().all().iter().map(|backend| backend.name()).find(|name| name.in_auto());
        match choice {
            BackendChoice::Named(name) => name,
            BackendChoice::Auto => first.unwrap_or(BackendName::None),
        }
    }

    /// What the network `trusted` lets through, as it is now.
    async fn reach(&self, session: &SessionKey) -> Result<Vec<Explained>> {
        let sandbox = &self.config().tools.exec.sandbox;
        let rules = self.added_rules(session).await?;
        let on_unknown = match rules.on_unknown {
            Some(word) => Setting::new(word, Origin::Session),
            None => sandbox.on_unknown,
        };
        let list = |key, configured: &Setting<Vec<DomainPattern>>, added: &[Rule]| {
            let of_session = added.iter().any(|rule| rule.origin == moltis_egress::Origin::Session);
            let configured_ones = configured.value.iter().map(ToString::to_string);
            let all: Vec<_> =
                configured_ones.chain(added.iter().map(|rule| rule.pattern.to_string())).collect();
            let origin = if of_session { Origin::Session } else { configured.origin };
            Explained { key, value: (!all.is_empty()).then(|| all.join(", ")), origin }
        };
        let word = on_unknown.value.word().to_owned();
        Ok(vec![
            list("trusted_domains", &sandbox.trusted_domains, &rules.trusted),
            list("denied_domains", &sandbox.denied_domains, &rules.denied),
            Explained { key: "on_unknown", value: Some(word), origin: on_unknown.origin },
        ])
    }

    fn explained(
        &self,
        spec: &SandboxSpec,
        overrides: &Overrides,
        choice: Setting<BackendChoice>,
        idle: Option<Setting<Duration>>,
    ) -> Vec<Explained> {
        let sandbox = &self.config().tools.exec.sandbox;
        let mut all = Vec::new();
        let mut add = |key, value: Option<String>, origin| all.push(Explained { key, value, origin });
        match overrides.enabled {
            Some(on) => add("sandboxEnabled", Some(on.value.to_string()), on.origin),
            None => add("mode", Some(sandbox.mode.value.word().to_owned()), sandbox.mode.origin),
        }
        add("backend", Some(choice.value.to_string()), choice.origin);
        if let Some(image) = &spec.image {
            let reference = image.reference();
            add("image", Some(reference.value.clone()), reference.origin);
            if let ImageChoice::Base { packages, .. } = image {
                let names = packages.value.join(", ");
                add("packages", (!names.is_empty()).then_some(names), packages.origin);
            }
        }
        if let Some(runtime) = &spec.runtime {
            add("runtime", Some(runtime.value.clone()), runtime.origin);
        }
        if let Some(gpus) = &spec.gpus {
            add("gpus", Some(gpus.value.to_string()), gpus.origin);
        }
        let hatches = [("allow_host_podman", spec.host_podman), ("allow_nested_podman", spec.nested_podman)];
        for (key, hatch) in hatches.into_iter().filter(|(_, hatch)| hatch.value) {
            add(key, Some("true".to_owned()), hatch.origin);
        }
        add("network", Some(spec.network.value.to_string()), spec.network.origin);
        let limits = &spec.limits;
        let (key, memory) = ("resource_limits.memory_limit", limits.memory);
        add(key, memory.map(|m| write_size(m.value)), origin(memory));
        let (key, cpus) = ("resource_limits.cpu_quota", limits.cpus);
        add(key, cpus.map(|c| c.value.to_string()), origin(cpus));
        let (key, pids) = ("resource_limits.pids_max", limits.pids);
        add(key, pids.map(|p| p.value.to_string()), origin(pids));
        match &spec.workspace {
            None => add("workspace", None, Origin::Default),
            Some(workspace) => {
                let Mount { source, mode, .. } = &workspace.value;
                add("workspace", Some(source.display().to_string()), workspace.origin);
                add("workspace_mount", Some(mode_word(*mode).to_owned()), spec.workspace_mode);
                let protect = spec.workspace_protect.join(", ");
                add("workspace_protect", Some(protect), spec.workspace_protect_origin);
            }
        }
        // A sandbox of the command's own has a home that ends with it, whatever the configuration says.
        match spec.lifetime {
            Lifetime::Ephemeral => add("home_persistence", Some("off".to_owned()), Origin::Default),
            Lifetime::Idle(_) => {
                let kept = sandbox.home_persistence;
                add("home_persistence", Some(kept.value.word().to_owned()), kept.origin);
                add("home_quota", spec.home_quota.map(|q| write_size(q.value)), origin(spec.home_quota));
            }
        }
        let files = sandbox.managed_files_mount;
        add("managed_files_mount", Some(files.value.word().to_owned()), files.origin);
        let sources: Vec<_> = spec.mounts.iter().map(|m| m.value.source.display().to_string()).collect();
        add("mounts", (!sources.is_empty()).then(|| sources.join(", ")), sandbox.mounts.origin);
        let rootfs = spec.rootfs.as_ref();
        add(
            "rootfs",
            rootfs.map(|r| r.value.display().to_string()),
            rootfs.map_or(Origin::Default, |r| r.origin),
        );
        add("sandbox_uid", spec.sandbox_uid.map(|uid| uid.to_string()), origin(sandbox.sandbox_uid));
        let unenforced = sandbox.allow_unenforced;
        add("allow_unenforced", Some(unenforced.value.to_string()), unenforced.origin);
        if let Some(idle) = idle {
            add("idle_ttl", Some(write_duration(idle.value)), idle.origin);
        }
        all
    }
}

fn origin<T>(setting: Option<Setting<T>>) -> Origin {
    setting.map_or(Origin::Default, |setting| setting.origin)
}

fn mode_word(mode: MountMode) -> &'static str {
    match mode {
        MountMode::Ro => "ro",
        MountMode::Rw => "rw",
    }
}

/// Why this backend, or why this way of looking for one.
fn because(
    overrides: &Overrides,
    choice: Setting<BackendChoice>,
    stays: bool,
    config: &moltis_config::Config,
) -> String {
    let sandbox = &config.tools.exec.sandbox;
    match (choice.value, overrides.enabled) {
        (BackendChoice::Auto, _) if stays => "the session's sandbox runs there".to_owned(),
        (BackendChoice::Auto, _) => "it is the first that is usable and keeps what is asked for".to_owned(),
        (BackendChoice::Named(_), Some(on)) if !on.value => {
            format!("the {} says `sandboxEnabled = false`", on.origin)
        }
        (BackendChoice::Named(BackendName::None), None)
            if overrides.backend.is_none() && sandbox.mode.value == moltis_config::words::Mode::Off =>
        {
            format!("the {} says `mode = \"off\"`", sandbox.mode.origin)
        }
        (BackendChoice::Named(name), _) => format!("the {} says `backend = \"{name}\"`", choice.origin),
    }
}

/// Host folders that would show inside, with the home first.
fn mounts(spec: &SandboxSpec) -> Vec<Mount> {
    let mount = |source: &PathBuf, target: &str, mode| Mount {
        source: source.clone(),
        target: PathBuf::from(target),
        mode,
    };
    let mut all = Vec::new();
    all.extend(spec.rootfs.iter().map(|rootfs| mount(&rootfs.value, "/", MountMode::Ro)));
    all.extend(spec.home.iter().map(|home| mount(home, "/home/sandbox", MountMode::Rw)));
    all.extend(spec.managed_files.clone());
    all.extend(spec.workspace.iter().map(|workspace| workspace.value.clone()));
    all.extend(spec.mounts.iter().map(|mount| mount.value.clone()));
    all
}
