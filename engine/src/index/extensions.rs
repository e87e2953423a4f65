//! Uses of fields that the Go manager ignores (`docs/reference/extensions.md`).

use kube::ResourceExt;
use tidewatch_api::{
    Manifest, ModuleTerms,
    names::{annotations, labels},
};
use tidewatch_planner::versions::{Catalog, registry_of};

use super::KcpState;

/// A Kyma's uses, as sorted lines. Its runtime's list counts once read.
#[must_use]
pub fn of_kyma(state: &KcpState, kyma: &str) -> Vec<String> {
    let mut used = Vec::new();
    if let Some(kyma) = state.kymas.get(kyma) {
        if kyma.uses_runtime_templates() {
            used.push(format!("label {}", labels::RUNTIME_TEMPLATES));
        }
        used.extend(forced(kyma.as_ref()));
    }
    for (module, want) in state.lists.wants_of(kyma) {
        if let Some(version) = &want.pin {
            used.push(format!("module {module}: spec.modules[].version {version}"));
        }
    }
    for manifest in state.manifests.of(kyma) {
        let module = manifest.module_name().unwrap_or_default().to_owned();
        used.extend(of_manifest(manifest).into_iter().map(|field| format!("module {module}: {field}")));
    }
    used.sort();
    used
}

/// Uses in the policy and the catalog, as sorted lines. `external`: registries open to templates.
#[must_use]
pub fn of_catalog(state: &KcpState, external: &[String]) -> Vec<String> {
    let mut used = Vec::new();
    if state.policy.get().is_ok_and(|policy| policy.is_some()) || state.policy.fault().is_some() {
        used.push("the platform's policy of modules, with all that it requires and forbids".to_owned());
    }
    let (modules, catalog) = (state.catalog.modules(), &state.catalog);
    for (name, release) in modules.iter().filter_map(|name| Some((name, catalog.release(name)?))) {
        if !release.spec.versions.is_empty() {
            used.push(format!("ModuleReleaseMeta {name}: spec.versions"));
        }
        if release.spec.allow_downgrade.is_some() {
            used.push(format!("ModuleReleaseMeta {name}: spec.allowDowngrade"));
        }
    }
    for template in modules.iter().flat_map(|module| catalog.templates_of(module)) {
        let name = template.name_any();
        let fields = of_terms(&ModuleTerms::of(&template.spec));
        used.extend(fields.into_iter().map(|field| format!("ModuleTemplate {name}: spec.{field}")));
        used.extend(
            registry_of(&template)
                .filter(|registry| external.contains(registry))
                .map(|registry| format!("ModuleTemplate {name}: its component is in {registry}")),
        );
    }
    used.sort();
    used
}

fn forced(object: &impl ResourceExt) -> Option<String> {
    let is_there = object.annotations().contains_key(annotations::FORCE_DELETE);
    is_there.then(|| format!("annotation {}", annotations::FORCE_DELETE))
}

fn of_manifest(manifest: &Manifest) -> Vec<String> {
    let mut used = match manifest.terms() {
        Ok(terms) => of_terms(&terms).into_iter().map(str::to_owned).collect(),
        Err(_) => vec![format!("annotation {}, which cannot be read", annotations::MODULE_TERMS)],
    };
    if manifest.annotations().contains_key(annotations::RUNTIME_TEMPLATE) {
        used.push("a ModuleTemplate of the runtime's own".to_owned());
    }
    used.extend(forced(manifest));
    used
}

/// Used fields unknown to the Go manager.
fn of_terms(terms: &ModuleTerms) -> Vec<&'static str> {
    let ModuleTerms {
        associated_resources: _,
        custom_state_check: _,
        requires,
        ignore_fields,
        recreate,
        sources,
        layers: _,
        progress_deadline_seconds,
    } = terms;
    let all = [
        (requires.is_some(), "requires"),
        (!ignore_fields.is_empty(), "ignoreFields"),
        (!recreate.is_empty(), "recreate"),
        (!sources.is_empty(), "sources"),
        (progress_deadline_seconds.is_some(), "progressDeadlineSeconds"),
    ];
    all.into_iter().filter(|(used, _)| *used).map(|(_, field)| field).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tidewatch_api::{Kyma, KymaSpec};

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn lists_the_engine_extensions_a_kyma_uses() {
        let mut state = KcpState::default();
        for kyma in ["plain", "keen"] {
            let marks = if kyma == "keen" { json!({labels::RUNTIME_TEMPLATES: "true"}) } else { json!({}) };
            let force = if kyma == "keen" {
                json!({annotations::FORCE_DELETE: "the runtime is gone"})
            } else {
                json!({})
            };
            state.apply_kyma(read::<Kyma>(
                json!({"metadata": {"name": kyma, "labels": marks, "annotations": force}, "spec": {}}),
            ));
            let of_manifest = if kyma == "keen" {
                json!({annotations::MODULE_TERMS: r#"{"recreate":[{"group":"batch","kind":"Job"}],"sources":["crds"]}"#,
                       annotations::FORCE_DELETE: "it hangs"})
            } else {
                json!({annotations::MODULE_TERMS:
                       r#"{"associatedResources":[{"group":"x.dev","version":"v1","kind":"Beam"}]}"#})
            };
            state.apply_manifest(read::<Manifest>(json!({"metadata": {"name": format!("{kyma}-beam"), "labels": {
                labels::KYMA_NAME: kyma, labels::MODULE_NAME: "beam"}, "annotations": of_manifest}, "spec": {}})));
        }
        let wishes = |module: Value| read::<KymaSpec>(json!({"channel": "regular", "modules": [module]}));
        state.record_list("plain", &wishes(json!({"name": "beam", "channel": "fast"})));
        state.record_list("keen", &wishes(json!({"name": "quay", "version": "1.2.3"})));
        assert!(of_kyma(&state, "plain").is_empty() && of_kyma(&state, "nobody").is_empty());
        assert_eq!(
            of_kyma(&state, "keen"),
            [
                "annotation tidewatch.kyma-project.io/force-delete",
                "label tidewatch.kyma-project.io/runtime-templates",
                "module beam: annotation tidewatch.kyma-project.io/force-delete",
                "module beam: recreate",
                "module beam: sources",
                "module quay: spec.modules[].version 1.2.3",
            ]
        );
    }

    #[test]
    fn lists_the_engine_extensions_the_catalog_uses() {
        let mut state = KcpState::default();
        assert!(of_catalog(&state, &[]).is_empty());
        state.apply_policy(Some(Some("rules: []")));
        let release = json!({"metadata": {"name": "beam"}, "spec": {"moduleName": "beam", "ocmComponentName": "x.dev/beam",
            "channels": [], "allowDowngrade": true}});
        state.apply_release("beam", Some(read(release)));
        let template = json!({"metadata": {"name": "beam-1.0.0"}, "spec": {"moduleName": "beam", "version": "1.0.0", "progressDeadlineSeconds": 9,
            "descriptor": {"component": {"repositoryContexts": [{"baseUrl": "guests.example", "subPath": "kyma"}]}}}});
        state.apply_template("beam-1.0.0", Some(read(template)));
        assert_eq!(
            of_catalog(&state, &["guests.example/kyma".to_owned()]),
            [
                "ModuleReleaseMeta beam: spec.allowDowngrade",
                "ModuleTemplate beam-1.0.0: its component is in guests.example/kyma",
                "ModuleTemplate beam-1.0.0: spec.progressDeadlineSeconds",
                "the platform's policy of modules, with all that it requires and forbids",
            ]
        );
        assert_eq!(of_catalog(&state, &[]).len(), 3, "a registry that is not asked is none of ours");
    }
}
