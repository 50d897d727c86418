//! TLS as both ends use it: version 1.3 only, no resumption, no early data, one ALPN name.
//!
//! The handshake proves that each end holds the key it shows. Whether that key is the right one is
//! not decided here: the caller asks [`presented_key`] right after the handshake, before it sends
//! anything, and drops the connection otherwise. A client shows its own key only to a server whose
//! key it named beforehand, so that nobody else learns it.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::NoServerSessionStorage;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, CommonState, DigitallySignedStruct, DistinguishedName, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};

use crate::session::own_key::{Fingerprint, OwnKey};

/// The protocol's name and major version within TLS.
pub const ALPN_PROTOCOL: &[u8] = b"rdcp/1";

/// Whether a server asks its clients for a key. One that has none is let through the handshake all
/// the same, to be told in words why not further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientKeys {
    /// It does not.
    Unasked,
    /// It does.
    Asked,
}

/// How a server shows `key`.
pub fn server_config(key: &OwnKey, clients: ClientKeys) -> Result<Arc<ServerConfig>, Error> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13])?;
    let builder = match clients {
        ClientKeys::Unasked => builder.with_no_client_auth(),
        ClientKeys::Asked => {
            let pinned = None;
            builder.with_client_cert_verifier(Arc::new(ProofOfKey { algorithms, pinned }))
        }
    };
    let mut config = builder.with_single_cert(vec![key.certificate()], key.private_key())?;
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    // A ticket would outlive a reload that takes a client's rights away.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// What a client shows, and to whom alone.
#[derive(Clone, Copy)]
pub struct Shown<'a> {
    /// Its key.
    pub key: &'a OwnKey,
    /// The server's.
    pub to: Fingerprint,
}

/// How a client connects to a server whose key it will look at. With a key of its own to show, the
/// handshake fails with any server but the one that it is for.
pub fn client_config(shown: Option<Shown<'_>>) -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let pinned = shown.map(|shown| shown.to);
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ProofOfKey { algorithms, pinned }));
    let mut config = match shown {
        None => builder.with_no_client_auth(),
        Some(Shown { key, .. }) => {
            builder.with_client_auth_cert(vec![key.certificate()], key.private_key())?
        }
    };
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    config.enable_early_data = false;
    // Certificates hold no name that counts, so none is told to whoever listens.
    config.enable_sni = false;
    Ok(Arc::new(config))
}

/// The name that TLS insists on; keys are pinned by host and port, so it says nothing.
pub(super) fn server_name() -> Result<ServerName<'static>, Error> {
    ServerName::try_from("rdcp").map_err(|_| Error::General("a fixed name is refused".into()))
}

/// An error of a TLS stream in words for a person: that the stream just ended is told as such, and
/// not as what the library thinks of it.
pub(super) fn without_goodbye(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return io::Error::new(
            error.kind(),
            "the peer closed the connection without goodbye",
        );
    }
    error
}

/// The key that the other end has proved to hold, if it showed one, as every server does. To be
/// called once the handshake is done.
pub fn presented_key(connection: &CommonState) -> Result<Option<Fingerprint>, Error> {
    let certificates = connection.peer_certificates().unwrap_or_default();
    let certificate = certificates.first();
    certificate.map(Fingerprint::of_certificate).transpose()
}

/// Whether the peer speaks this protocol. TLS lets a peer through that names none at all.
pub fn speaks_rdcp(connection: &CommonState) -> bool {
    connection.alpn_protocol() == Some(ALPN_PROTOCOL)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Checks that whoever shows a certificate holds its key, and that it is the one that was expected if
/// one was.
#[derive(Debug)]
struct ProofOfKey {
    algorithms: WebPkiSupportedAlgorithms,
    pinned: Option<Fingerprint>,
}

impl ProofOfKey {
    fn look_at(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
    ) -> Result<(), Error> {
        if !intermediates.is_empty() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        let shown = Fingerprint::of_certificate(end_entity)?;
        if self.pinned.is_some_and(|pinned| pinned != shown) {
            return Err(CertificateError::ApplicationVerificationFailure.into());
        }
        Ok(())
    }
}

impl ServerCertVerifier for ProofOfKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.look_at(end_entity, intermediates)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for ProofOfKey {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.look_at(end_entity, intermediates)?;
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
