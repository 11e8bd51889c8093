//! Words with rules: names, packages, addresses, URLs, log filters.

use std::net::IpAddr;

use super::{Context, Text};
use crate::error::InvalidValue;
use crate::suggest::suggest;

/// Named groups of packages, with what is in them. The images' floor knows what each distribution calls it.
pub const PACKAGE_GROUPS: [(&str, &str); 7] = [
    ("toolbox", "shell tools, git, curl, python3, node, compilers"),
    ("build", "compilers, make, cmake, debuggers"),
    ("database", "clients of PostgreSQL, MySQL, SQLite, Redis"),
    ("java", "a Java development kit, maven"),
    ("media", "ffmpeg, ImageMagick, poppler, fonts"),
    ("network", "DNS, HTTP and TLS tools"),
    ("python", "python3 with pip, venv and headers"),
];

/// A package's name, or a group's with `@` before it.
pub struct Package;

impl Text for Package {
    type Value = String;

    const NAME: &'static str = "package name";
    const EXAMPLE: &'static str = "ffmpeg";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        if let Some(group) = text.strip_prefix('@') {
            let valid: Vec<_> = PACKAGE_GROUPS.iter().map(|(name, _)| *name).collect();
            if valid.contains(&group) {
                return Ok(text.to_owned());
            }
            let nearest = suggest(group, valid.iter().copied()).map(str::to_owned);
            return Err(InvalidValue::UnknownWord { word: group.to_owned(), nearest, valid });
        }
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let others = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-._".contains(&b));
        if text.ends_with('-') {
            // To apt that is the wish to remove it.
            return Err(InvalidValue::malformed(text, "a package name", "none ends with a hyphen"));
        }
        if first && others && text.len() <= 128 {
            return Ok(text.to_owned());
        }
        Err(InvalidValue::malformed(text, "a package name", "letters, digits, +, -, . and _ are allowed"))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

/// The first part of container names.
pub struct ContainerPrefix;

impl Text for ContainerPrefix {
    type Value = String;

    const NAME: &'static str = "name";
    const EXAMPLE: &'static str = "moltis";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase());
        let others = text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        // Engines and Apple's tool take 64 characters, of which the id needs 40 and a hyphen one.
        if first && others && !text.ends_with('-') && text.len() <= 20 {
            return Ok(text.to_owned());
        }
        let why = "it begins with a lower-case letter, holds lower-case letters, digits and -, 20 characters at most";
        Err(InvalidValue::malformed(text, "a name prefix", why))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

/// An OCI runtime's name or path.
pub struct Runtime;

impl Text for Runtime {
    type Value = String;

    const NAME: &'static str = "runtime name";
    const EXAMPLE: &'static str = "runsc";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric() || b == b'/');
        let others = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-/".contains(&b));
        if first && others && text.len() <= 255 {
            return Ok(text.to_owned());
        }
        Err(InvalidValue::malformed(text, "an OCI runtime", "write its name, such as runsc, or its path"))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

/// One word: an id or a name that somebody else gave out.
pub struct Word;

impl Text for Word {
    type Value = String;

    const NAME: &'static str = "word";
    const EXAMPLE: &'static str = "name";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"._-:/@".contains(&b);
        let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if first && text.bytes().all(fits) && text.len() <= 255 {
            return Ok(text.to_owned());
        }
        Err(InvalidValue::malformed(text, "a word", "letters, digits and . _ - : / @ are allowed"))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

/// A name by which a server is reached.
pub struct HostName;

impl Text for HostName {
    type Value = String;

    const NAME: &'static str = "host name";
    const EXAMPLE: &'static str = "moltis.example.com";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        let fits = |part: &str| {
            let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            (1..=63).contains(&part.len()) && part.bytes().all(plain) && !part.starts_with('-')
        };
        if text.len() <= 253 && text.split('.').all(fits) {
            return Ok(text.to_ascii_lowercase());
        }
        let why = "write the name alone, in ASCII, without a scheme and a port";
        Err(InvalidValue::malformed(text, "a host name", why))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

/// An IP address to listen on.
pub struct Address;

impl Text for Address {
    type Value = IpAddr;

    const NAME: &'static str = "IP address";
    const EXAMPLE: &'static str = "127.0.0.1";

