//! What sandboxes reach: the log, questions that wait, rules.

use std::convert::Infallible;
use std::ops::ControlFlow;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, Method, header};
use axum::response::Response;
use bytes::Bytes;
use moltis_config::value::domain::Domain;
use moltis_config::value::{Context, Text};
use moltis_egress::audit::{Filter, Follow, Periods, Snapshot, Stats};
use moltis_egress::{Action, Entry, Origin, Protocol};
use moltis_runtime::approvals::as_compared;
use moltis_runtime::store::{Approval, ApprovalId, Decision, RuleAction, Word, now_millis};
use moltis_runtime::{Runtime, audit_csv};
use moltis_sandbox::{DomainPattern, Error, SessionKey};
use serde::Deserialize;
use serde_json::{Value, json};

use super::words;
use crate::ask::invalid_value;
use crate::call::{Call, failed, ok, session_key};
use crate::live::{self, EVENTS, Event, LINES};
use crate::problem::Problem;
use crate::route::{Answered, Bound, Param, Route, Rule, needed, query};
use crate::schema::{count, has, list, may, named, number, object, text, text_of, word};

/// How often it is looked what is new.
const LOOK: Duration = Duration::from_millis(250);

/// Bytes of an export that are gathered before they are sent.
const GATHER: usize = 64 << 10;

/// Entries that one answer about the latest of them looks at before it gives up on more.
const MAX_SKIPPED: usize = 200_000;

fn filters() -> Vec<Param> {
    vec![
        query("session", "Of this session", words::session()),
        query(
            "domain",
            "This host, for a name also those below it; with `:port` only that port",
            text_of(1, 300),
        ),
        query("protocol", "How the program asked", word(&Protocol::ALL.map(Protocol::as_str))),
        query("action", "What was said", word(&Action::ALL.map(Action::as_str))),
        query("since", "Not before this time, in milliseconds since 1970", count()),
    ]
}

