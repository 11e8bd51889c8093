//! Judging hosts and addresses by a policy.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use moltis_sandbox::HostPattern;

use crate::address::{self, Kind};
use crate::host::{Host, a_label};
use crate::policy::{OnUnknown, Policy, Rule};

/// What a policy says of a host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// This rule lets it through.
    Allowed(Arc<Rule>),
    /// This rule forbids it.
    Denied(Arc<Rule>),
    /// It is an address that is let through only if it is listed itself.
    Refused(Kind),
    /// No rule names it.
    Unknown,
}

/// Why an address that a name stands for is not connected to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Barred {
    /// A rule forbids it.
    Denied(Arc<Rule>),
    /// It is not listed.
    Kind(Kind),
}

impl Policy {
    /// What is said of a host before any name is resolved. The addresses of a name are judged besides.
    pub fn judge(&self, host: &Host, port: u16) -> Judgement {
        Judge::new(self).host(host, port)
    }
}

/// A policy made ready to be asked often.
#[derive(Debug, Default)]
pub(crate) struct Judge {
    trusted: Table,
    denied: Table,
    pub(crate) on_unknown: OnUnknown,
    /// What it was made from.
    pub(crate) policy: Policy,
}

impl Judge {
    pub(crate) fn new(policy: &Policy) -> Self {
        Self {
            trusted: Table::new(&policy.trusted),
            denied: Table::new(&policy.denied),
            on_unknown: policy.on_unknown,
            policy: policy.clone(),
        }
    }

    pub(crate) fn host(&self, host: &Host, port: u16) -> Judgement {
        match host {
            Host::Name(name) => {
                if let Some(rule) = self.denied.name(name, port) {
                    return Judgement::Denied(rule);
                }
                match self.trusted.name(name, port) {
                    Some(rule) => Judgement::Allowed(rule),
                    None => Judgement::Unknown,
                }
            }
            Host::Address(address) => {
                if let Some(rule) = self.denied.every_form(*address, port).or_else(|| self.denied.any(port)) {
                    return Judgement::Denied(rule);
                }
                if let Some(rule) = self.trusted.address(*address, port) {
                    return Judgement::Allowed(rule);
                }
                if let Some(kind) = kind(*address) {
                    return Judgement::Refused(kind);
                }
                match self.trusted.any(port) {
                    Some(rule) => Judgement::Allowed(rule),
                    None => Judgement::Unknown,
                }
            }
        }
    }

    /// Whether a rule forbids this host, whatever else is said of it.
    pub(crate) fn denies(&self, host: &Host, port: u16) -> Option<Arc<Rule>> {
        match self.host(host, port) {
            Judgement::Denied(rule) => Some(rule),
            _ => None,
        }
    }

    /// Whether an address may be connected to for a host that is let through.
    pub(crate) fn address(&self, address: IpAddr, port: u16) -> Result<(), Barred> {
        if let Some(rule) = self.denied.every_form(address, port) {
            return Err(Barred::Denied(rule));
        }
        if self.trusted.address(address, port).is_some() {
            return Ok(());
        }
        match kind(address) {
            Some(kind) => Err(Barred::Kind(kind)),
            None => Ok(()),
        }
    }
}

fn kind(address: IpAddr) -> Option<Kind> {
    address::kind(address).or_else(|| address::is_this_machine(address).then_some(Kind::ThisMachine))
}

type Rules = Vec<Arc<Rule>>;

/// One list, found by what it names.
#[derive(Debug, Default)]
pub(crate) struct Table {
    names: HashMap<String, Rules>,
    below: HashMap<String, Rules>,
    addresses: HashMap<IpAddr, Rules>,
    blocks: Vec<(u128, u128, Arc<Rule>)>,
    any: Rules,
}

fn fits(rules: &[Arc<Rule>], port: u16) -> Option<Arc<Rule>> {
    rules.iter().find(|rule| rule.pattern.port.is_none_or(|only| only == port)).cloned()
}

