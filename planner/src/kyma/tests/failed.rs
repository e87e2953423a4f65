//! Module entries while a Kyma's reconcile fails.

use super::*;

fn reported(state: State, message: &str) -> Manifest {
    let mut manifest = installed(state);
    let operation = tidewatch_api::LastOperation { operation: message.into(), last_update_time: None };
    manifest.status.as_mut().unwrap().last_operation = Some(operation);
    manifest
}

fn kyma_with(state: State, message: &str) -> Kyma {
    let mut status = run(&wanted(&["lighthouse"]), &[installed(State::Ready)]).status;
    let entry = Arc::make_mut(&mut status.modules[0]);
    (entry.state, entry.message) = (state, message.to_owned());
    Kyma { status: Some(status), ..kyma() }
}

fn entry_after(kyma: &Kyma, manifest: Manifest) -> (State, String) {
    let failed = failed_status(kyma, &[manifest], "no answer".into(), Timestamp::UNIX_EPOCH);
    assert_eq!(failed.state, State::Error);
    (failed.modules[0].state, failed.modules[0].message.clone())
}

#[test]
fn a_module_follows_its_manifest_while_its_kyma_fails() {
    for (was, manifest, becomes) in [
        (State::Ready, State::Error, (State::Error, "no answer")),
        (State::Ready, State::Processing, (State::Processing, "no answer")),
        (State::Warning, State::Error, (State::Error, "no answer")),
        // Possibly a gate's remark.
        (State::Warning, State::Ready, (State::Warning, "before")),
        (State::Error, State::Ready, (State::Ready, "")),
        (State::Error, State::Error, (State::Error, "no answer")),
        (State::Deleting, State::Error, (State::Deleting, "before")),
        (State::Unmanaged, State::Error, (State::Unmanaged, "before")),
    ] {
        let (state, message) = entry_after(&kyma_with(was, "before"), reported(manifest, "no answer"));
        assert_eq!((state, message.as_str()), becomes, "{was} {manifest}");
    }
}

#[test]
fn a_module_ignores_deleting_and_foreign_manifests() {
    let kyma = kyma_with(State::Ready, "before");
    let mut is_deleting = reported(State::Error, "no answer");
    is_deleting.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    let mut other = reported(State::Error, "no answer");
    other.metadata.name = Some("another".into());
    let mut unmanaged = reported(State::Error, "no answer");
    unmanaged.annotations_mut().insert(annotations::IS_UNMANAGED.into(), "true".into());
    for manifest in [is_deleting, other, unmanaged] {
        assert_eq!(entry_after(&kyma, manifest), (State::Ready, "before".to_owned()));
    }
}

#[test]
fn an_unready_modules_condition_never_has_reason_ready() {
    let reason = |status: &KymaStatus| {
        let modules = status.conditions.iter().find(|c| c.type_ == conditions::MODULES).unwrap();
        (modules.status.clone(), modules.reason.clone())
    };
    let is = |status: &str, reason: &str| (status.to_owned(), reason.to_owned());
    let planned = |state| run(&wanted(&["lighthouse"]), &[reported(state, "why")]).status;
    assert_eq!(reason(&planned(State::Ready)), is("True", "Ready"));
    for state in [State::Processing, State::Warning, State::Error] {
        assert_eq!(reason(&planned(state)), is("False", state.as_str()));
    }
    let kyma = kyma_with(State::Ready, "");
    let now = Timestamp::UNIX_EPOCH;
    assert_eq!(reason(&failed_status(&kyma, &[], "no answer".into(), now)), is("False", "Error"));
    assert_eq!(reason(&deleting_status(&kyma, &[], "goes".into(), now)), is("False", "Deleting"));
    let mut refused = planned(State::Ready);
    report_refused(&mut refused, &kyma, &[("lighthouse".into(), "no".into())], now);
    assert_eq!(reason(&refused), is("False", "Error"));
}
