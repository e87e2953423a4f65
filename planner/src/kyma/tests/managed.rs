//! Unmanaged modules and unplanned Manifests.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::policy::PolicyError;

fn unmanaged(mut manifest: Manifest) -> Manifest {
    manifest.annotations_mut().insert(annotations::IS_UNMANAGED.into(), "true".into());
    manifest
}

#[test]
fn an_unmanaged_module_keeps_its_state_until_released() {
    let mut user_owned = wanted(&["lighthouse"]);
    user_owned.modules[0].managed = false;
    let mut old = installed(State::Ready);
    old.metadata.uid = Some("u".into());
    let nothing = |plan: &Plan| plan.apply.is_empty() && plan.delete.is_empty();

    let first = run(&user_owned, &[old.clone()]);
    assert!(nothing(&first), "neither applied nor deleted");
    assert_eq!(first.unmanage, [(old.name_any(), "u".to_owned())]);
    assert_eq!((first.status.state, first.status.modules[0].state), (State::Ready, State::Ready));
    assert_eq!(first.notices[0].reason, "ModuleUnmanaged");
    let marked = run(&user_owned, &[unmanaged(old.clone())]);
    assert!(nothing(&marked) && marked.unmanage.is_empty() && marked.notices.is_empty(), "once");
    let gone = run(&user_owned, &[]);
    let expected =
        ModuleStatus { name: "lighthouse".into(), state: State::Unmanaged, ..ModuleStatus::default() };
    assert_eq!((nothing(&gone), gone.status.state), (true, State::Ready));
    assert_eq!(gone.status.modules, [Arc::new(expected)]);
}

#[test]
fn a_remanaged_module_waits_for_its_release() {
    let old = unmanaged(installed(State::Ready));
    let back = run(&wanted(&["lighthouse"]), std::slice::from_ref(&old));
    assert_eq!((back.apply, back.delete), (vec![], vec![]), "its mark would be lost");
    assert_eq!(back.status.modules[0].state, State::Processing);
    let forgotten = run(&wanted(&[]), std::slice::from_ref(&old));
    assert_eq!(forgotten.delete, [old.name_any()], "its Manifest takes nothing along: it is marked");
}

#[test]
fn a_skipped_manifest_is_named_as_the_cause() {
    let label = "operator.kyma-project.io/skip-reconciliation";
    let mut old = installed(State::Ready);
    let value = |plan: &Plan| plan.status.modules[0].message.contains(label);
    old.labels_mut().insert(label.into(), "true".into());
    assert!(!value(&run(&wanted(&["lighthouse"]), &[old.clone()])), "nothing is to be done");
    let mut fast = wanted(&["lighthouse"]);
    fast.modules[0].channel = Some("fast".into());
    let upgrade = run(&fast, &[old.clone()]);
    assert!(
        upgrade.status.modules[0].state == State::Processing && value(&upgrade),
        "{:?}",
        upgrade.status.modules
    );
    old.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let gone = run(&wanted(&[]), &[old]);
    assert!(gone.status.modules[0].state == State::Deleting && value(&gone), "{:?}", gone.status.modules);
}

/// As of a renamed component.
fn second(manifest: &Manifest, name: &str) -> Manifest {
    let mut second = manifest.clone();
    second.metadata.name = Some(name.into());
    second
        .annotations_mut()
        .insert(annotations::OCM_COMPONENT_NAME.into(), "tidewatch.dev/module/old".into());
    second
}

#[test]
fn a_renamed_component_is_transferred_once_its_manifest_exists() {
    let requested = wanted(&["lighthouse"]);
    let new = installed(State::Ready);
    let old = second(&new, "a-old");
    let first = run(&requested, std::slice::from_ref(&old));
    assert_eq!((first.apply[0].name_any(), first.delete.len()), (new.name_any(), 0), "first the new one");
    let both = run(&requested, &[old.clone(), new.clone()]);
    assert_eq!((both.delete, both.apply), (vec!["a-old".to_owned()], vec![]));
    assert_eq!(both.notices[0].reason, "ManifestHandedOver");
    assert_eq!((both.status.modules.len(), both.status.state), (1, State::Ready));

    let mut user_owned = requested;
    user_owned.modules[0].managed = false;
    let user_managed = run(&user_owned, &[old.clone(), new.clone()]);
    assert_eq!((user_managed.unmanage.len(), user_managed.delete.len()), (2, 0));
    let gone = run(&wanted(&[]), &[old, new]);
    assert_eq!(gone.delete.len(), 2, "both are this Kyma's");
}

