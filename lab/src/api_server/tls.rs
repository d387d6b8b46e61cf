//! TLS with a certificate from files.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use super::ApiServerError;

/// HTTP/2, as it is agreed upon while TLS begins.
pub(super) const HTTP_2: &[u8] = b"h2";

/// Takes connections with the certificate and the key in these PEM files.
pub(super) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, ApiServerError> {
    let wrong = |path: &Path, reason: &dyn std::fmt::Display| ApiServerError::Tls {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| wrong(certificate, &e))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|e| wrong(key, &e))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(certificate, &e))?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|e| wrong(certificate, &e))?;
    config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
