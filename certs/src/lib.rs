//! PKI of Tidewatch: CA, certificates and their Secrets.
//!
//! Pure: the caller supplies the time. Keys are ECDSA P-256, in [`PrivateKeyPem`] only.

mod ca;
mod error;
mod facts;
mod issue;
mod key;
mod request;
pub mod rotation;
pub mod secret;

pub use ca::Ca;
pub use error::Error;
pub use facts::{Validity, is_issued_for, validity};
pub use issue::{ClientRequest, Issued, ServerRequest};
pub use key::PrivateKeyPem;
pub use request::{AgentRequest, RequestError, Signed, create_key, create_request};

#[cfg(test)]
mod tests;
