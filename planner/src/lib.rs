//! Decides on a Kyma's modules, their versions, and the time of each change.
//!
//! All functions are pure: no client, clock or I/O. The engine reads input and writes results. `tidewatch-deployer` handles objects in
//! runtimes.
//!
//! - A Kyma's Manifests: [`kyma`], [`mandatory`]
//! - Versions: [`versions`]
//! - Permission to install or change: [`gates`], [`access`], [`policy`], [`windows`], [`requirements`]
//! - Rollout turns: [`rollout`]
//! - Deletion: [`deletion`], [`blockers`], [`force`]
//! - Releases that a user sees: [`catalog`]
//! - Agents' watches: [`agent`], [`watches`]; their installation, upgrades and certificates: [`agent_install`],
//!   [`agent_rollout`], [`enrolment`]
//! - State of a Manifest: [`manifest`]; its status: [`manifest_status`], [`status`]
//! - Fields of a status that the engine owns, and foreign writes: [`writers`]
//! - Objects that the engine itself installs in a runtime: [`engine_owned`]
//! - Names of Manifests, and notices to users: [`naming`], [`notice`]

pub mod access;
pub mod agent;
pub mod agent_install;
pub mod agent_rollout;
pub mod blockers;
pub mod catalog;
pub mod deletion;
pub mod engine_owned;
pub mod enrolment;
pub mod force;
pub mod gates;
pub mod kyma;
pub mod mandatory;
pub mod manifest;
pub mod manifest_status;
pub mod naming;
pub mod notice;
pub mod policy;
pub mod requirements;
pub mod rollout;
pub mod status;
pub mod versions;
pub mod watches;
pub mod windows;
pub mod writers;
