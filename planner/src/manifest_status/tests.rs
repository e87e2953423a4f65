use jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;
use tidewatch_api::{
    Manifest, ManifestStatus, State,
    inventory::inventory,
    names::{annotations, conditions},
    object::{Gvk, ObjectRef},
    readiness::{CrState, Readiness},
};

use super::*;
use crate::manifest::{has_been_ready, have_jobs_completed, is_current, may_defer_status};

#[test]
fn the_status_names_the_cause_and_keeps_the_inventory() {
    let manifest = Manifest::default();
    let objects = [
        ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "s".into(), name: "d".into() },
        ObjectRef { gvk: Gvk::of("v1", "Namespace"), namespace: String::new(), name: "s".into() },
    ];
    let failed = Progress::Failed { state: State::Error, message: "digest mismatch".into() };
    let status = manifest_status(&manifest, &failed, &objects, None, Timestamp::UNIX_EPOCH);
    assert_eq!(status.state, State::Error);
    assert_eq!(status.last_operation.unwrap().operation, "digest mismatch");
    assert_eq!(inventory(&status.synced), objects);
    let ready = Progress::Applied(Readiness::Ready);
    let status = manifest_status(&manifest, &ready, &objects, Some(true), Timestamp::UNIX_EPOCH);
    assert!(status.conditions.iter().all(|c| c.status == "True"));
    assert_eq!(status.conditions.len(), 3);
}

#[test]
fn a_failing_default_cr_is_shown_as_a_warning() {
    let manifest = Manifest::default();
    let cr = ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
    let with = |progress: Progress, state: State, message: &str| {
        let status = manifest_status(&manifest, &progress, &[], Some(true), Timestamp::UNIX_EPOCH);
        let reported = (cr.clone(), CrState { state, message: message.into() });
        let status = with_cr_state(status, &manifest, Some(&reported), Timestamp::UNIX_EPOCH);
        let shown = status.conditions.iter().find(|c| c.type_ == conditions::MODULE_CR_STATE);
        let shown = shown.map(|c| (c.status.clone(), c.reason.clone(), c.message.clone()));
        let installed =
            status.conditions.iter().any(|c| c.type_ == conditions::INSTALLATION && c.status == "True");
        (status.state, status.last_operation.unwrap().operation, shown, installed)
    };
    let ready = || Progress::Applied(Readiness::Ready);
    for (state, module, holds) in [
        (State::Ready, State::Ready, "True"),
        (State::Processing, State::Ready, "False"),
        (State::Deleting, State::Ready, "False"),
        (State::Warning, State::Warning, "False"),
        (State::Error, State::Warning, "False"),
    ] {
        let (reported, text, shown, installed) = with(ready(), state, "too dark");
        let (status, reason, message) = shown.unwrap();
        assert_eq!((reported, status.as_str(), reason), (module, holds, state.to_string()));
        assert_eq!(message, format!("Beacon.x.dev n/b is in state {state}: too dark"));
        assert!(installed, "what is installed works");
        assert_eq!(text == message, module == State::Warning);
    }
    assert_eq!(with(ready(), State::Error, "").1, "Beacon.x.dev n/b is in state Error");
    // Without a state it is omitted, and worse states stay.
    assert_eq!(with(ready(), State::Empty, "").2, None);
    let failed = Progress::Failed { state: State::Error, message: "no".into() };
    assert_eq!(with(failed, State::Error, "x").0, State::Error);
    let waits = Progress::Waiting("for something".into());
    assert_eq!(with(waits, State::Error, "x").1, "for something");
}

#[test]
fn completed_jobs_are_recorded_until_ready_or_changed() {
    let now = Timestamp::UNIX_EPOCH;
    let (ready, waits) = (Progress::Applied(Readiness::Ready), Progress::Waiting("for it".into()));
    let mut manifest = Manifest::default();
    manifest.metadata.generation = Some(1);
    let status = manifest_status(&manifest, &waits, &[], None, now);
    assert_eq!(
        with_jobs_completed(manifest_status(&manifest, &ready, &[], None, now), &manifest, now)
            .conditions
            .len(),
        2
    );
    manifest.status = Some(status);
    assert!(!have_jobs_completed(&manifest, Some(1)));
    let status = with_jobs_completed(manifest.status.clone().unwrap(), &manifest, now);
    manifest.status = Some(status);
    assert!(have_jobs_completed(&manifest, Some(1)) && !has_been_ready(&manifest, Some(1)));
    for progress in [&waits, &Progress::Failed { state: State::Error, message: "no".into() }] {
        manifest.status = Some(manifest_status(&manifest, progress, &[], None, now));
        assert!(have_jobs_completed(&manifest, Some(1)), "{progress:?}");
    }
    let reported = manifest.status.clone().unwrap();
    assert_eq!(with_jobs_completed(reported.clone(), &manifest, now), reported, "it is said once");
    assert!(!have_jobs_completed(&manifest, Some(2)), "of another spec nothing is known");
    manifest.metadata.generation = Some(2);
    let next = manifest_status(&manifest, &waits, &[], None, now);
    assert!(next.conditions.iter().all(|c| c.type_ != conditions::JOBS_COMPLETED));
}

