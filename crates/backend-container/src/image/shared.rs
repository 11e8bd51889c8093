//! One run for all who wait for the same thing in this process. It ends when the last of them goes away.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use moltis_sandbox::{BuildProgress, BuildSink, Diagnosis, Error, Result};
use tokio::sync::{broadcast, watch};
use tokio::task::AbortHandle;

use super::progress::Teller;

/// Steps and lines that a slow onlooker may be behind before it misses some.
const BEHIND: usize = 512;

/// The runs that there are, by what they are for.
pub struct Runs<T>(Arc<Mutex<HashMap<String, Weak<Run<T>>>>>);

struct Run<T> {
    progress: broadcast::Sender<BuildProgress>,
    result: watch::Receiver<Option<Result<T>>>,
    task: Mutex<Option<AbortHandle>>,
}

impl<T> Drop for Run<T> {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task.take() {
            task.abort();
        }
    }
}

impl<T> Clone for Runs<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Default for Runs<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T: Clone + Send + Sync + 'static> Runs<T> {
    /// Waits for the run of this key, which `work` begins if there is none, and passes on what it tells. Says too
    /// whether this call began it. The result of one that is over is never given to a later call.
    pub async fn join<F>(
        &self,
        key: String,
        sink: &BuildSink,
        work: impl FnOnce(Teller) -> F,
    ) -> (Result<T>, bool)
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let (run, mut told, began) = self.enter(key, work);
        let mut result = run.result.clone();
        let ended = loop {
            tokio::select! {
                biased;
                progress = told.recv() => tell(sink, progress).await,
                ended = over(&mut result) => break ended,
            }
        };
        while let Ok(progress) = told.try_recv() {
            sink.tell(progress).await;
        }
        let broke =
            || Error::Unavailable(Diagnosis::new("image-build-failed", "the work on an image broke off"));
        (ended.unwrap_or_else(|| Err(broke())), began)
    }

    fn enter<F>(
        &self,
        key: String,
        work: impl FnOnce(Teller) -> F,
    ) -> (Arc<Run<T>>, broadcast::Receiver<BuildProgress>, bool)
    where
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let mut runs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        runs.retain(|_, run| run.strong_count() > 0);
        if let Some(run) = runs.get(&key).and_then(Weak::upgrade) {
            let told = run.progress.subscribe();
            return (run, told, false);
        }
        let (progress, told) = broadcast::channel(BEHIND);
        let (done, result) = watch::channel(None);
        let run = Arc::new(Run { progress: progress.clone(), result, task: Mutex::new(None) });
        let (weak, all) = (Arc::downgrade(&run), Arc::clone(&self.0));
        let (own, work) = (key.clone(), work(Teller::new(progress)));
        let task = tokio::spawn(async move {
            let result = work.await;
            let mut runs = all.lock().unwrap_or_else(PoisonError::into_inner);
            if runs.get(&own).is_some_and(|run| run.ptr_eq(&weak)) {
                runs.remove(&own);
            }
            drop(runs);
            // Nobody may wait any more.
            let _ = done.send(Some(result));
        });
        *run.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
        runs.insert(key, Arc::downgrade(&run));
        (run, told, true)
    }
}

/// The result of a run, once there is one; `None` if it broke off.
async fn over<T: Clone>(result: &mut watch::Receiver<Option<Result<T>>>) -> Option<Result<T>> {
    match result.wait_for(Option::is_some).await {
        Ok(ended) => ended.clone(),
        Err(_) => None,
    }
}

async fn tell(sink: &BuildSink, progress: std::result::Result<BuildProgress, broadcast::error::RecvError>) {
    match progress {
        Ok(progress) => sink.tell(progress).await,
        Err(broadcast::error::RecvError::Lagged(missed)) => {
            sink.tell(BuildProgress::Log(format!("… {missed} lines are not shown"))).await;
        }
        // The run itself holds the other end.
        Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    use super::*;

    struct OnDrop(Arc<AtomicU32>);

    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn those_who_wait_for_the_same_share_it_and_the_last_to_leave_ends_it() {
        let runs = Arc::new(Runs::<u32>::default());
        let (begun, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let wait = || {
            let (runs, begun, ended) = (Arc::clone(&runs), Arc::clone(&begun), OnDrop(Arc::clone(&ended)));
            tokio::spawn(async move {
                let work = |teller: Teller| async move {
                    let _ended = ended;
                    begun.fetch_add(1, Ordering::SeqCst);
                    teller.step("working");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    Ok(7)
                };
                let (sink, mut told) = BuildSink::channel();
                let joined = runs.join("k".into(), &sink, work).await;
                (joined, told.try_recv().ok())
            })
        };
        let (first, second) = (wait(), wait());
        tokio::time::sleep(Duration::from_millis(10)).await;
        first.abort();
        let ((result, began), _) = second.await.unwrap();
        assert_eq!((result, began, begun.load(Ordering::SeqCst)), (Ok(7), false, 1));
        // What is over is not given to a later one; the last that leaves ends it.
        ended.store(0, Ordering::SeqCst);
        let third = wait();
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(begun.load(Ordering::SeqCst), 2);
        third.abort();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(ended.load(Ordering::SeqCst), 1);
        assert!(runs.0.lock().unwrap().values().all(|run| run.strong_count() == 0));
    }

    #[tokio::test]
    async fn a_failure_is_told_to_all_and_not_kept() {
        let runs = Runs::<u32>::default();
        let fail = |_| async { Err(Error::Unavailable(Diagnosis::new("image-build-failed", "no"))) };
        let (sink, key) = (BuildSink::ignore(), || "k".to_owned());
        let (one, two) = tokio::join!(runs.join(key(), &sink, fail), runs.join(key(), &sink, fail));
        assert!(one.0.is_err() && two.0.is_err() && one.1 != two.1);
        assert_eq!(runs.join(key(), &sink, |_| async { Ok(1) }).await, (Ok(1), true));
        let (broke, _) = runs.join(key(), &sink, |_| async { panic!("as it should") }).await;
        assert_eq!(broke.unwrap_err().code(), "image-build-failed");
    }
}
