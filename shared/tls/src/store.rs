//! Reloadable configuration.

use crate::{Bundle, BundleError, Files, FilesError, Pem, files, provider};
use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::Mutex;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use std::{fmt, sync::Arc, time::Duration};

type Build<T> = fn(&Bundle) -> Result<Arc<T>, BundleError>;

/// The last valid configuration. Existing connections keep theirs.
pub struct Store<T> {
    build: Build<T>,
    config: ArcSwap<T>,
    meta: Mutex<Meta>,
}

struct Meta {
    not_after: Timestamp,
    roots: Arc<RootCertStore>,
    /// Hash of the last content, valid or not, to report an invalid change once.
    hash: [u8; 32],
    /// When the last content becomes valid.
    valid_from: Option<Timestamp>,
}

/// Result of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// No change.
    Unchanged,
    /// New configuration.
    Published,
}

/// Error of a reload, which keeps the last configuration.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Unreadable. The next reload retries.
    #[error("TLS files could not be read")]
    Files(#[from] FilesError),
    /// Invalid. Not checked again until it is changed, or until it becomes valid.
    #[error("TLS files have no usable bundle")]
    Bundle(#[from] BundleError),
}

impl Store<ServerConfig> {
    /// Store of servers, see [`server_config`](crate::server_config).
    pub fn server(pem: &Pem, now: Timestamp) -> Result<Self, BundleError> {
        Self::new(Bundle::server, pem, now)
    }
}

impl Store<ClientConfig> {
    /// Store of clients, see [`client_config`](crate::client_config).
    pub fn client(pem: &Pem, now: Timestamp) -> Result<Self, BundleError> {
        Self::new(Bundle::client, pem, now)
    }

    /// Whether a handshake at `now` would accept this chain (leaf first).
    ///
    /// Older connections may fail after a change of CAs.
    pub fn trusts(&self, chain: &[CertificateDer<'_>], name: &ServerName<'_>, now: Timestamp) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else { return false };
        let roots = Arc::clone(&self.meta.lock().roots);
        let Ok(verifier) = WebPkiServerVerifier::builder_with_provider(roots, provider()).build() else {
            return false;
        };
        let now = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
        let now = UnixTime::since_unix_epoch(now);
        verifier.verify_server_cert(leaf, intermediates, name, &[], now).is_ok()
    }
}

impl<T> Store<T> {
    fn new(build: Build<T>, pem: &Pem, now: Timestamp) -> Result<Self, BundleError> {
        let (config, bundle) = checked(build, pem, now)?;
        let meta = Meta {
            not_after: bundle.not_after(),
            roots: bundle.roots(),
            hash: files::hash(pem),
            valid_from: None,
        };
        Ok(Self { build, config: ArcSwap::new(config), meta: Mutex::new(meta) })
    }

    /// Configuration for new connections.
    pub fn current(&self) -> Arc<T> {
        self.config.load_full()
    }

    /// Configuration and its certificate's end.
    pub fn snapshot(&self) -> (Arc<T>, Timestamp) {
        let meta = self.meta.lock();
        (self.current(), meta.not_after)
    }

    /// End of the own certificate.
    pub fn not_after(&self) -> Timestamp {
        self.meta.lock().not_after
    }

    /// Publishes a valid bundle. Errors keep the last one.
    pub fn publish(&self, pem: &Pem, now: Timestamp) -> Result<(), BundleError> {
        let (config, bundle) = checked(self.build, pem, now)?;
        let mut meta = self.meta.lock();
        self.config.store(config);
        (meta.not_after, meta.roots) = (bundle.not_after(), bundle.roots());
        Ok(())
    }

    /// Publishes changed files.
    pub async fn reload(&self, files: &Files, now: Timestamp) -> Result<Reloaded, ReloadError> {
        Ok(self.replace(&files.read().await?, now)?)
    }

    /// Publishes a changed bundle. Errors keep the last one, and are not repeated for equal content until it becomes valid.
    pub fn replace(&self, pem: &Pem, now: Timestamp) -> Result<Reloaded, BundleError> {
        let hash = files::hash(pem);
        {
            let mut meta = self.meta.lock();
            let becomes_valid = meta.valid_from.is_some_and(|from| from <= now);
            if std::mem::replace(&mut meta.hash, hash) == hash && !becomes_valid {
                return Ok(Reloaded::Unchanged);
            }
            meta.valid_from = None;
        }
        let published = self.publish(pem, now);
        if let Err(BundleError::NotYetValid(from)) = &published {
            self.meta.lock().valid_from = Some(*from);
        }
        published?;
        Ok(Reloaded::Published)
    }
}

impl<T> fmt::Debug for Store<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("not_after", &self.not_after()).finish_non_exhaustive()
    }
}

fn checked<T>(build: Build<T>, pem: &Pem, now: Timestamp) -> Result<(Arc<T>, Bundle), BundleError> {
    let bundle = Bundle::parse(pem)?;
    bundle.check(now)?;
    Ok((build(&bundle)?, bundle))
}
