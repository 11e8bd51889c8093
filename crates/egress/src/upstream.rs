//! A proxy in front of ours, where the machine has no other way out.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http_body_util::Empty;
use hyper::header::{HOST, HeaderValue, PROXY_AUTHORIZATION};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use moltis_sandbox::{DomainPattern, Duplex, HostPattern};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;

use crate::connect::AbortOnDrop;
use crate::host::{Host, Target};
use crate::judge::Table;
use crate::policy::{Origin, Rule};
use crate::refusal::Refusal;

/// A proxy that all connections go through, but for those to hosts that are named. It resolves the names.
pub struct Upstream {
    pub(crate) target: Target,
    authorization: Option<SecretString>,
    direct: Table,
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}", self.target)
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({self})")
    }
}

/// Where it is named, the first one that is set.
const VARIABLES: [&str; 6] =
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy"];

impl Upstream {
    /// Reads the usual variables, by what `get` says of them.
    ///
    /// # Errors
    /// `upstream-invalid` for one that is no `http://` URL of a proxy.
    pub fn from_environment(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Refusal> {
        let set =
            |name: &&str| get(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        let Some((name, value)) = VARIABLES.iter().find_map(|name| Some((name, set(name)?))) else {
            return Ok(None);
        };
        let without = set(&"NO_PROXY").or_else(|| set(&"no_proxy")).unwrap_or_default();
        Self::parse(&value, &without).map(Some).map_err(|why| {
            // The value may hold a password.
            Refusal::UpstreamSetting(format!("{name}: {why}"))
        })
    }

    /// Reads the URL of a proxy, and the comma-separated hosts that are connected to without it: `*`, names, which stand
    /// for what is below them as well, addresses, blocks, each but the last with a port if it is only about that.
    ///
    /// # Errors
    /// A clause that says why the URL is none. It holds nothing of the URL.
    pub fn parse(url: &str, without: &str) -> Result<Self, String> {
        let rest = match url.split_once("://") {
            Some((scheme, rest)) => match scheme.to_ascii_lowercase().as_str() {
                "http" => rest,
                "https" => {
                    return Err(
                        "a proxy that is itself reached by TLS is not supported; name an http:// one".into(),
                    );
                }
                scheme if scheme.starts_with("socks") => {
                    return Err("a SOCKS proxy is not supported; name an http:// one".into());
                }
                _ => return Err("it is no URL of a proxy; write http://HOST:PORT".into()),
            },
            None => url,
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
        let (user, host) = match authority.rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, authority),
        };
        let target = Target::read(host, Some(80)).map_err(|why| format!("its host: {why}"))?;
        let authorization = match user {
            Some(user) => {
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                let mut plain = decoded(name)?;
                plain.push(b':');
                plain.extend(decoded(password)?);
                Some(SecretString::from(format!("Basic {}", STANDARD.encode(plain))))
            }
            None => None,
        };
        Ok(Self { target, authorization, direct: Table::new(&rules(without)) })
    }

    /// Whether a host is connected to without it.
    pub(crate) fn passes_by(&self, target: &Target) -> bool {
        match &target.host {
            Host::Name(name) => self.direct.name(name, target.port).is_some(),
            Host::Address(address) => {
                self.direct.address(*address, target.port).is_some() || self.direct.any(target.port).is_some()
            }
        }
    }

    /// What it wants to see in requests.
    pub(crate) fn authorization(&self) -> Option<HeaderValue> {
        let text = self.authorization.as_ref()?.expose_secret();
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// Has it connect to a host, by a stream to it.
    pub(crate) async fn tunnel(
        &self,
        stream: TcpStream,
        target: &Target,
    ) -> Result<Box<dyn Duplex>, Refusal> {
        let name = target.to_string();
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::CONNECT;
        *request.uri_mut() = name.parse().map_err(|_| Refusal::Host("it cannot be asked for"))?;
        let host = HeaderValue::from_str(&name).map_err(|_| Refusal::Host("it cannot be asked for"))?;
        request.headers_mut().insert(HOST, host);
        if let Some(value) = self.authorization() {
            request.headers_mut().insert(PROXY_AUTHORIZATION, value);
        }
        let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
            .title_case_headers(true)
            .max_buf_size(64 * 1024)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| Refusal::Answer)?;
        let driver = tokio::spawn(async move {
            // What goes wrong is told to whoever waits for the answer.
            let _ = connection.with_upgrades().await;
        });
        let _driver = AbortOnDrop(driver.abort_handle());
        let answer = sender.send_request(request).await.map_err(|_| Refusal::Answer)?;
        if !answer.status().is_success() {
            return Err(Refusal::Upstream(answer.status().as_u16()));
        }
        let upgraded = hyper::upgrade::on(answer).await.map_err(|_| Refusal::Answer)?;
        Ok(Box::new(TokioIo::new(upgraded)))
    }
}

fn decoded(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            plain.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match (digit(bytes.next()), digit(bytes.next())) {
            (Some(high), Some(low)) => plain.push((high << 4 | low) as u8),
            _ => return Err("after % in its user or password belong two hexadecimal digits".into()),
        }
    }
    Ok(plain)
}