/// The routes.
pub fn routes() -> Vec<Route> {
    let read = Rule::read(Bound::Filtered);
    let write = Rule::write(Bound::Filtered);
    vec![
        Route::new(Method::GET, "/api/v1/network/audit", "listNetworkAudit", read, audit)
            .about("Network", "The latest decisions of the proxy, newest first")
            .with(filters())
            .with(words::page())
            .fails(&[404])
            .answers(
                200,
                "A page of them",
                object(
                    "",
                    [
                        has("entries", "", list(named("AuditEntry"))),
                        has("droppedEntries", "Entries that could not be written", count()),
                        has("unreadableLines", "Lines that are none of ours", count()),
                        may("next", "The cursor of the next page, if there is one", text()),
                    ],
                ),
            ),
        Route::new(Method::GET, "/api/v1/network/stats", "getNetworkStats", read, stats)
            .about("Network", "What the log says, counted by host and by time")
            .with(filters())
            .with([query("limit", "How many hosts at most; 100 where it is absent", number(1, 10_000))])
            .fails(&[404])
            .answers(200, "The counts", named("NetworkStats")),
        Route::new(Method::GET, "/api/v1/network/export", "exportNetworkAudit", read, export)
            .about("Network", "The log for other programs, oldest first, whatever its size")
            .with(filters())
            .with([query("format", "`jsonl` where it is absent", word(&["jsonl", "csv"]))])
            .fails(&[404])
            .answers_in(200, "All of it", vec![("application/x-ndjson", text()), ("text/csv", text())]),
        Route::new(Method::GET, "/api/v1/network/feed", "followNetwork", read, feed)
            .about("Network", "Decisions and questions as they come")
            .more("The events are `entry` (an `AuditEntry`), `asked` and `answered` (an `Approval`).")
            .with([query("session", "Of this session", words::session())])
            .fails(&[404, 406])
            .streaming()
            .answers_in(200, "What comes", vec![(EVENTS, text()), (LINES, text())]),
        Route::new(Method::GET, "/api/v1/network/approvals", "listApprovals", read, approvals)
            .about("Network", "Questions about hosts that wait for an answer, oldest first")
            .with([query("session", "Of this session", words::session())])
            .fails(&[404])
            .answers(200, "Those that wait", object("", [has("approvals", "", list(named("Approval")))])),
        Route::new(Method::POST, "/api/v1/network/approvals/{approval}", "decideApproval", write, decide)
            .about("Network", "Answer a question")
            .part("approval", "Its number", count())
            .json(object("", [has("decision", "", word(&DECISIONS))]))
            .runs()
            .answers(
                200,
                "It holds",
                object(
                    "",
                    [
                        has("decision", "", word(&DECISIONS)),
                        has(
                            "answered",
                            "The questions that it answers, this one first",
                            list(named("Approval")),
                        ),
                    ],
                ),
            ),
        Route::new(Method::GET, "/api/v1/network/rules", "listNetworkRules", read, rules)
            .about("Network", "What is allowed and denied, by the configuration, for good, and by a session")
            .with([query("session", "Also of this session", words::session())])
            .runs()
            .answers(200, "All of them", object("", [has("rules", "", list(named("NetworkRule")))])),
        Route::new(Method::POST, "/api/v1/network/rules", "makeNetworkRule", write, make)
            .about("Network", "Allow or deny a domain, for one session or for good")
            .json(object(
                "",
                [
                    has(
                        "pattern",
                        "`example.com`, `*.example.com` or `*`, with `:port` if need be",
                        text_of(1, 300),
                    ),
                    has("action", "", word(&["allow", "deny"])),
                    may("session", "For this session alone; absent: for good", words::session()),
                ],
            ))
            .runs()
            .answers(
                200,
                "It holds",
                object(
                    "",
                    [
                        has("pattern", "", text()),
                        has("action", "", word(&["allow", "deny"])),
                        may("session", "", text()),
                        may("replaced", "What the pattern's rule said before", word(&["allow", "deny"])),
                        has("answered", "The questions that it answers", list(named("Approval"))),
                    ],
                ),
            ),
        Route::new(
            Method::DELETE,
            "/api/v1/network/rules",
            "removeNetworkRule",
            Rule::write(Bound::Never),
            forget,
        )
        .about("Network", "Forget a rule that was made for good")
        .with([needed("pattern", "Its pattern", text_of(1, 300))])
        .runs()
        .answers(200, "What it was", named("NetworkRule")),
        Route::new(Method::POST, "/api/v1/network/test", "testNetwork", read, test)
            .about("Network", "What would be said of a host; nothing is connected to")
            .json(object(
                "",
                [
                    has("host", "", text_of(1, 253)),
                    may("port", "443 where it is absent", number(1, 65_535)),
                    may("session", "By the rules of this session", words::session()),
                ],
            ))
            .runs()
            .answers(200, "What would be said", named("Tested")),
    ]
}

const DECISIONS: [&str; 6] = ["once", "session", "always", "deny", "denySession", "denyAlways"];

fn pattern(name: &str, text: &str) -> Result<DomainPattern, Problem> {
    let pattern = Domain::parse(text, &Context::default()).map_err(|error| invalid_value(name, &error))?;
    as_compared(&pattern).map_err(|why| {
        Problem::invalid("domain-unusable", format!("`{pattern}` stands for no host")).cause(why)
    })
}

fn filter(call: &Call) -> Result<Filter, Problem> {
    let of = |name: &str| call.query(name);
    Ok(Filter {
        host: of("domain").map(|text| pattern("domain", text)).transpose()?,
        protocol: of("protocol").and_then(|word| Protocol::ALL.into_iter().find(|one| one.as_str() == word)),
        action: of("action").and_then(|word| Action::ALL.into_iter().find(|one| one.as_str() == word)),
        session: call.queried_session()?.map(|key| key.as_str().to_owned()),
        since: call.number("since"),
    })
}

/// Reads the log off the asynchronous threads; nothing where there is none.
async fn reading<T: Default + Send + 'static>(
    runtime: &Runtime,
    work: impl FnOnce(Snapshot) -> Result<T, moltis_egress::EgressError> + Send + 'static,
) -> Result<T, Problem> {
    let data = runtime.config().data_dir.value.clone();
    let done = tokio::task::spawn_blocking(move || {
        if !data.exists() {
            return Ok(T::default());
        }
        work(Snapshot::take(&data)?)
    });
    let done = done.await.map_err(|_| failed("reading-broke", "reading the log broke off"))?;
    Ok(done.map_err(Error::from)?)
}

