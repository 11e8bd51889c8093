//! Work that must come to its end though nobody waits for its result: what was made for a moment is removed again.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

/// Counts such work. Clones count together.
#[derive(Clone, Debug)]
pub struct Pending(Arc<watch::Sender<usize>>);

/// One piece of it; dropping this says that it is done.
#[derive(Debug)]
pub struct Piece(Arc<watch::Sender<usize>>);

impl Default for Pending {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Pending {
    /// A piece begins.
    pub fn begin(&self) -> Piece {
        self.0.send_modify(|count| *count += 1);
        Piece(Arc::clone(&self.0))
    }

    /// Waits until none is left, for this long at most; whether none is.
    pub async fn settled(&self, patience: Duration) -> bool {
        let mut count = self.0.subscribe();
        tokio::time::timeout(patience, count.wait_for(|count| *count == 0)).await.is_ok()
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn it_is_settled_when_every_piece_is_done() {
        let pending = Pending::default();
        let short = Duration::from_millis(5);
        assert!(pending.settled(short).await);
        let piece = pending.clone().begin();
        assert!(!pending.settled(short).await);
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(piece);
        });
        assert!(pending.settled(Duration::from_secs(10)).await);
    }
}
