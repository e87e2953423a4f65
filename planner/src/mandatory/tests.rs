use std::collections::BTreeMap;

use serde_json::{Value, json};
use tidewatch_api::{SourceType, names::annotations};

use tidewatch_api::ModuleTemplate;

use super::*;
use crate::{
    kyma::{ComponentVersion, Source, SourceFault},
    versions::fixtures::{FakeCatalog, catalog as base},
};

mod convergence;

fn template(name: &str, module: &str, version: &str, more: &Value) -> Arc<ModuleTemplate> {
    let mut object = json!({"metadata": {"name": name, "namespace": "kcp-system", "generation": 1}, "spec": {
        "moduleName": module, "version": version, "descriptor": {},
        "data": {"apiVersion": "guard.tidewatch.dev/v1", "kind": "Guard", "metadata": {"name": "default"}, "spec": {"posts": 2}}}});
    merge(&mut object, more);
    Arc::new(serde_json::from_value(object).unwrap())
}

fn merge(into: &mut Value, more: &Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            for (key, value) in more {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, more) => *into = more.clone(),
    }
}

fn release(catalog: &mut FakeCatalog, more: &Value) {
    let mut object = serde_json::to_value(catalog.releases["guard"].as_ref()).unwrap();
    merge(&mut object, more);
    catalog.releases.insert("guard".into(), Arc::new(serde_json::from_value(object).unwrap()));
}

fn catalog() -> FakeCatalog {
    let mut catalog = base();
    catalog.put(template("guard-2.0.0", "guard", "2.0.0", &json!({})));
    catalog.put(template("guard-2.1.0", "guard", "2.1.0", &json!({})));
    catalog.put(template("guard-1.9.0", "guard", "1.9.0", &json!({})));
    catalog
}

fn kyma(labels: &Value) -> Kyma {
    serde_json::from_value(
        json!({"metadata": {"name": "harbour", "namespace": "kcp-system", "uid": "kyma-uid",
        "labels": labels}, "spec": {"channel": "regular"}}),
    )
    .unwrap()
}

fn sources() -> Sources {
    let of = |(component, version): (&str, &str)| {
        let component = format!("tidewatch.dev/module/{component}");
        let source = Source {
            further: BTreeMap::new(),
            repo: "localhost:5000".into(),
            layer: format!("sha256:{version}"),
            type_: SourceType::OciRef,
            images: Vec::new(),
        };
        (ComponentVersion { component, version: version.into(), registry: None, local: false }, Ok(source))
    };
    [("guard", "1.9.0"), ("guard", "2.0.0"), ("guard", "2.1.0"), ("watchman", "2.0.0")]
        .map(of)
        .into_iter()
        .collect()
}

fn run_for(
    kyma: &Kyma,
    catalog: &FakeCatalog,
    manifests: &[Manifest],
    requested_value: &[&str],
) -> MandatoryPlan {
    run_with(kyma, catalog, manifests, Some(requested_value))
}

/// `asked`: the Kyma's list; `None` if unread.
fn run_with(
    kyma: &Kyma,
    catalog: &FakeCatalog,
    manifests: &[Manifest],
    requested_value: Option<&[&str]>,
) -> MandatoryPlan {
    let requested_value: Option<BTreeSet<String>> =
        requested_value.map(|requested_value| requested_value.iter().map(|&name| name.to_owned()).collect());
    let modules: BTreeSet<&str> = catalog
        .releases
        .keys()
        .map(String::as_str)
        .chain(catalog.templates.values().filter_map(|t| t.module_name()))
        .collect();
    let mandatory_modules: Vec<_> =
        modules.iter().filter_map(|m| MandatoryModule::of(m, catalog)).map(Arc::new).collect();
    let regular = catalog.releases.iter().filter(|(_, r)| r.mandatory_version().is_none());
    plan(&Input {
        kyma,
        modules: &mandatory_modules,
        sources: &sources(),
        manifests,
        optional: &regular.map(|(name, _)| name.clone()).collect(),
        requested: requested_value.as_ref(),
    })
}

