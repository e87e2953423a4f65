//! Trusted proxies that forward client certificates.

use crate::{
    BundleError, FilesError, IdentityError, PeerIdentity,
    bundle::{certificates, provider},
    files,
    xfcc::{self, XfccError},
};
use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    RootCertStore,
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

/// Paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyFiles {
    /// CAs of the clients.
    pub ca: PathBuf,
    /// The proxies' certificates.
    pub proxies: PathBuf,
}

/// Trusted proxies, reloadable.
pub struct Proxies {
    current: ArcSwap<Set>,
    /// Hash of the last content, valid or not.
    hash: Mutex<Option<[u8; 32]>>,
}

#[derive(Default)]
struct Set {
    leaves: Vec<CertificateDer<'static>>,
    verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// Error of the files.
#[derive(Debug, thiserror::Error)]
pub enum ProxiesError {
    /// Unreadable.
    #[error("the trusted proxies' files could not be read")]
    Files(#[from] FilesError),
    /// Unusable.
    #[error("the trusted proxies' files cannot be used")]
    Bundle(#[from] BundleError),
}

/// Reason to refuse a forwarded client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardedError {
    /// No header.
    #[error("the proxy forwarded no client certificate; it must set {}", xfcc::HEADER)]
    NoHeader,
    /// Invalid header.
    #[error(transparent)]
    Header(#[from] XfccError),
    /// No identity.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// Wrong CA, validity or purpose.
    #[error("the forwarded certificate is not valid for the clients' CA, now and as a client's")]
    NotVerified,
}

impl ForwardedError {
    /// Metric label.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::NoHeader => "xfcc_missing",
            Self::Header(error) => error.label(),
            Self::Identity(error) => error.label(),
            Self::NotVerified => "xfcc_not_verified",
        }
    }
}

impl Set {
    fn parse(ca: &[u8], proxies: &[u8]) -> Result<Self, BundleError> {
        let mut roots = RootCertStore::empty();
        for (index, ca) in certificates("CA bundle", ca)?.into_iter().enumerate() {
            let malformed = |_| BundleError::Malformed { part: "CA bundle", number: index + 1 };
            roots.add(ca).map_err(malformed)?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(BundleError::Verifier)?;
        Ok(Self { leaves: certificates("list of trusted proxies", proxies)?, verifier: Some(verifier) })
    }
}

impl Proxies {
    /// Trusts no proxy.
    #[must_use]
    pub fn none() -> Self {
        Self { current: ArcSwap::default(), hash: Mutex::default() }
    }

    /// Trusts the leaf certificates in `proxies` for clients of the CAs in `ca` (PEM).
    pub fn new(ca: &[u8], proxies: &[u8]) -> Result<Self, BundleError> {
        Ok(Self { current: ArcSwap::from_pointee(Set::parse(ca, proxies)?), hash: Mutex::default() })
    }

    /// Reads the files.
    pub async fn load(files: &ProxyFiles) -> Result<Self, ProxiesError> {
        let these = Self::none();
        these.reload(files).await?;
        Ok(these)
    }

    /// Reloads the files and returns whether they changed. Errors keep the last valid content. Invalid content is
    /// reported once.
    pub async fn reload(&self, files: &ProxyFiles) -> Result<bool, ProxiesError> {
        let (ca, proxies) = (files::read_file(&files.ca).await?, files::read_file(&files.proxies).await?);
        let mut hash = Sha256::new();
        for part in [&ca, &proxies] {
            hash.update(Sha256::digest(part));
        }
        let hash = hash.finalize().into();
        if self.hash.lock().replace(hash) == Some(hash) {
            return Ok(false);
        }
        self.current.store(Arc::new(Set::parse(&ca, &proxies)?));
        Ok(true)
    }

    /// Whether a leaf (DER), verified by the handshake, is a trusted proxy.
    #[must_use]
    pub fn trusts(&self, leaf: &[u8]) -> bool {
        self.current.load().leaves.iter().any(|proxy| proxy.as_ref() == leaf)
    }