#[test]
fn a_spec_stays_recorded_as_ready_until_changed() {
    let now = Timestamp::UNIX_EPOCH;
    let failed = |state| Progress::Failed { state, message: "no".into() };
    let mut manifest = Manifest::default();
    manifest.metadata.generation = Some(1);
    let mut after = |generation, progress: &Progress| {
        manifest.metadata.generation = Some(generation);
        let status = manifest_status(&manifest, progress, &[], None, now);
        let marks = status.conditions.iter().filter(|c| c.type_ == conditions::WAS_READY).count();
        manifest.status = Some(status);
        (marks, has_been_ready(&manifest, Some(generation)))
    };
    let (ready, waits) = (Progress::Applied(Readiness::Ready), Progress::Waiting("for it".into()));
    assert_eq!(after(1, &waits), (0, false), "the first installation");
    assert_eq!(after(1, &ready), (0, true), "that it is Ready says it all");
    for progress in [&waits, &failed(State::Error), &failed(State::Warning), &waits] {
        assert_eq!(after(1, progress), (1, true), "{progress:?}");
    }
    assert_eq!(after(2, &waits), (0, false), "of another spec nothing is known");
    assert_eq!(after(2, &ready), (0, true));
    let mut deleting = Manifest { status: None, ..Manifest::default() };
    deleting.status = Some(manifest_status(&deleting, &ready, &[], None, now));
    deleting.metadata.deletion_timestamp = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
    let goes = manifest_status(&deleting, &Progress::Deleting("bye".into()), &[], None, now);
    assert!(goes.conditions.iter().all(|c| c.type_ != conditions::WAS_READY), "nobody asks any more");
}

#[test]
fn rendered_resources_stay_known_after_other_failures() {
    let mut manifest = Manifest::default();
    let failed = |message: &str| Progress::Failed { state: State::Error, message: message.into() };
    let mut after = |progress: &Progress| {
        let status = manifest_status(&manifest, progress, &[], None, Timestamp::UNIX_EPOCH);
        let reported = status.conditions.iter().find(|c| c.type_ == conditions::RESOURCES).cloned().unwrap();
        manifest.status = Some(status);
        (reported.status == "True", reported.message)
    };
    let no = |why: &str| (false, why.to_owned());
    let available = (true, "resources are parsed and ready for use".to_owned());
    assert_eq!(
        after(&failed("it cannot be reached")),
        no("it cannot be reached"),
        "nobody has seen them yet"
    );
    assert_eq!(after(&Progress::Applied(Readiness::Ready)), available);
    assert_eq!(after(&failed("it cannot be reached")), available);
    assert_eq!(after(&Progress::Unrendered("digest mismatch".into())), no("digest mismatch"));
    assert_eq!(after(&failed("it cannot be reached")), no("digest mismatch"));
    assert_eq!(after(&Progress::Waiting("for it".into())), available);
}

/// Conditions keep the first generation.
fn upgraded_by_the_go_manager() -> Manifest {
    let condition = |type_: &str, reason: &str, message: &str| {
        json!({"type": type_, "status": "True", "reason": reason, "message": message, "observedGeneration": 1,
               "lastTransitionTime": "2026-01-01T00:00:00Z"})
    };
    serde_json::from_value(json!({
        "metadata": {"generation": 2, "annotations": {"sync-oci-ref": "sha256:bb"}},
        "spec": {"version": "1.1.0", "install": {"name": "raw-manifest", "source": {"ref": "sha256:bb", "type": "oci-dir"}}},
        "status": {"state": "Ready", "lastOperation": {"operation": "resources are ready", "lastUpdateTime": "2026-01-02T00:00:00Z"},
            "conditions": [condition("Resources", "ResourcesAvailable", "resources are parsed and ready for use"),
                           condition("Installation", "Ready", "installation is ready and resources can be used"),
                           condition("ModuleCR", "ModuleCRCreated", "module CR was created")]}
    }))
    .unwrap()
}

