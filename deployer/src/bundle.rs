//! A module's rendered objects, prepared for apply.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use tidewatch_api::object::{Gvk, ObjectRef};

use crate::{
    kinds::{CRD, is},
    transform::{self, NotText},
};

/// Scope of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// In the cluster.
    Cluster,
}

/// A module's objects, applied in three phases.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bundle {
    /// Namespaces and CRDs.
    pub first: Vec<Value>,
    /// Other objects.
    pub main: Vec<Value>,
    /// Objects of kinds that `first` defines. They do not delay `main`.
    pub custom: Vec<Value>,
    /// Identities, in rendered order.
    pub objects: Vec<ObjectRef>,
}

impl Bundle {
    /// Iterates over all objects.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.first.iter().chain(&self.main).chain(&self.custom)
    }

    /// Iterates over all objects, mutably.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.first.iter_mut().chain(&mut self.main).chain(&mut self.custom)
    }

    /// Removes the selected objects.
    #[must_use]
    pub fn without(mut self, selects: impl Fn(&ObjectRef) -> bool) -> Self {
        for phase in [&mut self.first, &mut self.main, &mut self.custom] {
            phase.retain(|object| !ObjectRef::of(object).is_some_and(|id| selects(&id)));
        }
        self.objects.retain(|id| !selects(id));
        self
    }
}

/// Reason why objects form no bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// No objects. Applying none would prune everything.
    #[error(
        "the module's manifest has no objects; nothing is changed, so that nothing is removed by mistake"
    )]
    Empty,
    /// A Secret value that is no text. An API server would quote it in its refusal.
    #[error("{0} of the module's manifest: {1}")]
    NotText(String, NotText),
    /// An object in two sources.
    #[error("both '{1}' and '{2}' of the module have {0}: take it out of one of them")]
    Duplicate(String, String, String),
    /// Too many objects.
    #[error("the module's sources have more than {0} objects; split the module")]
    TooMany(usize),
}

fn identity_of(object: &ObjectRef) -> (String, String, String, String) {
    let (group, kind, namespace, name) = object.identity();
    (group.into(), kind.into(), namespace.into(), name.into())
}

/// Marks, strips, namespaces and orders objects. `scopes`: kinds that the runtime serves.
pub fn bundle(
    manifest: (&str, &str),
    rendered: Vec<Value>,
    scopes: &BTreeMap<Gvk, Scope>,
) -> Result<Bundle, BundleError> {
    if rendered.is_empty() {
        return Err(BundleError::Empty);
    }
    let defined = defined_kinds(&rendered);
    let mut bundle = Bundle::default();
    let mut seen = HashSet::new();
    for mut object in rendered {
        let Some(mut identity) = ObjectRef::of(&object) else {
            // The API server will refuse it.
            bundle.main.push(object);
            continue;
        };
        let defined_scope = defined.get(&(identity.gvk.group.clone(), identity.gvk.kind.clone())).copied();
        match defined_scope.or_else(|| scopes.get(&identity.gvk).copied()) {
            Some(Scope::Cluster) => {
                identity.namespace.clear();
                if let Some(metadata) = object["metadata"].as_object_mut() {
                    metadata.remove("namespace");
                }
            }
            Some(Scope::Namespaced) if identity.namespace.is_empty() => {
                identity.namespace = "default".into();
                object["metadata"]["namespace"] = "default".into();
            }
            _ => {}
        }
        // The first duplicate counts, as in other tools.
        if !seen.insert(identity_of(&identity)) {
            continue;
        }
        transform::strip(&mut object);
        if is(&identity.gvk, ("", "Secret")) {
            let stored = transform::store_texts(&mut object);
            stored.map_err(|why| BundleError::NotText(identity.to_string(), why))?;
        }
        transform::mark(&mut object, manifest);
        let phase = if is(&identity.gvk, CRD) || is(&identity.gvk, ("", "Namespace")) {
            &mut bundle.first
        } else if defined_scope.is_some() {
            &mut bundle.custom
        } else {
            &mut bundle.main
        };
        phase.push(object);
        bundle.objects.push(identity);
    }
    Ok(bundle)
}

/// Returns the kinds without a CRD among the objects.
#[must_use]
pub fn foreign_kinds(rendered: &[Value]) -> Vec<Gvk> {
    let defined = defined_kinds(rendered);
    let mut kinds: Vec<Gvk> = rendered
        .iter()
        .filter_map(ObjectRef::of)
        .map(|o| o.gvk)
        .filter(|gvk| !defined.contains_key(&(gvk.group.clone(), gvk.kind.clone())))
        .collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn defined_kinds(rendered: &[Value]) -> BTreeMap<(String, String), Scope> {
    let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
    rendered
        .iter()
        .filter(|o| ObjectRef::of(o).is_some_and(|r| is(&r.gvk, CRD)))
        .map(|crd| {
            let spec = &crd["spec"];
            let scope =
                if spec["scope"].as_str() == Some("Cluster") { Scope::Cluster } else { Scope::Namespaced };
            ((text(&spec["group"]), text(&spec["names"]["kind"])), scope)
        })
        .collect()
}

#[cfg(test)]
mod tests;
