//! Plans: values in, plan out.
//!
//! Nothing in here has a client, a clock, a runtime or I/O. What has to be read is read by
//! [`crate::drive`] before, what has to be written is written after, and every decision in between is
//! made here, where a test can see it.

pub mod access;
pub mod agent;
pub mod blockers;
pub mod catalog;
pub mod deletion;
pub mod drift;
pub mod exchange;
pub mod fight;
pub mod force;
pub mod gates;
pub mod kyma;
pub mod mandatory;
pub mod manifest;
pub mod namespace;
pub mod naming;
pub mod needs;
pub mod notice;
pub mod object;
pub mod ours;
pub mod owners;
pub mod ownership;
pub mod policy;
pub mod readiness;
pub mod refusal;
pub mod rollout;
pub mod status;
pub mod transform;
pub mod versions;
pub mod watches;
pub mod windows;
pub mod writers;
