//! Compares a Manifest with the wanted one without building it; nearly always equal.

use std::collections::BTreeMap;

use kube::ResourceExt;
use serde_json::{Map, Value};
use tidewatch_api::{
    EmbeddedObject, EmbeddedPlace, InstallInfo, Kyma, Manifest, ManifestSpec, Module, ModuleTemplateSpec,
    ModuleTerms, RawObject,
    marks::is_enabled,
    names::{self, annotations, labels},
};

use super::Source;
use crate::{
    naming::is_manifest_name,
    versions::{Chosen, Origin},
};

/// Returns whether [`manifest_for`](super::manifest_of::manifest_for) would build `existing`; `false` if in doubt.
pub(super) fn stands(
    existing: &Manifest,
    kyma: &Kyma,
    (module, channel): (&Module, &str),
    chosen: &Chosen,
    source: &Source,
) -> bool {
    let kyma_name = kyma.metadata.name.as_deref().unwrap_or_default();
    let name = existing.metadata.name.as_deref().unwrap_or_default();
    is_manifest_name(name, kyma_name, &chosen.component, &module.name)
        && existing.metadata.namespace.as_deref()
            == Some(kyma.metadata.namespace.as_deref().unwrap_or(names::KCP_NAMESPACE))
        && is_spec((name, &existing.spec), module, chosen, source)
        && has_labels(existing.labels(), kyma_name, (module, channel))
        && has_annotations(existing.annotations(), chosen, source)
        && is_owned(existing, kyma, kyma_name)
}

fn has_labels(present: &BTreeMap<String, String>, kyma: &str, (module, channel): (&Module, &str)) -> bool {
    let in_order = [
        (labels::CHANNEL, channel),
        (labels::KYMA_NAME, kyma),
        (labels::MANAGED_BY, labels::MANAGED_BY_KCP),
        (labels::MODULE_NAME, &module.name),
    ];
    // One pass: lookups would dominate the comparison.
    let mut wanted = in_order.into_iter().peekable();
    for (key, value) in present {
        if let Some((_, wanted)) = wanted.next_if(|(wanted, _)| key == wanted) {
            if value != wanted {
                return false;
            }
        } else if key == labels::MANDATORY_MODULE && is_enabled(value) {
            return false;
        }
    }
    wanted.next().is_none()
}

fn has_annotations(present: &BTreeMap<String, String>, chosen: &Chosen, source: &Source) -> bool {
    let template = &chosen.template.spec;
    let (mut fqdn, mut component, mut local, mut uid, mut terms) = (None, None, None, None, None);
    for (key, value) in present {
        let known = match key.as_str() {
            annotations::FQDN => &mut fqdn,
            annotations::OCM_COMPONENT_NAME => &mut component,
            annotations::RUNTIME_TEMPLATE => &mut local,
            annotations::TEMPLATE_UID => &mut uid,
            annotations::MODULE_TERMS => &mut terms,
            _ => continue,
        };
        *known = Some(value.as_str());
    }
    let are_terms = || {
        if says_nothing(template) {
            return terms.is_none();
        }
        // Building the Manifest reports missing layers.
        source.layers(&template.sources).is_ok_and(|layers| {
            let wanted = ModuleTerms { layers, ..ModuleTerms::of(template) };
            terms == wanted.to_annotation().as_deref()
        })
    };
    let wanted = Some(chosen.component.as_str());
    fqdn == wanted
        && component == wanted
        && local == (chosen.origin == Origin::Local).then_some("true")
        && uid.is_none_or(|uid| Some(uid) == chosen.template.metadata.uid.as_deref())
        && are_terms()
}

/// No terms; see [`ModuleTerms::of`].
fn says_nothing(template: &ModuleTemplateSpec) -> bool {
    template.associated_resources.is_empty()
        && template.custom_state_check.is_empty()
        && template.requires.is_none()
        && template.ignore_fields.is_empty()
        && template.recreate.is_empty()
        && template.sources.is_empty()
        && template.progress_deadline_seconds.is_none()
}

