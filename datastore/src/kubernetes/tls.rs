//! TLS with what the files of an access hold now: whom to trust, and who we are.

use std::sync::Arc;

use rustls::client::ClientConfig;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::access::{Access, Pem};
use super::program::Credential;

/// What certificates and keys of an access hold, in PEM. Files are renewed in place, so it is read
/// again and compared.
#[derive(PartialEq, Eq)]
pub(super) struct Material {
    authorities: Option<Vec<u8>>,
    /// Certificate and key.
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Material {
    /// Reads it; the client certificate that a program gave goes first.
    pub(super) fn read(access: &Access, given: Option<&Credential>) -> Result<Self, String> {
        let authorities = access.authorities.as_ref().map(Pem::read).transpose()?;
        let identity = match (
            given.and_then(|given| given.identity.clone()),
            &access.identity,
        ) {
            (Some(given), _) => Some(given),
            (None, Some(of)) => Some((of.certificate.read()?, of.key.read()?)),
            (None, None) => None,
        };
        Ok(Self {
            authorities,
            identity,
        })
    }
}

/// The configuration for an access that holds this.
pub(super) fn configured(access: &Access, material: &Material) -> Result<ClientConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match access.any_server {
        true => builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyServer(Arc::clone(&provider)))),
        false => builder.with_root_certificates(roots(access, material)?),
    };
    Ok(match &material.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let certified = certified(access, certificate, key, &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
    })
}

/// The CA certificates that are given, or those of the system.
fn roots(access: &Access, material: &Material) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let (Some(pem), Some(text)) = (&access.authorities, &material.authorities) else {
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
        return match roots.is_empty() {
            true => Err("no CA certificate is given, and the system trusts none".to_owned()),
            false => Ok(roots),
        };
    };
    for certificate in certificates(text, &pem.name())? {
        let added = roots.add(certificate);
        added.map_err(|error| format!("the CA certificate in {}: {error}", pem.name()))?;
    }
    Ok(roots)
}

fn certificates(text: &[u8], name: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let found = found.map_err(|error| format!("{name}: {error}"))?;
    match found.is_empty() {
        true => Err(format!("{name} has no certificate in PEM")),
        false => Ok(found),
    }
}

fn certified(
    access: &Access,
    certificate: &[u8],
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let (of_certificate, of_key) = match &access.identity {
        Some(identity) => (identity.certificate.name(), identity.key.name()),
        None => (
            "what the program gave".to_owned(),
            "what it gave".to_owned(),
        ),
    };
    let certificates = certificates(certificate, &of_certificate)?;
    let wrong = |error: String| format!("the client's key in {of_key}: {error}");
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| wrong(error.to_string()))?;
    CertifiedKey::from_der(certificates, key, provider).map_err(|error| wrong(error.to_string()))
}

/// Trusts every server (`insecure-skip-tls-verify`); that the other end has its key is verified.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
