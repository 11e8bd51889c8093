//! `moltis network allow` and `deny`.

use moltis_egress::Origin;
use moltis_runtime::Runtime;
use moltis_runtime::store::{Approval, ApprovalId, Caller, Decision, RuleAction, Word};
use moltis_sandbox::{Diagnosis, DomainPattern, Error, Network, SessionKey};
use serde_json::json;

use super::entries::target;
use crate::args::Scope;
use crate::failure::Failure;
use crate::{flags, output, render};

/// What is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Yes,
    No,
}

impl Answer {
    fn action(self) -> RuleAction {
        match self {
            Self::Yes => RuleAction::Allow,
            Self::No => RuleAction::Deny,
        }
    }

    fn done(self) -> &'static str {
        match self {
            Self::Yes => "allowed",
            Self::No => "denied",
        }
    }
}

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, what: &str, scope: &Scope, answer: Answer) -> Result<i32, Failure> {
    // No pattern is a number alone.
    if !what.is_empty() && what.bytes().all(|byte| byte.is_ascii_digit()) {
        let id = what.parse().map(ApprovalId).map_err(|_| {
            let told = Diagnosis::new("approval-missing", format!("there is no question {what}"));
            Failure::usage(told.fix("moltis network pending"))
        })?;
        return to_question(runtime, id, scope, answer).await;
    }
    let pattern = super::pattern("the domain", what)?;
    let word = match &scope.session {
        Some(Some(key)) => Word::Session(flags::session_key(key)?),
        Some(None) => {
            return Err(Failure::usage(
                Diagnosis::new("session-key-missing", "--session needs the session's key beside a domain")
                    .fix("write --session KEY"),
            ));
        }
        None if scope.once => Word::Waiting,
        None => Word::Good,
    };
    let session = match &word {
        Word::Session(key) => Some(key.clone()),
        Word::Waiting | Word::Good => None,
    };
    if answer == Answer::Yes {
        see_not_denied(runtime, &pattern, session.as_ref()).await?;
    }
    let warnings = warnings(runtime, session.as_ref(), answer).await?;
    let ruled = runtime.rule(&pattern, answer.action(), word.clone(), &Caller::this_user()).await?;
    if scope.json {
        return output::print_json(&output::present(json!({
            "pattern": pattern.to_string(), "action": answer.action(), "for": name(&word), "session": session,
            "replaced": ruled.before.filter(|before| *before != answer.action()),
            "answered": ruled.answered, "warnings": Some(&warnings).filter(|all| !all.is_empty()),
        })));
    }
    warnings.iter().for_each(render::warning);
    let done = answer.done();
    let mut text = match &word {
        Word::Waiting => String::new(),
        Word::Session(key) => format!("{done} {pattern} for the session {}\n", render::name(key.as_str())),
        Word::Good => match ruled.before {
            Some(before) if before == answer.action() => format!("{pattern} was {done} for good before\n"),
            Some(_) => format!("{done} {pattern} for good, instead of what was said before\n"),
            None => format!("{done} {pattern} for good\n"),
        },
    };
    ruled.answered.iter().for_each(|approval| text.push_str(&answered(approval, done)));
    output::print(&text)
}