fn is_owned(existing: &Manifest, kyma: &Kyma, name: &str) -> bool {
    let [owner] = existing.owner_references() else { return false };
    owner.api_version == names::API_VERSION
        && owner.kind == "Kyma"
        && owner.name == name
        && owner.uid == kyma.metadata.uid.as_deref().unwrap_or_default()
        && owner.controller == Some(true)
        && owner.block_owner_deletion == Some(true)
}

fn is_spec(
    (manifest, present): (&str, &ManifestSpec),
    module: &Module,
    chosen: &Chosen,
    source: &Source,
) -> bool {
    // Exhaustive: new fields must be compared.
    let ManifestSpec {
        custom_resource_policy,
        remote,
        version,
        config,
        install: InstallInfo { source: RawObject(present), name },
        resource,
        localized_images,
        manager,
    } = present;
    let template = &chosen.template;
    let is_source = |(key, value): (&String, &Value)| {
        let wanted = match key.as_str() {
            "name" => &chosen.component,
            "ref" => &source.layer,
            "repo" => &source.repo,
            "type" => source.type_.as_str(),
            _ => return false,
        };
        value.as_str() == Some(wanted)
    };
    *custom_resource_policy == module.custom_resource_policy
        && !*remote
        && *version == chosen.version
        && config.is_none()
        && name == "raw-manifest"
        && present.len() == 4
        && present.iter().all(is_source)
        && *localized_images == source.images
        && *manager == template.spec.manager
        && match (resource, &template.spec.data) {
            (None, None) => true,
            (Some(present), Some(data)) => is_default_cr(present, data, manifest),
            _ => false,
        }
}

fn is_default_cr(present: &EmbeddedObject, data: &EmbeddedObject, manifest: &str) -> bool {
    // Maps are sorted, so one pass suffices.
    let same = |((key, present), (wanted_key, wanted)): ((&String, &Value), (&String, &Value))| {
        key == wanted_key
            && match (key.as_str(), present, wanted) {
                ("metadata", Value::Object(present), Value::Object(wanted)) => {
                    is_default_metadata(present, wanted, data.place(), manifest)
                }
                _ => present == wanted,
            }
    };
    present.0.len() == data.0.len() && present.0.iter().zip(&data.0).all(same)
}

