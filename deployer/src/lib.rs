//! Decides how the objects of a module reach one cluster. Knows no Kyma.
//!
//! - objects and their order: [`sources`], [`bundle`], [`definitions`], [`transform`]
//! - changes of an apply: [`drift`]
//! - refused updates: [`refusal`], [`drift::leftovers`]
//! - deletion: [`ownership`], [`prune`], [`namespace`]
//! - readiness: [`readiness`]
//! - other field managers: [`adoption`], [`conflict`]
//! - memory of earlier applies: [`history`]
//! - removal of the engine's marks: [`release`]

pub mod adoption;
pub mod bundle;
pub mod conflict;
pub mod definitions;
pub mod drift;
pub mod history;
pub(crate) mod kinds;
pub mod namespace;
pub mod ownership;
pub mod prune;
pub mod readiness;
pub mod refusal;
pub mod release;
pub mod sources;
pub mod transform;
