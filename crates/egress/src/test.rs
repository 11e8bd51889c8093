//! What would be said of a host, without connecting to it.

use std::net::IpAddr;

use serde::Serialize;

use crate::audit::{Action, Source};
use crate::host::{Host, Target};
use crate::judge::{Judge, Judgement};
use crate::policy::{OnUnknown, Policy};
use crate::proxy::Proxy;
use crate::refusal::Refusal;
use crate::session::described;

/// What would be said of a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    /// The host as it is compared.
    pub domain: String,
    /// The port.
    pub port: u16,
    /// What would be said.
    pub action: Action,
    /// What decides.
    pub source: Source,
    /// The code of the refusal, or of why it could not be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// The pattern that decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// Why, for people.
    pub why: String,
    /// Whether a person would be asked first.
    pub asks: bool,
    /// What the name resolves to here.
    pub addresses: Vec<TestedAddress>,
    /// The proxy in front of ours, if the connection would go through it. It resolves names itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub upstream: Option<String>,
}

/// An address of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TestedAddress {
    /// The address.
    pub address: IpAddr,
    /// Why it would not be connected to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

impl Proxy {
    /// What would be said of a host under a policy. A name that may be let through is resolved; nothing is connected to,
    /// nobody asked, and nothing written down.
    ///
    /// # Errors
    /// The host is none.
    pub async fn test(&self, policy: &Policy, host: &str, port: u16) -> Result<Tested, Refusal> {
        let host: Host = host.parse().map_err(|why: crate::host::NoHost| Refusal::Host(why.0))?;
        let target = Target { host, port };
        let judge = Judge::new(policy);
        let mut tested = Tested {
            domain: target.host.to_string(),
            port,
            action: Action::Allowed,
            source: Source::Unknown,
            code: None,
            pattern: None,
            why: String::new(),
            asks: false,
            addresses: Vec::new(),
            upstream: None,
        };
        let refused = |mut tested: Tested, why: &Refusal| {
            tested.action = why.action();
            tested.source = why.decided_by();
            tested.code = Some(why.code());
            tested.why = why.to_string();
            tested
        };
        match judge.host(&target.host, port) {
            Judgement::Allowed(rule) => {
                (tested.source, tested.pattern) = described(&rule);
                tested.why = format!("{} lets it through", rule.pattern);
            }
            Judgement::Denied(rule) => {
                tested.pattern = Some(rule.pattern.to_string());
                let pattern = rule.pattern.to_string();
                let mut tested = refused(tested, &Refusal::Denied(rule));
                tested.why = format!("{pattern} forbids it");
                return Ok(tested);
            }
            Judgement::Refused(kind) => return Ok(refused(tested, &Refusal::Address(kind))),
            Judgement::Unknown => {
                tested.asks = matches!(judge.on_unknown, OnUnknown::Ask(_));
                return Ok(refused(tested, &Refusal::Unknown));
            }
        }
        if let Err(why) = self.shared.see_not_upstream(&target).await {
            return Ok(refused(tested, &why));
        }
        let upstream = self.shared.through_upstream(&target);
        if upstream {
            tested.upstream = self.upstream();
        }
        let found = match &target.host {
            Host::Address(address) => Ok(vec![*address]),
            Host::Name(name) => self.shared.resolve(name, None).await,
        };
        let addresses = match found {
            Ok(addresses) => addresses,
            Err(_) if upstream => return Ok(tested),
            Err(why) => return Ok(refused(tested, &why)),
        };
        let said = |address: IpAddr| TestedAddress {
            address,
            refused: self.shared.reach(&judge, address, port).err().map(|why| why.to_string()),
        };
        tested.addresses = addresses.iter().map(|address| said(address.to_canonical())).collect();
        if let Err(why) = self.shared.reachable(&judge, addresses, port) {
            return Ok(refused(tested, &why));
        }
        Ok(tested)
    }
}
