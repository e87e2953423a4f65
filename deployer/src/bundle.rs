//! A module's rendered objects: marked, namespaced and in the order in which they are applied.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;
use tidewatch_api::object::{Gvk, ObjectRef};

use crate::{
    kinds::{CRD, is},
    transform::{self, NoText},
};

/// Where a kind lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In namespaces.
    Namespaced,
    /// In the cluster.
    Cluster,
}

/// A module's objects, ready to be applied in three steps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bundle {
    /// Namespaces and CRDs: what the others need.
    pub first: Vec<Value>,
    /// Everything else.
    pub main: Vec<Value>,
    /// Objects of kinds that `first` defines. They can wait for their CRD without holding `main` up.
    pub custom: Vec<Value>,
    /// Identities of all of them, in order.
    pub objects: Vec<ObjectRef>,
}

impl Bundle {
    /// All objects.
    pub fn iter(&self) -> impl Iterator<Item = &Value> {
        self.first.iter().chain(&self.main).chain(&self.custom)
    }

    /// All objects, to be changed in place.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Value> {
        self.first.iter_mut().chain(&mut self.main).chain(&mut self.custom)
    }

    /// The same without some of the objects.
    #[must_use]
    pub fn without(mut self, which: impl Fn(&ObjectRef) -> bool) -> Self {
        for phase in [&mut self.first, &mut self.main, &mut self.custom] {
            phase.retain(|object| !ObjectRef::of(object).is_some_and(|id| which(&id)));
        }
        self.objects.retain(|id| !which(id));
        self
    }
}

/// Why rendered objects make no bundle.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BundleError {
    /// Nothing was rendered. Applying it would prune everything.
    #[error(
        "the module's manifest has no objects; nothing is changed, so that nothing is removed by mistake"
    )]
    Empty,
    /// A Secret whose value is no text. An API server would quote it in its refusal.
    #[error("{0} of the module's manifest: {1}")]
    NoText(String, NoText),
    /// The same object in two sources.
    #[error("both '{1}' and '{2}' of the module have {0}: take it out of one of them")]
    InTwo(String, String, String),
    /// More than a module may have.
    #[error("the module's sources have more than {0} objects; split the module")]
    TooMany(usize),
}

fn owned(object: &ObjectRef) -> (String, String, String, String) {
    let (group, kind, namespace, name) = object.identity();
    (group.into(), kind.into(), namespace.into(), name.into())
}

/// Marks, strips, namespaces and orders a module's rendered objects. `scopes` tells the scope of kinds
/// that the runtime knows; kinds that the bundle itself defines are taken from their CRDs.
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
            // One without a name is refused when the others are applied.
            bundle.main.push(object);
            continue;
        };
        let own = defined.get(&(identity.gvk.group.clone(), identity.gvk.kind.clone())).copied();
        match own.or_else(|| scopes.get(&identity.gvk).copied()) {
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
        // Of an object that is there twice the first one counts, as in other tools.
        if !seen.insert(owned(&identity)) {
            continue;
        }
        transform::strip(&mut object);
        if is(&identity.gvk, ("", "Secret")) {
            let stored = transform::store_texts(&mut object);
            stored.map_err(|why| BundleError::NoText(identity.to_string(), why))?;
        }
        transform::mark(&mut object, manifest);
        let phase = if is(&identity.gvk, CRD) || is(&identity.gvk, ("", "Namespace")) {
            &mut bundle.first
        } else if own.is_some() {
            &mut bundle.custom
        } else {
            &mut bundle.main
        };
        phase.push(object);
        bundle.objects.push(identity);
    }
    Ok(bundle)
}

/// Kinds of the rendered objects that the runtime must be asked about.
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