/// What is no pattern is left out, as other programs do.
fn rules(without: &str) -> Vec<Rule> {
    let mut rules = Vec::new();
    for entry in without.split([',', ' ']).map(str::trim).filter(|entry| !entry.is_empty()) {
        let entry = entry.strip_prefix("*.").or_else(|| entry.strip_prefix('.')).unwrap_or(entry);
        let Ok(pattern) = entry.parse::<DomainPattern>() else { continue };
        if let HostPattern::Name(name) = &pattern.host {
            let below = DomainPattern { host: HostPattern::Below(name.clone()), port: pattern.port };
            rules.push(Rule { pattern: below, origin: Origin::Config });
        }
        rules.push(Rule { pattern, origin: Origin::Config });
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<String>, String> {
        let get =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        Upstream::from_environment(get).map(|found| found.map(|u| u.to_string())).map_err(|e| e.to_string())
    }

    #[test]
    fn variables() {
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("HTTPS_PROXY", " ")]), Ok(None));
        assert_eq!(
            found(&[("http_proxy", "http://b:1"), ("HTTPS_PROXY", "http://u:p@proxy.example:3128/")]),
            Ok(Some("http://proxy.example:3128".into()))
        );
        assert_eq!(found(&[("ALL_PROXY", "proxy")]), Ok(Some("http://proxy:80".into())));
        assert_eq!(
            found(&[("ALL_PROXY", "socks5h://u:secret@proxy:1080")]),
            Err("ALL_PROXY: a SOCKS proxy is not supported; name an http:// one".into())
        );
        assert_eq!(
            found(&[("https_proxy", "http://u:secret%zz@proxy")]),
            Err("https_proxy: after % in its user or password belong two hexadecimal digits".into())
        );
    }

    #[test]
    fn credentials_are_sent_and_not_shown() {
        let upstream = Upstream::parse("http://us%40er:p%3a@proxy:1", "").unwrap();
        let value = upstream.authorization().unwrap();
        assert_eq!(value.to_str().unwrap(), format!("Basic {}", STANDARD.encode("us@er:p:")));
        assert_eq!(
            format!("{upstream} {upstream:?} {value:?}"),
            "http://proxy:1 Upstream(http://proxy:1) Sensitive"
        );
    }

    #[test]
    fn hosts_without_it() {
        let upstream =
            Upstream::parse("proxy:1", "a.example, .b.example,*.c.example:8443,10.0.0.0/8,::1, ?").unwrap();
        let passes = |text: &str| upstream.passes_by(&text.parse().unwrap());
        for text in
            ["a.example:1", "x.a.example:1", "b.example:1", "x.c.example:8443", "10.1.1.1:1", "[::1]:1"]
        {
            assert!(passes(text), "{text}");
        }
        for text in ["example:1", "xa.example:1", "c.example:1", "11.1.1.1:1"] {
            assert!(!passes(text), "{text}");
        }
        assert!(Upstream::parse("proxy:1", "*").unwrap().passes_by(&"8.8.8.8:1".parse().unwrap()));
    }
}