fn run(catalog: &FakeCatalog, manifests: &[Manifest]) -> MandatoryPlan {
    run_for(&kyma(&json!({})), catalog, manifests, &[])
}

fn installed() -> Manifest {
    run(&catalog(), &[]).plan.apply.remove(0)
}

fn nothing(made: &MandatoryPlan) -> bool {
    made.plan.apply.is_empty() && made.plan.delete.is_empty() && made.faults.is_empty() && !made.plan.retry
}

#[test]
fn every_kyma_gets_mandatory_modules_but_no_status_entry() {
    let made = run(&catalog(), &[]);
    insta::assert_yaml_snapshot!(
        "installed",
        json!({"apply": made.plan.apply, "delete": made.plan.delete,
        "status": made.plan.status, "faults": made.faults})
    );
    assert!(nothing(&run(&catalog(), &made.plan.apply)), "what was planned is what is wanted");
}

/// Installed and later upgraded by the Go manager.
#[test]
fn go_manager_mandatory_manifests_are_up_to_date() {
    let condition = |type_: &str, reason: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": "done", "observedGeneration": 1,
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    let component = "tidewatch.dev/module/guard";
    let user_owned: Manifest = serde_json::from_value(json!({
        "apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Manifest",
        "metadata": {
            "name": manifest_name("harbour", component, "guard"), "namespace": "kcp-system", "generation": 4,
            "annotations": {"operator.kyma-project.io/fqdn": component, "operator.kyma-project.io/ocm-component-name": component,
                            "sync-oci-ref": "sha256:2.0.0"},
            "finalizers": ["declarative.kyma-project.io/finalizer", "label-removal-finalizer", "resource.kyma-project.io/finalizer"],
            "labels": {"operator.kyma-project.io/controller-name": "", "operator.kyma-project.io/kyma-name": "harbour",
                       "operator.kyma-project.io/managed-by": "lifecycle-manager", "operator.kyma-project.io/mandatory-module": "true",
                       "operator.kyma-project.io/module-name": "guard"},
            "ownerReferences": [{"apiVersion": "operator.kyma-project.io/v1beta2", "kind": "Kyma", "name": "harbour", "uid": "kyma-uid",
                                 "controller": true, "blockOwnerDeletion": true}]},
        "spec": {"customResourcePolicy": "CreateAndDelete", "remote": false, "version": "2.0.0",
                 "resource": {"apiVersion": "guard.tidewatch.dev/v1", "kind": "Guard",
                              "metadata": {"name": "default", "namespace": "kyma-system"}, "spec": {"posts": 2}},
                 "install": {"name": "raw-manifest", "source": {
                     "name": component, "ref": "sha256:2.0.0", "repo": "localhost:5000", "type": "oci-ref"}}},
        "status": {"state": "Ready", "conditions": [condition("Resources", "ResourcesAvailable"), condition("Installation", "Ready"),
                                                    condition("ModuleCR", "ModuleCRCreated")]}
    }))
    .unwrap();
    let labelled = json!({"metadata": {"uid": "t-uid", "labels": {"operator.kyma-project.io/mandatory-module": "true"}}});
    let terms =
        json!({"spec": {"associatedResources": [{"group": "x.dev", "version": "v1", "kind": "Lamp"}]}});
    for more in [json!({}), terms] {
        let mut catalog = catalog();
        let template = template("guard-2.0.0", "guard", "2.0.0", &more);
        let mut object = serde_json::to_value(template.as_ref()).unwrap();
        merge(&mut object, &labelled);
        catalog.put(Arc::new(serde_json::from_value(object).unwrap()));
        let made = run(&catalog, std::slice::from_ref(&user_owned));
        assert!(nothing(&made), "{more}: {:?}", made.plan.apply);
    }
}

