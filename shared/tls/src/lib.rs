//! TLS of the event path.
//!
//! TLS 1.3 with certificates on both sides. No session resumption, since it skips the client certificate check.

mod bundle;
mod files;
mod handshake;
mod identity;
mod proxies;
mod refused;
mod store;
pub mod xfcc;

pub use bundle::{Bundle, BundleError, Pem, client_config, provider, server_config};
pub use files::{Files, FilesError, read_file};
pub use handshake::HandshakeFailure;
pub use identity::{IdentityError, MAX_SANS, PeerIdentity};
pub use proxies::{ForwardedError, Proxies, ProxiesError, ProxyFiles};
pub use refused::{Names, RefusedCertificate};
pub use store::{ReloadError, Reloaded, Store};

#[cfg(test)]
mod tests;
