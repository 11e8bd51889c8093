//! Progress of a command, told to a client that asked for it: what it prints, and that it still runs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken};
use rmcp::{Peer, RoleServer};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Time between two notifications at least.
const PACE: Duration = Duration::from_millis(250);

/// Time after which it is said that a silent command still runs: clients give up on what says nothing for a minute.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);

/// Bytes of output that one notification carries at most: the last of them.
const MOST: usize = 2048;

/// Time that a client has to take the last notification.
const LAST: Duration = Duration::from_secs(5);

/// Tells a client how a call goes on. It does not hold the command back: what comes too fast is not told.
pub(crate) struct Progress {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

struct Shared {
    news: Mutex<News>,
    changed: Notify,
}

#[derive(Default)]
struct News {
    printed: Vec<u8>,
    is_over: bool,
}

impl Progress {
    /// For a client that wants to know. `total`: the time that the command may take.
    pub fn new(peer: Peer<RoleServer>, token: ProgressToken, total: Option<Duration>) -> Self {
        let shared = Arc::new(Shared { news: Mutex::default(), changed: Notify::new() });
        let task = tokio::spawn(tell(Arc::clone(&shared), peer, token, total));
        Self { shared, task }
    }

    /// It printed this.
    pub fn printed(&self, bytes: &[u8]) {
        let mut news = self.shared.news.lock().unwrap_or_else(PoisonError::into_inner);
        news.printed.extend_from_slice(&bytes[bytes.len().saturating_sub(MOST)..]);
        let over = news.printed.len().saturating_sub(MOST);
        news.printed.drain(..over);
        self.shared.changed.notify_one();
    }

    /// The answer comes next: nothing is told after it.
    pub async fn finish(mut self) {
        self.shared.news.lock().unwrap_or_else(PoisonError::into_inner).is_over = true;
        self.shared.changed.notify_one();
        let _ = tokio::time::timeout(LAST, &mut self.task).await;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn tell(shared: Arc<Shared>, peer: Peer<RoleServer>, token: ProgressToken, total: Option<Duration>) {
    let begun = Instant::now();
    let mut told = begun;
    let mut last = 0.0;
    loop {
        let waited = tokio::time::timeout(SIGN_OF_LIFE, shared.changed.notified()).await;
        if waited.is_ok() {
            // What comes meanwhile goes along; the end is not waited for.
            tokio::select! {
                () = tokio::time::sleep_until(told + PACE) => {}
                () = over(&shared) => {}
            }
        }
        let News { printed, is_over } =
            std::mem::take(&mut *shared.news.lock().unwrap_or_else(PoisonError::into_inner));
        if is_over && printed.is_empty() {
            return;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let message = match printed.is_empty() {
            true => format!("it runs for {seconds:.0} s and has printed nothing new"),
            false => String::from_utf8_lossy(&printed).into_owned(),
        };
        // It has to grow, whatever the clock says.
        last = if seconds > last { seconds } else { last + 0.001 };
        let mut param = ProgressNotificationParam::new(token.clone(), last);
        param.total = total.map(|total| total.as_secs_f64().max(last));
        param.message = Some(message);
        if peer.notify_progress(param).await.is_err() || is_over {
            return;
        }
        told = Instant::now();
    }
}

/// Waits until the command is over.
async fn over(shared: &Shared) {
    loop {
        if shared.news.lock().unwrap_or_else(PoisonError::into_inner).is_over {
            return;
        }
        shared.changed.notified().await;
    }
}
