//! `moltis network pending`.

use moltis_runtime::Runtime;
use moltis_runtime::store::{Approval, ApprovalId, now_millis};
use serde_json::json;

use super::entries::target;
use super::watch::watch;
use crate::args;
use crate::failure::Failure;
use crate::{flags, output, render};

/// Runs it; gives the exit status.
pub async fn run(runtime: &Runtime, args: &args::Pending) -> Result<i32, Failure> {
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    if args.follow {
        let mut last = ApprovalId(0);
        return watch(async || {
            let mut text = String::new();
            for approval in runtime.waiting_approvals(session.as_ref()).await? {
                if approval.id > last {
                    last = approval.id;
                    text.push_str(&if args.json { output::json_line(&approval)? } else { line(&approval) });
                }
            }
            output::print(&text)
        })
        .await;
    }
    // Whoever only looks makes no store.
    let waiting = match runtime.store().is_there() {
        true => runtime.waiting_approvals(session.as_ref()).await?,
        false => Vec::new(),
    };
    if args.json {
        return output::print_json(&json!({ "pending": waiting }));
    }
    if waiting.is_empty() {
        return output::print("No questions.\n");
    }
    let mut rows = vec![["ID", "HOST", "PROTOCOL", "SESSION", "ASKED", "LEFT"].map(str::to_owned).to_vec()];
    rows.extend(waiting.iter().map(|approval| {
        vec![
            approval.id.to_string(),
            target(&approval.host, approval.port),
            approval.protocol.as_str().to_owned(),
            render::name(approval.session.as_str()),
            render::age(approval.asked_millis),
            render::span(approval.left(now_millis())),
        ]
    }));
    output::print(&render::table(&rows))
}

fn line(approval: &Approval) -> String {
    let host = target(&approval.host, approval.port);
    let session = render::name(approval.session.as_str());
    let left = render::span(approval.left(now_millis()));
    format!("{}  {host}  {session}  {left} left\n", approval.id)
}
