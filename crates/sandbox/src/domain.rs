//! Domain patterns of the network policy.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// One entry of `trusted_domains` or `denied_domains`: lower-case, without a trailing dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DomainPattern {
    /// Which hosts.
    pub host: HostPattern,
    /// Which port; absent: any.
    pub port: Option<u16>,
}

/// Which hosts a [`DomainPattern`] stands for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostPattern {
    /// `*`: every name.
    Any,
    /// `example.com`: this name. It may hold letters outside ASCII; the policy compares in the IDNA form.
    Name(String),
    /// `*.example.com`: the names below this one, not itself.
    Below(String),
    /// An address.
    Address(IpAddr),
    /// A block of addresses and its prefix length.
    Block(IpAddr, u8),
}

impl fmt::Display for DomainPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (HostPattern::Any, _) => f.write_str("*")?,
            (HostPattern::Name(name), _) => f.write_str(name)?,
            (HostPattern::Below(name), _) => write!(f, "*.{name}")?,
            (HostPattern::Address(IpAddr::V6(address)), Some(_)) => write!(f, "[{address}]")?,
            (HostPattern::Address(address), _) => write!(f, "{address}")?,
            (HostPattern::Block(address, prefix), _) => write!(f, "{address}/{prefix}")?,
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl DomainPattern {
    /// Whether this one stands for every host and port that `other` stands for. Names are compared as they are written.
    pub fn covers(&self, other: &Self) -> bool {
        self.host.covers(&other.host) && (self.port.is_none() || self.port == other.port)
    }
}

