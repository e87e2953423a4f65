//! The PKI of Tidewatch: a certificate authority, the certificates it issues for
//! receivers (server) and agents (client), and the Secrets they are kept in.
//!
//! Everything here is pure: the caller gives the time and gets values back; nothing
//! reads a clock, a file or a cluster. Keys are ECDSA P-256. A private key is only ever
//! held in [`PrivateKeyPem`], whose `Debug` does not show it.

mod ca;
mod error;
mod issue;
mod key;
pub mod secret;

pub use ca::Ca;
pub use error::Error;
pub use issue::{ClientRequest, Issued, ServerRequest};
pub use key::PrivateKeyPem;

#[cfg(test)]
mod tests;
