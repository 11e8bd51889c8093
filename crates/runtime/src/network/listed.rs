//! A sandbox of a provider that keeps a list of hosts itself: before each command it is told what may be reached now.

use std::sync::Arc;

use async_trait::async_trait;
use moltis_egress::{OnUnknown, Policy};
use moltis_sandbox::exec::ProcessId;
use moltis_sandbox::{
    Activity, Diagnosis, Duplex, Error, Exec, ExecRequest, Files, Forwarder, GuestPath, HostPattern, Outcome,
    ProcessInfo, Result, Sandbox, SandboxId, Usage,
};

use super::standing::Behind;

/// The sandbox, and whose list it is; without somebody nothing is reached.
pub struct Listed {
    sandbox: Arc<dyn Sandbox>,
    behind: Option<Behind>,
}

impl Listed {
    pub fn new(sandbox: Arc<dyn Sandbox>, behind: Option<Behind>) -> Self {
        Self { sandbox, behind }
    }

    /// What may be reached now.
    async fn hosts(&self) -> Result<Vec<String>> {
        match &self.behind {
            None => Ok(Vec::new()),
            Some(behind) if behind.is_of_another_network().await? => Ok(Vec::new()),
            Some(behind) => hosts(&behind.runtime.policy(&behind.session).await?),
        }
    }
}

fn refused(key: &str, value: &str, why: &str) -> Error {
    Error::Refused(
        Diagnosis::new("demand-not-kept", format!("the provider cannot keep `{key}` = {value}"))
            .cause(why)
            .fix(format!("change `{key}`, use another backend, or `network = \"open\"`")),
    )
}

/// The names that a provider is to let programs reach.
///
/// # Errors
/// `demand-not-kept` for what its list cannot say.
pub fn hosts(policy: &Policy) -> Result<Vec<String>> {
    if matches!(policy.on_unknown, OnUnknown::Ask(_)) {
        return Err(refused("on_unknown", "ask", "its list is judged there, where nobody can be asked"));
    }
    let mut hosts = Vec::new();
    for rule in &policy.trusted {
        let pattern = &rule.pattern;
        let name = pattern.to_string();
        let no = |why| Err(refused("trusted_domains", &name, why));
        match &pattern.host {
            HostPattern::Any => return no("its list names hosts, and has no word for all of them"),
            HostPattern::Address(_) | HostPattern::Block(..) => return no("its list takes names of hosts"),
            HostPattern::Name(name) | HostPattern::Below(name) if !name.is_ascii() => {
                return no("its list takes names in ASCII: write the form that begins with `xn--`");
            }
            _ if pattern.port.is_some() => return no("its list knows no ports"),
            HostPattern::Name(_) | HostPattern::Below(_) => {}
        }
        let mut denied = policy.denied.iter().map(|rule| &rule.pattern);
        if denied.clone().any(|denied| denied.port.is_none() && denied.host.covers(&pattern.host)) {
            continue;
        }
        if let Some(denied) =
            denied.find(|denied| pattern.host.covers(&denied.host) || denied.host.covers(&pattern.host))
        {
            let why = format!("its list has no exceptions, and `{name}` is trusted");
            return Err(refused("denied_domains", &denied.to_string(), &why));
        }
        hosts.push(name);
    }
    hosts.sort();
    hosts.dedup();
    Ok(hosts)
}

#[async_trait]
impl Sandbox for Listed {
    fn id(&self) -> &SandboxId {
        self.sandbox.id()
    }

    fn is_new(&self) -> bool {
        self.sandbox.is_new()
    }

    fn directory(&self) -> Option<GuestPath> {
        self.sandbox.directory()
    }

    async fn activity(&self) -> Result<Activity> {
        self.sandbox.activity().await
    }

    async fn usage(&self) -> Result<Option<Usage>> {
        self.sandbox.usage().await
    }

    /// Unless the provider has taken the list the command does not run.
    async fn exec(&self, request: ExecRequest) -> Result<Exec> {
        self.sandbox.allow(&self.hosts().await?).await?;
        self.sandbox.exec(request).await
    }

    async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        self.sandbox.processes().await
    }

    async fn attach(&self, process: ProcessId, stdout: u64, stderr: u64, follow: bool) -> Result<Exec> {
        self.sandbox.attach(process, stdout, stderr, follow).await
    }

    async fn stop(&self, process: ProcessId) -> Result<Outcome> {
        self.sandbox.stop(process).await
    }

    fn files(&self) -> &dyn Files {
        self.sandbox.files()
    }

    async fn connect(&self, port: u16) -> Result<Box<dyn Duplex>> {
        self.sandbox.connect(port).await
    }

    async fn listen(&self, port: u16) -> Result<Box<dyn Forwarder>> {
        self.sandbox.listen(port).await
    }

    async fn egress(&self) -> Result<Box<dyn Forwarder>> {
        self.sandbox.egress().await
    }

    fn takes_list(&self) -> bool {
        self.sandbox.takes_list()
    }

    async fn allow(&self, hosts: &[String]) -> Result<()> {
        self.sandbox.allow(hosts).await
    }

    async fn close(&self) -> Result<()> {
        self.sandbox.close().await
    }

    async fn close_if_idle(&self) -> Result<bool> {
        self.sandbox.close_if_idle().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use moltis_egress::{Origin, Rule};

    use super::*;

    fn policy(trusted: &[&str], denied: &[&str]) -> Policy {
        let rules = |names: &[&str]| {
            names.iter().map(|name| Rule { pattern: name.parse().unwrap(), origin: Origin::Config }).collect()
        };
        Policy { trusted: rules(trusted), denied: rules(denied), on_unknown: OnUnknown::Deny }
    }

    fn refusal(policy: &Policy) -> String {
        let error = hosts(policy).unwrap_err();
        assert_eq!((error.kind(), error.code()), ("refused", "demand-not-kept"));
        error.diagnosis().message.clone()
    }

    #[test]
    fn a_list_of_names_is_handed_on_and_what_it_cannot_say_is_refused() {
        let all = policy(&["b.org", "*.a.org", "b.org"], &["other.org", "evil.b.org"]);
        assert_eq!(hosts(&all).unwrap(), ["*.a.org", "b.org"]);
        assert_eq!(hosts(&policy(&[], &[])).unwrap(), Vec::<String>::new());
        assert_eq!(hosts(&policy(&["x.a.org", "c.org"], &["*.a.org"])).unwrap(), ["c.org"]);
        for trusted in ["*", "10.0.0.1", "10.0.0.0/8", "a.org:443"] {
            assert!(refusal(&policy(&[trusted], &[])).contains(trusted), "{trusted}");
        }
        assert!(refusal(&policy(&["*.a.org"], &["x.a.org"])).contains("`denied_domains` = x.a.org"));
        assert!(refusal(&policy(&["a.org"], &["a.org:80"])).contains("`denied_domains` = a.org:80"));
        let mut asking = policy(&["a.org"], &[]);
        asking.on_unknown = OnUnknown::Ask(Duration::from_secs(1));
        assert!(refusal(&asking).contains("on_unknown"));
    }
}
