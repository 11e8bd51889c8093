//! Answers that go on: events as they come, as server-sent events or as lines of JSON.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use serde_json::{Value, json};

/// How often somebody who waits hears that the connection lives.
const BEAT: Duration = Duration::from_secs(15);

/// Media type of server-sent events.
pub const EVENTS: &str = "text/event-stream";

/// Media type of lines of JSON.
pub const LINES: &str = "application/x-ndjson";

/// One event: its name and what it says, which is an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Its name.
    pub name: &'static str,
    /// What it says.
    pub data: Value,
}

impl Event {
    /// An event.
    pub fn new(name: &'static str, data: Value) -> Self {
        Self { name, data }
    }

    fn write(&self, kind: &str) -> Bytes {
        let mut data = self.data.clone();
        if kind == EVENTS {
            return format!("event: {}\ndata: {data}\n\n", self.name).into();
        }
        if let Value::Object(fields) = &mut data {
            fields.insert("event".to_owned(), self.name.into());
        } else {
            data = json!({ "event": self.name, "data": data });
        }
        format!("{data}\n").into()
    }
}

/// An answer of these events, in the form that the caller wants.
pub fn answer(kind: &'static str, events: impl Stream<Item = Event> + Send + 'static) -> Response {
    let events = Box::pin(events);
    let bytes = futures_util::stream::unfold(events, move |mut events| async move {
        loop {
            match tokio::time::timeout(BEAT, events.next()).await {
                Ok(Some(event)) => {
                    return Some((Ok::<_, std::convert::Infallible>(event.write(kind)), events));
                }
                Ok(None) => return None,
                // A comment, which nobody takes for an event.
                Err(_) if kind == EVENTS => return Some((Ok(Bytes::from_static(b": beat\n\n")), events)),
                Err(_) => {}
            }
        }
    });
    let mut response = Response::new(Body::from_stream(bytes));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    // A proxy in front of us is to pass on what it has.
    response
        .headers_mut()
        .insert(header::HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Has an answer of events end when this is over; other answers are as they were.
pub fn ending(response: Response, end: impl Future<Output = ()> + Send + 'static) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    if !kind.is_some_and(|kind| kind.starts_with(EVENTS) || kind.starts_with(LINES)) {
        return response;
    }
    response.map(|body| Body::from_stream(body.into_data_stream().take_until(Box::pin(end))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_two_forms() {
        let event = Event::new("stdout", json!({ "data": "a\nb" }));
        assert_eq!(event.write(EVENTS), "event: stdout\ndata: {\"data\":\"a\\nb\"}\n\n");
        assert_eq!(event.write(LINES), "{\"data\":\"a\\nb\",\"event\":\"stdout\"}\n");
    }
}
