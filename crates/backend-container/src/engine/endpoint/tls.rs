//! The files that a TLS connection to an engine needs, and what is made of them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::engine::{EngineError, EngineKind, Result};

/// Where the certificates are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct TlsFiles {
    /// Certificates of those who vouch for the engine.
    authority: PathBuf,
    /// Our certificate and its key, if the engine asks for one.
    own: Option<(PathBuf, PathBuf)>,
}

impl TlsFiles {
    /// Those of a directory that `DOCKER_CERT_PATH` names: all three have to be there.
    pub(super) fn of_directory(engine: EngineKind, directory: &Path) -> Result<Self> {
        for name in ["ca.pem", "cert.pem", "key.pem"] {
            let path = directory.join(name);
            if !path.is_file() {
                return Err(EngineError::Endpoint {
                    engine,
                    message: format!("there is no {}", path.display()),
                    fix: "put ca.pem, cert.pem and key.pem into the directory that DOCKER_CERT_PATH names"
                        .to_owned(),
                });
            }
        }
        Ok(Self::of_context(directory))
    }

    /// Those of a context, which need not have a certificate of our own.
    pub(super) fn of_context(directory: &Path) -> Self {
        let (certificate, key) = (directory.join("cert.pem"), directory.join("key.pem"));
        let own = (certificate.is_file() || key.is_file()).then_some((certificate, key));
        Self { authority: directory.join("ca.pem"), own }
    }

    /// Reads them.
    pub(in crate::engine) fn load(&self, engine: EngineKind) -> Result<Arc<ClientConfig>> {
        let wrong = |path: &Path, cause: &str| EngineError::Endpoint {
            engine,
            message: format!("{} cannot be used: {cause}", path.display()),
            fix: "replace it by a file in PEM format that belongs to this engine".to_owned(),
        };
        let certificates = |path: &Path| -> Result<Vec<CertificateDer<'static>>> {
            let all: std::result::Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
            match all {
                Ok(all) if all.is_empty() => Err(wrong(path, "it holds no certificate")),
                Ok(all) => Ok(all),
                Err(error) => Err(wrong(path, &error.to_string())),
            }
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&self.authority)? {
            roots.add(certificate).map_err(|error| wrong(&self.authority, &error.to_string()))?;
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| wrong(&self.authority, &error.to_string()))?
            .with_root_certificates(roots);
        let config = match &self.own {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                // The cause could quote the file, and this one holds a secret.
                let secret =
                    PrivateKeyDer::from_pem_file(key).map_err(|_| wrong(key, "it holds no private key"))?;
                builder
                    .with_client_auth_cert(chain, secret)
                    .map_err(|_| wrong(key, "it does not belong to cert.pem, or is of an unknown kind"))?
            }
        };
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_no_certificates_are_named() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["ca.pem", "cert.pem", "key.pem"] {
            std::fs::write(dir.path().join(name), "no certificate").unwrap();
        }
        let files = TlsFiles::of_directory(EngineKind::Docker, dir.path()).unwrap();
        let EngineError::Endpoint { message, .. } = files.load(EngineKind::Docker).unwrap_err() else {
            panic!()
        };
        let ca = dir.path().join("ca.pem");
        assert_eq!(message, format!("{} cannot be used: it holds no certificate", ca.display()));
    }
}
