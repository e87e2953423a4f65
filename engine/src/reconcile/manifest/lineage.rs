//! Finds whether blocking objects belong to the module, through their chain of owners.

use std::collections::HashMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use tidewatch_api::object::{Gvk, ObjectRef};
use tidewatch_deployer::bundle::Scope;
use tidewatch_planner::blockers;

use crate::clusters::{
    Gated,
    objects::{self, ObjectError},
};

/// Limits: owners per chain, and owners per check.
const CHAIN: usize = 4;
const LOOKS: usize = 50;

/// Owners read in one check.
#[derive(Default)]
pub(super) struct Lineage {
    /// The owners of each owner, by its uid.
    known: HashMap<String, Vec<OwnerReference>>,
}

impl Lineage {
    /// Returns whether one of the module's objects is an indirect owner. An object with an unreadable owner counts as the user's.
    ///
    /// # Errors
    /// The runtime cannot be asked at the moment.
    pub(super) async fn is_of(
        &mut self,
        runtime: &Gated,
        object: &ObjectRef,
        owners: &[OwnerReference],
        own: &[ObjectRef],
    ) -> Result<bool, ObjectError> {
        match self.goes_with(runtime, object, owners, own).await {
            Err(error) if !error.is_transient() && !error.is_cut_off() => Ok(false),
            answer => answer,
        }
    }

    async fn goes_with(
        &mut self,
        runtime: &Gated,
        object: &ObjectRef,
        owners: &[OwnerReference],
        own: &[ObjectRef],
    ) -> Result<bool, ObjectError> {
        let mut owners = owners.to_vec();
        for _ in 0..CHAIN {
            let Some(next) = owners.iter().find(|owner| owner.controller == Some(true)).or(owners.first())
            else {
                return Ok(false);
            };
            let gvk = Gvk::of(&next.api_version, &next.kind);
            let scope = objects::scope(runtime, &gvk).await?;
            let is_in_none = matches!(scope, Some(Scope::Cluster));
            let namespace = if is_in_none { String::new() } else { object.namespace.clone() };
            let owner = ObjectRef { gvk, namespace, name: next.name.clone() };
            let above = match self.known.get(&next.uid) {
                Some(above) => above.clone(),
                None if scope.is_none() || self.known.len() >= LOOKS => return Ok(false),
                None => {
                    let there = objects::get(runtime, &owner).await?.unwrap_or_default();
                    let metadata = &there["metadata"];
                    let is_it = metadata["uid"].as_str() == Some(&next.uid);
                    let above = Some(&metadata["ownerReferences"]).filter(|_| is_it);
                    let above = above.and_then(|above| serde_json::from_value(above.clone()).ok());
                    self.known.entry(next.uid.clone()).or_insert(above.unwrap_or_default()).clone()
                }
            };
            if blockers::is_owned(&owner, &above, own) {
                return Ok(true);
            }
            owners = above;
        }
        Ok(false)
    }
}
