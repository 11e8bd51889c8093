//! The log: one line for each event, on standard error, with what comes from elsewhere escaped.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use moltis_runtime::time;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Which events are written: a level, or levels of parts of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    rest: LevelFilter,
    parts: Vec<(String, LevelFilter)>,
}

impl Filter {
    /// Reads a filter as the configuration writes it. What is no level there is taken for `info`.
    pub fn read(text: &str) -> Self {
        let mut filter = Self { rest: LevelFilter::INFO, parts: Vec::new() };
        for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            match item.split_once('=') {
                Some((part, level)) => {
                    filter.parts.push((part.replace('-', "_"), level.parse().unwrap_or(LevelFilter::INFO)));
                }
                None => filter.rest = item.parse().unwrap_or(LevelFilter::INFO),
            }
        }
        // The longest name that fits decides.
        filter.parts.sort_by_key(|(part, _)| std::cmp::Reverse(part.len()));
        filter
    }

    fn lets(&self, metadata: &Metadata<'_>) -> bool {
        let of = self.parts.iter().find(|(part, _)| {
            metadata
                .target()
                .strip_prefix(part.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        });
        *metadata.level() <= of.map_or(self.rest, |(_, level)| *level)
    }
}

/// Writes events to standard error.
pub struct Log(Filter);

impl Log {
    /// Writes what the filter lets through, from now on, for the whole process. Nothing happens if something else does
    /// so already.
    pub fn begin(filter: Filter) {
        let _ = tracing::subscriber::set_global_default(Self(filter));
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && self.0.lets(metadata)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let at = time::utc(i64::try_from(seconds).unwrap_or(i64::MAX));
        let metadata = event.metadata();
        let mut line = Line { message: String::new(), fields: String::new() };
        event.record(&mut line);
        let Line { message, fields } = line;
        let (level, target) = (metadata.level(), metadata.target());
        // Whoever reads it may be gone.
        let _ = writeln!(std::io::stderr().lock(), "{at} {level:5} {target}: {message}{fields}");
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let text = escaped(&format!("{value:?}"));
        if field.name() == "message" {
            self.message = text;
        } else {
            // Writing to a String cannot fail.
            let _ = write!(self.fields, " {}={text}", field.name());
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &value);
    }
}

/// A text in which nothing moves a cursor or begins another line.
fn escaped(text: &str) -> String {
    let is_odd = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}');
    text.chars().map(|c| if is_odd(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_levels_and_levels_of_parts() {
        let filter = Filter::read("warn,moltis-gateway=debug,moltis_gateway::request=off");
        assert_eq!(filter.rest, LevelFilter::WARN);
        assert_eq!(
            filter.parts,
            [
                ("moltis_gateway::request".to_owned(), LevelFilter::OFF),
                ("moltis_gateway".to_owned(), LevelFilter::DEBUG)
            ]
        );
        assert_eq!(escaped("a\x1b[2J\nb"), "a\\u{1b}[2J\\u{a}b");
    }
}