async fn to_question(
    runtime: &Runtime,
    id: ApprovalId,
    scope: &Scope,
    answer: Answer,
) -> Result<i32, Failure> {
    let session = match &scope.session {
        Some(Some(key)) => Some(flags::session_key(key)?),
        Some(None) | None => None,
    };
    if let Some(key) = session {
        let asks = runtime.approval(id).await?.session;
        if asks != key {
            let asks = render::name(asks.as_str());
            return Err(Failure::invalid(
                Diagnosis::new("approval-elsewhere", format!("the session {asks} asked the question {id}"))
                    .fix("leave the key out: --session alone means the one that asks"),
            ));
        }
    }
    let decision = match (answer, scope.session.is_some(), scope.always) {
        (Answer::Yes, true, _) => Decision::Session,
        (Answer::Yes, _, true) => Decision::Always,
        (Answer::Yes, ..) => Decision::Once,
        (Answer::No, true, _) => Decision::DenySession,
        (Answer::No, _, true) => Decision::DenyAlways,
        (Answer::No, ..) => Decision::Deny,
    };
    let all = runtime.decide(id, decision, &Caller::this_user()).await?;
    if scope.json {
        return output::print_json(&json!({ "decision": decision, "answered": all }));
    }
    let long = match decision {
        Decision::Once | Decision::Deny => "this once",
        Decision::Session | Decision::DenySession => "for the session",
        Decision::Always | Decision::DenyAlways => "for good",
    };
    let done = format!("{} {long}", answer.done());
    output::print(&all.iter().map(|approval| answered(approval, &done)).collect::<String>())
}

fn answered(approval: &Approval, done: &str) -> String {
    let host = target(&approval.host, approval.port);
    format!("question {}, {host} for {}: {done}\n", approval.id, render::name(approval.session.as_str()))
}

fn name(word: &Word) -> &'static str {
    match word {
        Word::Waiting => "once",
        Word::Session(_) => "session",
        Word::Good => "always",
    }
}

/// Sees that no pattern forbids what is to be let through, since it would go on to do so.
async fn see_not_denied(
    runtime: &Runtime,
    pattern: &DomainPattern,
    session: Option<&SessionKey>,
) -> Result<(), Failure> {
    let listed = super::rules::listed(runtime, session).await?;
    let denies = listed.iter().find(|rule| {
        // What was said before of the same pattern is replaced.
        let is_replaced = rule.pattern == *pattern
            && match rule.origin {
                Origin::Config => false,
                Origin::Session => session.is_some(),
                Origin::Rule => session.is_none(),
            };
        rule.action == RuleAction::Deny && !is_replaced && rule.pattern.covers(pattern)
    });
    let Some(rule) = denies else { return Ok(()) };
    let denied = &rule.pattern;
    let (whose, fix) = match rule.origin {
        Origin::Config => {
            ("the configuration's `denied_domains`", format!("take {denied} out of `denied_domains`"))
        }
        Origin::Rule => {
            ("what was said for good", format!("forget that first: moltis network rules remove '{denied}'"))
        }
        Origin::Session => (
            "the session's own list",
            "set that list anew, or clear it: moltis session set KEY --unset denied-domains".to_owned(),
        ),
    };
    Err(Error::Refused(
        Diagnosis::new("domain-denied", format!("{pattern} would stay denied"))
            .cause(format!("{whose} denies {denied}, which wins"))
            .fix(fix),
    )
    .into())
}

const TRUST: &str = "moltis session set KEY --network trusted, or `network = \"trusted\"` in moltis.toml";

/// What a person should know who says so.
async fn warnings(
    runtime: &Runtime,
    session: Option<&SessionKey>,
    answer: Answer,
) -> Result<Vec<Diagnosis>, Failure> {
    let stored = match session {
        Some(key) => runtime.session(key).await?,
        None => None,
    };
    let own = stored.and_then(|session| session.overrides.network);
    let network = own.unwrap_or(runtime.config().tools.exec.sandbox.network.value);
    let whose = match (session, own) {
        (Some(key), Some(_)) => format!("the session {}", key.as_str()),
        _ => "the configuration".to_owned(),
    };
    let told = Diagnosis::new("network-not-trusted", format!("the network of {whose} is `{network}`"));
    Ok(match (network, answer) {
        (Network::Trusted, _) => Vec::new(),
        (Network::Blocked, _) => {
            vec![told.cause("nothing is let through until it is `trusted`").fix(TRUST)]
        }
        (Network::Open, _) => {
            vec![told.cause("everything is let through until it is `trusted`").fix(TRUST)]
        }
    })
}