#[test]
fn the_release_metas_version_counts_and_downgrades_are_refused() {
    let mut catalog = catalog();
    release(&mut catalog, &json!({"spec": {"mandatory": {"version": "2.1.0"}}}));
    let made = run(&catalog, &[installed()]);
    assert_eq!(made.plan.apply[0].spec.version, "2.1.0");
    assert_eq!(
        (made.plan.decisions[0].kind, made.plan.decisions[0].from.0.as_str()),
        (DecisionKind::Upgrade, "2.0.0")
    );
    release(&mut catalog, &json!({"spec": {"mandatory": {"version": "1.9.0"}}}));
    let made = run(&catalog, &[installed()]);
    assert!(made.plan.apply.is_empty());
    assert!(made.faults[0].contains("1.9.0 is lower than the installed 2.0.0"), "{:?}", made.faults);
    assert_eq!(made.plan.notices[0].reason, "MandatoryModuleFailed");
    release(&mut catalog, &json!({"spec": {"allowDowngrade": true}}));
    assert_eq!(run(&catalog, &[installed()]).plan.apply[0].spec.version, "1.9.0");
    release(&mut catalog, &json!({"spec": {"mandatory": {"version": "3.0.0"}}}));
    let made = run(&catalog, &[installed()]);
    assert!(made.plan.apply.is_empty() && made.faults[0].contains("no ModuleTemplate 'guard-3.0.0'"));
}

#[test]
fn old_style_templates_give_their_highest_version() {
    let mut catalog = base();
    catalog.releases.remove("guard");
    let old = |version: &str, more: &Value| {
        let mut spec = json!({"spec": {"mandatory": true, "descriptor": {"component": {
            "name": "tidewatch.dev/module/guard", "version": version}}}});
        merge(&mut spec, more);
        template(&format!("guard-{version}"), "guard", version, &spec)
    };
    for version in ["1.9.0", "2.1.0", "2.0.0"] {
        catalog.put(old(version, &json!({})));
    }
    assert_eq!(run(&catalog, &[]).plan.apply[0].spec.version, "2.1.0");
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    catalog.put(old("2.1.0", &gone));
    assert_eq!(
        run(&catalog, &[]).plan.apply[0].spec.version,
        "2.0.0",
        "what is being deleted does not count"
    );
    assert!(run(&catalog, &[installed()]).faults.is_empty());
    catalog.put(old("2.0.0", &gone));
    catalog.put(old("1.9.0", &gone));
    assert!(nothing(&run(&catalog, &[])), "nothing is installed of what goes");
}

#[test]
fn mandatory_modules_ignore_labels_and_selectors() {
    let mut catalog = catalog();
    let beta = json!({"metadata": {"labels": {labels::BETA: "true", labels::INTERNAL: "true"}}});
    catalog.put(template("guard-2.0.0", "guard", "2.0.0", &beta));
    release(
        &mut catalog,
        &json!({"spec": {"beta": true, "kymaSelector": {"matchLabels": {"tier": "gold"}}}}),
    );
    assert_eq!(run(&catalog, &[]).plan.apply.len(), 1);
    assert!(nothing(&run(&catalog, &[installed()])), "what the Go manager has installed so stays");
}

#[test]
fn an_unseen_release_removes_nothing() {
    let mut catalog = catalog();
    catalog.releases.remove("guard");
    assert!(nothing(&run(&catalog, &[installed()])));
    // Deletion of the release removes them.
    let mut deleting = self::catalog();
    release(&mut deleting, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}));
    assert!(nothing(&run(&deleting, &[installed()])) && nothing(&run(&deleting, &[])));
}

#[test]
fn formerly_mandatory_modules_go_unless_listed() {
    let mut catalog = catalog();
    release(
        &mut catalog,
        &json!({"spec": {"mandatory": null, "channels": [{"channel": "regular", "version": "2.0.0"}]}}),
    );
    assert_eq!(run(&catalog, &[installed()]).plan.delete, [installed().name_any()]);
    let kyma = kyma(&json!({}));
    assert!(nothing(&run_for(&kyma, &catalog, &[installed()], &["guard"])), "its list's plan takes it over");
    assert!(
        nothing(&run_with(&kyma, &catalog, &[installed()], None)),
        "a list that nobody has read is not empty"
    );
}

