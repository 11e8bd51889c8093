//! TLS by files: read at the start, and again when they have changed, so that a renewed certificate needs no restart.

use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};

use moltis_config::schema::Gateway;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;

use crate::error::GatewayError;

/// What accepts TLS, and can be changed while it is in use.
pub struct Tls(RwLock<TlsAcceptor>);

impl Tls {
    /// Reads the files that the configuration names; nothing if it names none. Blocks on them.
    ///
    /// # Errors
    /// `HalfTls`, `Tls`.
    pub fn read(gateway: &Gateway) -> Result<Option<Self>, GatewayError> {
        match (&gateway.tls_cert, &gateway.tls_key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => Ok(Some(Self(RwLock::new(acceptor(&chain.value, &key.value)?)))),
            _ => Err(GatewayError::HalfTls),
        }
    }

    /// Reads the files anew. Connections that are open stay as they are. Blocks.
    ///
    /// # Errors
    /// `HalfTls`, `Tls`: then what was read before goes on to hold.
    pub fn again(&self, gateway: &Gateway) -> Result<(), GatewayError> {
        if let Some(new) = Self::read(gateway)? {
            let new = new.acceptor();
            *self.0.write().unwrap_or_else(PoisonError::into_inner) = new;
        }
        Ok(())
    }

    /// What accepts now.
    pub fn acceptor(&self) -> TlsAcceptor {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn acceptor(chain: &Path, key: &Path) -> Result<TlsAcceptor, GatewayError> {
    let wrong = |place: &Path, cause: String| GatewayError::Tls { place: place.to_owned(), cause };
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect)
        .map_err(|error| wrong(chain, error.to_string()))?;
    if certificates.is_empty() {
        return Err(wrong(chain, "it holds no certificate".to_owned()));
    }
    // What is wrong with a key is told without a word of it.
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| wrong(key, error.to_string()))?;
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(chain, error.to_string()))?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| wrong(key, error.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
