//! TLS as both ends use it: version 1.3 only, no resumption, no early data, one ALPN name.
//!
//! The handshake proves that the server holds the key it shows. Whether that key is the right one
//! is not decided here: the caller asks [`presented_key`] right after the handshake, before it sends
//! anything, and drops the connection otherwise.

use std::io;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, ClientConnection, CommonState, DigitallySignedStruct, Error,
    PeerIncompatible, ServerConfig, SignatureScheme,
};

use crate::session::host_key::{Fingerprint, HostKey};

/// The protocol's name and major version within TLS.
pub const ALPN_PROTOCOL: &[u8] = b"rdcp/1";

/// How a server shows `key`.
pub fn server_config(key: &HostKey) -> Result<Arc<ServerConfig>, Error> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![key.certificate()], key.private_key())?;
    config.alpn_protocols = vec![ALPN_PROTOCOL.to_vec()];
    // A ticket would outlive a reload that takes a client's rights away.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// How a client connects to a server whose key it will look at.
pub fn client_config() -> Result<Arc<ClientConfig>, Error> {
    let provider = provider();
    let algorithms = provider.signature_verification_algorithms;
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ProofOfKey { algorithms }))
        .with_no_client_auth();
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

/// The key that the server has proved to hold. To be called once the handshake is done.
pub fn presented_key(connection: &ClientConnection) -> Result<Fingerprint, Error> {
    let certificates = connection.peer_certificates().unwrap_or_default();
    let certificate = certificates.first().ok_or(Error::NoCertificatesPresented)?;
    Fingerprint::of_certificate(certificate)
}

/// Whether the peer speaks this protocol. TLS lets a peer through that names none at all.
pub fn speaks_rdcp(connection: &CommonState) -> bool {
    connection.alpn_protocol() == Some(ALPN_PROTOCOL)
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// Checks that whoever shows a certificate holds its key, and nothing else.
#[derive(Debug)]
struct ProofOfKey {
    algorithms: WebPkiSupportedAlgorithms,
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
        if !intermediates.is_empty() {
            return Err(CertificateError::UnknownIssuer.into());
        }
        ParsedCertificate::try_from(end_entity)?;
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