#[test]
fn go_manager_upgrades_are_ready_without_writes() {
    type Edit = fn(&mut Manifest);
    let user_owned = upgraded_by_the_go_manager();
    let generation = user_owned.metadata.generation;
    assert!(is_current(&user_owned, generation) && has_been_ready(&user_owned, generation));
    assert!(!is_current(&user_owned, Some(3)), "of the next spec it says nothing");
    let now = "2026-02-01T00:00:00Z".parse().unwrap();
    let value =
        |manifest: &Manifest, progress: &Progress| manifest_status(manifest, progress, &[], Some(true), now);
    let ready = Progress::Applied(Readiness::Ready);
    assert_eq!(Some(value(&user_owned, &ready)), user_owned.status);
    assert!(
        !may_defer_status(&user_owned, &value(&user_owned, &Progress::Waiting("for it".into()))),
        "else a restart would hide it"
    );

    // Now about the present spec, without losing readiness.
    let generations = |status: &ManifestStatus| -> Vec<i64> {
        status.conditions.iter().filter_map(|c| c.observed_generation).collect()
    };
    let waits = value(&user_owned, &Progress::Waiting("for it".into()));
    assert_eq!(generations(&waits), [2, 2, 2, 2]);
    assert!(has_been_ready(&Manifest { status: Some(waits), ..user_owned.clone() }, generation));
    let cr = ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
    let reported = |state| Some((cr.clone(), CrState { state, message: String::new() }));
    let with = |state| {
        with_cr_state(
            value(&user_owned, &ready),
            &user_owned,
            reported(state).as_ref(),
            Timestamp::UNIX_EPOCH,
        )
    };
    assert_eq!(generations(&with(State::Ready)), [1, 1, 1, 2], "only what is new");
    let warned = Manifest { status: Some(with(State::Error)), ..user_owned.clone() };
    assert!(warned.status.as_ref().unwrap().state == State::Warning && has_been_ready(&warned, generation));

    let note =
        |m: &mut Manifest, key: &str| drop(m.annotations_mut().insert(key.to_owned(), "1.0.0".to_owned()));
    let edits: [(&str, Edit); 3] = [
        ("it has not come to it yet", |m| {
            m.spec.install.source.0.insert("ref".into(), "sha256:cc".into());
        }),
        ("it was never applied", |m| drop(m.annotations_mut().remove("sync-oci-ref"))),
        ("it is not ready", |m| m.status.as_mut().unwrap().state = State::Error),
    ];
    let mut others = Vec::new();
    for (why, edit) in edits {
        let mut manifest = user_owned.clone();
        edit(&mut manifest);
        others.push((why, manifest));
    }
    for key in [annotations::TEMPLATE_UID, annotations::RUNNING_VERSION] {
        let mut manifest = user_owned.clone();
        note(&mut manifest, key);
        others.push(("we have changed it", manifest));
    }
    for (why, manifest) in others {
        assert!(!is_current(&manifest, generation), "{why}");
        assert_eq!(generations(&value(&manifest, &ready)), [2, 2, 2], "{why}");
    }
}

#[test]
fn a_default_cr_failure_is_not_debounced() {
    let now = Timestamp::UNIX_EPOCH;
    let cr = ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
    let waits = |text: &str| Progress::Waiting(text.into());
    let value = |manifest: &Manifest, text: &str, reported: Option<(State, &str)>| {
        let status = manifest_status(manifest, &waits(text), &[], Some(true), now);
        let reported =
            reported.map(|(state, message)| (cr.clone(), CrState { state, message: message.into() }));
        with_cr_state(status, manifest, reported.as_ref(), now)
    };
    let with = |status| Manifest { status: Some(status), ..Manifest::default() };
    let none = Manifest::default();
    let trouble = Some((State::Warning, "too dark"));
    for (before, after, may) in [
        (None, None, true),
        (None, Some((State::Processing, "")), true),
        (Some((State::Processing, "")), Some((State::Ready, "")), true),
        (trouble, trouble, true),
        (None, trouble, false),
        (trouble, Some((State::Warning, "too bright")), false),
        (trouble, Some((State::Ready, "")), false),
        (Some((State::Ready, "")), Some((State::Error, "")), false),
    ] {
        let manifest = with(value(&none, "for a thing", before));
        assert_eq!(
            may_defer_status(&manifest, &value(&manifest, "for another", after)),
            may,
            "{before:?} {after:?}"
        );
    }
}

#[test]
fn a_reordered_inventory_is_equal() {
    let object =
        |name: &str| ObjectRef { gvk: Gvk::of("v1", "ConfigMap"), namespace: "n".into(), name: name.into() };
    let status = |manifest: &Manifest, names: &[&str]| {
        let objects: Vec<_> = names.iter().map(|name| object(name)).collect();
        let ready = Progress::Applied(Readiness::Ready);
        manifest_status(manifest, &ready, &objects, None, Timestamp::UNIX_EPOCH)
    };
    let left = Manifest { status: Some(status(&Manifest::default(), &["b", "a"])), ..Manifest::default() };
    assert_eq!(Some(status(&left, &["a", "b"])), left.status, "as the Go manager has ordered it");
    for other in [&["a", "c"][..], &["a"], &["a", "b", "c"], &["a", "a"]] {
        let status = status(&left, other);
        let names: Vec<&str> = status.synced.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, other);
    }
}
