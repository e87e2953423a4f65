//! Kyma's custom resources (`operator.kyma-project.io/v1beta2`), their names and CRDs.
//!
//! The CRDs ([`crds`]) accept and reject the same objects as the original ones. Parsing is lenient: required and
//! defaulted fields may be missing, as in older objects.
//!
//! This crate has no client, clock or I/O.

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
pub use raw::{EmbeddedObject, RawObject};
pub use schema::is_module_name;
pub use state::{CustomResourcePolicy, LastOperation, State};
pub use terms::{Layer, ModuleTerms, TermsError};
pub use watcher::{Watcher, WatcherSpec, WatcherStatus};
