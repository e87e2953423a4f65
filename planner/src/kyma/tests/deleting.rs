use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;

fn in_deletion() -> Manifest {
    let mut manifest = installed(State::Deleting);
    manifest.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    manifest
}

fn moved_to(version: &str) -> FakeCatalog {
    let mut catalog = catalog();
    let mut release = serde_json::to_value(catalog.releases["lighthouse"].as_ref()).unwrap();
    release["spec"]["channels"] = json!([{"channel": "regular", "version": version}]);
    catalog.releases.insert("lighthouse".into(), Arc::new(serde_json::from_value(release).unwrap()));
    catalog
}

fn run_without(catalog: &FakeCatalog, manifest: &Manifest, facts: Facts<'_>) -> Plan {
    let (kyma, wanted) = (kyma(), wanted(&[]));
    let manifests = std::slice::from_ref(manifest);
    let in_deletion = choose(&with_deleting(&kyma, &wanted, manifests), catalog, &[]);
    plan(&Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &[],
        sources: &sources(),
        manifests,
        facts: Facts { deleting: &in_deletion, ..facts },
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn a_deleting_module_follows_its_channel() {
    let plan = run_without(&moved_to("1.1.0"), &in_deletion(), Facts::default());
    let versions: Vec<&str> = plan.apply.iter().map(|manifest| manifest.spec.version.as_str()).collect();
    assert_eq!((versions, plan.delete.as_slice()), (vec!["1.1.0"], &[][..]));
    let entry = &plan.status.modules[..];
    assert!(
        matches!(entry, [module] if module.state == State::Deleting && module.version == "1.0.0"),
        "{entry:?}"
    );
    assert!(
        matches!(plan.decisions[..], [Decision { kind: DecisionKind::Upgrade, .. }]),
        "{:?}",
        plan.decisions
    );
    let again = run_without(
        &moved_to("1.1.0"),
        &{
            let mut upgraded = plan.apply[0].clone();
            upgraded.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            upgraded
        },
        Facts::default(),
    );
    assert!(again.apply.is_empty(), "it has arrived");
}

#[test]
fn a_deleting_module_stays_without_a_newer_version() {
    let mut high = in_deletion();
    high.spec.version = "1.2.0".into();
    let restricted = ["lighthouse".to_owned()];
    let not_owned = Facts { restricted: &restricted, ..Facts::default() };
    for (catalog, manifest, facts) in [
        (catalog(), in_deletion(), Facts::default()),
        (moved_to("1.1.0"), high, Facts::default()),
        (moved_to("9.9.9"), in_deletion(), Facts::default()),
        (moved_to("1.1.0"), in_deletion(), not_owned),
    ] {
        let plan = run_without(&catalog, &manifest, facts);
        assert!(plan.apply.is_empty() && plan.notices.is_empty(), "{:?}", plan.decisions);
        assert_eq!(plan.status.modules[0].state, State::Deleting);
    }
}

#[test]
fn only_deleting_managed_modules_follow_the_channel() {
    let (kyma, requested) = (kyma(), wanted(&["lighthouse"]));
    let with = |wanted: &KymaSpec, manifest: Manifest| {
        let all = with_deleting(&kyma, wanted, &[manifest]);
        (matches!(all, Cow::Borrowed(_)), all.modules.len())
    };
    let marked = |label: &str, value: &str| {
        let mut manifest = in_deletion();
        manifest.labels_mut().insert(label.into(), value.into());
        manifest
    };
    let none = wanted(&[]);
    assert_eq!(with(&none, in_deletion()), (false, 1));
    assert_eq!(with(&requested, in_deletion()), (true, 1), "on the list it is planned like any other");
    assert_eq!(with(&none, installed(State::Ready)), (true, 0));
    assert_eq!(with(&none, marked(labels::MANDATORY_MODULE, "true")), (true, 0));
    assert_eq!(with(&none, marked(labels::CHANNEL, "")), (true, 0), "it was pinned");
    let mut unmanaged = in_deletion();
    unmanaged.annotations_mut().insert(annotations::IS_UNMANAGED.into(), "true".into());
    assert_eq!(with(&none, unmanaged), (true, 0));
}
