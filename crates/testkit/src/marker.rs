//! A process that can be told from every other one on the machine: `sleep` for a length that nothing else sleeps.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::run::{eventually, shell};
use crate::{Fail, Place, ensure_eq};

static NEXT: AtomicU32 = AtomicU32::new(1);

/// A length of sleep that is used once.
#[derive(Clone, Debug)]
pub struct Marker(String);

impl Marker {
    /// A new one.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("7{:07}.{n:04}", std::process::id()))
    }

    /// The command line that carries it.
    pub fn sleep(&self) -> String {
        format!("sleep {}", self.0)
    }

    /// Host pids of the processes that carry it. Needs a shared kernel.
    pub fn on_host(&self) -> Vec<u32> {
        let wanted = format!("sleep\0{}\0", self.0);
        crate::process::pids()
            .into_iter()
            .filter(|pid| {
                std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted.as_bytes())
            })
            .collect()
    }

    /// How many processes of the sandbox carry it, seen from inside by another command.
    /// Where nothing is a process: how many operations the sandbox says that it has.
    pub async fn inside(&self, place: &Place) -> Result<usize, Fail> {
        if !place.processes {
            return Ok(place.activity().await?.operations as usize);
        }
        // The pattern is put together by the shell and read from a pipe, so that no command line but the right ones holds it.
        let (head, tail) = self.0.split_at(3);
        let line = format!(
            "a={head}; b={tail}; n=0; \
             for p in $(echo $a$b | grep -lzxF -f - /proc/[0-9]*/cmdline 2>/dev/null); do \
             if [ \"$(tr '\\0' ' ' 2>/dev/null <$p)\" = \"sleep $a$b \" ]; then n=$((n+1)); fi; \
             done; echo $n"
        );
        let ran = place.run(shell(line)).await?;
        ran.text()
            .trim()
            .parse()
            .map_err(|_| Fail::new(format!("counting processes failed: {:?} {:?}", ran.text(), ran.errors())))
    }

    /// How many processes carry it, by the host where it can see them and from inside; both must agree.
    pub async fn count(&self, place: &Place) -> Result<usize, Fail> {
        let inside = self.inside(place).await?;
        if place.shared_kernel {
            ensure_eq!(inside, self.on_host().len(), "processes seen inside and by the host");
        }
        Ok(inside)
    }

    /// Waits until so many processes carry it.
    pub async fn wait_for(&self, place: &Place, wanted: usize, within: Duration) -> Result<(), Fail> {
        let mut last = 0;
        let reached = eventually(within, async || {
            let seen = if place.shared_kernel { self.on_host().len() } else { self.inside(place).await? };
            // What is not a process is not counted one by one.
            Ok(if place.processes { seen == wanted } else { (seen > 0) == (wanted > 0) })
        })
        .await?;
        if !reached {
            last = self.inside(place).await?;
        }
        crate::ensure!(reached, "{last} processes carry the mark after {within:?}, expected {wanted}");
        Ok(())
    }
}
