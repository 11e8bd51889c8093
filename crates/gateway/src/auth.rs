//! Who a request is from, and whether it may come from where it comes: the host that it names, the page that sent it, its
//! credential.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, Request, StatusCode, header};
use moltis_runtime::Runtime;
use moltis_runtime::store::{Login, now_millis};

use crate::call::{no_session, session_key};
use crate::identity::Identity;
use crate::problem::Problem;
use crate::route::{Bound, Need, Route};
use crate::secrets;

/// Header in which the page sends the secret of its login.
pub const SECRET: &str = "x-moltis-secret";

/// Begins the WebSocket subprotocol in which the page sends the secret of its login: a WebSocket has no headers of its own.
pub const SECRET_PROTOCOL: &str = "moltis.secret.";

/// The WebSocket subprotocol that is spoken.
pub const PROTOCOL: &str = "moltis.v1";

/// How often it is looked whether what let somebody in still does.
const LOOKS_AGAIN: Duration = Duration::from_secs(1);

/// Time that a login lasts, in milliseconds: seven days.
pub const LOGIN_MILLIS: u64 = 7 * 24 * 3600 * 1000;

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A network address.
    Network(IpAddr),
    /// The private socket, by the user who runs the gateway.
    Owner(u32),
}

/// The names and addresses by which the gateway is reached.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    names: Vec<String>,
    /// Whether it listens on every address.
    any_address: bool,
    /// The port that it listens on.
    port: u16,
}

impl Hosts {
    /// Those of a gateway that listens here, and further names.
    pub fn new(bind: IpAddr, port: u16, names: &[String]) -> Self {
        let mut all: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
        all.push(bind.to_string());
        all.extend(names.iter().map(|name| name.trim_end_matches('.').to_ascii_lowercase()));
        Self { names: all, any_address: bind.is_unspecified(), port }
    }

    /// Whether a `Host` header names this gateway. A name that is not known may be another's, by which a page of
    /// somebody else reaches us.
    fn is_ours(&self, host: &str) -> bool {
        let Some((name, port)) = split(host) else { return false };
        if !matches!(port, None | Some(80 | 443)) && port != Some(self.port) && !self.is_forwarded(&name) {
            return false;
        }
        // No page can make an address another's.
        self.names.contains(&name) || (self.any_address && name.parse::<IpAddr>().is_ok())
    }

    /// A name of somebody who forwards to us may have any port.
    fn is_forwarded(&self, name: &str) -> bool {
        self.names.iter().skip(4).any(|known| known == name)
    }
}

/// A host and its port, as `Host` and `Origin` write them.
fn split(host: &str) -> Option<(String, Option<u16>)> {
    let (name, port) = if let Some(rest) = host.strip_prefix('[') {
        let (name, rest) = rest.split_once(']')?;
        (name, rest.strip_prefix(':').or((rest.is_empty()).then_some("")))
    } else {
        match host.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (host, Some("")),
        }
    };
    let port = match port? {
        "" => None,
        digits => Some(digits.parse().ok()?),
    };
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    (!name.is_empty()).then_some((name, port))
}

/// Sees that a request names us, and does not come from somebody else's page.
///
/// # Errors
/// `host-foreign`, `origin-foreign`.
pub fn see_place(hosts: &Hosts, peer: Peer, parts: &Parts) -> Result<(), Problem> {
    if matches!(peer, Peer::Owner(_)) {
        // No page reaches the private socket.
        return Ok(());
    }
    let host = one(&parts.headers, header::HOST.as_str());
    let host = host.or_else(|| parts.uri.authority().map(|authority| authority.as_str()));
    let Some(host) = host.filter(|host| hosts.is_ours(host)) else {
        return Err(Problem::forbidden("host-foreign", "the request is for another host").fix(
            "use the address that the gateway names at its start, or add the name to `hosts` in [gateway]",
        ));
    };
    let Some(origin) = parts.headers.get(header::ORIGIN) else { return Ok(()) };
    let same = origin.to_str().ok().and_then(|origin| {
        let (scheme, rest) = origin.split_once("://")?;
        let default = match scheme {
            "http" => 80,
            "https" => 443,
            _ => return None,
        };
        let ((from, from_port), (to, to_port)) = (split(rest)?, split(host)?);
        Some(from == to && from_port.unwrap_or(default) == to_port.unwrap_or(default))
    });
    if same == Some(true) {
        return Ok(());
    }
    Err(Problem::forbidden("origin-foreign", "the request was made by a page of another origin")
        .fix("use the gateway's own page, or an API key from a program that is no page"))
}

