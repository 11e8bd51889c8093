//! Stand-ins for providers: small servers that keep state, really run commands, refuse whatever the records of the official
//! clients do not know, and fail when they are told to.

pub mod daytona;
pub mod http;
pub mod shapes;
pub mod vercel;

/// Whose calls are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asks {
    /// Moltis's own: what it never does, such as making a machine that stays, is refused.
    Moltis,
    /// Anybody's, such as the official clients': whatever of the records is known here.
    Anybody,
}

/// How a call is to fail.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is answered with this status, code, and time to wait, and not done.
    Status(u16, &'static str, Option<u64>),
    /// It is done, and the connection closed without an answer.
    CutAfter,
    /// The connection is closed, and nothing done.
    CutBefore,
    /// Its stream is cut after this many lines.
    CutStream(usize),
    /// It is answered with a body that is none of its kind, and not done.
    Junk(&'static str),
    /// A machine with another network policy than was asked for is made.
    OtherPolicy,
    /// It is done after this long.
    Slow(std::time::Duration),
    /// Another state than the true one is told.
    State(&'static str),
    /// The machine that is made does not start.
    Fails,
    /// A part of it is done.
    Partial,
}