impl HostPattern {
    /// Whether this one stands for every host that `other` stands for. Names are compared as they are written.
    pub fn covers(&self, other: &Self) -> bool {
        let is_below =
            |name: &str, above: &str| name.strip_suffix(above).is_some_and(|rest| rest.ends_with('.'));
        match (self, other) {
            (Self::Any, _) => true,
            (Self::Name(name), Self::Name(other)) => name == other,
            (Self::Below(above), Self::Name(name)) => is_below(name, above),
            (Self::Below(above), Self::Below(name)) => name == above || is_below(name, above),
            (Self::Address(address), _) => Self::Block(*address, bits(*address)).covers(other),
            (Self::Block(block, prefix), Self::Address(address)) => {
                Self::Block(*block, *prefix).covers(&Self::Block(*address, bits(*address)))
            }
            (Self::Block(block, prefix), Self::Block(other, longer)) => {
                let (free, same) = match (block, other) {
                    (IpAddr::V4(a), IpAddr::V4(b)) => (32, u128::from(a.to_bits() ^ b.to_bits())),
                    (IpAddr::V6(a), IpAddr::V6(b)) => (128, a.to_bits() ^ b.to_bits()),
                    _ => return false,
                };
                longer >= prefix && same.checked_shr(free - u32::from(*prefix)).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

/// Length of an address in bits.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// Why a text is no [`DomainPattern`], as a clause for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoPattern(&'static str);

impl FromStr for DomainPattern {
    type Err = NoPattern;

    fn from_str(text: &str) -> Result<Self, NoPattern> {
        pattern(text).map_err(NoPattern)
    }
}

fn pattern(text: &str) -> Result<DomainPattern, &'static str> {
    if text.is_empty() {
        return Err("it is empty");
    }
    if text.contains("://") {
        return Err("write the host alone, without the scheme");
    }
    if let Some((address, prefix)) = text.split_once('/') {
        let address: IpAddr = address.parse().map_err(|_| "write the host alone, without a path")?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let prefix = number(prefix).filter(|prefix| *prefix <= most).ok_or("the prefix length is wrong")?;
        return Ok(DomainPattern { host: HostPattern::Block(address, prefix as u8), port: None });
    }
    if let Ok(address) = text.parse() {
        return Ok(DomainPattern { host: HostPattern::Address(address), port: None });
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => {
            let port = number(port).filter(|port| *port > 0).ok_or("the port must be 1 to 65535")?;
            (host, Some(port))
        }
        None => (text, None),
    };
    if let Some(address) = host.strip_prefix('[') {
        let address = address.strip_suffix(']').and_then(|address| address.parse().ok());
        let address = address.ok_or("between brackets belongs an IPv6 address")?;
        return Ok(DomainPattern { host: HostPattern::Address(IpAddr::V6(address)), port });
    }
    if let Ok(address) = host.parse() {
        return Ok(DomainPattern { host: HostPattern::Address(address), port });
    }
    let host = match host {
        "*" => HostPattern::Any,
        host => match host.strip_prefix("*.") {
            Some(name) => HostPattern::Below(domain(name)?),
            None => HostPattern::Name(domain(host)?),
        },
    };
    Ok(DomainPattern { host, port })
}

fn number(digits: &str) -> Option<u16> {
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn domain(name: &str) -> Result<String, &'static str> {
    let name = name.strip_suffix('.').unwrap_or(name).to_lowercase();
    if name.is_empty() || name.len() > 253 {
        return Err("a name has 1 to 253 characters");
    }
    if name.contains('*') {
        return Err("* stands alone or before the first dot only, as in *.example.com");
    }
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_')
    };
    if !name.split('.').all(label) {
        return Err("a name is made of letters, digits and hyphens, with dots between its parts");
    }
    // What ends in a number is an address to URL parsers, and this one is not a valid address.
    if name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit())) {
        return Err("it looks like an address but is none");
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_and_written() {
        let cases = [
            ("Example.COM.", "example.com"),
            ("*.example.com:8443", "*.example.com:8443"),
            ("*", "*"),
            ("*:443", "*:443"),
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("127.0.0.1:80", "127.0.0.1:80"),
            ("::1", "::1"),
            ("[::1]:80", "[::1]:80"),
            ("fd00::/8", "fd00::/8"),
            ("BÜCHER.example", "bücher.example"),
            ("_dmarc.example.com", "_dmarc.example.com"),
        ];
        for (text, written) in cases {
            assert_eq!(pattern(text).map(|p| p.to_string()), Ok(written.to_owned()));
        }
    }

    #[test]
    fn a_pattern_covers_what_it_stands_for() {
        for (wide, narrow) in [
            ("*", "a.example"),
            ("*", "*.example:1"),
            ("*", "10.0.0.1"),
            ("a.example", "a.example"),
            ("a.example", "a.example:443"),
            ("*.example", "a.example"),
            ("*.example", "*.example"),
            ("*.example", "*.a.example"),
            ("10.0.0.0/8", "10.1.2.3"),
            ("10.0.0.0/8", "10.1.0.0/16"),
            ("0.0.0.0/0", "10.1.0.0/16"),
            ("::/0", "fd00::1"),
            ("fd00::/8", "fd00::1"),
            ("10.0.0.1", "10.0.0.1"),
            ("::1", "::1/128"),
        ] {
            let [wide, narrow] = [wide, narrow].map(|text| pattern(text).unwrap());
            assert!(wide.covers(&narrow), "{wide} {narrow}");
        }
        for (wide, narrow) in [
            ("a.example", "b.example"),
            ("a.example", "*.a.example"),
            ("*.example", "example"),
            ("*.example", "*"),
            ("*.example", "notexample"),
            ("*.example:443", "a.example"),
            ("*:443", "a.example:80"),
            ("10.0.0.0/8", "11.0.0.0"),
            ("10.0.0.0/8", "10.0.0.0/7"),
            ("10.0.0.0/8", "::a00:1"),
            ("0.0.0.0/0", "::1"),
            ("a.example", "10.0.0.1"),
        ] {
            let [wide, narrow] = [wide, narrow].map(|text| pattern(text).unwrap());
            assert!(!wide.covers(&narrow), "{wide} {narrow}");
        }
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let bad = [
            "",
            "*.",
            "*.*",
            "a.*.b",
            "*example.com",
            "https://x",
            "x/y",
            "a..b",
            "-a.b",
            "a b",
            "a:0",
            "a:99999",
            "a:",
            "300.1.1.1",
            "1.2.3",
            "10.0.0.0/33",
            "[a]:1",
            ".",
            "a\0b",
            "a:+1",
        ];
        for text in bad {
            assert!(pattern(text).is_err(), "{text}");
        }
    }
}
