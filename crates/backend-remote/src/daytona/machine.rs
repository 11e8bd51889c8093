//! One sandbox at Daytona as a machine: programs in sessions of its toolbox, files by upload.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agentless::{hex, is_name, random_bytes};
use moltis_sandbox::Lifetime;
use tokio::sync::Mutex;

use super::backend::minutes;
use super::logs::Logs;
use super::toolbox::Toolbox;
use super::wire::Told;
use crate::http::Failure;
use crate::machine::{Machine, Output, Run};

/// A sandbox.
pub struct DaytonaMachine {
    toolbox: Arc<Toolbox>,
    /// Minutes without use after which it stops (0: never).
    stops_after: Mutex<u64>,
    seen: Mutex<Instant>,
    /// The hosts that it was last let reach; absent: nobody knows, or everything.
    allowed: Mutex<Option<Vec<String>>>,
    /// Whether it takes such a list.
    takes_list: bool,
}

impl DaytonaMachine {
    /// One that was just seen to run.
    pub fn new(toolbox: Arc<Toolbox>, told: &Told) -> Self {
        let listed = told.domain_allow_list.as_deref().is_some_and(|list| !list.is_empty());
        Self {
            toolbox,
            stops_after: Mutex::new(told.stops_after()),
            seen: Mutex::new(Instant::now()),
            allowed: Mutex::new(told.network_block_all.then(Vec::new)),
            takes_list: told.network_block_all || listed,
        }
    }

    /// What runs commands in it.
    pub fn toolbox(&self) -> &Arc<Toolbox> {
        &self.toolbox
    }
}

#[async_trait]
impl Machine for DaytonaMachine {
    async fn run(&self, run: Run) -> Result<Box<dyn Output>, Failure> {
        let line = line(&run)?;
        let session = format!("moltis-{}", hex(&random()?));
        self.toolbox.begin(&session, run.quiet).await?;
        let command = match self.toolbox.run(&session, &line, run.quiet).await {
            Ok(command) => command,
            Err(failure) => {
                // What may have begun there is somebody else's to end; the session holds nothing then.
                let (toolbox, session) = (Arc::clone(&self.toolbox), session);
                tokio::spawn(async move { toolbox.end(&session).await });
                return Err(failure);
            }
        };
        Ok(Box::new(Logs::new(Arc::clone(&self.toolbox), session, command)))
    }

    async fn detach(&self, name: &str, run: Run) -> Result<(), Failure> {
        // The session stays, since the provider may end what it started with it.
        let (line, session) = (line(&run)?, kept(name));
        self.toolbox.begin(&session, run.quiet).await?;
        match self.toolbox.run(&session, &line, run.quiet).await {
            Ok(_) => Ok(()),
            Err(failure) => {
                let toolbox = Arc::clone(&self.toolbox);
                tokio::spawn(async move { toolbox.end(&session).await });
                Err(failure)
            }
        }
    }

    async fn let_go(&self, name: &str) {
        // What is left is ended with the sandbox.
        let _ = self.toolbox.end(&kept(name)).await;
    }

    fn takes_list(&self) -> bool {
        self.takes_list
    }

    async fn allow(&self, hosts: &[String]) -> Result<(), Failure> {
        let mut allowed = self.allowed.lock().await;
        if allowed.as_deref() == Some(hosts) {
            return Ok(());
        }
        *allowed = None;
        let list = hosts.join(",");
        let (block, list) = if hosts.is_empty() { (true, None) } else { (false, Some(list.as_str())) };
        let told = self.toolbox.daytona().network(self.toolbox.id(), block, list).await?;
        // One that forgot the list would let everything through.
        let is_so = told.network_block_all == block
            && (block || told.domain_allow_list.as_deref().is_some_and(|told| same(told, hosts)));
        if !is_so {
            let _ = self.toolbox.daytona().network(self.toolbox.id(), true, None).await;
            return Err(Failure::Unlike("the network is another than was asked for".to_owned()));
        }
        *allowed = Some(hosts.to_vec());
        Ok(())
    }

    async fn put(&self, files: Vec<(String, Bytes)>) -> Result<(), Failure> {
        self.toolbox.upload(&files).await
    }

