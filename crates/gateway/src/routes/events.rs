//! What has changed, by topic, for whoever shows it: one stream for a whole page.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use moltis_runtime::store::Moment;
use serde_json::json;

use crate::call::Call;
use crate::identity::Identity;
use crate::live::{self, EVENTS, Event, LINES};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::text;
use crate::state::State;

/// How often it is looked what is new.
const LOOK: Duration = Duration::from_millis(500);

/// What is told of, in the order of [`Seen`]'s fields.
pub const TOPICS: [&str; 6] = ["status", "settings", "sandboxes", "sessions", "approvals", "network"];

/// The routes.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(Method::GET, "/api/v1/events", "followEvents", Rule::read(Bound::Filtered), events)
            .about("Gateway", "What has changed, by topic, as it does")
            .more(
                "The first event is `hello` with `startedMillis` and `version`: another gateway than before means that \
                 anything may have changed. Then come `changed` events with `topics`: `status` (failovers, warnings, \
                 the pool, starting and ending), `settings`, `sandboxes`, `sessions` (also what they run), `approvals` \
                 and `network` (rules for good). They say that it is worth asking again, and nothing else.",
            )
            .fails(&[406])
            .streaming()
            .answers_in(200, "What comes", vec![(EVENTS, text()), (LINES, text())]),
    ]
}

/// What was looked at last, each as a hash.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen([u64; TOPICS.len()]);

impl Seen {
    /// Topics that are not as they were.
    fn changed_since(self, before: Self) -> Vec<&'static str> {
        let differs = self.0.iter().zip(before.0);
        TOPICS
            .into_iter()
            .zip(differs)
            .filter(|(_, (now, before))| *now != before)
            .map(|(topic, _)| topic)
            .collect()
    }
}

struct Watching {
    state: Arc<State>,
    who: Identity,
    moment: Option<Moment>,
    seen: Seen,
    told: VecDeque<Event>,
}

async fn events(call: Call) -> Answered {
    let kind = call.wants(&[EVENTS, LINES])?;
    let state = Arc::clone(&call.state);
    let hello = json!({ "startedMillis": state.started_millis, "version": env!("CARGO_PKG_VERSION") });
    let mut watching = Watching {
        state,
        who: call.who.clone(),
        moment: None,
        seen: Seen::default(),
        told: [Event::new("hello", hello)].into(),
    };
    // From here on nothing is missed.
    watching.seen = watching.look().await?;
    let events = futures_util::stream::unfold(Some(watching), |watching| async {
        let mut watching = watching?;
        loop {
            if let Some(event) = watching.told.pop_front() {
                return Some((event, Some(watching)));
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = watching.state.until_end() => return None,
            }
            let now = match watching.look().await {
                Ok(now) => now,
                Err(problem) => return Some((Event::new("error", problem.document()), None)),
            };
            let topics = now.changed_since(watching.seen);
            watching.seen = now;
            if !topics.is_empty() {
                watching.told.push_back(Event::new("changed", json!({ "topics": topics })));
            }
        }
    });
    Ok(live::answer(kind, events))
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Watching {
    async fn look(&mut self) -> Result<Seen, Problem> {
        let runtime = self.state.runtime();
        let [_, _, mut sandboxes, mut sessions, mut approvals, mut network] = self.seen.0;
        let moment = runtime.store().run(|db| db.moment()).await?;
        // Nothing was written since: what is written down is as it was.
        if self.moment != Some(moment) {
            self.moment = Some(moment);
            let rows = runtime.store().run(|db| db.sandboxes()).await?;
            let rows = rows.iter().filter(|session| self.who.sees(&session.key));
            let rows: Vec<_> = rows
                .filter_map(|session| {
                    let row = session.sandbox.as_ref()?;
                    Some((session.key.as_str().to_owned(), format!("{:?} {:?}", row.state, row.backend)))
                })
                .collect();
            sandboxes = hash(rows);
            let mut waiting = runtime.waiting_approvals(None).await?;
            waiting.retain(|approval| self.who.sees(&approval.session));
            approvals = hash(waiting.iter().map(|approval| approval.id.0).collect::<Vec<_>>());
            let rules = runtime.rules_for_good().await?;
            network = hash(json!(rules).to_string());
            sessions = self.sessions(&moment).await?;
        }
        let settings = hash(Arc::as_ptr(&self.state.loaded()) as usize);
        let status = json!({
            "ready": *self.state.ready.borrow(), "ending": *self.state.ending.borrow(),
            "failedOver": runtime.failed_over(), "pool": runtime.pool_status(),
            "warnings": if self.who.sessions().is_none() { self.state.warnings() } else { Vec::new() },
        });
        Ok(Seen([hash(status.to_string()), settings, sandboxes, sessions, approvals, network]))
    }

    /// Whoever sees every session hears of whatever was written; who sees some hears of those alone.
    async fn sessions(&self, moment: &Moment) -> Result<u64, Problem> {
        if self.who.sessions().is_none() {
            return Ok(hash(moment));
        }
        let runtime = self.state.runtime();
        let (mut after, mut all) = (None, DefaultHasher::new());
        loop {
            let page = runtime.sessions(after.as_ref()).await?;
            let Some(last) = page.last() else { return Ok(all.finish()) };
            after = Some(last.key.clone());
            for session in page.iter().filter(|session| self.who.sees(&session.key)) {
                json!(session).to_string().hash(&mut all);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let (before, now) = (Seen([1, 2, 3, 4, 5, 6]), Seen([1, 0, 3, 4, 5, 0]));
        assert_eq!(now.changed_since(before), ["settings", "network"]);
        assert!(now.changed_since(now).is_empty());
    }
}
