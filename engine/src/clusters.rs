//! Access to runtime clusters.
//!
//! A kubeconfig is a tenant's input. [`RuntimeAccess::parse`] takes inline data only. It refuses exec, files, proxies and impersonation.
//! Clients share one connector, speak HTTP/2, cap responses, and have a deadline per call. They do not retry; the queue does.

pub(crate) mod access;
pub(crate) mod budget;
mod cache;
pub(crate) mod call_limiter;
mod client;
mod counted;
mod error;
mod gated;
mod kubeconfig;
mod mapper;
pub(crate) mod objects;
pub(crate) mod policy;
pub(crate) mod rate;
pub(crate) mod record;
#[cfg(test)]
mod tests;

pub(crate) use access::Clusters;
pub(crate) use budget::{Admission, Refusal, Suspension};
pub use cache::{ClientCache, SecretVersion};
pub use client::{Connector, Limits, RuntimeClient, USER_AGENT};
pub use counted::{Answered, Counted, CountedLayer};
pub use error::{ErrorClass, RuntimeError};
pub(crate) use gated::Gated;
pub use kubeconfig::{KubeconfigError, RuntimeAccess};
pub use mapper::{MapError, Mapped, Mapper, Missing, Scope};
pub use policy::{AddressPolicy, AddressPolicyError};