    fn parse(text: &str, _: &Context) -> Result<IpAddr, InvalidValue> {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        bare.parse().map_err(|_| {
            let why = match text {
                "localhost" => "write 127.0.0.1 or ::1",
                "*" => "write 0.0.0.0 or ::",
                _ => "write an address such as 127.0.0.1; the port is a key of its own",
            };
            InvalidValue::malformed(text, "an IP address", why)
        })
    }

    fn text(value: &IpAddr) -> String {
        value.to_string()
    }
}

/// Where an API answers: https, or plain http to loopback only, since a credential travels with every request.
pub struct Url;

impl Text for Url {
    type Value = String;

    const NAME: &'static str = "URL";
    const EXAMPLE: &'static str = "https://example.com/api";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        url(text).map_err(|(text, why)| InvalidValue::malformed(&text, "a URL", why))
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

fn url(text: &str) -> Result<String, (String, &'static str)> {
    if text.contains('@') {
        // What stands before the @ may be a password.
        return Err(("…".to_owned(), "a URL with a user name or password is refused"));
    }
    let fail = |why| (text.to_owned(), why);
    let (scheme, rest) = text.split_once("://").ok_or(fail("it must begin with https://"))?;
    if !rest.bytes().all(|b| b.is_ascii_graphic()) {
        return Err(fail("it may hold only printable ASCII"));
    }
    if rest.contains(['?', '#', '\\']) {
        return Err(fail("it ends with the path, without ? or #"));
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let (host, port) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (host, port) = bracketed.split_once(']').ok_or(fail("the [ is not closed"))?;
            host.parse::<std::net::Ipv6Addr>()
                .map_err(|_| fail("between brackets belongs an IPv6 address"))?;
            let port = match port {
                "" => None,
                port => Some(port.strip_prefix(':').ok_or(fail("the port is wrong"))?),
            };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let valid_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    if port.is_some_and(|port| !valid_port(port)) {
        return Err(fail("the port is wrong"));
    }
    if host.is_empty() {
        return Err(fail("the host is missing"));
    }
    match scheme {
        "https" => {}
        "http" if host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()) => {}
        "http" => return Err(fail("plain http goes to loopback only: write https://")),
        _ => return Err(fail("it must begin with https://")),
    }
    Ok(text.trim_end_matches('/').to_owned())
}

/// What is logged: `info`, or `warn,moltis=debug`.
pub struct LogFilter;

impl Text for LogFilter {
    type Value = String;

    const NAME: &'static str = "log filter";
    const EXAMPLE: &'static str = "warn,moltis=debug";

    fn parse(text: &str, _: &Context) -> Result<String, InvalidValue> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        for item in text.split(',') {
            let (part, level) = match item.split_once('=') {
                Some((part, level)) => (Some(part), level),
                None => (None, item),
            };
            let named = |b: u8| b.is_ascii_alphanumeric() || b"_:-".contains(&b);
            if part.is_some_and(|part| part.is_empty() || !part.bytes().all(named)) {
                let why = "items are a level, or part=level, with commas between";
                return Err(InvalidValue::malformed(text, "a log filter", why));
            }
            if !LEVELS.contains(&level) {
                return Err(InvalidValue::UnknownWord {
                    word: level.to_owned(),
                    nearest: suggest(level, LEVELS).map(str::to_owned),
                    valid: LEVELS.to_vec(),
                });
            }
        }
        Ok(text.to_owned())
    }

    fn text(value: &String) -> String {
        value.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_goes_to_loopback_only() {
        let good = [
            ("https://vercel.com/api/", "https://vercel.com/api"),
            ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
            ("http://[::1]:8080/x", "http://[::1]:8080/x"),
            ("http://localhost", "http://localhost"),
            ("https://daytona.example:8443/api", "https://daytona.example:8443/api"),
        ];
        for (text, read) in good {
            assert_eq!(url(text).map_err(|(_, why)| why), Ok(read.to_owned()));
        }
        let bad = [
            "http://example.com",
            "http://127.0.0.1.example.com",
            "http://127.0.0.1@example.com",
            "ftp://x",
            "x",
            "https://",
            "https://a b",
            "https://a?b",
            "https://a:99999",
            "https://a:",
            "https://[::1",
            "",
            "http://example.com\\@127.0.0.1",
        ];
        for text in bad {
            assert!(url(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_password_in_a_url_is_not_repeated() {
        let error = Url::parse("https://user:hunter2@example.com", &Context::default()).unwrap_err();
        assert!(!error.to_string().contains("hunter2"));
    }
}
