//! What blocks when it is dropped, held by something that may be dropped on an async thread.

use tokio::runtime::Handle;

/// Drops its content on a thread that may block. Where there is no such thread, as when the runtime shuts down, it is
/// dropped in place: better late than never.
pub struct Aside<T: Send + 'static>(Option<T>);

impl<T: Send + 'static> Aside<T> {
    /// Of this content.
    pub fn new(content: T) -> Self {
        Self(Some(content))
    }

    /// The content, which is the caller's to drop from now on.
    pub fn take(mut self) -> Option<T> {
        self.0.take()
    }

    /// The content.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.0.as_mut()
    }
}

impl<T: Send + 'static> Drop for Aside<T> {
    fn drop(&mut self) {
        let Some(content) = self.0.take() else { return };
        if let Ok(runtime) = Handle::try_current() {
            // A runtime that shuts down drops the closure, and the content with it.
            runtime.spawn_blocking(move || drop(content));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::thread::{ThreadId, current};

    use super::*;

    struct Tells(Sender<ThreadId>);

    impl Drop for Tells {
        fn drop(&mut self) {
            let _ = self.0.send(current().id());
        }
    }

    #[tokio::test]
    async fn an_async_thread_drops_nothing_itself() {
        let (tell, told) = channel();
        drop(Aside::new(Tells(tell)));
        let by = tokio::task::spawn_blocking(move || told.recv().unwrap()).await.unwrap();
        assert_ne!(by, current().id());
    }

    #[test]
    fn without_a_runtime_it_is_dropped_in_place() {
        let (tell, told) = channel();
        drop(Aside::new(Tells(tell)));
        assert_eq!(told.recv().unwrap(), current().id());
    }

    #[tokio::test]
    async fn what_is_taken_out_is_the_takers() {
        let (tell, told) = channel();
        let content = Aside::new(Tells(tell)).take();
        drop(content);
        assert_eq!(told.recv().unwrap(), current().id());
    }
}
