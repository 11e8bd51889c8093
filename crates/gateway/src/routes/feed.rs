//! What happens in a session, as it happens: its commands, and what it is.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::Method;
use moltis_runtime::Runtime;
use moltis_runtime::json::Remembered;
use moltis_runtime::store::HistoryEntry;
use moltis_sandbox::SessionKey;
use serde_json::{Value, json};

use super::{sessions, words};
use crate::call::Call;
use crate::live::{self, EVENTS, Event, LINES};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Route, Rule};
use crate::schema::text;

/// How often it is looked what is new.
const LOOK: Duration = Duration::from_millis(400);

/// How often the sandbox is asked whether a background command of it is over. Whoever follows its output knows at once.
const ASK: Duration = Duration::from_secs(4);

/// The latest commands, which are told at the beginning and watched from then on.
const WATCHED: usize = 100;

/// The route.
pub fn routes() -> Vec<Route> {
    vec![
        Route::new(
            Method::GET,
            "/api/v1/sessions/{session}/feed",
            "followSession",
            Rule::read(Bound::Session),
            feed,
        )
        .about("Sessions", "What happens in a session, as it happens")
        .more(
            "The events are `session` (a `Session`) and `command` (a `HistoryEntry` without output): first as they are now, \
             the latest 100 commands from the earliest on, then whenever one begins, ends or changes. `error` (a \
             `Problem`) is the last one, when the session was removed.",
        )
        .part("session", words::SESSION, words::session())
        .fails(&[406])
        .streaming()
        .runs()
        .answers_in(200, "What happens", vec![(EVENTS, text()), (LINES, text())]),
    ]
}

struct Watch {
    runtime: Runtime,
    key: SessionKey,
    /// The session as it was told.
    session: Value,
    /// The commands that are watched, as they were told.
    commands: BTreeMap<u64, HistoryEntry>,
    asked: Option<Instant>,
    told: VecDeque<Event>,
}

async fn feed(call: Call) -> Answered {
    let kind = call.wants(&[EVENTS, LINES])?;
    let key = call.session()?;
    let mut watch = Watch {
        runtime: call.runtime(),
        key,
        session: Value::Null,
        commands: BTreeMap::new(),
        asked: None,
        told: VecDeque::new(),
    };
    // A failure has a status of its own as long as nothing is told.
    watch.look().await?;
    let state = Arc::clone(&call.state);
    let events = futures_util::stream::unfold(Some(watch), move |watch| {
        let state = Arc::clone(&state);
        async move {
            let mut watch = watch?;
            loop {
                if let Some(event) = watch.told.pop_front() {
                    return Some((event, Some(watch)));
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = state.until_end() => return None,
                }
                if let Err(problem) = watch.look().await {
                    return Some((Event::new("error", problem.document()), None));
                }
            }
        }
    });
    Ok(live::answer(kind, events))
}

impl Watch {
    async fn look(&mut self) -> Result<(), Problem> {
        let session = self.runtime.existing_session(&self.key).await?;
        let told = Value::Object(sessions::told(&session, None));
        if told != self.session {
            self.told.push_back(Event::new("session", told.clone()));
            self.session = told;
        }
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK);
        let page = if is_due {
            self.asked = Some(Instant::now());
            self.runtime.history(&self.key, None, WATCHED).await?
        } else {
            let number = session.number;
            self.runtime.store().run(move |db| db.history(number, None, WATCHED)).await?
        };
        let mut commands = BTreeMap::new();
        for entry in page.entries.into_iter().rev() {
            if self.commands.get(&entry.number) != Some(&entry) {
                self.told.push_back(Event::new("command", json!(Remembered::new(&entry, false))));
            }
            commands.insert(entry.number, entry);
        }
        self.commands = commands;
        Ok(())
    }
}
