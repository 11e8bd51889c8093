//! One run of a machine at Vercel.

use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use moltis_agent_protocol::tar::{BLOCK, Entry as TarEntry, Kind, padding};

use super::client::Vercel;
use super::wire::{Command, Policy, Session};
use crate::http::Failure;
use crate::journal::now_millis;
use crate::machine::{Machine, Output, Run};

/// One run of a machine.
pub struct VercelMachine {
    vercel: Arc<Vercel>,
    session: String,
    /// When the provider ends it.
    ends: tokio::sync::Mutex<Instant>,
    /// The hosts that it was last let reach; absent: nobody knows, or everything.
    allowed: tokio::sync::Mutex<Option<Vec<String>>>,
    /// Whether it takes such a list.
    takes_list: bool,
}

impl VercelMachine {
    /// A run that is there, with this much of its time left at most.
    pub fn new(vercel: &Arc<Vercel>, session: &Session, left: Duration) -> Arc<Self> {
        let told = session.network_policy.as_ref();
        Arc::new(Self {
            vercel: Arc::clone(vercel),
            session: session.id.clone(),
            ends: tokio::sync::Mutex::new(Instant::now() + left),
            allowed: tokio::sync::Mutex::new(told.filter(|told| told.is(&Policy::NONE)).map(|_| Vec::new())),
            takes_list: !told.is_some_and(|told| told.is(&Policy::ALL)),
        })
    }

    /// The provider's name for it.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Starts a program, as the machine's user or as root.
    pub async fn command(
        &self,
        argv: Vec<String>,
        env: &[(String, String)],
        within: Duration,
        sudo: bool,
    ) -> Result<Box<dyn Output>, Failure> {
        let Some((program, args)) = argv.split_first() else {
            return Err(Failure::Unlike("nothing is to be run".to_owned()));
        };
        let command = Command {
            command: program,
            args,
            env: env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            sudo,
            wait: Some(true),
            logs: Some(true),
            timeout: Some(u64::try_from(within.as_millis()).unwrap_or(u64::MAX)),
        };
        Ok(Box::new(self.vercel.command(&self.session, &command).await?))
    }
}

#[async_trait]
impl Machine for VercelMachine {
    async fn run(&self, run: Run) -> Result<Box<dyn Output>, Failure> {
        self.command(run.argv, &run.env, run.within, false).await
    }

    async fn detach(&self, _: &str, run: Run) -> Result<(), Failure> {
        let Some((program, args)) = run.argv.split_first() else {
            return Err(Failure::Unlike("nothing is to be run".to_owned()));
        };
        let command = Command {
            command: program,
            args,
            env: run.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect(),
            sudo: false,
            wait: None,
            logs: None,
            timeout: None,
        };
        self.vercel.detach(&self.session, &command).await
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
        let policy = match hosts {
            [] => Policy::NONE,
            hosts => Policy::These { allow: hosts.to_vec() },
        };
        let session = self.vercel.policy(&self.session, &policy).await?;
        if !session.network_policy.is_some_and(|told| told.is(&policy)) {
            return Err(Failure::Unlike("the network policy is another than was asked for".to_owned()));
        }
        *allowed = Some(hosts.to_vec());
        Ok(())
    }

    async fn put(&self, files: Vec<(String, Bytes)>) -> Result<(), Failure> {
        let archive = archive(&files).map_err(|error| Failure::Unlike(error.to_string()))?;
        self.vercel.write(&self.session, archive).await
    }

    async fn lives(&self) -> Result<bool, Failure> {
        match self.vercel.session(&self.session).await {
            Ok(session) => Ok(matches!(session.status.as_str(), "pending" | "running")),
            Err(failure) if matches!(failure.status(), Some(404 | 410)) => Ok(false),
            Err(failure) => Err(failure),
        }
    }

    async fn keep(&self, time: Duration) -> Result<(), Failure> {
        let mut ends = self.ends.lock().await;
        let left = ends.saturating_duration_since(Instant::now());
        if left >= time {
            return Ok(());
        }
        let more = time - left + Duration::from_secs(60);
        let millis = u64::try_from(more.as_millis()).unwrap_or(u64::MAX).max(1000);
        match self.vercel.extend(&self.session, millis).await {
            Ok(_) => {
                *ends = (*ends).max(Instant::now()) + more;
                Ok(())
            }
            // The plan gives no more: what there is is used up.
            Err(Failure::Answer { status: 400 | 402 | 403, .. }) if left > Duration::ZERO => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// Files as the provider takes them: names below the root, regular files alone.
fn archive(files: &[(String, Bytes)]) -> std::io::Result<Bytes> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mtime = i64::try_from(now_millis() / 1000).unwrap_or_default();
    for (path, content) in files {
        let name = path.trim_start_matches('/').as_bytes();
        let size = content.len() as u64;
        let entry =
            TarEntry { kind: Kind::File, name, target: b"", mode: 0o600, uid: 0, gid: 0, size, mtime };
        let mut head = Vec::new();
        entry.write(&mut head);
        gzip.write_all(&head)?;
        gzip.write_all(content)?;
        gzip.write_all(&[0; BLOCK][..padding(size)])?;
    }
    gzip.write_all(&[0; 2 * BLOCK])?;
    gzip.finish().map(Bytes::from)
}
