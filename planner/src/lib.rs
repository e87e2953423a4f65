//! Decides which modules a Kyma gets, in which version and when, and when each of them goes.
//!
//! Every function takes values and returns values: no client, clock, runtime or I/O. The engine reads the input before, and writes the
//! result after. Objects inside a runtime cluster are the business of `tidewatch-deployer`.
//!
//! | question | module |
//! |---|---|
//! | Which Manifests does a Kyma need? | [`kyma`], and [`mandatory`] for mandatory modules |
//! | Which version of a module? | [`versions`] |
//! | May the module be installed or changed now? | [`gates`]: [`access`], [`policy`], [`windows`], [`needs`] |
//! | When is it a Kyma's turn in a rollout? | [`rollout`] |
//! | In which order does a Kyma go, and what does a removal wait for? | [`deletion`], [`blockers`], [`force`] |
//! | Which releases does a runtime's user see? | [`catalog`] |
//! | Which objects does an agent watch? | [`agent`], [`watches`] |
//! | What does a Manifest's status say? | [`manifest_status`], [`manifest`], [`writers`] |

pub mod access;
pub mod agent;
pub mod blockers;
pub mod catalog;
pub mod deletion;
pub mod force;
pub mod gates;
pub mod kyma;
pub mod mandatory;
pub mod manifest;
pub mod manifest_status;
pub mod naming;
pub mod needs;
pub mod notice;
pub mod ours;
pub mod policy;
pub mod rollout;
pub mod status;
pub mod versions;
pub mod watches;
pub mod windows;
pub mod writers;
