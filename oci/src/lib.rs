//! Modules as OCI artifacts with an OCM component descriptor.
//!
//! A module version lives in the repository `<base>/component-descriptors/<component>` under the tag of its
//! version. Its manifest names a descriptor layer, and the descriptor names the layers that hold the module's
//! Kubernetes manifests. What a registry sends is outside input: every answer has a size limit and a deadline, every
//! blob is verified against its digest by us, and archives and YAML are read under budgets.
//!
//! - [`Registry`] reads descriptors and layers, [`push`] writes a [`ModulePackage`];
//! - [`manifests_of`] turns a layer into Kubernetes objects; it is pure.

mod breaker;
mod byte_lru;
mod cache;
mod descriptor;
mod distribution;
mod docker_config;
mod error;
mod pack;
mod reference;
mod registry;
pub(crate) mod render;
#[cfg(test)]
mod tests;
mod unpack;

use std::sync::OnceLock;

pub use byte_lru::ByteLru;
pub use descriptor::{Access, ComponentDescriptor, Resource};
pub use distribution::Credentials;
pub use docker_config::{DockerConfigError, MAX_DOCKER_CONFIG, credentials_for, credentials_of};
pub use error::OciError;
pub use pack::{
    ModulePackage, Packed, PackedBlob, Progress, PushOptions, Pushed, pack, push, push_new, push_with,
};
pub use reference::{BaseUrl, Digest, Reference, Scheme, Selector};
pub use registry::{Registry, RegistryConfig};
pub use render::{Mistake, RenderError, Rendered, manifests_of, render, unnamed};

/// Makes aws-lc-rs the process-wide rustls provider, if none is set yet.
///
/// The registry client's HTTP library takes its provider from the process and panics without one; there is no other
/// way to hand it one that `oci-client` also uses. Everything of our own names its provider explicitly and does not
/// depend on this. Idempotent, callable from any thread; [`Registry::new`] calls it. A provider that the embedding
/// program has installed before stays.
pub fn install_crypto_provider() {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        // An error only says that somebody was faster, which is what we want to respect.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    });
}
