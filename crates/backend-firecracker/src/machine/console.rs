//! What a machine's serial port and its process say: the end of it is kept while the machine begins, for the error if it
//! does not; then nobody listens any more, so that nothing it prints takes room anywhere.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Bytes that are kept.
const KEPT: usize = 16 * 1024;

/// Lines that are told.
const TOLD: usize = 6;

/// A machine's output. Dropping it closes it.
#[derive(Debug)]
pub struct Console {
    kept: Arc<Mutex<Vec<u8>>>,
    changed: watch::Receiver<u64>,
    reader: Option<JoinHandle<()>>,
}

impl Console {
    /// Listens to the end of this pipe.
    ///
    /// # Errors
    /// When it is no pipe, or descriptors run out.
    pub(super) fn of(output: OwnedFd) -> std::io::Result<Self> {
        rustix::io::ioctl_fionbio(output.as_fd(), true)?;
        let mut output = Receiver::from_owned_fd(output)?;
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (tell, changed) = watch::channel(0);
        let keeps = Arc::clone(&kept);
        let reader = tokio::spawn(async move {
            let mut buffer = vec![0; 4096];
            while let Ok(count @ 1..) = output.read(&mut buffer).await {
                let mut kept = keeps.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&buffer[..count]);
                let surplus = kept.len().saturating_sub(KEPT);
                kept.drain(..surplus);
                drop(kept);
                tell.send_modify(|total| *total += count as u64);
            }
        });
        Ok(Self { kept, changed, reader: Some(reader) })
    }

    /// Of a machine that another process started.
    pub(super) fn nobody() -> Self {
        Self { kept: Arc::default(), changed: watch::channel(0).1, reader: None }
    }

    /// The end of what was said so far.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.kept.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until something holds of what was said; `false` if it does not in time, or nothing more can come.
    pub async fn says(&self, holds: impl Fn(&str) -> bool, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut changed = self.changed.clone();
        loop {
            changed.borrow_and_update();
            if holds(&self.text()) {
                return true;
            }
            let left = until.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, changed.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return holds(&self.text()),
                Err(_) => return false,
            }
        }
    }

    /// The last lines of a process that is over, in one.
    pub async fn last_words(&self) -> String {
        // What it said is in the pipe; the end of it comes with the process's.
        self.says(|_| false, Duration::from_millis(500)).await;
        last_lines(&self.text())
    }

    /// The last lines so far, in one.
    pub fn words(&self) -> String {
        last_lines(&self.text())
    }

    /// Listens no more.
    pub fn close(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.abort();
        }
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        self.close();
    }
}

fn last_lines(text: &str) -> String {
    let clean = |line: &str| line.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned();
    let lines: Vec<_> = text.lines().map(clean).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(TOLD)..].join("; ")
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[tokio::test]
    async fn only_the_end_is_kept_and_the_last_lines_are_told() {
        let (output, mut theirs) = std::io::pipe().unwrap();
        let mut console = Console::of(output.into()).unwrap();
        let writer = std::thread::spawn(move || {
            for number in 0..10_000 {
                writeln!(theirs, "line {number}\u{1b}[0m").unwrap();
            }
        });
        assert!(console.says(|text| text.contains("line 9999"), Duration::from_secs(30)).await);
        writer.join().unwrap();
        assert_eq!(console.text().len(), KEPT);
        assert_eq!(
            console.last_words().await,
            "line 9994[0m; line 9995[0m; line 9996[0m; line 9997[0m; line 9998[0m; line 9999[0m"
        );
        console.close();
        assert_eq!(console.text(), "");
    }
}