async fn audit(call: Call) -> Answered {
    let filter = filter(&call)?;
    let most = usize::try_from(call.number("limit").unwrap_or(words::SHOWN)).unwrap_or(usize::MAX);
    // Where the first page was looked at, and how many entries of then were shown already.
    let (until, skip) = match call.query("cursor") {
        Some(text) => {
            let read = text
                .split_once('-')
                .and_then(|(until, skip)| Some((until.parse().ok()?, skip.parse().ok()?)));
            read.filter(|(_, skip)| *skip <= MAX_SKIPPED).ok_or_else(|| {
                Problem::invalid("param-invalid", "`cursor` cannot be right")
                    .fix("use `next` of the page before")
            })?
        }
        None => (now_millis(), 0_usize),
    };
    let who = call.who.clone();
    let (mut entries, tally) = reading(&call.runtime(), move |snapshot| {
        let sees = |entry: &Entry| entry.timestamp <= until && who.sees_named(&entry.session);
        let wanted = skip + most + 1;
        let mut ask = wanted;
        loop {
            let (mut found, tally) = snapshot.last(&filter, ask)?;
            let all = found.len() < ask || ask >= MAX_SKIPPED * 8;
            found.retain(sees);
            if all || found.len() >= wanted {
                return Ok((found, tally));
            }
            ask *= 4;
        }
    })
    .await?;
    entries.reverse();
    let more = entries.len() > skip + most;
    let page: Vec<_> = entries.into_iter().skip(skip).take(most).collect();
    let mut answer = json!({
        "entries": page, "droppedEntries": tally.dropped, "unreadableLines": tally.unreadable,
    });
    if more {
        answer["next"] = format!("{until}-{}", skip + most).into();
    }
    ok(&answer)
}

async fn stats(call: Call) -> Answered {
    let filter = filter(&call)?;
    let most = usize::try_from(call.number("limit").unwrap_or(words::SHOWN)).unwrap_or(usize::MAX);
    let who = call.who.clone();
    let (stats, periods, tally) = reading(&call.runtime(), move |snapshot| {
        let (mut stats, mut periods) = (Stats::default(), Periods::default());
        let tally = snapshot.read(&filter, |entry| {
            if who.sees_named(&entry.session) {
                stats.add(&entry);
                periods.add(&entry);
            }
            ControlFlow::Continue(())
        })?;
        Ok((stats, periods, tally))
    })
    .await?;
    let counted = |counted: &moltis_egress::audit::Counted| {
        json!({
            "allowed": counted.allowed, "denied": counted.denied, "sentBytes": counted.sent,
            "receivedBytes": counted.received, "lastMillis": counted.last,
        })
    };
    let all = stats.domains();
    let (shown, rest) = all.split_at(most.min(all.len()));
    let domains: Vec<_> = shown
        .iter()
        .map(|(domain, of)| {
            let mut row = counted(of);
            row["domain"] = (*domain).into();
            row
        })
        .collect();
    let others = rest.iter().fold(stats.others(), |sum, (_, of)| sum.and(of));
    let over_time: Vec<_> = periods
        .all()
        .iter()
        .map(
            |period| json!({ "fromMillis": period.from, "allowed": period.allowed, "denied": period.denied }),
        )
        .collect();
    ok(&json!({
        "overTime": { "periodMs": periods.length_millis(), "periods": over_time },
        "domains": domains, "others": counted(&others), "total": counted(&stats.total()),
        "droppedEntries": tally.dropped, "unreadableLines": tally.unreadable,
    }))
}

