//! Status entries of modules with a Manifest. Unchanged entries are reused, nearly always.

use std::{borrow::Cow, sync::Arc};

use tidewatch_api::{
    EmbeddedObject, EmbeddedPlace, Manifest, ModuleStatus, PartialMeta, State, TrackingObject,
    names::{self, KCP_NAMESPACE},
};

use crate::versions::{Choice, Chosen};

pub(super) struct Shown<'a> {
    pub(super) choice: &'a Choice,
    pub(super) chosen: &'a Chosen,
    pub(super) manifest: &'a Manifest,
    /// Of the template.
    pub(super) generation: Option<i64>,
}

/// Reference to an object; see [`TrackingObject`].
#[derive(Clone, Copy)]
struct Place<'a> {
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
    namespace: &'a str,
    generation: Option<i64>,
}

impl Shown<'_> {
    /// Returns the entry; `before` if equal.
    pub(super) fn says(
        &self,
        before: Option<&Arc<ModuleStatus>>,
        state: State,
        message: &str,
    ) -> Arc<ModuleStatus> {
        match before {
            Some(before) if self.is(before, state, message) => Arc::clone(before),
            _ => Arc::new(self.entry(state, message)),
        }
    }

    fn entry(&self, state: State, message: &str) -> ModuleStatus {
        let Self { choice, chosen, .. } = self;
        ModuleStatus {
            name: choice.module.name.clone(),
            channel: choice.channel.clone(),
            version: chosen.version.clone(),
            ocm_component_name: chosen.component.clone(),
            fqdn: chosen.component.clone(),
            manifest: Some(self.manifest().tracking()),
            resource: self.resource().map(Place::tracking),
            template: Some(self.template().tracking()),
            message: message.to_owned(),
            state,
            maintenance: false,
        }
    }

    fn is(&self, entry: &ModuleStatus, state: State, message: &str) -> bool {
        // Exhaustive: new fields must be compared.
        let ModuleStatus {
            name,
            fqdn,
            ocm_component_name,
            manifest,
            channel,
            version,
            message: said,
            state: was,
            resource,
            template,
            maintenance,
        } = entry;
        let Self { choice, chosen, .. } = self;
        let points =
            |at: &Option<TrackingObject>, place: Place<'_>| at.as_ref().is_some_and(|at| place.is(at));
        *was == state
            && said == message
            && *version == chosen.version
            && *channel == choice.channel
            && *name == choice.module.name
            && !maintenance
            && *ocm_component_name == chosen.component
            && *fqdn == chosen.component
            && points(manifest, self.manifest())
            && points(template, self.template())
            && match self.resource() {
                Some(place) => points(resource, place),
                None => resource.is_none(),
            }
    }

    fn manifest(&self) -> Place<'_> {
        let metadata = &self.manifest.metadata;
        in_kcp("Manifest", metadata.name.as_deref(), metadata.namespace.as_deref(), None)
    }

    fn template(&self) -> Place<'_> {
        let metadata = &self.chosen.template.metadata;
        in_kcp("ModuleTemplate", metadata.name.as_deref(), metadata.namespace.as_deref(), self.generation)
    }

    fn resource(&self) -> Option<Place<'_>> {
        let cr: &EmbeddedObject =
            self.manifest.spec.resource.as_ref().filter(|_| self.manifest.spec.creates_default_cr())?;
        let EmbeddedPlace { api_version, kind, name, namespace } = cr.place();
        // Cluster-scoped ones still have a namespace in the spec.
        let namespace = if self.chosen.template.is_cluster_scoped() { "" } else { namespace };
        Some(Place { api_version, kind, name, namespace, generation: None })
    }
}

fn in_kcp<'a>(
    kind: &'static str,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    generation: Option<i64>,
) -> Place<'a> {
    let (name, namespace) = (name.unwrap_or_default(), namespace.unwrap_or(KCP_NAMESPACE));
    Place { api_version: names::API_VERSION, kind, name, namespace, generation }
}

impl Place<'_> {
    fn tracking(self) -> TrackingObject {
        let Self { api_version, kind, name, namespace, generation } = self;
        let text = |text: &str| {
            let known = [names::API_VERSION, "Manifest", "ModuleTemplate"];
            known
                .into_iter()
                .find(|known| *known == text)
                .map_or_else(|| text.to_owned().into(), Cow::Borrowed)
        };
        TrackingObject {
            api_version: text(api_version),
            kind: text(kind),
            metadata: Some(PartialMeta { name: name.into(), namespace: namespace.into(), generation }),
        }
    }

    fn is(self, at: &TrackingObject) -> bool {
        let TrackingObject { api_version, kind, metadata: Some(metadata) } = at else { return false };
        let PartialMeta { name, namespace, generation } = metadata;
        name == self.name
            && kind == self.kind
            && api_version == self.api_version
            && namespace == self.namespace
            && *generation == self.generation
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::versions::{choose, fixtures::catalog};

    fn choice() -> Choice {
        let wanted = json!({"channel": "regular", "modules": [{"name": "lighthouse"}]});
        choose(&serde_json::from_value(wanted).unwrap(), &catalog(), &[]).remove(0)
    }

    #[test]
    fn what_was_said_is_said_again_only_if_all_of_it_is_true() {
        let choice = choice();
        let chosen = choice.outcome.as_ref().unwrap();
        for resource in
            [Value::Null, json!({"apiVersion": "x.dev/v1", "kind": "Beam", "metadata": {"name": "default"}})]
        {
            let manifest: Manifest = serde_json::from_value(json!({"metadata": {"name": "m", "namespace": "kcp"},
                "spec": {"version": "1.0.0", "remote": false, "resource": resource, "install": {"name": "raw-manifest", "source": {}}}}))
            .unwrap();
            let shown = Shown { choice: &choice, chosen, manifest: &manifest, generation: Some(1) };
            let entry = shown.entry(State::Ready, "as it should be");
            let says_again = |said: Value| {
                let said: Arc<ModuleStatus> = Arc::new(serde_json::from_value(said).unwrap());
                let says = shown.says(Some(&said), State::Ready, "as it should be");
                assert_eq!(*says, entry);
                Arc::ptr_eq(&says, &said)
            };
            assert_eq!(*shown.says(None, State::Ready, "as it should be"), entry);
            assert!(says_again(serde_json::to_value(&entry).unwrap()));
            let leaves = leaves(&serde_json::to_value(&entry).unwrap());
            assert!(leaves.len() > 12);
            for leaf in leaves {
                let mut other = serde_json::to_value(&entry).unwrap();
                let value = other.pointer_mut(&leaf).unwrap();
                *value = match value {
                    Value::Bool(value) => (!*value).into(),
                    Value::Number(_) => 7.into(),
                    _ if leaf == "/state" => "Warning".into(),
                    _ => "another".into(),
                };
                assert!(!says_again(other), "{leaf}");
            }
            for part in ["manifest", "template", "resource"] {
                let mut other = serde_json::to_value(&entry).unwrap();
                let is_there = other.as_object_mut().unwrap().remove(part).is_some();
                assert_eq!(says_again(other), !is_there, "{part}");
            }
        }
    }

    fn leaves(value: &Value) -> Vec<String> {
        let Value::Object(parts) = value else { return vec![String::new()] };
        let within = |(key, part): (&String, &Value)| {
            leaves(part).into_iter().map(|rest| format!("/{key}{rest}")).collect::<Vec<_>>()
        };
        parts.iter().flat_map(within).collect()
    }
}