/// The value of a header that is there once.
fn one<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    let first = all.next()?.to_str().ok()?;
    all.next().is_none().then_some(first)
}

/// Name of the cookie. Cookies are shared by all ports of a host, so that it is told from another gateway's.
pub fn cookie_name(port: u16) -> String {
    format!("moltis_{port}")
}

/// The cookie of a login, if one was sent.
pub fn cookie(headers: &HeaderMap, port: u16) -> Option<String> {
    let name = cookie_name(port);
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|cookies| cookies.split(';')).find_map(|cookie| {
        let (found, value) = cookie.trim().split_once('=')?;
        (found == name).then(|| value.to_owned())
    })
}

/// Who a request is from.
///
/// # Errors
/// `credential-invalid` for one that is wrong, `secret-missing` for a cookie without the secret that goes with it; those
/// of the store.
pub async fn identify(
    runtime: &Runtime,
    peer: Peer,
    port: u16,
    parts: &Parts,
    route: &Route,
) -> Result<Identity, Problem> {
    if let Peer::Owner(uid) = peer {
        return Ok(Identity::owner(uid));
    }
    if parts.headers.contains_key(header::AUTHORIZATION) {
        return by_key(runtime, &parts.headers).await;
    }
    let Some(cookie) = cookie(&parts.headers, port) else { return Ok(Identity::nobody()) };
    let (hash, now) = (secrets::hash(&cookie), now_millis());
    let Some(login) = runtime.store().run(move |db| db.login_of(&hash, now)).await? else {
        // One of an earlier login is no reason to keep anybody from logging in.
        return if route.rule.need == Need::Nothing { Ok(Identity::nobody()) } else { Err(wrong()) };
    };
    let alone = parts.method == Method::GET && !route.streams;
    if !alone && !has_secret(&parts.headers, &login) {
        if route.rule.need == Need::Nothing {
            return Ok(Identity::nobody());
        }
        return Err(Problem::new(
            StatusCode::UNAUTHORIZED,
            "refused",
            moltis_sandbox::Diagnosis::new(
                "secret-missing",
                "the cookie came without the secret of its login",
            )
            .fix("log in anew: the page keeps the secret and sends it as X-Moltis-Secret"),
        ));
    }
    let Some(key_hash) = login.key_hash else { return Ok(Identity::admin()) };
    // What the key may do now: it may have been revoked since.
    let key = runtime.store().run(move |db| db.key_of(&key_hash, now)).await?;
    match key {
        Some(key) => Ok(Identity::key(key)),
        None if route.rule.need == Need::Nothing => Ok(Identity::nobody()),
        None => Err(wrong()),
    }
}

/// What let a request in whose answer goes on: it is looked at again, and the answer ends when it would not let anybody in
/// any more.
#[derive(Clone)]
pub struct Standing {
    runtime: Runtime,
    peer: Peer,
    port: u16,
    parts: Parts,
    route: Arc<Route>,
    who: Identity,
}

impl Standing {
    /// That of a request.
    pub fn new(
        runtime: Runtime,
        peer: Peer,
        port: u16,
        parts: &Parts,
        route: &Arc<Route>,
        who: &Identity,
    ) -> Self {
        let mut kept = Request::new(()).into_parts().0;
        kept.method = parts.method.clone();
        for name in [
            header::AUTHORIZATION,
            header::COOKIE,
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderName::from_static(SECRET),
        ] {
            for value in parts.headers.get_all(&name) {
                kept.headers.append(name.clone(), value.clone());
            }
        }
        Self { runtime, peer, port, parts: kept, route: Arc::clone(route), who: who.clone() }
    }

    /// Waits until it would not let anybody in any more: a key that was revoked or has expired, a login that was ended.
    pub async fn ends(self) {
        // Nobody can take the private socket from its owner.
        if self.who.is_owner() {
            return std::future::pending().await;
        }
        loop {
            tokio::time::sleep(LOOKS_AGAIN).await;
            match identify(&self.runtime, self.peer, self.port, &self.parts, &self.route).await {
                Ok(who) if who == self.who => {}
                Ok(_) => return,
                Err(problem) if problem.is(StatusCode::UNAUTHORIZED) => return,
                // That the store cannot be asked says nothing of the credential.
                Err(_) => {}
            }
        }
    }
}

