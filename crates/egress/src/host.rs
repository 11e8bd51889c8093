//! Hosts as they are compared: what is spelled in many ways has one form here, or none.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use idna::AsciiDenyList;
use idna::uts46::{DnsLength, Hyphens, Uts46};
use moltis_sandbox::{DomainPattern, HostPattern};

/// The most bytes that a host is looked at for: names have 253, and UTF-8 takes a few times as many.
const LONGEST: usize = 1024;

/// A host that a program named.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name: ASCII, lower-case, an IDN in punycode, no trailing dot.
    Name(String),
    /// An address. An IPv4 address written as IPv6 is the IPv4 address.
    Address(IpAddr),
}

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port, never 0.
    pub port: u16,
}

/// Why a text is no host, as a clause for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoHost(pub(crate) &'static str);

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(address) => write!(f, "{address}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            _ => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl FromStr for Host {
    type Err = NoHost;

    /// A name or an address, the latter with or without brackets; no port.
    fn from_str(text: &str) -> Result<Self, NoHost> {
        if text.is_empty() {
            return Err(NoHost("it is empty"));
        }
        if text.len() > LONGEST {
            return Err(NoHost("it is too long"));
        }
        if let Some(inner) = text.strip_prefix('[') {
            return v6(inner.strip_suffix(']').ok_or(NoHost("its bracket is not closed"))?);
        }
        if text.contains(':') {
            return v6(text);
        }
        let name = a_label(text)?;
        if !numeric(&name) {
            return Ok(Self::Name(name));
        }
        // 127.1, 0x7f.1, 2130706433 and 0177.0.0.1 are addresses to some programs; here only four decimal numbers are.
        match name.parse::<Ipv4Addr>() {
            Ok(address) if text.is_ascii() => Ok(Self::Address(IpAddr::V4(address))),
            _ => Err(NoHost("it looks like an address; write four decimal numbers")),
        }
    }
}

fn v6(text: &str) -> Result<Host, NoHost> {
    if text.contains('%') {
        return Err(NoHost("a zone has no meaning here"));
    }
    let address: Ipv6Addr = text.parse().map_err(|_| NoHost("it is no IPv6 address"))?;
    Ok(Host::Address(IpAddr::V6(address).to_canonical()))
}

/// Whether what follows the last dot makes URL parsers take a name for an IPv4 address.
fn numeric(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    match last.strip_prefix("0x") {
        Some(hex) => hex.bytes().all(|b| b.is_ascii_hexdigit()),
        None => last.bytes().all(|b| b.is_ascii_digit()),
    }
}

/// The form in which names are compared.
pub(crate) fn a_label(text: &str) -> Result<String, NoHost> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    let lower = text.to_ascii_lowercase();
    let mut name = if lower.bytes().all(plain) && !lower.split('.').any(|label| label.starts_with("xn--")) {
        lower
    } else {
        let idna = Uts46::new();
        idna.to_ascii(text.as_bytes(), AsciiDenyList::EMPTY, Hyphens::Allow, DnsLength::Ignore)
            .map_err(|_| NoHost("it is no valid international name"))?
            .into_owned()
    };
    if name.ends_with('.') {
        name.pop();
    }
    if !name.bytes().all(plain) {
        return Err(NoHost("a name is made of letters, digits, hyphens and dots"));
    }
    if name.len() > 253 || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
        return Err(NoHost("its parts have 1 to 63 characters, together 253"));
    }
    Ok(name)
}

impl FromStr for Target {
    type Err = NoHost;

    /// `host:port`, IPv6 addresses in brackets.
    fn from_str(authority: &str) -> Result<Self, NoHost> {
        Self::read(authority, None)
    }
}