async fn export(call: Call) -> Answered {
    let filter = filter(&call)?;
    let csv = call.query("format") == Some("csv");
    let (data, who) = (call.runtime().config().data_dir.value.clone(), call.who.clone());
    let (send, receive) = tokio::sync::mpsc::channel::<Bytes>(4);
    tokio::task::spawn_blocking(move || {
        let mut gathered = if csv { audit_csv::COLUMNS.as_bytes().to_vec() } else { Vec::new() };
        let give = |gathered: &mut Vec<u8>| send.blocking_send(std::mem::take(gathered).into()).is_ok();
        let read = data.exists().then(|| Snapshot::take(&data)).transpose();
        if let Ok(Some(snapshot)) = read {
            let _ = snapshot.read(&filter, |entry| {
                if !who.sees_named(&entry.session) {
                    return ControlFlow::Continue(());
                }
                if csv {
                    gathered.extend_from_slice(audit_csv::row(&entry).as_bytes());
                } else {
                    entry.write_line(&mut gathered);
                }
                if gathered.len() < GATHER || give(&mut gathered) {
                    ControlFlow::Continue(())
                } else {
                    ControlFlow::Break(())
                }
            });
        }
        give(&mut gathered);
    });
    let pieces = futures_util::stream::unfold(receive, |mut receive| async {
        Some((Ok::<_, Infallible>(receive.recv().await?), receive))
    });
    let mut response = Response::new(Body::from_stream(pieces));
    let (kind, name) = match csv {
        true => ("text/csv", "attachment; filename=\"network-audit.csv\""),
        false => (LINES, "attachment; filename=\"network-audit.jsonl\""),
    };
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static(name));
    Ok(response)
}

/// What is new, look by look.
struct Feed {
    runtime: Runtime,
    who: crate::identity::Identity,
    session: Option<SessionKey>,
    follow: Option<Follow>,
    filter: Filter,
    waiting: Vec<Approval>,
    told: std::collections::VecDeque<Event>,
}

async fn feed(call: Call) -> Answered {
    let kind = call.wants(&[EVENTS, LINES])?;
    let session = call.queried_session()?;
    let runtime = call.runtime();
    // The folder must be there to see what comes into it.
    runtime.store().run(|_| Ok(())).await?;
    let filter = Filter { session: session.as_ref().map(|key| key.as_str().to_owned()), ..Filter::default() };
    let follow = {
        let data = runtime.config().data_dir.value.clone();
        let taken = tokio::task::spawn_blocking(move || Snapshot::take(&data).map(Snapshot::follow));
        taken.await.map_err(|_| failed("reading-broke", "reading the log broke off"))?.map_err(Error::from)?
    };
    let who = call.who.clone();
    let told = std::collections::VecDeque::new();
    let feed = Feed { runtime, who, session, follow: Some(follow), filter, waiting: Vec::new(), told };
    let state = std::sync::Arc::clone(&call.state);
    let events = futures_util::stream::unfold(Some(feed), move |feed| {
        let state = std::sync::Arc::clone(&state);
        async move {
            let mut feed = feed?;
            loop {
                if let Some(event) = feed.told.pop_front() {
                    return Some((event, Some(feed)));
                }
                tokio::select! {
                    () = tokio::time::sleep(LOOK) => {}
                    () = state.until_end() => return None,
                }
                if let Err(problem) = feed.look().await {
                    return Some((Event::new("error", problem.document()), None));
                }
            }
        }
    });
    Ok(live::answer(kind, events))
}

impl Feed {
    async fn look(&mut self) -> Result<(), Problem> {
        if let Some(mut follow) = self.follow.take() {
            let (filter, who) = (self.filter.clone(), self.who.clone());
            let looked = tokio::task::spawn_blocking(move || {
                let mut entries = Vec::new();
                let polled = follow.poll(&filter, |entry| {
                    if who.sees_named(&entry.session) {
                        entries.push(entry);
                    }
                    // The rest comes with the next look.
                    if entries.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                });
                polled.map(|_| (follow, entries))
            });
            let looked = looked.await.map_err(|_| failed("reading-broke", "reading the log broke off"))?;
            let (follow, entries) = looked.map_err(Error::from)?;
            self.follow = Some(follow);
            self.told.extend(entries.iter().map(|entry| Event::new("entry", json!(entry))));
        }
        let mut waiting = self.runtime.waiting_approvals(self.session.as_ref()).await?;
        waiting.retain(|approval| self.who.sees(&approval.session));
        for new in &waiting {
            if !self.waiting.iter().any(|before| before.id == new.id) {
                self.told.push_back(Event::new("asked", json!(new)));
            }
        }
        for before in &self.waiting {
            if !waiting.iter().any(|now| now.id == before.id)
                && let Ok(answered) = self.runtime.approval(before.id).await
            {
                self.told.push_back(Event::new("answered", json!(answered)));
            }
        }
        self.waiting = waiting;
        Ok(())
    }
}

