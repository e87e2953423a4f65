//! Decides how the objects of a module reach one cluster: what to apply, keep, prune and report. Knows no Kyma and no control plane.
//!
//! | question | module |
//! |---|---|
//! | Which objects, in which order? | [`sources`], [`bundle`], [`definitions`], [`transform`] |
//! | Would an apply change anything? | [`drift`] |
//! | Why does the API server refuse an update? | [`refusal`], [`drift::leftovers`] |
//! | May an object be deleted, and in which order? | [`ownership`], [`prune`], [`namespace`] |
//! | Is the module ready? | [`readiness`] |
//! | Who else writes the objects? | [`adoption`], [`conflict`] |
//! | How does an object lose the engine's marks? | [`release`] |

pub mod adoption;
pub mod bundle;
pub mod conflict;
pub mod definitions;
pub mod drift;
pub(crate) mod kinds;
pub mod namespace;
pub mod ownership;
pub mod prune;
pub mod readiness;
pub mod refusal;
pub mod release;
pub mod sources;
pub mod transform;
