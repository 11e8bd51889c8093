//! Which entries of the log a command line asks for.

use std::time::Duration;

use moltis_config::{InvalidValue, parse_duration, suggest};
use moltis_egress::audit::Filter;
use moltis_egress::{Action, Protocol};
use moltis_runtime::store::now_millis;
use moltis_runtime::time;

use crate::args;
use crate::failure::Failure;
use crate::flags::{self, flag};

/// Reads them.
pub fn filter(args: &args::Filters) -> Result<Filter, Failure> {
    let session = args.session.as_deref().map(flags::session_key).transpose()?;
    Ok(Filter {
        host: args.domain.as_deref().map(|text| super::pattern("--domain", text)).transpose()?,
        protocol: flag("--protocol", args.protocol.as_deref(), |word| {
            one_of(word, &Protocol::ALL.map(|one| (one.as_str(), one)))
        })?,
        action: flag("--action", args.action.as_deref(), |word| {
            one_of(word, &Action::ALL.map(|one| (one.as_str(), one)))
        })?,
        session: session.map(|key| key.as_str().to_owned()),
        since: flag("--since", args.since.as_deref(), since)?,
    })
}

/// The value of one of these words.
pub fn one_of<T: Copy>(word: &str, all: &[(&'static str, T)]) -> Result<T, InvalidValue> {
    all.iter().find(|(known, _)| *known == word).map(|(_, value)| *value).ok_or_else(|| {
        let valid: Vec<_> = all.iter().map(|(known, _)| *known).collect();
        let nearest = suggest(word, valid.iter().copied()).map(str::to_owned);
        InvalidValue::UnknownWord { word: word.to_owned(), nearest, valid }
    })
}

/// A point in time, in milliseconds since 1970: itself, or so long ago.
fn since(text: &str) -> Result<u64, InvalidValue> {
    if let Some(seconds) = time::parse(text) {
        return Ok(u64::try_from(seconds).unwrap_or(0).saturating_mul(1000));
    }
    let ago: Duration = parse_duration(text).map_err(|_| InvalidValue::Malformed {
        text: text.to_owned(),
        expected: "a time".to_owned(),
        why: "write how long ago it was, as in 10m or 2h, or when, in UTC, as in 2026-01-31 or 2026-01-31T12:00Z"
            .to_owned(),
    })?;
    Ok(now_millis().saturating_sub(u64::try_from(ago.as_millis()).unwrap_or(u64::MAX)))
}
