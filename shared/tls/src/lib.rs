//! TLS for both ends of the event path: configurations, their live replacement, and who the peer is.
//!
//! One provider (aws-lc-rs), TLS 1.3 only, certificates on both sides, no session resumption: a resumed session
//! would skip the check of the client's certificate.

mod bundle;
mod files;
mod handshake;
mod identity;
mod proxies;
mod refused;
mod store;
pub mod xfcc;

pub use bundle::{Bundle, BundleError, Pem, client_config, provider, server_config};
pub use files::{Files, FilesError};
pub use handshake::HandshakeFailure;
pub use identity::{IdentityError, MAX_SANS, PeerIdentity};
pub use proxies::{ForwardedError, Proxies, ProxiesError, ProxyFiles};
pub use refused::{Names, RefusedCertificate};
pub use store::{ReloadError, Reloaded, Store};

#[cfg(test)]
mod tests;
