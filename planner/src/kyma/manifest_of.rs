//! Manifest of a module of a Kyma.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use tidewatch_api::{
    CustomResourcePolicy, EmbeddedObject, ImageSpec, InstallInfo, Kyma, Manifest, ManifestSpec, Module,
    ModuleTerms,
    marks::mark,
    names::{self, annotations, labels},
};

use super::{Source, namespace_of};
use crate::{
    naming::manifest_name,
    notice::{About, Notice},
    versions::{Chosen, Origin},
};

/// Engine-owned labels.
const LABELS: [&str; 5] =
    [labels::CHANNEL, labels::CONTROLLER_NAME, labels::KYMA_NAME, labels::MANAGED_BY, labels::MODULE_NAME];
const ANNOTATIONS: [&str; 6] = [
    annotations::FQDN,
    annotations::OCM_COMPONENT_NAME,
    annotations::MODULE_TERMS,
    annotations::TEMPLATE_UID,
    annotations::RUNTIME_TEMPLATE,
    annotations::RUNNING_VERSION,
];

/// Builds a Manifest; fails if the component lacks a layer.
pub(crate) fn manifest_for(
    kyma: &Kyma,
    module: &Module,
    channel: &str,
    chosen: &Chosen,
    source: &Source,
) -> Result<Manifest, String> {
    let kyma_name = kyma.name_any();
    let entry = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    let owner = OwnerReference {
        api_version: names::API_VERSION.into(),
        kind: "Kyma".into(),
        name: kyma_name.clone(),
        uid: kyma.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let mut terms = ModuleTerms::of(&chosen.template.spec);
    terms.layers = source.layers(&terms.sources)?;
    let terms = terms.to_annotation();
    let image = ImageSpec {
        repo: source.repo.clone(),
        name: chosen.component.clone(),
        ref_: source.layer.clone(),
        type_: source.type_,
    };
    let name = manifest_name(&kyma_name, &chosen.component, &module.name);
    Ok(Manifest {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            // The engine's namespace is configurable.
            namespace: Some(namespace_of(kyma)),
            labels: Some(
                [
                    entry(labels::CHANNEL, channel),
                    entry(labels::KYMA_NAME, &kyma_name),
                    entry(labels::MANAGED_BY, labels::MANAGED_BY_KCP),
                    entry(labels::MODULE_NAME, &module.name),
                ]
                .into_iter()
                .chain(controller(chosen).map(|name| entry(labels::CONTROLLER_NAME, name)))
                .collect(),
            ),
            annotations: Some(
                [
                    entry(annotations::FQDN, &chosen.component),
                    entry(annotations::OCM_COMPONENT_NAME, &chosen.component),
                ]
                .into_iter()
                .chain(terms.map(|text| (annotations::MODULE_TERMS.to_owned(), text)))
                .chain(chosen.template.uid().map(|uid| (annotations::TEMPLATE_UID.to_owned(), uid)))
                .chain((chosen.origin == Origin::Local).then(|| entry(annotations::RUNTIME_TEMPLATE, "true")))
                .collect(),
            ),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ManifestSpec {
            custom_resource_policy: module.custom_resource_policy,
            remote: false,
            version: chosen.version.clone(),
            install: InstallInfo { source: image.to_source(), name: "raw-manifest".into() },
            // Always set: its kind blocks removal, and the Go manager relies on it.
            resource: chosen.template.spec.data.as_ref().map(|cr| default_cr(cr, &name)),
            localized_images: source.images.clone(),
            manager: chosen.template.spec.manager.clone(),
            ..ManifestSpec::default()
        },
        status: None,
    })
}

/// Controller label as the Go manager writes it; it has no effect. `None` if the template has no labels.
fn controller(chosen: &Chosen) -> Option<&str> {
    let of_template = chosen.template.labels();
    (!of_template.is_empty()).then(|| mark(of_template, labels::CONTROLLER_NAME).unwrap_or_default())
}

/// Default CR as the Go manager writes it: namespace (even if cluster-scoped) and name have defaults.
fn default_cr(data: &EmbeddedObject, manifest: &str) -> EmbeddedObject {
    let mut cr = data.clone();
    if let Some(metadata) = cr.0.get_mut("metadata").and_then(|m| m.as_object_mut()) {
        for (key, is, becomes) in
            [("namespace", data.namespace(), names::RUNTIME_NAMESPACE), ("name", data.name(), manifest)]
        {
            if is.is_empty() {
                metadata.insert(key.into(), becomes.into());
            }
        }
    }
    cr
}

/// Returns whether applying `wanted` changes nothing.
pub fn is_up_to_date(existing: &Manifest, wanted: &Manifest) -> bool {
    let has = |map: &BTreeMap<String, String>, part: &BTreeMap<String, String>| {
        // The Go manager writes no uid, and templates may gain a controller: no reason to write.
        let is_optional = |key: &str| [annotations::TEMPLATE_UID, labels::CONTROLLER_NAME].contains(&key);
        part.iter().all(|(k, v)| is_optional(k) || map.get(k) == Some(v))
    };
    existing.spec == wanted.spec
        // A formerly mandatory module becomes optional.
        && existing.is_mandatory() == wanted.is_mandatory()
        && has(existing.labels(), wanted.labels())
        && has(existing.annotations(), wanted.annotations())
        // Obsolete ones are removed.
        && [annotations::MODULE_TERMS, annotations::RUNTIME_TEMPLATE]
            .into_iter()
            .all(|key| existing.annotations().get(key) == wanted.annotations().get(key))
        && existing.owner_references() == wanted.owner_references()
}

/// Keeps template data of an installed version; returns the template's generation.
///
/// Versions are immutable (mission S1.1). Data of a changed or recreated template (by generation in the Kyma's status, or uid in the
/// Manifest) is not taken over, with a notice. A tenant's version is replaced completely when KCP releases its number, because KCP's
/// modules get more rights.
pub(super) fn keep_version_data(
    kyma: &Kyma,
    old: &Manifest,
    chosen: &Chosen,
    wanted: &mut Manifest,
    notices: &mut Vec<Notice>,
) -> Option<i64> {
    let template = chosen.template.name_any();
    let now = chosen.template.metadata.generation;
    let tenants = old.is_of_runtime_template() && chosen.origin != Origin::Local;
    let installed =
        old.metadata.deletion_timestamp.is_none() && old.spec.version == wanted.spec.version && !tenants;
    let reported = kyma
        .module_status(wanted.module_name().unwrap_or_default())
        .filter(|status| installed && status.version == chosen.version)
        .and_then(|status| status.template.as_ref()?.metadata.as_ref())
        .filter(|metadata| metadata.name == template)
        .and_then(|metadata| metadata.generation);
    let is_recreated = || {
        let of = old.annotations().get(annotations::TEMPLATE_UID).filter(|_| installed);
        of.is_some_and(|uid| Some(uid) != chosen.template.metadata.uid.as_ref())
    };
    if !(reported.is_some() && reported != now || is_recreated()) || !take_over(old, wanted) {
        return now;
    }
    notices.push(Notice::warning(About::Kyma, "ModuleTemplateChanged", format!(
            "the ModuleTemplate '{template}' was changed, or made anew, after it had been installed; a version does not change, so \
             what is installed stays as it is; release what is new as another version"
        )));
    reported.or(now)
}

/// Changed marks alone keep the Go manager's status valid ([`is_ready_by_go_manager`](crate::manifest::is_ready_by_go_manager)); the uid would invalidate it.
pub(super) fn keep_go_manager_status(old: &Manifest, wanted: &mut Manifest) {
    if !old.annotations().contains_key(annotations::TEMPLATE_UID) {
        wanted.annotations_mut().remove(annotations::TEMPLATE_UID);
    }
}

/// Keeps the created default CR, even if a version renames or drops it: it is created once and removed with its module.
pub(crate) fn keep_default_cr(old: &Manifest, wanted: &mut Manifest) {
    let made = [&old.spec, &wanted.spec].iter().all(|spec| spec.creates_default_cr());
    let Some(made) = old.spec.resource.as_ref().filter(|_| made) else { return };
    let group = |cr: &EmbeddedObject| cr.api_version().split_once('/').map(|(group, _)| group.to_owned());
    let is_other = |named: &EmbeddedObject| {
        (group(named), named.kind()) == (group(made), made.kind())
            && (named.namespace(), named.name()) != (made.namespace(), made.name())
    };
    if wanted.spec.resource.as_ref().is_none_or(is_other) {
        wanted.spec.resource = Some(made.clone());
    }
}

/// Returns the installed Manifest with policy Ignore. This precedes any upgrade: a removal would delete the user's CR.
pub(super) fn with_policy_ignore(old: &Manifest, module: &Module) -> Option<Manifest> {
    let ignores = module.custom_resource_policy == CustomResourcePolicy::Ignore;
    let creates = old.spec.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
    if !(ignores && creates) || old.is_unmanaged() || old.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let selected = |map: &BTreeMap<String, String>, keys: &[&str]| {
        let engine_owned = map.iter().filter(|(key, _)| keys.contains(&key.as_str()));
        Some(engine_owned.map(|(key, value)| (key.clone(), value.clone())).collect())
    };
    let mut kept = Manifest {
        metadata: ObjectMeta {
            name: old.metadata.name.clone(),
            namespace: old.metadata.namespace.clone(),
            labels: selected(old.labels(), &LABELS),
            annotations: selected(old.annotations(), &ANNOTATIONS),
            owner_references: old.metadata.owner_references.clone(),
            ..ObjectMeta::default()
        },
        spec: old.spec.clone(),
        status: None,
    };
    kept.spec.custom_resource_policy = CustomResourcePolicy::Ignore;
    Some(kept)
}

/// Copies the old Manifest's template data; returns whether it differs.
pub(crate) fn take_over(old: &Manifest, wanted: &mut Manifest) -> bool {
    let before = wanted.clone();
    wanted.spec.manager.clone_from(&old.spec.manager);
    // A missing one may have been omitted under Ignore.
    if wanted.spec.resource.is_some() && old.spec.resource.is_some() {
        wanted.spec.resource.clone_from(&old.spec.resource);
    }
    take_over_annotation(old, wanted, annotations::MODULE_TERMS);
    if before == *wanted {
        return false;
    }
    // The data's origin.
    take_over_annotation(old, wanted, annotations::TEMPLATE_UID);
    true
}

fn take_over_annotation(old: &Manifest, wanted: &mut Manifest, key: &str) {
    match old.annotations().get(key).cloned() {
        Some(value) => wanted.annotations_mut().insert(key.to_owned(), value),
        None => wanted.annotations_mut().remove(key),
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};
    use tidewatch_api::SourceType;

    use super::*;

    fn kyma() -> Kyma {
        serde_json::from_value(json!({"metadata": {"name": "harbour", "namespace": "kcp", "uid": "u"},
            "spec": {"channel": "regular"}}))
        .unwrap()
    }

    fn module() -> Module {
        Module { name: "beam".into(), ..Module::default() }
    }

    fn chosen(template: &Value) -> Chosen {
        let mut spec = json!({"moduleName": "beam", "version": "1.0.0", "descriptor": {}});
        spec.as_object_mut().unwrap().extend(template.as_object().unwrap().clone());
        let template = json!({"metadata": {"name": "beam-1.0.0"}, "spec": spec});
        Chosen {
            version: "1.0.0".into(),
            component: "x.dev/module/beam".into(),
            registry: None,
            template: Arc::new(serde_json::from_value(template).unwrap()),
            origin: Origin::Channel,
        }
    }

    fn source() -> Source {
        Source {
            repo: "r.example".into(),
            layer: "sha256:0a".into(),
            type_: SourceType::OciDir,
            images: vec!["a".into()],
            further: BTreeMap::new(),
        }
    }

    fn built(module: &Module, chosen: &Chosen) -> Manifest {
        manifest_for(&kyma(), module, "regular", chosen, &source()).unwrap()
    }

    #[test]
    fn fields_of_others_need_no_write() {
        let built = built(&module(), &chosen(&json!({})));
        let mut existing = built.clone();
        existing.metadata.generation = Some(3);
        existing.metadata.finalizers = Some(vec!["f".into()]);
        existing.annotations_mut().insert("others".into(), "x".into());
        existing.annotations_mut().insert(annotations::TEMPLATE_UID.into(), "older".into());
        assert!(is_up_to_date(&existing, &built));
    }

    #[test]
    fn manifest_of_the_go_manager_needs_no_write() {
        let cr = json!({"apiVersion": "x.dev/v1", "kind": "Beam", "metadata": {}, "spec": {"a": 1}});
        let mut chosen = chosen(&json!({"data": cr}));
        let template = Arc::make_mut(&mut chosen.template);
        template.annotations_mut().insert(annotations::IS_CLUSTER_SCOPED.into(), "true".into());
        template.labels_mut().insert(labels::CONTROLLER_NAME.into(), "keeper".into());
        for policy in [CustomResourcePolicy::CreateAndDelete, CustomResourcePolicy::Ignore] {
            let mut module = module();
            (module.controller, module.custom_resource_policy) = ("the user's".into(), policy);
            let built = built(&module, &chosen);
            let mut existing = built.clone();
            let metadata = json!({"name": built.name_any(), "namespace": "kyma-system"});
            existing.spec.resource.as_mut().unwrap().0.insert("metadata".into(), metadata);
            existing.labels_mut().remove(labels::CONTROLLER_NAME);
            assert!(is_up_to_date(&existing, &built), "{policy:?}");
        }
    }

    #[test]
    fn changed_fields_of_the_engine_need_a_write() {
        let built = built(&module(), &chosen(&json!({})));
        let edits: [fn(&mut Manifest); 7] = [
            |m| drop(m.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into())),
            |m| drop(m.labels_mut().insert(labels::KYMA_NAME.into(), "another".into())),
            |m| drop(m.labels_mut().remove(labels::CHANNEL)),
            |m| drop(m.annotations_mut().insert(annotations::MODULE_TERMS.into(), "{}".into())),
            |m| drop(m.annotations_mut().insert(annotations::RUNTIME_TEMPLATE.into(), "true".into())),
            |m| m.metadata.owner_references = None,
            |m| drop(m.spec.install.source.0.insert("more".into(), 1.into())),
        ];
        for (number, edit) in edits.iter().enumerate() {
            let mut existing = built.clone();
            edit(&mut existing);
            assert!(!is_up_to_date(&existing, &built), "{number}");
        }
    }
}
