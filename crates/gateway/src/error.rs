//! Why a gateway does not start, or cannot do what it is for.

use std::net::SocketAddr;
use std::path::PathBuf;

use moltis_sandbox::{Diagnosis, Error};

/// What can go wrong with the gateway itself.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Another gateway has the data directory.
    #[error("another gateway runs with the data directory {}", place.display())]
    Held {
        /// The data directory.
        place: PathBuf,
        /// What that one says of itself.
        holder: String,
    },
    /// It would be reached from other machines, unencrypted.
    #[error("{0} is reached from other machines, and nothing would be encrypted")]
    Exposed(SocketAddr),
    /// It cannot listen there.
    #[error("cannot listen on {place}")]
    Listen {
        /// The address or the socket.
        place: String,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// Only one of the two files of TLS is named.
    #[error("`tls_cert` and `tls_key` go together, and only one of them is set")]
    HalfTls,
    /// A file of TLS cannot be used.
    #[error("cannot use {}", place.display())]
    Tls {
        /// The file.
        place: PathBuf,
        /// What is wrong with it.
        cause: String,
    },
    /// A file of ours cannot be written.
    #[error("cannot write {}", place.display())]
    Write {
        /// The file.
        place: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The kernel gives no random bytes.
    #[error("no random bytes are to be had")]
    Random(std::io::Error),
}

impl GatewayError {
    pub(crate) fn write(place: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Write { place: place.into(), source }
    }
}

impl From<GatewayError> for Error {
    fn from(error: GatewayError) -> Self {
        let message = error.to_string();
        let told = |code| Diagnosis::new(code, message.clone());
        match error {
            GatewayError::Held { holder, .. } => Self::Refused(
                told("gateway-running")
                    .cause(holder)
                    .fix("use that one, end it first, or name another data directory by --data-dir"),
            ),
            GatewayError::Exposed(_) => Self::Refused(
                told("gateway-exposed")
                    .cause("whoever sees the network could read the token and every command")
                    .fix(
                        "set `tls_cert` and `tls_key` in [gateway], bind to 127.0.0.1 behind a proxy that has TLS, or \
                         say --allow-unencrypted where the network is trusted",
                    ),
            ),
            GatewayError::Listen { source, .. } => Self::Unavailable(
                told("gateway-cannot-listen").cause(source).fix("name another one by --bind and --port"),
            ),
            GatewayError::HalfTls => Self::Invalid(told("config-conflict").fix("set both, or neither")),
            GatewayError::Tls { cause, .. } => Self::Invalid(
                told("tls-file-invalid")
                    .cause(cause)
                    .fix("name a chain of certificates and its private key, both in PEM"),
            ),
            GatewayError::Write { source, .. } => Self::Unavailable(
                told("gateway-cannot-write").cause(source).fix("see that the place can be written, and has room"),
            ),
            GatewayError::Random(source) => {
                Self::Unavailable(told("no-random-bytes").cause(source).fix("see that /dev/urandom is there"))
            }
        }
    }
}