/// Both families in one number: IPv4 as it is mapped into IPv6.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Table {
    pub(crate) fn new(rules: &[Rule]) -> Self {
        let mut table = Self::default();
        for rule in rules {
            let rule = Arc::new(rule.clone());
            match &rule.pattern.host {
                HostPattern::Any => table.any.push(rule),
                // A name without a form for comparing is the name of no host.
                HostPattern::Name(name) => {
                    if let Ok(name) = a_label(name) {
                        table.names.entry(name).or_default().push(rule);
                    }
                }
                HostPattern::Below(name) => {
                    if let Ok(name) = a_label(name) {
                        table.below.entry(name).or_default().push(rule);
                    }
                }
                HostPattern::Address(address) => {
                    table.addresses.entry(address.to_canonical()).or_default().push(rule);
                }
                HostPattern::Block(address, prefix) => {
                    let family = if address.is_ipv4() { 96 } else { 0 };
                    let free = 128 - (family + u32::from(*prefix)).min(128);
                    let mask = u128::MAX.checked_shl(free).unwrap_or(0);
                    table.blocks.push((number(*address) & mask, mask, rule));
                }
            }
        }
        table
    }

    pub(crate) fn any(&self, port: u16) -> Option<Arc<Rule>> {
        fits(&self.any, port)
    }

    pub(crate) fn name(&self, name: &str, port: u16) -> Option<Arc<Rule>> {
        if let Some(rule) = self.names.get(name).and_then(|rules| fits(rules, port)) {
            return Some(rule);
        }
        if !self.below.is_empty() {
            let mut rest = name;
            while let Some((_, above)) = rest.split_once('.') {
                if let Some(rule) = self.below.get(above).and_then(|rules| fits(rules, port)) {
                    return Some(rule);
                }
                rest = above;
            }
        }
        self.any(port)
    }

    pub(crate) fn address(&self, address: IpAddr, port: u16) -> Option<Arc<Rule>> {
        let address = address.to_canonical();
        if let Some(rule) = self.addresses.get(&address).and_then(|rules| fits(rules, port)) {
            return Some(rule);
        }
        let number = number(address);
        self.blocks
            .iter()
            .find(|(base, mask, rule)| {
                // `::/0` is about IPv6 and says nothing of IPv4.
                let same = matches!(rule.pattern.host, HostPattern::Block(base, prefix)
                    if address.is_ipv6() || base.is_ipv4() || prefix >= 96);
                same && number & mask == *base && rule.pattern.port.is_none_or(|only| only == port)
            })
            .map(|(_, _, rule)| Arc::clone(rule))
    }

    /// As [`address`](Self::address), also by the IPv4 addresses that an IPv6 one stands for.
    fn every_form(&self, address: IpAddr, port: u16) -> Option<Arc<Rule>> {
        self.address(address, port).or_else(|| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => {
                address::embedded(v6).into_iter().flatten().find_map(|v4| self.address(v4.into(), port))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Origin;

    fn rules(patterns: &[&str]) -> Vec<Rule> {
        let rule = |text: &&str| Rule { pattern: text.parse().unwrap(), origin: Origin::Config };
        patterns.iter().map(rule).collect()
    }

    fn said(trusted: &[&str], denied: &[&str], host: &str, port: u16) -> String {
        let policy =
            Policy { trusted: rules(trusted), denied: rules(denied), on_unknown: OnUnknown::default() };
        match policy.judge(&host.parse().unwrap(), port) {
            Judgement::Allowed(rule) => format!("+{}", rule.pattern),
            Judgement::Denied(rule) => format!("-{}", rule.pattern),
            Judgement::Refused(kind) => kind.to_string(),
            Judgement::Unknown => "?".into(),
        }
    }

    #[test]
    fn names() {
        assert_eq!(said(&[], &[], "example.com", 443), "?");
        assert_eq!(said(&["example.com"], &[], "EXAMPLE.com.", 443), "+example.com");
        assert_eq!(said(&["example.com"], &[], "www.example.com", 443), "?");
        assert_eq!(said(&["example.com"], &[], "notexample.com", 443), "?");
        assert_eq!(said(&["*.example.com"], &[], "example.com", 443), "?");
        assert_eq!(said(&["*.example.com"], &[], "a.b.example.com", 443), "+*.example.com");
        assert_eq!(said(&["*.example.com"], &[], "notexample.com", 443), "?");
        assert_eq!(said(&["example.com:443"], &[], "example.com", 80), "?");
        assert_eq!(said(&["example.com:443", "example.com:80"], &[], "example.com", 80), "+example.com:80");
        assert_eq!(said(&["bücher.example"], &[], "xn--bcher-kva.example", 1), "+bücher.example");
        assert_eq!(said(&["*.bücher.example"], &[], "a.BÜCHER.example", 1), "+*.bücher.example");
        assert_eq!(said(&["*"], &["*.evil.example"], "a.evil.example", 1), "-*.evil.example");
        assert_eq!(said(&["a.evil.example"], &["*.evil.example"], "a.evil.example", 1), "-*.evil.example");
        assert_eq!(said(&["*"], &["*:25"], "example.com", 25), "-*:25");
        assert_eq!(said(&["*:443"], &[], "example.com", 443), "+*:443");
    }

    #[test]
    fn literal_addresses() {
        assert_eq!(said(&["*"], &[], "8.8.8.8", 443), "+*");
        assert_eq!(said(&[], &[], "8.8.8.8", 443), "?");
        assert_eq!(said(&["*"], &[], "127.0.0.1", 443), "loopback");
        assert_eq!(said(&["*"], &[], "::1", 443), "loopback");
        assert_eq!(said(&["*"], &["8.8.0.0/16"], "8.8.8.8", 443), "-8.8.0.0/16");
        assert_eq!(said(&["*"], &["8.8.0.0/16"], "64:ff9b::8.8.8.8", 443), "-8.8.0.0/16");
        assert_eq!(said(&["127.0.0.1:80"], &[], "127.0.0.1", 80), "+127.0.0.1:80");
        assert_eq!(said(&["127.0.0.1:80"], &[], "127.0.0.1", 81), "loopback");
        assert_eq!(said(&["10.0.0.0/8"], &["10.1.0.0/16"], "10.1.2.3", 81), "-10.1.0.0/16");
        assert_eq!(said(&["10.0.0.0/8"], &[], "::ffff:10.1.2.3", 81), "+10.0.0.0/8");
        assert_eq!(said(&["0.0.0.0/0"], &[], "10.1.2.3", 81), "+0.0.0.0/0");
        assert_eq!(said(&["::/0"], &[], "10.1.2.3", 81), "private");
        assert_eq!(said(&["::/0"], &[], "fd00::1", 81), "+::/0");
        assert_eq!(said(&["fd00::/8"], &[], "fd12::1", 81), "+fd00::/8");
        assert_eq!(said(&["*"], &["*"], "8.8.8.8", 443), "-*");
    }

    #[test]
    fn addresses_of_names() {
        let judge = |trusted: &[&str], denied: &[&str]| {
            Judge::new(&Policy {
                trusted: rules(trusted),
                denied: rules(denied),
                on_unknown: OnUnknown::default(),
            })
        };
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        assert_eq!(judge(&["*"], &[]).address(address("8.8.8.8"), 1), Ok(()));
        assert_eq!(judge(&["*"], &[]).address(address("10.0.0.1"), 1), Err(Barred::Kind(Kind::Private)));
        assert_eq!(judge(&["10.0.0.0/8"], &[]).address(address("10.0.0.1"), 1), Ok(()));
        assert_eq!(
            judge(&["*"], &["8.8.8.8"]).address(address("8.8.8.8"), 1),
            Err(Barred::Denied(Arc::new(rules(&["8.8.8.8"]).remove(0))))
        );
    }
}