#[test]
fn manifests_of_other_owners_are_reported_but_never_deleted() {
    let engine_owned = installed(State::Ready);
    let mut foreign = engine_owned.clone();
    foreign.owner_references_mut()[0].uid = "another".into();
    let (mut unowned, mut nameless) =
        (second(&engine_owned, "b-nobodys"), second(&engine_owned, "c-nameless"));
    unowned.metadata.owner_references = None;
    nameless.labels_mut().remove(labels::MODULE_NAME);
    let all = [foreign.clone(), unowned, nameless];
    let plan = run(&wanted(&[]), &all);
    assert_eq!((plan.delete.len(), plan.apply.len(), plan.status.state), (0, 0, State::Warning));
    let names: Vec<&str> = plan.status.modules.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["lighthouse", "b-nobodys", "c-nameless"], "each under a name of its own");
    for module in &plan.status.modules {
        assert!(module.message.starts_with("orphaned: the Manifest "), "{}", module.message);
    }
    assert!(plan.status.modules[0].message.contains("(uid another)"));

    // Requested modules adopt Manifests, as after a restored backup.
    let back = run(&wanted(&["lighthouse"]), &[foreign]);
    assert_eq!(back.apply[0].owner_references()[0].uid, "kyma-uid");
    assert_eq!((back.delete.len(), back.status.modules.len()), (0, 1));
}

#[test]
fn a_manifest_without_an_owner_is_orphaned() {
    const MADE: i64 = 1_000;
    let (kyma, mut engine_owned) = (kyma(), installed(State::Ready));
    engine_owned.metadata.creation_timestamp = Some(Time(Timestamp::from_second(MADE).unwrap()));
    let (mut unowned, mut foreign) = (engine_owned.clone(), engine_owned.clone());
    unowned.metadata.owner_references = None;
    foreign.owner_references_mut()[0].uid = "another".into();
    let orphan = |kyma: Option<&Kyma>, manifest: &Manifest| {
        let Orphan { message, reported_from } = Orphan::of(kyma, manifest)?;
        assert_eq!(reported_from.as_second(), MADE + 300);
        let name = format!("orphaned: the Manifest {} ", manifest.name_any());
        Some(
            message
                .strip_prefix(&name)
                .unwrap()
                .strip_suffix("; delete it if nobody needs it")
                .unwrap()
                .to_owned(),
        )
    };
    assert_eq!(orphan(Some(&kyma), &engine_owned), None);
    assert_eq!(orphan(Some(&kyma), &unowned).unwrap(), "is owned by no Kyma");
    assert_eq!(orphan(Some(&kyma), &foreign).unwrap(), "is owned by another Kyma of this name (uid another)");
    assert_eq!(orphan(None, &engine_owned).unwrap(), "is owned by a Kyma that is not there (uid kyma-uid)");
    assert_eq!([&engine_owned, &unowned, &foreign].map(has_no_owner), [false, true, false]);
    unowned.owner_references_mut().extend(engine_owned.owner_references().to_vec());
    assert_eq!(orphan(Some(&kyma), &unowned), None, "it has one again");

    unowned.metadata.owner_references = None;
    let mut deleting = unowned.clone();
    deleting.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    let mut mandatory = unowned.clone();
    mandatory.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
    for manifest in [deleting, mandatory, unmanaged(unowned)] {
        assert_eq!((orphan(Some(&kyma), &manifest), has_no_owner(&manifest)), (None, false));
    }
}

#[test]
fn nothing_is_deleted_while_the_policy_is_unreadable() {
    let fault = PolicyError::NoKey;
    let (catalog, sources, kyma) = (catalog(), sources(), kyma());
    let plan_of = |modules: &[&str]| {
        let wanted = wanted(modules);
        let listed_modules = choose(&wanted, &catalog, &[]);
        plan(&Input {
            kyma: &kyma,
            wanted: &wanted,
            modules: &listed_modules,
            sources: &sources,
            manifests: &[installed(State::Ready)],
            facts: Facts { policy: Err(&fault), ..Facts::default() },
            now: Timestamp::UNIX_EPOCH,
        })
    };
    for modules in [&[][..], &["lighthouse"]] {
        let plan = plan_of(modules);
        assert_eq!((plan.delete.len(), plan.apply.len()), (0, 0), "{modules:?}");
        let module = &plan.status.modules[0];
        assert_eq!((module.name.as_str(), module.state), ("lighthouse", State::Warning));
        assert!(module.message.contains("stay as they are until it is mended"), "{}", module.message);
    }
}
