//! Which header fields go on, and which end here.

use hyper::header::{
    CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Method, Request};

use crate::host::{Host, Target};
use crate::refusal::Refusal;

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// Removes what is between two neighbours only. How a body is delimited is said anew on the other side.
pub(crate) fn strip(headers: &mut HeaderMap) {
    let mut named: Vec<HeaderName> = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for token in value.as_bytes().split(|b| *b == b',') {
            if let Ok(name) = HeaderName::from_bytes(token.trim_ascii()) {
                named.push(name);
            }
        }
    }
    // Of two ways to say where a body ends only one is right.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(hyper::header::CONTENT_LENGTH);
    }
    // A body that lost its length would be another body.
    for name in named.iter().filter(|name| **name != hyper::header::CONTENT_LENGTH) {
        headers.remove(name);
    }
    for name in [CONNECTION, KEEP_ALIVE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    let proxy: Vec<HeaderName> =
        headers.keys().filter(|n| n.as_str().starts_with("proxy-")).cloned().collect();
    for name in proxy {
        headers.remove(name);
    }
}

/// Whether `Host` names the same as the request line does. `default` is the port that it means without one.
pub(crate) fn same_host(headers: &HeaderMap, target: &Target, default: u16) -> Result<(), Refusal> {
    let mut values = headers.get_all(HOST).iter();
    let Some(value) = values.next() else { return Ok(()) };
    if values.next().is_some() {
        return Err(Refusal::HostHeader);
    }
    let named = value.to_str().ok().and_then(|text| Target::read(text, Some(default)).ok());
    if named.as_ref() == Some(target) { Ok(()) } else { Err(Refusal::HostHeader) }
}

/// What `Host` is to say to the server.
pub(crate) fn host_value(target: &Target) -> Result<HeaderValue, Refusal> {
    let text = match &target.host {
        _ if target.port != 80 => target.to_string(),
        Host::Address(std::net::IpAddr::V6(address)) => format!("[{address}]"),
        host => host.to_string(),
    };
    HeaderValue::from_str(&text).map_err(|_| Refusal::Host("it cannot be asked for"))
}

/// Whether a request wants to go on as a web socket, the only upgrade that goes through: others, such as to HTTP/2, would
/// let further requests pass unseen.
pub(crate) fn wants_web_socket<B>(request: &Request<B>) -> bool {
    let headers = request.headers();
    let asks = headers.get_all(CONNECTION).iter().any(|value| {
        value
            .as_bytes()
            .split(|b| *b == b',')
            .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    let mut upgrades = headers.get_all(UPGRADE).iter();
    let socket = upgrades.next().is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    asks && socket && upgrades.next().is_none() && request.method() == Method::GET
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        fields.iter().map(|(n, v)| (HeaderName::from_static(n), HeaderValue::from_static(v))).collect()
    }

    #[test]
    fn what_ends_here_is_removed() {
        let mut headers = map(&[
            ("connection", "close, X-Mine , content-length"),
            ("x-mine", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("content-length", "3"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
        ]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("x-other", "2"), ("content-length", "3")]));
    }

    #[test]
    fn a_body_ends_in_one_way() {
        let mut headers = map(&[("content-length", "3"), ("transfer-encoding", "chunked")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[]));
    }

    #[test]
    fn host_must_be_the_same() {
        let target: Target = "example.com:80".parse().unwrap();
        assert_eq!(same_host(&map(&[]), &target, 80), Ok(()));
        assert_eq!(same_host(&map(&[("host", "EXAMPLE.com.")]), &target, 80), Ok(()));
        assert_eq!(same_host(&map(&[("host", "example.com:80")]), &target, 443), Ok(()));
        for other in
            ["", "example.org", "example.com:81", "u@example.com", "example.com,example.com", "example.com/"]
        {
            let headers: HeaderMap = [(HOST, HeaderValue::from_static(other))].into_iter().collect();
            assert_eq!(same_host(&headers, &target, 80), Err(Refusal::HostHeader), "{other}");
        }
        let mut two = map(&[("host", "example.com")]);
        two.append(HOST, HeaderValue::from_static("example.com"));
        assert_eq!(same_host(&two, &target, 80), Err(Refusal::HostHeader));
    }
}
