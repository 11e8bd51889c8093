//! `moltis network rules`.

use moltis_egress::Origin;
use moltis_runtime::Runtime;
use moltis_runtime::approvals::as_compared;
use moltis_runtime::store::{Caller, RuleAction};
use moltis_sandbox::{Diagnosis, DomainPattern, Error, SessionKey};
use serde_json::json;

use crate::args::{self, RuleCommand};
use crate::failure::Failure;
use crate::{flags, output, render};

/// A pattern, what it does, and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub pattern: DomainPattern,
    pub action: RuleAction,
    pub origin: Origin,
    /// When and by whom it was made, where that is known.
    pub made: Option<(u64, Caller)>,
}

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Rules) -> Result<i32, Failure> {
    if let Some(RuleCommand::Remove(args)) = &args.command {
        return remove(runtime, args).await;
    }
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    let listed = listed(runtime, session.as_ref()).await?;
    if args.json {
        let rules: Vec<_> = listed
            .iter()
            .map(|rule| {
                output::present(json!({
                    "pattern": rule.pattern.to_string(), "action": rule.action, "origin": rule.origin,
                    "madeMillis": rule.made.as_ref().map(|(at, _)| at),
                    "madeBy": rule.made.as_ref().map(|(_, by)| by),
                }))
            })
            .collect();
        return output::print_json(&output::present(json!({ "rules": rules, "session": session })));
    }
    if listed.is_empty() {
        return output::print("No rules: nothing is let through.\n");
    }
    let mut rows = vec![["ACTION", "DOMAIN", "FROM", "MADE", "BY"].map(str::to_owned).to_vec()];
    rows.extend(listed.iter().map(|rule| {
        let (made, by) = match &rule.made {
            Some((at, by)) => (render::age(*at), render::one_line(&by.to_string())),
            None => Default::default(),
        };
        let origin = match rule.origin {
            Origin::Config => "config",
            Origin::Session => "session",
            Origin::Rule => "rule",
        };
        vec![rule.action.as_str().to_owned(), shown(&rule.pattern), origin.to_owned(), made, by]
    }));
    output::print(&render::table(&rows))
}

async fn remove(runtime: &Runtime, args: &args::Forget) -> Result<i32, Failure> {
    let patterns =
        args.patterns.iter().map(|text| super::pattern("the domain", text)).collect::<Result<Vec<_>, _>>()?;
    let there = listed(runtime, None).await?;
    // A pattern that is wrong leaves the others as they are.
    for pattern in &patterns {
        let origins: Vec<_> =
            there.iter().filter(|r| r.pattern == *pattern).map(|rule| rule.origin).collect();
        if origins.contains(&Origin::Config) && !origins.contains(&Origin::Rule) {
            return Err(Error::Invalid(
                Diagnosis::new("rule-missing", format!("{pattern} is in the configuration"))
                    .fix("take it out of `trusted_domains` or `denied_domains` in moltis.toml"),
            )
            .into());
        }
        if !origins.contains(&Origin::Rule) {
            runtime.remove_rule(pattern).await?;
        }
    }
    let mut removed = Vec::new();
    for pattern in &patterns {
        removed.push(runtime.remove_rule(pattern).await?);
    }
    if args.json {
        return output::print_json(&json!({ "removed": removed }));
    }
    let text: String = removed
        .iter()
        .map(|rule| {
            let pattern = shown(&rule.pattern);
            format!(
                "forgot that {pattern} is {}\n",
                if rule.action == RuleAction::Allow { "allowed" } else { "denied" }
            )
        })
        .collect();
    output::print(&text)
}

/// A pattern as it is shown: in the form in which it is compared nothing of it can pose as something else.
fn shown(pattern: &DomainPattern) -> String {
    let text = pattern.to_string();
    if text.is_ascii() { text } else { render::name(&text) }
}

/// All patterns that hold for every session or, beside those, for this one.
pub async fn listed(runtime: &Runtime, session: Option<&SessionKey>) -> Result<Vec<Listed>, Failure> {
    let config = &runtime.config().tools.exec.sandbox;
    let mut listed = Vec::new();
    // What has no form for comparing is the name of no host, and is shown as it stands.
    let form = |pattern: &DomainPattern| as_compared(pattern).unwrap_or_else(|_| pattern.clone());
    let lists = [
        (RuleAction::Allow, &config.trusted_domains.value),
        (RuleAction::Deny, &config.denied_domains.value),
    ];
    for (action, patterns) in lists {
        listed.extend(patterns.iter().map(|pattern| Listed {
            pattern: form(pattern),
            action,
            origin: Origin::Config,
            made: None,
        }));
    }
    // Whoever only looks makes no store.
    if !runtime.store().is_there() {
        return Ok(listed);
    }
    let made = runtime.rules_for_good().await?;
    listed.extend(made.into_iter().map(|rule| Listed {
        pattern: rule.pattern,
        action: rule.action,
        origin: Origin::Rule,
        made: Some((rule.made_millis, rule.made_by)),
    }));
    let Some(key) = session else { return Ok(listed) };
    let rules = runtime.store().network_rules(key).await.map_err(Error::from)?;
    for (action, rules) in [(RuleAction::Allow, rules.trusted), (RuleAction::Deny, rules.denied)] {
        let own = rules.into_iter().filter(|rule| rule.origin == Origin::Session);
        listed.extend(own.map(|rule| Listed {
            pattern: form(&rule.pattern),
            action,
            origin: Origin::Session,
            made: None,
        }));
    }
    Ok(listed)
}
