//! TLS of consoles: what a node shows to who asks it, and to whom it asks. One certificate serves
//! both, and one file of authorities says whom to believe. Files are renewed in place, so what they
//! hold is read again and compared.
//!
//! A node is who its certificate says: the name of the node or its address stands there as a
//! subjectAltName.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use caracal_datastore::read_text_file;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, ServerConfig, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::config::console::{AUTHORITIES, CERTIFICATE, ConsoleFiles, KEY};

/// What the files hold.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Material {
    /// The certificate and its key.
    identity: Option<(PathBuf, String, String)>,
    authorities: Option<(PathBuf, String)>,
}

impl Material {
    /// Reads the files.
    ///
    /// # Errors
    /// One of them cannot be read, or one of two that belong together is not named.
    pub(crate) fn read(files: &ConsoleFiles) -> Result<Self, String> {
        let read = |name: &str, path: &Path| {
            read_text_file(path).map_err(|error| about(name, path, &error))
        };
        let identity = match (&files.certificate, &files.key) {
            (Some(certificate), Some(key)) => Some((
                certificate.clone(),
                read(CERTIFICATE, certificate)?,
                read(KEY, key)?,
            )),
            (None, None) => None,
            (Some(_), None) => return Err(format!("{CERTIFICATE} is set, and {KEY} is not")),
            (None, Some(_)) => return Err(format!("{KEY} is set, and {CERTIFICATE} is not")),
        };
        let authorities = match &files.authorities {
            Some(path) => Some((path.clone(), read(AUTHORITIES, path)?)),
            None => None,
        };
        Ok(Self {
            identity,
            authorities,
        })
    }

    /// There is an authority, so that a certificate is enough to ask.
    pub(crate) const fn knows_clients(&self) -> bool {
        self.authorities.is_some()
    }

    /// What takes connections.
    ///
    /// # Errors
    /// The files hold nothing that can be served now: what, and why.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = self.roots()?.map(Arc::new);
        let certified = self.certified(&provider, roots.as_deref())?;
        let certified = certified.ok_or_else(|| {
            format!("{AUTHORITIES} is set, and there is no certificate to show; set {CERTIFICATE} and {KEY}")
        })?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?;
        let builder = match roots {
            None => builder.with_no_client_auth(),
            Some(roots) => {
                // Who has no certificate may have the token, and is told what is missing.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                    .allow_unauthenticated()
                    .build();
                builder.with_client_cert_verifier(verifier.map_err(|error| error.to_string())?)
            }
        };
        let resolver = Arc::new(SingleCertAndKey::from(certified));
        Ok(TlsAcceptor::from(Arc::new(
            builder.with_cert_resolver(resolver),
        )))
    }

    /// What makes connections to the node of that name.
    ///
    /// # Errors
    /// As [`Self::acceptor`]; an authority is needed, and a certificate is not.
    pub(crate) fn connector(&self, node: &str) -> Result<TlsConnector, String> {
        let provider = Arc::new(ring::default_provider());
        let roots = self.roots()?.ok_or_else(|| {
            format!("its console speaks TLS; set {AUTHORITIES} to the authority that signs the nodes' certificates")
        })?;
        let certified = self.certified(&provider, Some(&roots))?;
        let verifier = Arc::new(OfNode {
            name: ServerName::try_from(node.to_owned()).ok(),
            roots,
            provider: Arc::clone(&provider),
        });
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let config = match certified {
            None => builder.with_no_client_auth(),
            Some(certified) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
            }
        };
        Ok(TlsConnector::from(Arc::new(config)))
    }

    fn roots(&self) -> Result<Option<RootCertStore>, String> {
        let Some((path, text)) = &self.authorities else {
            return Ok(None);
        };
        let mut roots = RootCertStore::empty();
        for certificate in certificates(AUTHORITIES, path, text)? {
            let added = roots.add(certificate);
            added.map_err(|error| about(AUTHORITIES, path, &error))?;
        }
        Ok(Some(roots))
    }

    /// The certificate with its key, if it is valid now and of one of the authorities.
    fn certified(
        &self,
        provider: &CryptoProvider,
        roots: Option<&RootCertStore>,
    ) -> Result<Option<CertifiedKey>, String> {
        let Some((path, chain, key)) = &self.identity else {
            return Ok(None);
        };
        let chain = certificates(CERTIFICATE, path, chain)?;
        let wrong = |error: &dyn std::fmt::Display| about(CERTIFICATE, path, error);
        let none = RootCertStore::empty();
        let known = provider.signature_verification_algorithms.all;
        let verified = ParsedCertificate::try_from(&chain[0]).and_then(|certificate| {
            let roots = roots.unwrap_or(&none);
            let now = UnixTime::now();
            verify_server_cert_signed_by_trust_anchor(&certificate, roots, &chain[1..], now, known)
        });
        match verified {
            // Who may have signed it is not said.
            Err(error) if roots.is_some() || is_about_time(&error) => {
                return Err(wrong(&sentence(&error)));
            }
            _ => {}
        }
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| format!("{KEY}: {error}"))?;
        let certified = CertifiedKey::from_der(chain, key, provider);
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                wrong(&format!("the key in {KEY} belongs to another certificate"))
            }
            error => format!("{KEY}: {error}"),
        });
        certified.map(Some)
    }
}

fn about(name: &str, path: &Path, reason: &dyn std::fmt::Display) -> String {
    format!("{name} {}: {reason}", path.display())
}

/// At least one.
fn certificates(
    name: &str,
    path: &Path,
    text: &str,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let found = found.map_err(|error| about(name, path, &error))?;
    match found.is_empty() {
        true => Err(about(name, path, &"it has no certificate in PEM")),
        false => Ok(found),
    }
}

const fn is_about_time(error: &rustls::Error) -> bool {
    use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
    matches!(
        error,
        rustls::Error::InvalidCertificate(
            Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }
        )
    )
}

/// What is wrong with a certificate, for who has to get another one.
pub(crate) fn sentence(error: &rustls::Error) -> String {
    let rustls::Error::InvalidCertificate(fault) = error else {
        return error.to_string();
    };
    let ago = |one: UnixTime, other: UnixTime| one.as_secs().abs_diff(other.as_secs());
    match fault {
        CertificateError::ExpiredContext { time, not_after } => {
            format!("it expired {} s ago", ago(*time, *not_after))
        }
        CertificateError::NotValidYetContext { time, not_before } => {
            format!("it becomes valid in {} s only", ago(*time, *not_before))
        }
        CertificateError::UnknownIssuer => {
            format!("it is not signed by an authority in {AUTHORITIES}")
        }
        fault => fault.to_string(),
    }
}

/// Believes a node whose certificate one of the authorities has signed, for its name or for the
/// address that was asked.
#[derive(Debug)]
struct OfNode {
    /// `None`: the name of the node is none that a certificate can have.
    name: Option<ServerName<'static>>,
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OfNode {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        address: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(certificate)?;
        let known = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, between, now, known)?;
        let by_name = match &self.name {
            Some(name) => verify_server_name(&certificate, name),
            None => Err(CertificateError::NotValidForName.into()),
        };
        by_name.or_else(|_| verify_server_name(&certificate, address))?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        // It is not offered.
        Err(rustls::Error::General("TLS 1.2 is not spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let known = &self.provider.signature_verification_algorithms;
        known.supported_schemes()
    }
}
