//! The custom resources of Kyma's lifecycle (group `operator.kyma-project.io`, version `v1beta2`)
//! as Rust types, the names around them, and their CRDs.
//!
//! The API server of a cluster that uses the generated CRDs ([`crds`]) accepts and rejects the same
//! objects as one that uses the original ones. Reading is lenient on purpose: what the API server
//! requires or fills in may be missing on the wire, so objects written by older versions parse.
//!
//! Everything here is pure: no client, no clock, no I/O.

#![allow(clippy::duplicated_attributes, reason = "two printer columns of one type are no duplicates")]

pub mod crds;
pub mod inventory;
pub mod kyma;
pub mod managed_fields;
pub mod manifest;
pub mod marks;
pub mod modulereleasemeta;
pub mod moduletemplate;
pub mod names;
pub mod object;
pub mod raw;
pub mod readiness;
pub(crate) mod schema;
pub mod state;
pub mod terms;
pub(crate) mod time;
pub mod watcher;
pub mod yaml;

pub use kyma::{Kyma, KymaSpec, KymaStatus, Module, ModuleStatus, PartialMeta, TrackingObject};
pub use manifest::{
    ImageSpec, InstallInfo, Manager, Manifest, ManifestSpec, ManifestStatus, Resource, SourceError,
    SourceType,
};
pub use modulereleasemeta::{
    ChannelVersion, Mandatory, ModuleReleaseMeta, ModuleReleaseMetaSpec, OfferedVersion,
};
pub use moduletemplate::{
    CustomStateCheck, GroupKind, GroupVersionKind, IgnoredFields, ModuleTemplate, ModuleTemplateSpec,
    Requires,
};
pub use raw::{EmbeddedObject, EmbeddedPlace, RawObject};
pub use schema::is_module_name;
pub use state::{CustomResourcePolicy, LastOperation, State};
pub use terms::{Layer, ModuleTerms, TermsError};
pub use watcher::{Watcher, WatcherSpec, WatcherStatus};
