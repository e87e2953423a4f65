//! Mandatory modules in a Kyma's list.

use super::*;
use crate::mandatory::MandatoryModule;

#[test]
fn a_user_entry_does_not_change_a_mandatory_module() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
    manifest.labels_mut().insert(labels::MODULE_NAME.into(), "guard".into());
    let mut wanted = wanted(&["guard"]);
    wanted.modules[0].managed = false;
    let plan = run(&wanted, &[manifest.clone()]);
    assert!(plan.apply.is_empty() && plan.delete.is_empty() && plan.unmanage.is_empty());
    let reported = &plan.status.modules[0];
    assert!(reported.state == State::Warning && reported.message.contains("mandatory"), "{reported:?}");
    // The mandatory plan adopts it.
    manifest.labels_mut().remove(labels::MANDATORY_MODULE);
    let plan = run(&wanted, &[manifest]);
    assert!(plan.apply.is_empty() && plan.delete.is_empty() && plan.unmanage.is_empty());
}

#[test]
fn a_module_never_takes_another_modules_manifest() {
    // The cut name lacks the distinguishing hash.
    let mut kyma = kyma();
    kyma.metadata.name = Some("harbour".repeat(9));
    let plan_with =
        |manifests: &[Manifest]| plan_of(&kyma, &wanted(&["lighthouse"]), &catalog(), manifests, &sources());
    let own = plan_with(&[]).apply.remove(0);
    let of_module = |module: &str, is_mandatory: bool| {
        let mut manifest = own.clone();
        manifest.labels_mut().insert(labels::MODULE_NAME.into(), module.into());
        if is_mandatory {
            manifest.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
        }
        manifest
    };
    for is_mandatory in [true, false] {
        let plan = plan_with(&[of_module("guard", is_mandatory)]);
        assert!(plan.apply.is_empty(), "{:?}", plan.apply);
        let reported = &plan.status.modules[0];
        assert!(
            reported.state == State::Error && reported.message.contains("that of the module 'guard'"),
            "{reported:?}"
        );
    }
    // Its name does not fit the label.
    let mut relabelled = installed(State::Ready);
    relabelled.labels_mut().insert(labels::MODULE_NAME.into(), "guard".into());
    assert_eq!(run(&wanted(&["lighthouse"]), &[relabelled]).apply.len(), 1, "it is put right");
}

fn unlisted(manifest: &Manifest, mandatory_modules: &[MandatoryModule]) -> Plan {
    let (kyma, wanted, sources) = (kyma(), wanted(&[]), sources());
    let mandatory_modules: Vec<_> = mandatory_modules.iter().cloned().map(Arc::new).collect();
    plan(&Input {
        kyma: &kyma,
        wanted: &wanted,
        modules: &[],
        sources: &sources,
        manifests: std::slice::from_ref(manifest),
        facts: Facts { mandatory: &mandatory_modules, ..Facts::default() },
        now: Timestamp::UNIX_EPOCH,
    })
}

#[test]
fn a_module_becoming_mandatory_is_not_removed_early() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::MODULE_NAME.into(), "guard".into());
    let mandatory_module = MandatoryModule::of("guard", &catalog()).unwrap();
    let removed = [manifest.name_any()];
    assert_eq!(unlisted(&manifest, &[]).delete, removed);
    let kept = unlisted(&manifest, std::slice::from_ref(&mandatory_module));
    assert!(kept.delete.is_empty() && kept.apply.is_empty() && kept.status.modules.is_empty(), "{kept:?}");
    assert_eq!(kept.status.state, State::Ready);
    // Only the list matters then.
    let other = MandatoryModule { module: "another".into(), ..mandatory_module.clone() };
    assert_eq!(unlisted(&manifest, &[other]).delete, removed);
    let in_deletion = MandatoryModule { deleting: true, ..mandatory_module };
    assert_eq!(unlisted(&manifest, &[in_deletion]).delete, removed);
}

#[test]
fn a_deleting_kyma_reports_blockers_of_mandatory_modules() {
    let mut manifest = installed(State::Ready);
    manifest.labels_mut().insert(labels::MODULE_NAME.into(), "guard".into());
    let say = |manifest: &Manifest| {
        let message = "waiting for the modules to be removed: guard".to_owned();
        let status = deleting_status(&kyma(), std::slice::from_ref(manifest), message, Timestamp::UNIX_EPOCH);
        assert!(status.conditions.iter().all(|c| c.type_ != conditions::MODULES || c.status == "False"));
        (status.modules.len(), status.last_operation.unwrap().operation)
    };
    let only = "waiting for the modules to be removed: guard".to_owned();
    manifest.labels_mut().insert(labels::MANDATORY_MODULE.into(), "true".into());
    assert_eq!(say(&manifest), (0, only.clone()));
    manifest.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let progress = crate::manifest_status::Progress::Deleting("waiting for Beam default/users".into());
    let status =
        crate::manifest_status::manifest_status(&manifest, &progress, &[], None, Timestamp::UNIX_EPOCH);
    manifest.status = Some(status);
    assert_eq!(say(&manifest), (0, format!("{only}; guard: waiting for Beam default/users")));
    manifest.labels_mut().remove(labels::MANDATORY_MODULE);
    assert_eq!(say(&manifest), (1, only));
}
