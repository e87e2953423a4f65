//! The configuration in use, replaced while connections are made with it.

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

/// The last good configuration. A new bundle is checked as a whole before it is published; one that fails the
/// checks changes nothing. Connections that exist keep the configuration they were made with.
pub struct Store<T> {
    build: Build<T>,
    config: ArcSwap<T>,
    meta: Mutex<Meta>,
}

struct Meta {
    not_after: Timestamp,
    roots: Arc<RootCertStore>,
    /// Of the bundle at the start, then of the last one from files that was looked at, good or bad: a bad one is reported
    /// once per change.
    hash: [u8; 32],
}

/// What a look at the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reloaded {
    /// The same content as at the last look.
    Unchanged,
    /// A new configuration is in use.
    Published,
}

/// The files could not be taken over; the last good configuration stays in use.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// They could not be read. The next look tries again.
    #[error("TLS files could not be read")]
    Files(#[from] FilesError),
    /// Their content is not a good bundle. It is not looked at again until it changes.
    #[error("TLS files have no usable bundle")]
    Bundle(#[from] BundleError),
}

impl Store<ServerConfig> {
    /// A store of server configurations, see [`server_config`](crate::server_config).
    pub fn server(pem: &Pem, now: Timestamp) -> Result<Self, BundleError> {
        Self::new(Bundle::server, pem, now)
    }
}

impl Store<ClientConfig> {
    /// A store of client configurations, see [`client_config`](crate::client_config).
    pub fn client(pem: &Pem, now: Timestamp) -> Result<Self, BundleError> {
        Self::new(Bundle::client, pem, now)
    }

    /// Whether a handshake now would accept the server `name` with this chain, leaf first. A connection made before
    /// the CA bundle changed may be to one that it would not.
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
        let meta = Meta { not_after: bundle.not_after(), roots: bundle.roots(), hash: files::hash(pem) };
        Ok(Self { build, config: ArcSwap::new(config), meta: Mutex::new(meta) })
    }

    /// The configuration for the next connection.
    pub fn current(&self) -> Arc<T> {
        self.config.load_full()
    }

    /// The configuration for the next connection, and when its certificate ends.
    pub fn snapshot(&self) -> (Arc<T>, Timestamp) {
        let meta = self.meta.lock();
        (self.current(), meta.not_after)
    }

    /// When the own certificate in use ends.
    pub fn not_after(&self) -> Timestamp {
        self.meta.lock().not_after
    }

    /// Checks a bundle at `now` and puts it to use. After an error the last good one stays.
    pub fn publish(&self, pem: &Pem, now: Timestamp) -> Result<(), BundleError> {
        let (config, bundle) = checked(self.build, pem, now)?;
        let mut meta = self.meta.lock();
        self.config.store(config);
        (meta.not_after, meta.roots) = (bundle.not_after(), bundle.roots());
        Ok(())
    }

    /// Looks at the files and publishes their content if it is new.
    pub async fn reload(&self, files: &Files, now: Timestamp) -> Result<Reloaded, ReloadError> {
        let (pem, hash) = files.read().await?;
        if std::mem::replace(&mut self.meta.lock().hash, hash) == hash {
            return Ok(Reloaded::Unchanged);
        }
        self.publish(&pem, now)?;
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
