//! Questions of one session to a person: one for all who wait for the same host and port.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::approval::{Approvals, Asked, Verdict};
use crate::audit::Protocol;
use crate::host::Target;

/// What waits for an answer.
pub(crate) struct Questions {
    approvals: Arc<dyn Approvals>,
    open: Arc<Mutex<HashMap<Target, Weak<Question>>>>,
}

/// One question. It is withdrawn when nobody waits for it any more.
struct Question {
    answer: watch::Receiver<Option<Verdict>>,
    task: AbortHandle,
}

impl Drop for Question {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Questions {
    pub(crate) fn new(approvals: Arc<dyn Approvals>) -> Self {
        Self { approvals, open: Arc::default() }
    }

    /// Asks, or joins those who wait for the same. A new question after an answer is another one.
    pub(crate) async fn ask(&self, target: &Target, protocol: Protocol, timeout: Duration) -> Verdict {
        let question = self.question(target, protocol, timeout);
        let mut answer = question.answer.clone();
        // Whoever asks keeps the time; this is for one who does not.
        let patience = timeout.saturating_add(Duration::from_secs(5));
        match tokio::time::timeout(patience, answer.wait_for(Option::is_some)).await {
            Ok(Ok(verdict)) => verdict.unwrap_or(Verdict::TimedOut),
            Ok(Err(_)) | Err(_) => Verdict::TimedOut,
        }
    }

    fn question(&self, target: &Target, protocol: Protocol, timeout: Duration) -> Arc<Question> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(question) = open.get(target).and_then(Weak::upgrade) {
            return question;
        }
        open.retain(|_, question| question.strong_count() > 0);
        let asked = Asked { host: target.host.to_string(), port: target.port, protocol, timeout };
        let (sender, answer) = watch::channel(None);
        let (approvals, all, key) = (Arc::clone(&self.approvals), Arc::clone(&self.open), target.clone());
        let task = tokio::spawn(async move {
            let verdict = approvals.ask(&asked).await;
            // Out of the list first: who comes after the word must not be told it.
            all.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
            let _ = sender.send(Some(verdict));
        });
        let question = Arc::new(Question { answer, task: task.abort_handle() });
        open.insert(target.clone(), Arc::downgrade(&question));
        question
    }
}