/// Whether the secret of a login was sent, by a header or, for a WebSocket, among the subprotocols.
fn has_secret(headers: &HeaderMap, login: &Login) -> bool {
    let by_header = headers.get(SECRET).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let protocols = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).iter();
    let by_protocol = || {
        let all = protocols.filter_map(|value| value.to_str().ok()).flat_map(|list| list.split(','));
        all.map(str::trim).find_map(|word| word.strip_prefix(SECRET_PROTOCOL)).map(str::to_owned)
    };
    // Hashes are compared: how long that takes says nothing of the secret.
    by_header.or_else(by_protocol).is_some_and(|secret| secrets::hash(&secret) == login.secret_hash)
}

async fn by_key(runtime: &Runtime, headers: &HeaderMap) -> Result<Identity, Problem> {
    let Some(value) = one(headers, header::AUTHORIZATION.as_str()) else { return Err(wrong()) };
    let Some((scheme, key)) = value.split_once(' ') else { return Err(wrong()) };
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(wrong());
    }
    let key = key.trim();
    let (hash, now) = (secrets::hash(key), now_millis());
    let is_token = key.starts_with(secrets::TOKEN);
    let found = runtime.store().run(move |db| {
        if is_token {
            let is_it = db.admin_token()?.is_some_and(|token| token == hash);
            return Ok(is_it.then(Identity::admin));
        }
        Ok(db.key_of(&hash, now)?.map(Identity::key))
    });
    found.await?.ok_or_else(wrong)
}

fn wrong() -> Problem {
    unauthorised("credential-invalid", "the credential is not valid, or not any more")
        .fix("make another one: `moltis gateway key create`, or log in anew")
}

fn unauthorised(code: &'static str, message: &str) -> Problem {
    let told = moltis_sandbox::Diagnosis::new(code, message);
    Problem::new(StatusCode::UNAUTHORIZED, "refused", told).header(header::WWW_AUTHENTICATE, "Bearer")
}

/// Sees that a caller may use a route.
///
/// # Errors
/// `credential-missing`, `scope-missing`, `owner-only`, `key-bound`; `session-missing` for one that he does not see.
pub fn see_rule(who: &Identity, route: &Route, path: &[(String, String)]) -> Result<(), Problem> {
    let scope = match route.rule.need {
        Need::Nothing => return Ok(()),
        Need::Read => moltis_runtime::store::KeyScope::Read,
        Need::Write => moltis_runtime::store::KeyScope::Write,
        Need::Admin | Need::Owner => moltis_runtime::store::KeyScope::Admin,
    };
    if who.scope().is_none() {
        return Err(unauthorised("credential-missing", "this needs a credential")
            .fix("send `Authorization: Bearer KEY` (`moltis gateway key create`), or log in"));
    }
    if !who.has(scope) {
        let message = format!("this needs a key with `{}`", scope.as_str());
        return Err(Problem::forbidden("scope-missing", message)
            .fix(format!("make one: `moltis gateway key create NAME --scope {}`", scope.as_str())));
    }
    if route.rule.need == Need::Owner && !who.is_owner() {
        return Err(Problem::forbidden("owner-only", "only who runs the gateway may do this")
            .fix("do it on its machine, as its user"));
    }
    if who.sessions().is_none() {
        return Ok(());
    }
    match route.rule.bound {
        Bound::Filtered => Ok(()),
        Bound::Never => {
            Err(Problem::forbidden("key-bound", "this key is bound to some sessions, and this is about more")
                .fix("use a key that is not bound"))
        }
        Bound::Session => {
            let text = path.iter().find(|(name, _)| name == "session").map_or("", |(_, value)| value);
            let key = session_key(text)?;
            if who.sees(&key) { Ok(()) } else { Err(no_session(text)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_ours_by_name_and_port() {
        let hosts = Hosts::new([127, 0, 0, 1].into(), 13131, &["Moltis.Example.".to_owned()]);
        for (host, ours) in [
            ("localhost:13131", true),
            ("127.0.0.1:13131", true),
            ("[::1]:13131", true),
            ("LOCALHOST", true),
            ("localhost:8080", false),
            ("evil.example:13131", false),
            ("127.0.0.2:13131", false),
            ("moltis.example", true),
            ("moltis.example:8443", true),
            ("", false),
            (":13131", false),
            ("localhost:x", false),
        ] {
            assert_eq!(hosts.is_ours(host), ours, "{host}");
        }
        let any = Hosts::new([0, 0, 0, 0].into(), 13131, &[]);
        assert!(any.is_ours("192.0.2.7:13131") && !any.is_ours("evil.example:13131"));
    }
}