fn is_default_metadata(
    present: &Map<String, Value>,
    wanted: &Map<String, Value>,
    place: EmbeddedPlace<'_>,
    manifest: &str,
) -> bool {
    let given = |key: &str| match key {
        "name" if place.name.is_empty() => Some(manifest),
        "namespace" if place.namespace.is_empty() => Some(names::RUNTIME_NAMESPACE),
        _ => None,
    };
    let mut missing = ["name", "namespace"].iter().filter(|key| given(key).is_some()).count();
    let mut rest = wanted.iter().filter(|(key, _)| given(key).is_none());
    for (key, value) in present {
        let is_so = match given(key) {
            Some(given) => {
                missing -= 1;
                value.as_str() == Some(given)
            }
            None => rest.next() == Some((key, value)),
        };
        if !is_so {
            return false;
        }
    }
    missing == 0 && rest.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use tidewatch_api::{CustomResourcePolicy, Layer, SourceType};

    use super::*;
    use crate::kyma::manifest_of::{manifest_for, same};

    struct Case {
        kyma: Kyma,
        module: Module,
        chosen: Chosen,
        source: Source,
        channel: &'static str,
    }

    impl Case {
        fn new(template: &Value) -> Self {
            let kyma = json!({"metadata": {"name": "harbour", "namespace": "kcp", "uid": "u"}, "spec": {"channel": "regular"}});
            let mut meta = json!({"metadata": {"name": "beam-1.0.0"}});
            meta["spec"] = json!({"moduleName": "beam", "version": "1.0.0", "descriptor": {}});
            meta["spec"].as_object_mut().unwrap().extend(template.as_object().unwrap().clone());
            let chosen = Chosen {
                version: "1.0.0".into(),
                component: "x.dev/module/beam".into(),
                registry: None,
                template: Arc::new(serde_json::from_value(meta).unwrap()),
                origin: Origin::Channel,
            };
            let source = Source {
                repo: "r.example".into(),
                layer: "sha256:0a".into(),
                type_: SourceType::OciDir,
                images: vec!["a".into()],
                further: ["crds", "tables"].map(|name| (name.to_owned(), Some(layer(name)))).into(),
            };
            let module = Module { name: "beam".into(), ..Module::default() };
            Self { kyma: serde_json::from_value(kyma).unwrap(), module, chosen, source, channel: "regular" }
        }

        fn made(&self) -> Manifest {
            manifest_for(&self.kyma, &self.module, self.channel, &self.chosen, &self.source).unwrap()
        }

        fn stands(&self, existing: &Manifest) -> bool {
            stands(existing, &self.kyma, (&self.module, self.channel), &self.chosen, &self.source)
        }
    }

    fn layer(name: &str) -> Layer {
        Layer { name: name.into(), ref_: format!("sha256:{name}"), type_: "oci-dir".into() }
    }

    fn templates() -> Vec<Value> {
        let cr = json!({"apiVersion": "x.dev/v1", "kind": "Beam", "metadata": {"name": "default"}, "spec": {"a": 1}});
        let mut placed = cr.clone();
        placed["metadata"]["namespace"] = "own".into();
        let mut unnamed = cr.clone();
        unnamed["metadata"] = json!({"labels": {"a": "b"}});
        vec![
            json!({}),
            json!({"data": cr}),
            json!({"data": placed}),
            json!({"data": unnamed}),
            json!({"manager": {"group": "apps", "version": "v1", "kind": "Deployment", "name": "keeper"}}),
            json!({"recreate": [{"group": "batch", "kind": "Job"}]}),
            json!({"sources": ["crds"]}),
            json!({"sources": ["tables", "crds"]}),
            json!({"progressDeadlineSeconds": 60}),
        ]
    }

    #[test]
    fn what_was_made_stands() {
        for template in templates() {
            let case = Case::new(&template);
            let made = case.made();
            assert!(case.stands(&made), "{template}");
            let mut later = made.clone();
            later.metadata.generation = Some(3);
            later.metadata.finalizers = Some(vec!["f".into()]);
            later.annotations_mut().insert("others".into(), "x".into());
            assert!(case.stands(&later), "{template}: what others add is theirs");
        }
    }

    #[test]
    fn what_the_go_manager_fills_in_stands() {
        let cr = json!({"apiVersion": "x.dev/v1", "kind": "Beam", "metadata": {}, "spec": {"a": 1}});
        let mut case = Case::new(&json!({"data": cr}));
        let template = Arc::make_mut(&mut case.chosen.template);
        template.annotations_mut().insert(annotations::IS_CLUSTER_SCOPED.into(), "true".into());
        template.labels_mut().insert(labels::CONTROLLER_NAME.into(), "keeper".into());
        case.module.controller = "the user's".into();
        for policy in [CustomResourcePolicy::CreateAndDelete, CustomResourcePolicy::Ignore] {
            case.module.custom_resource_policy = policy;
            let made = case.made();
            let mut theirs = made.clone();
            let name = made.metadata.name.clone().unwrap();
            theirs.spec.resource.as_mut().unwrap().0["metadata"] =
                json!({"name": name, "namespace": "kyma-system"});
            theirs.labels_mut().insert(labels::CONTROLLER_NAME.into(), "keeper".into());
            assert!(case.stands(&theirs) && same(&theirs, &made), "{policy:?}");
        }
    }

    #[test]
    fn further_layers_count_as_far_as_the_template_names_them() {
        let made = Case::new(&json!({"sources": ["crds"]})).made();
        for (name, becomes, stands) in [
            ("tables", Some(layer("other")), true),
            ("crds", Some(layer("crds")), true),
            ("crds", Some(layer("other")), false),
            ("crds", None, false),
        ] {
            let mut case = Case::new(&json!({"sources": ["crds"]}));
            case.source.further.insert(name.into(), becomes);
            assert_eq!(case.stands(&made), stands, "{name}");
        }
    }

    #[test]
    fn what_would_be_written_anew_does_not_stand() {
        type Edit = fn(&mut Case);
        let edits: [Edit; 12] = [
            |_| (),
            |c| c.channel = "fast",
            |c| c.chosen.version = "1.1.0".into(),
            |c| c.chosen.component = "x.dev/module/other".into(),
            |c| c.chosen.origin = Origin::Local,
            |c| c.source.layer = "sha256:0b".into(),
            |c| c.source.repo = "other".into(),
            |c| c.source.type_ = SourceType::OciRef,
            |c| c.source.images.clear(),
            |c| c.module.custom_resource_policy = CustomResourcePolicy::Ignore,
            |c| c.kyma.metadata.uid = Some("v".into()),
            |c| c.kyma.metadata.namespace = Some("elsewhere".into()),
        ];
        let mut stood = 0;
        for was in templates() {
            for becomes in templates() {
                for (number, edit) in edits.iter().enumerate() {
                    let (existing, mut case) = (Case::new(&was).made(), Case::new(&becomes));
                    edit(&mut case);
                    let wanted = case.made();
                    if case.stands(&existing) {
                        stood += 1;
                        assert!(same(&existing, &wanted), "{was} {becomes} {number}");
                        assert_eq!(existing.metadata.name, wanted.metadata.name);
                        assert_eq!(existing.metadata.namespace, wanted.metadata.namespace);
                    } else {
                        assert!(number > 0 || was != becomes);
                    }
                }
            }
        }
        assert_eq!(stood, templates().len(), "as it was made, and no other");
        let case = Case::new(&json!({}));
        let edited: [fn(&mut Manifest); 9] = [
            |m| drop(m.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into())),
            |m| drop(m.labels_mut().insert(labels::KYMA_NAME.into(), "another".into())),
            |m| drop(m.labels_mut().remove(labels::CHANNEL)),
            |m| drop(m.annotations_mut().insert(annotations::MODULE_TERMS.into(), "{}".into())),
            |m| drop(m.annotations_mut().insert(annotations::RUNTIME_TEMPLATE.into(), "true".into())),
            |m| m.metadata.owner_references = None,
            |m| drop(m.spec.install.source.0.insert("more".into(), 1.into())),
            |m| m.spec.remote = true,
            |m| m.metadata.name = Some("taken-over".into()),
        ];
        for (number, edit) in edited.iter().enumerate() {
            let mut existing = case.made();
            edit(&mut existing);
            assert!(!case.stands(&existing), "{number}");
        }
        // Partly from the template, partly filled in.
        let unnamed = templates().into_iter().find(|t| t.pointer("/data/metadata/labels").is_some()).unwrap();
        let case = Case::new(&unnamed);
        for edit in
            ["/metadata/name", "/metadata/namespace", "/metadata/labels", "/metadata", "/spec/a", "/kind"]
        {
            let mut existing = case.made();
            let mut cr = existing.spec.resource.clone().unwrap().to_value();
            let (of, key) = edit.rsplit_once('/').unwrap();
            for becomes in [Some(json!("other")), None] {
                let parent = cr.pointer_mut(of).and_then(Value::as_object_mut).unwrap();
                match becomes {
                    Some(other) => drop(parent.insert(key.into(), other)),
                    None => drop(parent.remove(key)),
                }
                existing.spec.resource = serde_json::from_value(cr.clone()).unwrap();
                assert!(!case.stands(&existing), "{cr}");
            }
        }
    }
}
