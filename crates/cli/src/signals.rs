//! Signals that end the program, caught so that what runs is ended with it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Time that a command and the reader of its output have after the first signal; then we leave.
const GRACE: Duration = Duration::from_secs(3);

/// Signals that end a program: Ctrl-C, Ctrl-\, a polite kill, the terminal closing.
pub struct Signals {
    caught: Vec<(i32, Signal)>,
    /// The first signal that was heard.
    pub ended_by: Option<i32>,
    /// When to leave, once one was heard.
    until: Option<Instant>,
}

impl Signals {
    /// Catches them from now on.
    pub fn catch() -> std::io::Result<Self> {
        let mut signals = Self::catch_but_hangup()?;
        let hangup = SignalKind::hangup();
        signals.caught.push((hangup.as_raw_value(), signal(hangup)?));
        Ok(signals)
    }

    /// Catches them from now on, but for the one of a terminal that closes, which means something else to a server.
    pub fn catch_but_hangup() -> std::io::Result<Self> {
        let of = |kind: SignalKind| Ok::<_, std::io::Error>((kind.as_raw_value(), signal(kind)?));
        let caught =
            vec![of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::quit())?];
        Ok(Self { caught, ended_by: None, until: None })
    }

    /// Number of the next signal.
    pub async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (number, signal) in &mut self.caught {
                if signal.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*number);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }

    /// Waits for `work`. At the first signal `first` begins the end and says whether there is anything to wait for;
    /// work then has [`GRACE`] left. Another signal, or the end of that time, gives the signal's number.
    pub async fn race<T>(
        &mut self,
        work: impl Future<Output = T>,
        first: impl Fn() -> bool,
    ) -> Result<T, i32> {
        let mut work = std::pin::pin!(work);
        loop {
            let until = self.until;
            let time_is_up = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                done = &mut work => return Ok(done),
                () = time_is_up => return Err(self.ended_by.unwrap_or(SignalKind::terminate().as_raw_value())),
                number = self.next() => {
                    if self.ended_by.replace(number).is_some() || !first() {
                        return Err(number);
                    }
                    self.until = Some(Instant::now() + GRACE);
                }
            }
        }
    }
}
