//! Field ownership by clients and by removed versions.

use serde_json::Value;

use super::{definitions, objects::Objects, options, refusal::Refusal, request::Request};
use crate::{
    fields::{given::GivenOwners, managed::Managed},
    kinds::{Kind, builtin},
    object::meta::metadata_mut,
    schema::validate::Cause,
};

/// Bytes.
const MAX_SUBRESOURCE_BYTES: usize = 256;

/// Takes `managedFields` from a body. Subresources cannot set owners.
pub(super) fn take_given(object: &mut Value, kind: &Kind, request: &Request) -> GivenOwners {
    let given = metadata_mut(object).remove("managedFields");
    let given = given.as_ref().and_then(Value::as_array).filter(|_| request.target.subresource.is_empty());
    // For custom resources, an empty list counts as absent.
    let mut owners = GivenOwners::read(given.map(Vec::as_slice), kind.is_builtin());
    if let GivenOwners::Owners(owners) = &mut owners {
        owners.fit(kind.schema());
    }
    owners
}

pub(super) fn check(owners: &Managed, kind: &Kind, name: &str) -> Result<(), Refusal> {
    let mut causes = Vec::new();
    for (index, owner) in owners.0.iter().enumerate() {
        let field = format!("metadata.managedFields[{index}]");
        causes.extend(options::manager(&owner.manager, &format!("{field}.manager")));
        if owner.subresource.len() > MAX_SUBRESOURCE_BYTES {
            causes.push(Cause::too_long(&format!("{field}.subresource"), MAX_SUBRESOURCE_BYTES));
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Refusal::invalid(&kind.kind, &kind.group, name, &causes)) }
}

/// Drops owners of unserved built-in versions. `None`: an invalid or unknown custom version, which voids
/// all owners in Kubernetes.
pub(super) fn known(objects: &Objects, mut owners: Managed, kind: &Kind) -> Option<Managed> {
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
    let known = definitions::api_versions(objects, kind);
    owners.0.iter().all(|owner| known.contains(&owner.api_version)).then_some(owners)
}
