//! A sandbox whose agent serves, and how it is handed out.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_agent::inspect::{Load, OomKills as CountKills};
use moltis_agent::{AgentSandbox, HostInspector, Inspect, Transport};
use moltis_host::process::Process;
use moltis_sandbox::{Outcome, Sandbox, SandboxId, SandboxSpec};

use crate::agentless::{Agentless, AgentlessSandbox};
use crate::backend::State;
use crate::closer::{ContainerCloser, Hold};
use crate::oom::OomKills;
use crate::place;
use crate::record::Record;

/// Who does what a sandbox is asked for.
#[derive(Clone)]
pub enum Link {
    /// Its agent, by this way.
    Agent(Arc<dyn Transport>),
    /// The engine.
    Engine(Arc<Agentless>),
}

/// A sandbox whose agent, or whose engine, answered.
pub struct Served {
    /// What is written down of it.
    pub record: Record,
    /// Its first process, where it is known here.
    pub process: Option<Process>,
    /// Who serves it.
    pub link: Link,
    /// What keeps an ephemeral one.
    pub hold: Option<Hold>,
    /// What a person should know of how it was opened, told with its first answer.
    pub notes: Vec<String>,
}

impl Served {
    /// Hands it out. `spec` is what it was opened for, if that is known.
    pub fn hand_out(
        self,
        state: &Arc<State>,
        id: SandboxId,
        is_new: bool,
        spec: Option<&SandboxSpec>,
    ) -> Arc<dyn Sandbox> {
        let mut spec = spec.cloned();
        if let Some(spec) = spec.as_mut().filter(|_| !self.record.files) {
            spec.managed_files = None;
        }
        let spec = spec.as_ref();
        let place = place::of(&self.record.image_env, spec, state.time_zone(), &state.variables(spec));
        let inspector = inspector(state, &id, is_new, &self.record, self.notes);
        let closer = ContainerCloser::new(
            Arc::clone(state),
            id.clone(),
            self.record.handle().to_owned(),
            self.process,
            self.hold,
        );
        match self.link {
            Link::Agent(transport) => {
                let sandbox = AgentSandbox::new(id, is_new, place, transport, Box::new(closer));
                Arc::new(sandbox.with_inspector(inspector))
            }
            Link::Engine(agentless) => {
                let agentless = agentless.at(place);
                Arc::new(AgentlessSandbox::new(id, is_new, agentless, Box::new(closer), inspector))
            }
        }
    }
}

/// Who looks at each command of a sandbox of this record.
fn inspector(
    state: &Arc<State>,
    id: &SandboxId,
    is_new: bool,
    record: &Record,
    notes: Vec<String>,
) -> Option<Arc<dyn Inspect>> {
    let kills = OomKills::open(&record.groups);
    let kills = kills.map(|kills| Box::new(move || kills.count()) as CountKills);
    let folders = record.watched.then(|| {
        let (state, id) = (Arc::clone(state), id.clone());
        Box::new(move || moltis_agent::dangerous::decode(&state.run()?.watched(&id)?)) as Load
    });
    let host = HostInspector::new(is_new, kills, folders).map(|host| Arc::new(host) as Arc<dyn Inspect>);
    if notes.is_empty() {
        return host;
    }
    Some(Arc::new(WithNotes { inner: host, notes: std::sync::Mutex::new(notes) }))
}

/// Tells some notes with the first outcome.
struct WithNotes {
    inner: Option<Arc<dyn Inspect>>,
    notes: std::sync::Mutex<Vec<String>>,
}

#[async_trait]
impl Inspect for WithNotes {
    fn before(&self) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.before())
    }

    async fn after(&self, before: u64, outcome: Outcome) -> Outcome {
        let mut outcome = match &self.inner {
            Some(inner) => inner.after(before, outcome).await,
            None => outcome,
        };
        let mut notes = self.notes.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        outcome.notes.append(&mut notes);
        outcome
    }
}