async fn approvals(call: Call) -> Answered {
    let session = call.queried_session()?;
    let mut waiting = call.runtime().waiting_approvals(session.as_ref()).await?;
    waiting.retain(|approval| call.who.sees(&approval.session));
    ok(&json!({ "approvals": waiting }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Decide {
    decision: Decision,
}

async fn decide(mut call: Call) -> Answered {
    let id = ApprovalId(call.part("approval").parse().unwrap_or(u64::MAX));
    let Decide { decision } = call.json().await?;
    let runtime = call.runtime();
    let approval = runtime.approval(id).await?;
    if !call.who.sees(&approval.session) {
        return Err(Problem::missing("approval-missing", format!("there is no question {id}")));
    }
    if call.who.sessions().is_some() && matches!(decision, Decision::Always | Decision::DenyAlways) {
        return Err(bound());
    }
    let answered = runtime.decide(id, decision, &call.caller()).await?;
    ok(&json!({ "decision": decision, "answered": answered }))
}

fn bound() -> Problem {
    Problem::forbidden("key-bound", "this key is bound to some sessions, and this would hold for all")
        .fix("say it for the session")
}

async fn rules(call: Call) -> Answered {
    let session = call.queried_session()?;
    let runtime = call.runtime();
    let config = &runtime.config().tools.exec.sandbox;
    // What has no form for comparing is the name of no host, and is shown as it stands.
    let form = |pattern: &DomainPattern| as_compared(pattern).unwrap_or_else(|_| pattern.clone()).to_string();
    let mut all: Vec<Value> = Vec::new();
    for (action, patterns) in
        [("allow", &config.trusted_domains.value), ("deny", &config.denied_domains.value)]
    {
        all.extend(
            patterns.iter().map(|p| json!({ "pattern": form(p), "action": action, "origin": "config" })),
        );
    }
    for rule in runtime.rules_for_good().await? {
        let mut told = json!(rule);
        told["origin"] = "rule".into();
        all.push(told);
    }
    if let Some(key) = session {
        let rules = runtime.store().network_rules(&key).await?;
        for (action, rules) in [("allow", rules.trusted), ("deny", rules.denied)] {
            let own = rules.into_iter().filter(|rule| rule.origin == Origin::Session);
            all.extend(own.map(
                |rule| json!({ "pattern": form(&rule.pattern), "action": action, "origin": "session" }),
            ));
        }
    }
    ok(&json!({ "rules": all }))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Make {
    pattern: String,
    action: RuleAction,
    #[serde(default)]
    session: Option<String>,
}

async fn make(mut call: Call) -> Answered {
    let Make { pattern: text, action, session } = call.json().await?;
    let pattern = pattern("pattern", &text)?;
    let session = session.as_deref().map(session_key).transpose()?;
    let scope = match &session {
        Some(key) => {
            call.see(key)?;
            Word::Session(key.clone())
        }
        None if call.who.sessions().is_some() => return Err(bound()),
        None => Word::Good,
    };
    let ruled = call.runtime().rule(&pattern, action, scope, &call.caller()).await?;
    let mut answer = json!({
        "pattern": pattern.to_string(), "action": action, "answered": ruled.answered,
    });
    if let Some(session) = session {
        answer["session"] = json!(session);
    }
    if let Some(before) = ruled.before.filter(|before| *before != action) {
        answer["replaced"] = json!(before);
    }
    ok(&answer)
}

async fn forget(call: Call) -> Answered {
    let pattern = pattern("pattern", call.query("pattern").unwrap_or_default())?;
    let mut told = json!(call.runtime().remove_rule(&pattern).await?);
    told["origin"] = "rule".into();
    ok(&told)
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Test {
    host: String,
    #[serde(default)]
    port: Option<u16>,
    #[serde(default)]
    session: Option<String>,
}

async fn test(mut call: Call) -> Answered {
    let Test { host, port, session } = call.json().await?;
    let session = session.as_deref().map(session_key).transpose()?;
    if let Some(key) = &session {
        call.see(key)?;
    }
    if port == Some(0) {
        return Err(Problem::invalid("value-out-of-range", "`port` is out of range").fix("use 1 to 65535"));
    }
    ok(&call.runtime().test_network(session.as_ref(), &host, port.unwrap_or(443)).await?)
}
