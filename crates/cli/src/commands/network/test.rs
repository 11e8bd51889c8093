//! `moltis network test`: what would be said of a host, and why.

use std::fmt::Write as _;

use moltis_config::InvalidValue;
use moltis_egress::{Action, Target, Tested};
use moltis_runtime::Runtime;

use super::entries::target;
use crate::args;
use crate::failure::Failure;
use crate::{flags, output, render};

/// The port where none is named: that of HTTPS.
const PORT: u16 = 443;

/// Runs it; gives the exit status: 1 when it would not be let through.
pub async fn run(runtime: &Runtime, args: &args::Test) -> Result<i32, Failure> {
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    let wanted = host(&args.host)?;
    let host = wanted.host.to_string();
    let tested = runtime.test_network(session.as_ref(), &host, wanted.port).await?;
    let status = i32::from(tested.action == Action::Denied);
    let printed = if args.json { output::print_json(&tested)? } else { output::print(&text(&tested))? };
    Ok(if printed == 0 { status } else { printed })
}

fn host(text: &str) -> Result<Target, Failure> {
    // An IPv6 address alone is no host with a port.
    let text = if text.parse::<std::net::Ipv6Addr>().is_ok() { &format!("[{text}]") } else { text };
    Target::read(text, Some(PORT)).map_err(|why| {
        let wrong = InvalidValue::Malformed {
            text: text.to_owned(),
            expected: "a host".to_owned(),
            why: why.to_string(),
        };
        Failure::usage(wrong.diagnosis("the host"))
    })
}

fn text(tested: &Tested) -> String {
    let said = match (tested.action, tested.asks) {
        (Action::Allowed, _) => "allowed",
        (Action::Denied, true) => "asked about",
        (Action::Denied, false) => "denied",
    };
    let host = target(&tested.domain, tested.port);
    let source = tested.source.as_str();
    let mut text = format!("{host}: {said} ({source}: {})\n", render::one_line(&tested.why));
    for found in &tested.addresses {
        // Writing to a String cannot fail.
        let _ = match &found.refused {
            Some(why) => writeln!(text, "  {}: refused: {}", found.address, render::one_line(why)),
            None => writeln!(text, "  {}", found.address),
        };
    }
    if let Some(upstream) = &tested.upstream {
        // As above.
        let _ = writeln!(text, "  by the proxy {}, which resolves the name", render::one_line(upstream));
    }
    text
}