impl Target {
    /// Reads `host:port` or, where there is a port that is meant otherwise, `host`.
    ///
    /// # Errors
    /// What is anything else, such as one with a user's name in it.
    pub fn read(authority: &str, otherwise: Option<u16>) -> Result<Self, NoHost> {
        if authority.contains('@') {
            return Err(NoHost("a user's name does not belong there"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let end = rest.find(']').ok_or(NoHost("its bracket is not closed"))?;
                let (host, rest) = authority.split_at(end + 2);
                match rest {
                    "" => (host, None),
                    rest => {
                        (host, Some(rest.strip_prefix(':').ok_or(NoHost("after a bracket comes a port"))?))
                    }
                }
            }
            None => match authority.split_once(':') {
                Some((_, port)) if port.contains(':') => {
                    return Err(NoHost("an IPv6 address belongs in brackets"));
                }
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(digits) if digits.len() <= 5 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                digits.parse().ok()
            }
            Some(_) => None,
            None => otherwise,
        };
        let port = port.filter(|port| *port > 0).ok_or(NoHost("its port must be 1 to 65535"))?;
        Ok(Self { host: host.parse()?, port })
    }
}

/// Whether a pattern can ever match: `config` takes any letters, the form for comparing does not exist for all of them.
///
/// # Errors
/// Why its name is none.
pub fn usable(pattern: &DomainPattern) -> Result<(), NoHost> {
    match &pattern.host {
        HostPattern::Name(name) | HostPattern::Below(name) => a_label(name).map(drop),
        HostPattern::Any | HostPattern::Address(_) | HostPattern::Block(..) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> Result<String, NoHost> {
        text.parse::<Host>().map(|host| host.to_string())
    }

    #[test]
    fn one_host_has_one_form() {
        let cases = [
            ("Example.COM.", "example.com"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("xn--BCHER-kva.example", "xn--bcher-kva.example"),
            ("bücher。example", "xn--bcher-kva.example"),
            ("_dmarc.example.com", "_dmarc.example.com"),
            ("r3---sn.example", "r3---sn.example"),
            ("127.0.0.1", "127.0.0.1"),
            ("127.0.0.1.", "127.0.0.1"),
            ("[::1]", "::1"),
            ("::FFFF:10.0.0.1", "10.0.0.1"),
            ("localhost", "localhost"),
            ("0x7f.example", "0x7f.example"),
        ];
        for (text, form) in cases {
            assert_eq!(shown(text), Ok(form.to_owned()), "{text}");
        }
    }

    #[test]
    fn what_some_take_for_an_address_is_no_host() {
        for text in [
            "127.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "0177.0.0.1",
            "127.0.0.01",
            "127.0.0.1.1",
            "1",
            "0x",
            "1.2.3.0x",
            "１２７.0.0.1",
            "127。0。0。1",
            "[fe80::1%eth0]",
            "fe80::1%25eth0",
            "[::1",
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a b",
            "a%2eb",
            "a/b",
            "a\\b",
            "a@b",
            "a\0b",
            "a\u{ad}\u{ad}@b",
            "xn--",
            "xn--a",
            "xn--example-.com",
            "xn--\u{fc}.example",
        ] {
            assert!(shown(text).is_err(), "{text:?} is {:?}", shown(text));
        }
        assert!(shown(&"a".repeat(64)).is_err());
        assert!(shown(&"a.".repeat(200)).is_err());
    }

    #[test]
    fn authorities() {
        let good = [
            ("example.com:443", "example.com:443"),
            ("[::1]:80", "[::1]:80"),
            ("[::ffff:1.2.3.4]:80", "1.2.3.4:80"),
        ];
        for (text, form) in good {
            assert_eq!(text.parse::<Target>().map(|t| t.to_string()), Ok(form.to_owned()));
        }
        for text in [
            "example.com",
            "a:0",
            "a:65536",
            "a:",
            "a:+1",
            "u@a:1",
            "u:p@a:1",
            "::1:80",
            "[::1]80",
            ":80",
            "a:1:2",
            "a:000080",
        ] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
        assert_eq!(Target::read("a", Some(80)).map(|t| t.to_string()), Ok("a:80".to_owned()));
    }

    proptest! {
        #[test]
        fn a_form_is_its_own_form(text in "\\PC{0,40}") {
            if let Ok(host) = text.parse::<Host>() {
                prop_assert_eq!(host.to_string().parse::<Host>(), Ok(host.clone()));
                prop_assert!(host.to_string().is_ascii());
                prop_assert!(host.to_string().len() <= 253);
            }
        }

        #[test]
        fn a_target_is_its_own_form(text in "[a-zA-Z0-9.:\\[\\]@%x-]{0,24}") {
            if let Ok(target) = text.parse::<Target>() {
                prop_assert_eq!(target.to_string().parse::<Target>(), Ok(target.clone()));
            }
        }
    }
}
