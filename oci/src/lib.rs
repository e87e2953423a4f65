//! Modules as OCI artifacts with an OCM component descriptor.
//!
//! A version is a tag in `<base>/component-descriptors/<component>`. The tag's OCI manifest points to the
//! component descriptor, which lists the layers with the module's YAML.
//!
//! Registries are untrusted. Answers have size limits and deadlines, blobs are verified by digest, and archives and
//! YAML have budgets.
//!
//! - [`Registry`] reads, and [`push`] writes a [`ModulePackage`].
//! - [`manifests_of`] converts a layer to Kubernetes objects.

mod breaker;
mod byte_lru;
mod cache;
mod crypto;
mod descriptor;
mod distribution;
mod docker_config;
mod error;
mod pack;
mod push;
mod reference;
mod registry;
pub(crate) mod render;
#[cfg(test)]
mod tests;
mod unpack;

pub use byte_lru::ByteLru;
pub use crypto::install_crypto_provider;
pub use descriptor::{Access, ComponentDescriptor, Resource};
pub use distribution::{Credentials, USER_AGENT};
pub use docker_config::{DockerConfigError, MAX_DOCKER_CONFIG, credentials_for, credentials_of};
pub use error::OciError;
pub use pack::{ModulePackage, Packed, PackedBlob, pack};
pub use push::{Progress, PushOptions, Pushed, push, push_new, push_with};
pub use reference::{BaseUrl, Digest, Reference, Scheme, Selector};
pub use registry::{Registry, RegistryConfig};
pub use render::{Mistake, RenderError, Rendered, manifests_of, render, unnamed};