#[test]
fn a_users_module_becoming_mandatory_is_taken_over() {
    let mut regular = installed();
    regular.labels_mut().remove(labels::MANDATORY_MODULE);
    let made = run(&catalog(), &[regular.clone()]);
    assert_eq!(made.plan.apply[0].name_any(), regular.name_any());
    assert!(made.plan.apply[0].is_mandatory());
    regular.annotations_mut().insert(annotations::IS_UNMANAGED.into(), "true".into());
    assert!(nothing(&run(&catalog(), &[regular])), "given up: it comes when that is through");
}

#[test]
fn an_installed_mandatory_version_does_not_change() {
    let mut catalog = catalog();
    let changed = json!({"spec": {"data": {"spec": {"posts": 9}}}});
    catalog.put(template("guard-2.0.0", "guard", "2.0.0", &changed));
    assert!(nothing(&run(&catalog, &[installed()])));
    assert_eq!(run(&catalog, &[]).plan.apply[0].spec.resource.as_ref().unwrap().0["spec"]["posts"], 9);
}

#[test]
fn a_renamed_component_replaces_the_old_manifest() {
    let mut catalog = catalog();
    release(&mut catalog, &json!({"spec": {"ocmComponentName": "tidewatch.dev/module/watchman"}}));
    let available = sources();
    let mandatory_modules = [Arc::new(MandatoryModule::of("guard", &catalog).unwrap())];
    let none = BTreeSet::new();
    let run = |manifests: &[Manifest]| {
        plan(&Input {
            kyma: &kyma(&json!({})),
            modules: &mandatory_modules,
            sources: &available,
            manifests,
            optional: &none,
            requested: Some(&none),
        })
        .plan
    };
    let first = run(&[installed()]);
    assert_eq!((first.apply.len(), first.delete.len()), (1, 0), "the new one is there first");
    let second = run(&[installed(), first.apply[0].clone()]);
    assert_eq!((second.apply.len(), second.delete), (0, vec![installed().name_any()]));
}

#[test]
fn policy_ignore_survives_when_a_module_becomes_mandatory() {
    let mut user_owned = installed();
    user_owned.labels_mut().remove(labels::MANDATORY_MODULE);
    user_owned.spec.custom_resource_policy = tidewatch_api::CustomResourcePolicy::Ignore;
    let made = run(&catalog(), &[user_owned]);
    let manifest = &made.plan.apply[0];
    assert!(manifest.is_mandatory());
    assert_eq!(manifest.spec.custom_resource_policy, tidewatch_api::CustomResourcePolicy::Ignore);
    assert_eq!(
        crate::manifest::default_cr(manifest),
        None,
        "else it would be taken for ours, and go with the module"
    );
    let kept_manifest = crate::blockers::declared(manifest).unwrap();
    assert!(kept_manifest.iter().any(|kind| kind.kind == "Guard"), "{kept_manifest:?}");
    assert!(nothing(&run(&catalog(), std::slice::from_ref(manifest))), "once");
}

#[test]
fn an_unreachable_registry_keeps_installed_modules() {
    let mandatory_modules = [Arc::new(MandatoryModule::of("guard", &catalog()).unwrap())];
    let component = "tidewatch.dev/module/guard".to_owned();
    let key = ComponentVersion { component, version: "2.0.0".into(), registry: None, local: false };
    let fault = SourceFault { message: "it answers 429".into(), retryable: true, retry_after: None };
    let sources: Sources = [(key, Err(fault))].into_iter().collect();
    let made = |manifests: &[Manifest]| {
        plan(&Input {
            kyma: &kyma(&json!({})),
            modules: &mandatory_modules,
            sources: &sources,
            manifests,
            optional: &BTreeSet::new(),
            requested: None,
        })
    };
    assert!(nothing(&made(&[installed()])), "its Manifest says all that the descriptor would");
    let new = made(&[]);
    assert!(new.plan.retry && new.plan.apply.is_empty() && new.faults.len() == 1);
}
