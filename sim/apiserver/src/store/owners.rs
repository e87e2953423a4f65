//! Field ownership by clients and by removed versions.

use std::sync::Arc;

use serde_json::Value;

use super::{cluster::Cluster, options, refusal::Refusal, request::Request};
use crate::{
    fields::{managed::Managed, said::Said},
    kinds::{Kind, builtin, custom},
    object::{Stored, meta::metadata_mut},
    schema::{shape, validate::Cause},
};

/// Bytes.
const LONGEST_SUBRESOURCE: usize = 256;

/// Takes `managedFields` from a body. Subresources cannot set owners.
pub(super) fn said_managed(object: &mut Value, kind: &Kind, request: &Request, empty_resets: bool) -> Said {
    let given = metadata_mut(object).remove("managedFields");
    let given = given.as_ref().and_then(Value::as_array).filter(|_| request.target.subresource.is_empty());
    let mut said = Said::read(given.map(Vec::as_slice), empty_resets);
    if let Said::Owners(owners) = &mut said {
        owners.fit(kind.schema());
    }
    said
}

pub(super) fn owners_checked(owners: &Managed, kind: &Kind, name: &str) -> Result<(), Refusal> {
    let mut causes = Vec::new();
    for (index, owner) in owners.0.iter().enumerate() {
        let field = format!("metadata.managedFields[{index}]");
        causes.extend(options::manager(&owner.manager, &format!("{field}.manager")));
        if owner.subresource.len() > LONGEST_SUBRESOURCE {
            causes.push(Cause::too_long(&format!("{field}.subresource"), LONGEST_SUBRESOURCE));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid(&kind.kind, &kind.group, name, &causes)) }
}

impl Cluster {
    /// Drops owners of unserved built-in versions. `None`: an invalid or unknown custom version, which voids
    /// all owners in Kubernetes.
    pub(super) fn known(&self, mut owners: Managed, kind: &Kind) -> Option<Managed> {
        let own = kind.api_version();
        if owners.0.iter().all(|owner| owner.api_version == own) {
            return Some(owners);
        }
        if owners.0.iter().any(|owner| owner.api_version.matches('/').count() > 1) {
            return None;
        }
        if kind.is_builtin() {
            let served = |version: &str| {
                builtin::kinds()
                    .iter()
                    .any(|other| other.storage == kind.storage && other.api_version() == version)
            };
            owners.0.retain(|owner| served(&owner.api_version));
            return Some(owners);
        }
        let known = self.versions(kind);
        owners.0.iter().all(|owner| known.contains(&owner.api_version)).then_some(owners)
    }

    fn versions(&self, kind: &Kind) -> Vec<String> {
        let Some(definition) = self.definition(kind) else { return vec![kind.api_version()] };
        let versions = definition["spec"]["versions"].as_array().into_iter().flatten();
        let names = versions.filter_map(|version| version["name"].as_str());
        names.map(|name| format!("{}/{name}", kind.group)).collect()
    }

    /// Prunes and defaults an object in its storage version.
    pub(super) fn as_stored(&self, kind: &Kind, object: &mut Value) {
        let served = self.custom.get(&kind.storage).filter(|served| served.len() > 1);
        let Some((served, definition)) = served.zip(self.definition(kind)) else { return };
        let version = custom::stored_version(&definition["spec"]);
        if let Some(stored) = served.iter().find(|one| one.version == version && one.version != kind.version)
        {
            shape::prune(object, stored.schema());
            shape::default(object, stored.schema());
            object["apiVersion"] = stored.api_version().into();
        }
    }

    pub(super) fn definition(&self, kind: &Kind) -> Option<Value> {
        Some(self.stored_definition(kind)?.render())
    }

    /// Whether a custom kind's CRD is being deleted.
    pub(super) fn is_ending(&self, kind: &Kind) -> bool {
        !kind.is_builtin() && self.stored_definition(kind).is_some_and(|definition| definition.is_deleted())
    }

    fn stored_definition(&self, kind: &Kind) -> Option<&Arc<Stored>> {
        let definitions = builtin::find("apiextensions.k8s.io", "v1", "customresourcedefinitions")?;
        self.objects.get(&Self::key(definitions, "", &kind.storage))
    }
}
