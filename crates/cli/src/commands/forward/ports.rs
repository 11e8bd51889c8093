//! Which port of a sandbox is to be where on this machine.

use moltis_sandbox::{BackendName, Diagnosis, Error};

use crate::failure::Failure;

/// Ports that one call may name.
const MOST: usize = 64;

/// A port of the sandbox, and where it is to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// On the sandbox's loopback; never 0.
    pub port: u16,
    /// On this machine's; 0 for any that is free.
    pub host_port: u16,
}

/// Reads `PORT[:HOST_PORT]`, each of them.
///
/// # Errors
/// Of usage: `port-invalid`, `port-twice`, `ports-too-many`.
pub fn parse(words: &[String]) -> Result<Vec<Wanted>, Failure> {
    if words.len() > MOST {
        let message = format!("{} ports are more than {MOST}", words.len());
        return Err(Failure::usage(
            Diagnosis::new("ports-too-many", message).fix("run `moltis forward` once more for the rest"),
        ));
    }
    let mut all: Vec<Wanted> = Vec::new();
    for word in words {
        let wanted = one(word)?;
        if wanted.host_port != 0 && all.iter().any(|other| other.host_port == wanted.host_port) {
            let message = format!("port {} of this machine is named twice", wanted.host_port);
            return Err(Failure::usage(
                Diagnosis::new("port-twice", message)
                    .fix(format!("name another one for the second, as in {}:0", wanted.port)),
            ));
        }
        all.push(wanted);
    }
    Ok(all)
}

fn one(word: &str) -> Result<Wanted, Failure> {
    let (port, host_port) = word.split_once(':').unwrap_or((word, word));
    match (number(port), number(host_port)) {
        (Some(port @ 1..), Some(host_port)) => Ok(Wanted { port, host_port }),
        _ => Err(Failure::usage(
            Diagnosis::new("port-invalid", format!("{word:?} is not PORT or PORT:HOST_PORT"))
                .cause("a port is a number from 1 to 65535; as HOST_PORT also 0, for any that is free")
                .fix("write the sandbox's port first, as in 3000 or 3000:8080"),
        )),
    }
}

/// Digits alone: no sign, no space.
fn number(word: &str) -> Option<u16> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok()).flatten()
}

/// Sees that nobody is sent from the gateway's place to a sandbox: a browser takes the two for one.
///
/// # Errors
/// `host-port-gateway`.
pub fn spare_gateway(wanted: &[Wanted], gateway: u16) -> Result<(), Error> {
    match wanted.iter().find(|wanted| wanted.host_port != 0 && wanted.host_port == gateway) {
        None => Ok(()),
        Some(Wanted { port, .. }) => Err(Error::Refused(
            Diagnosis::new("host-port-gateway", format!("port {gateway} of this machine is the gateway's"))
                .cause("`gateway.port` in the configuration names it")
                .fix(format!("take another one, as in {port}:0")),
        )),
    }
}

/// Sees that no port leads to itself: where a sandbox has no loopback of its own, its ports are this machine's.
///
/// # Errors
/// `host-port-own`.
pub fn spare_itself(bound: &[Wanted], backend: BackendName) -> Result<(), Error> {
    if !matches!(backend, BackendName::RestrictedHost | BackendName::None) {
        return Ok(());
    }
    match bound.iter().find(|wanted| bound.iter().any(|other| other.host_port == wanted.port)) {
        None => Ok(()),
        Some(Wanted { port, .. }) => Err(Error::Refused(
            Diagnosis::new("host-port-own", format!("port {port} would lead to itself"))
                .cause(format!("on {backend} a sandbox's loopback is this machine's"))
                .fix(format!("its servers are at 127.0.0.1 already; for another port write {port}:0")),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(words: &[&str]) -> Option<Vec<(u16, u16)>> {
        let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        let wanted = parse(&words).ok()?;
        Some(wanted.iter().map(|wanted| (wanted.port, wanted.host_port)).collect())
    }

    #[test]
    fn the_sandbox_s_port_comes_first() {
        assert_eq!(parsed(&["3000"]), Some(vec![(3000, 3000)]));
        assert_eq!(
            parsed(&["3000:8080", "3000:0", "1:65535"]),
            Some(vec![(3000, 8080), (3000, 0), (1, 65535)])
        );
        for wrong in
            ["", ":", "0", "0:1", "65536", "1:65536", "+1", " 1", "1:", ":1", "1:2:3", "http", "127.0.0.1:1"]
        {
            assert_eq!(parsed(&[wrong]), None, "{wrong:?}");
        }
        assert_eq!(parsed(&["1:5", "2:5"]), None);
        assert_eq!(parsed(&["1:0", "2:0"]), Some(vec![(1, 0), (2, 0)]));
        assert_eq!(parsed(&vec!["1:0"; MOST + 1]), None);
    }

    #[test]
    fn no_port_is_the_gateway_s_or_leads_to_itself() {
        let wanted = |port, host_port| Wanted { port, host_port };
        let code = |result: Result<(), Error>| result.err().map(|error| error.code().to_owned());
        assert_eq!(code(spare_gateway(&[wanted(13131, 1)], 13131)), None);
        assert_eq!(code(spare_gateway(&[wanted(1, 0)], 0)), None);
        assert_eq!(code(spare_gateway(&[wanted(1, 13131)], 13131)), Some("host-port-gateway".into()));
        let circle = [wanted(1, 2), wanted(2, 1)];
        assert_eq!(code(spare_itself(&circle, BackendName::Namespaces)), None);
        assert_eq!(code(spare_itself(&circle, BackendName::None)), Some("host-port-own".into()));
        assert_eq!(code(spare_itself(&circle[..1], BackendName::RestrictedHost)), None);
    }
}