    /// Returns the client in a trusted proxy's [`xfcc::HEADER`] values.
    ///
    /// Verifies the certificate again: a proxy must not admit more than a handshake.
    pub fn client<'a>(
        &self,
        mut values: impl Iterator<Item = &'a [u8]>,
        now: Timestamp,
    ) -> Result<PeerIdentity, ForwardedError> {
        let value = values.next().ok_or(ForwardedError::NoHeader)?;
        if values.next().is_some() {
            return Err(XfccError::SeveralElements.into());
        }
        let leaf = xfcc::parse(value)?;
        let identity = PeerIdentity::from_leaf(&leaf)?;
        let seconds = u64::try_from(now.as_second()).map_err(|_| ForwardedError::NotVerified)?;
        let now = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let current = self.current.load();
        let verifier = current.verifier.as_ref().ok_or(ForwardedError::NotVerified)?;
        verifier.verify_client_cert(&leaf, &[], now).map_err(|_| ForwardedError::NotVerified)?;
        Ok(identity)
    }
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxies").field("proxies", &self.current.load().leaves.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;
    use rustls_pki_types::pem::PemObject;
    use tidewatch_certs::{Ca, ClientRequest};

    use super::*;

    const HOUR: SignedDuration = SignedDuration::from_hours(1);

    fn client(ca: &Ca, name: &str) -> (Vec<u8>, String) {
        let request = ClientRequest {
            runtime_id: name.into(),
            dns_names: vec!["a.example".into()],
            organizations: vec![],
            validity: HOUR,
        };
        let pem = ca.issue_client(&request, Timestamp::now()).unwrap().cert_pem;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        (der.to_vec(), pem)
    }

    fn ca(name: &str) -> Ca {
        Ca::create(name, HOUR * 100, Timestamp::now() - HOUR * 10).unwrap()
    }

    #[test]
    fn a_forwarded_certificate_is_verified_like_a_handshake() {
        let (trusted, other) = (ca("trusted"), ca("other"));
        let (proxy, proxy_pem) = client(&trusted, "proxy");
        let (runtime, _) = client(&trusted, "runtime-1");
        let proxies = Proxies::new(trusted.cert_pem().as_bytes(), proxy_pem.as_bytes()).unwrap();
        assert!(proxies.trusts(&proxy) && !proxies.trusts(&runtime) && !Proxies::none().trusts(&proxy));

        let header = xfcc::format(&runtime).unwrap();
        let values = || std::iter::once(header.as_bytes());
        let now = Timestamp::now();
        let identity = proxies.client(values(), now).unwrap();
        assert_eq!((identity.common_name.as_str(), &*identity.certificate), ("runtime-1", &*runtime));
        let error = |values: &[&[u8]], now| proxies.client(values.iter().copied(), now).unwrap_err().label();
        assert_eq!(error(&[], now), "xfcc_missing");
        assert_eq!(error(&[header.as_bytes(), header.as_bytes()], now), "xfcc_several_elements");
        assert_eq!(error(&[b"x"], now), "xfcc_malformed");
        for time in [now + HOUR * 2, now - HOUR * 20, Timestamp::MIN] {
            assert_eq!(error(&[header.as_bytes()], time), "xfcc_not_verified", "{time}");
        }
        let forged = xfcc::format(&client(&other, "runtime-1").0).unwrap();
        assert_eq!(error(&[forged.as_bytes()], now), "xfcc_not_verified");
        let of_ca = CertificateDer::from_pem_slice(trusted.cert_pem().as_bytes()).unwrap();
        assert_eq!(error(&[xfcc::format(&of_ca).unwrap().as_bytes()], now), "xfcc_not_verified");
        assert!(Proxies::none().client(values(), now).is_err());
    }

    #[tokio::test]
    async fn changed_proxy_files_are_loaded_and_bad_ones_ignored() {
        let trusted = ca("trusted");
        let ((first, first_pem), (second, second_pem)) = (client(&trusted, "p1"), client(&trusted, "p2"));
        let dir = tempfile::tempdir().unwrap();
        let files = ProxyFiles { ca: dir.path().join("ca"), proxies: dir.path().join("proxies") };
        assert!(matches!(Proxies::load(&files).await, Err(ProxiesError::Files(_))));
        std::fs::write(&files.ca, trusted.cert_pem()).unwrap();
        std::fs::write(&files.proxies, &first_pem).unwrap();
        let proxies = Proxies::load(&files).await.unwrap();
        assert!(proxies.trusts(&first) && !proxies.reload(&files).await.unwrap());
        std::fs::write(&files.proxies, "rubbish").unwrap();
        assert!(matches!(proxies.reload(&files).await, Err(ProxiesError::Bundle(_))));
        assert!(proxies.trusts(&first));
        std::fs::write(&files.proxies, format!("{first_pem}{second_pem}")).unwrap();
        assert!(proxies.reload(&files).await.unwrap() && proxies.trusts(&first) && proxies.trusts(&second));
        std::fs::write(&files.proxies, &second_pem).unwrap();
        assert!(proxies.reload(&files).await.unwrap() && !proxies.trusts(&first));
    }
}
