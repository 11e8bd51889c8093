//! How much a session and the whole process may have open, and for how long.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Limits of a proxy.
#[derive(Clone, Debug)]
pub struct ProxyLimits {
    /// Connections of all sessions together.
    pub connections: usize,
    /// Connections of one session. It also gets no more than is then still free for all others together.
    pub session_connections: usize,
    /// Bytes of a request's head, and of an answer's.
    pub header_bytes: usize,
    /// How long a request's head may take; a kept connection also ends after this long without another request.
    pub header_time: Duration,
    /// How long a plain request may stand still.
    pub request_idle: Duration,
    /// How long a tunnel may stand still, in both directions.
    pub tunnel_idle: Duration,
    /// How long a name may take to resolve.
    pub resolve_time: Duration,
    /// How long a host may take to accept a connection, over all of its addresses.
    pub connect_time: Duration,
    /// How long a TLS greeting that has begun may take.
    pub hello_time: Duration,
    /// Names that are resolved at once.
    pub lookups: usize,
    /// Names of one session that are resolved at once.
    pub session_lookups: usize,
    /// Connections of one session that wait for a person at once.
    pub waiting: usize,
}

impl Default for ProxyLimits {
    /// Sized by how many files this process may open: a connection takes two, and half of them are left to others.
    fn default() -> Self {
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
        let connections = usize::try_from(files / 4).unwrap_or(usize::MAX).clamp(32, 4096);
        Self {
            connections,
            session_connections: 512,
            header_bytes: 64 * 1024,
            header_time: Duration::from_secs(30),
            request_idle: Duration::from_secs(600),
            tunnel_idle: Duration::from_secs(900),
            resolve_time: Duration::from_secs(10),
            connect_time: Duration::from_secs(15),
            hello_time: Duration::from_secs(10),
            lookups: 64,
            session_lookups: 16,
            waiting: 64,
        }
    }
}

/// Counts what is open in the process and in each session.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    used: AtomicUsize,
}

/// One connection's place. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Slot {
    all: Arc<Slots>,
    session: Arc<AtomicUsize>,
}

impl Slots {
    /// A place, if the session has less than its limit and than what is free. However many sessions take all they get,
    /// something is left for the next.
    pub(crate) fn take(self: &Arc<Self>, session: &Arc<AtomicUsize>, limits: &ProxyLimits) -> Option<Slot> {
        let all = self.used.fetch_add(1, Ordering::Relaxed);
        let own = session.fetch_add(1, Ordering::Relaxed);
        let slot = Slot { all: Arc::clone(self), session: Arc::clone(session) };
        let free = limits.connections.saturating_sub(all);
        (own < limits.session_connections.min(free)).then_some(slot)
    }

    /// How many are taken.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.all.used.fetch_sub(1, Ordering::Relaxed);
        self.session.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_session_never_takes_all() {
        let limits = ProxyLimits { connections: 120, session_connections: 100, ..ProxyLimits::default() };
        let slots = Arc::new(Slots::default());
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for _ in 0..4 {
            let session = Arc::new(AtomicUsize::new(0));
            while let Some(slot) = slots.take(&session, &limits) {
                held.push(slot);
            }
            counts.push(session.load(Ordering::Relaxed));
        }
        assert_eq!(counts, [60, 30, 15, 8]);
        held.clear();
        assert_eq!(slots.used.load(Ordering::Relaxed), 0);
    }
}
