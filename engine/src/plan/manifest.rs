//! The plan of one Manifest: what to apply in which order, what to prune, and what its status says.

mod bundle;
mod definitions;
mod inventory;
mod ownership;
mod prune;
mod release;
mod sources;
mod status;

pub use bundle::{Bundle, BundleError, Scope, bundle, foreign_kinds};
pub use definitions::{Definitions, Sorted};
pub use inventory::{inventory, synced, union};
pub use ownership::{Claim, Marks, Verdict, marked_for, verdict};
pub(crate) use prune::removal_rank;
pub use prune::{is_one, prune, twins};
pub use release::unmark;
pub use sources::together;
pub use status::{
    APPLYING, Progress, has_been_ready, have_jobs_completed, is_as_left, is_current, manifest_status,
    may_wait, with_cr_state, with_cr_state_as_before, with_jobs_completed,
};

use super::object::Gvk;

const CRD: (&str, &str) = ("apiextensions.k8s.io", "CustomResourceDefinition");

fn is(gvk: &Gvk, group_kind: (&str, &str)) -> bool {
    (gvk.group.as_str(), gvk.kind.as_str()) == group_kind
}

#[cfg(test)]
mod tests;