    async fn lives(&self) -> Result<bool, Failure> {
        match self.toolbox.daytona().sandbox(self.toolbox.id()).await {
            Ok(told) => Ok(told.state() == "started"),
            Err(failure) if failure.status() == Some(404) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn ends_after(&self, lifetime: Lifetime) -> Result<(), Failure> {
        let (minutes, _) = minutes(lifetime);
        let mut stops_after = self.stops_after.lock().await;
        if *stops_after == minutes {
            return Ok(());
        }
        let told = self.toolbox.daytona().stop_after(self.toolbox.id(), minutes).await?;
        if told.stops_after() != minutes {
            return Err(Failure::Unlike("its time without use is another than was asked for".to_owned()));
        }
        *stops_after = minutes;
        Ok(())
    }

    async fn keep(&self, _: Duration) -> Result<(), Failure> {
        let fresh = fresh(*self.stops_after.lock().await);
        let mut seen = self.seen.lock().await;
        if seen.elapsed() < fresh {
            return Ok(());
        }
        if !self.lives().await? {
            return Err(Failure::Answer {
                status: 410,
                code: Some("sandbox_not_started".to_owned()),
                message: "the sandbox does not run".to_owned(),
                retry_after: None,
            });
        }
        self.toolbox.daytona().used(self.toolbox.id()).await?;
        *seen = Instant::now();
        Ok(())
    }

    async fn remind(&self, _: Duration) -> Result<(), Failure> {
        // That it was found a moment ago is no use of it.
        let mut seen = self.seen.lock().await;
        self.toolbox.daytona().used(self.toolbox.id()).await?;
        *seen = Instant::now();
        Ok(())
    }
}

/// For how long after it was last seen to run, or told that it is in use, it is not told so again: half of its time, and
/// less than the time between two reminders where that is short.
fn fresh(stops_after: u64) -> Duration {
    Duration::from_secs(stops_after.saturating_mul(30))
        .clamp(Duration::from_secs(25), Duration::from_secs(600))
}

/// Whether a list as it is told holds these hosts and no others.
fn same(told: &str, hosts: &[String]) -> bool {
    let mut told: Vec<&str> = told.split(',').map(str::trim).filter(|host| !host.is_empty()).collect();
    told.sort_unstable();
    let mut hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    hosts.sort_unstable();
    told == hosts
}

/// The session of a program that goes on by itself.
fn kept(name: &str) -> String {
    format!("moltis-kept-{name}")
}

fn random() -> Result<[u8; 16], Failure> {
    random_bytes().map_err(|error| Failure::Unlike(error.to_string()))
}

/// A program as a line for the shell of a session. Variables are set before it, and so are no arguments of any process;
/// it is in a session of the kernel's own, so that what it leaves behind does not end with the provider's.
fn line(run: &Run) -> Result<String, Failure> {
    // Within brackets it leads no group of processes, as whoever begins a session of the kernel's must not.
    let mut line = "s=; command -v setsid >/dev/null 2>&1 && s=setsid; (".to_owned();
    for (name, value) in &run.env {
        if !is_name(name) {
            return Err(Failure::Unlike(format!(
                "the variable {} has a name that no shell takes",
                name.chars().map(|c| if c.is_control() { ' ' } else { c }).take(100).collect::<String>()
            )));
        }
        line.push_str(&format!("{name}={} ", quoted(value)));
    }
    line.push_str("$s ");
    let argv: Vec<String> = run.argv.iter().map(|word| quoted(word)).collect();
    line.push_str(&argv.join(" "));
    // The shell's own input is the provider's way to send the next line.
    line.push_str(" </dev/null; exit $?)");
    Ok(line)
}

/// A word that means itself to every shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_means_itself_to_a_shell() {
        let words =
            ["printf", "[%s]", "a b", "it's", "$HOME `id` \\ \"x\"", "line\nbreak", "", "!1", "-n", "ж*?~"];
        let run = Run {
            argv: words.map(str::to_owned).to_vec(),
            env: vec![("A".into(), "1 2'3".into()), ("LC_ALL".into(), "C".into())],
            within: Duration::from_secs(1),
            quiet: false,
        };
        for shell in ["sh", "bash"] {
            let said = std::process::Command::new(shell).arg("-c").arg(line(&run).unwrap()).output().unwrap();
            let want: String = words[2..].iter().map(|word| format!("[{word}]")).collect();
            assert_eq!(String::from_utf8(said.stdout).unwrap(), want, "{shell}");
        }
        let run = Run { argv: ["sh", "-c", "echo \"$A\""].map(str::to_owned).to_vec(), ..run };
        let said = std::process::Command::new("sh").arg("-c").arg(line(&run).unwrap()).output().unwrap();
        assert_eq!(said.stdout, b"1 2'3\n");
        assert!(line(&Run { env: vec![("a.b;id".into(), String::new())], ..run }).is_err());
    }
}
