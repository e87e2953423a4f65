//! Facts stored in a Manifest's status, which survive restarts.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde_json::Value;
use tidewatch_api::{
    Manager, Manifest, ManifestStatus, Resource, State,
    marks::mark,
    names::{annotations, conditions, finalizers, labels},
    object::{Gvk, ObjectRef, is_manager},
};

use super::writers::{is_word_of_another, item_of_condition};

/// Message without a cause, so it needs no notice.
pub const APPLYING: &str = "the module's objects are being applied";

/// Returns whether writing this Processing status may wait. Not if the stored one is Ready for the present spec (a restart would skip it),
/// lacks inventory, or has different CR trouble.
#[must_use]
pub fn may_defer_status(manifest: &Manifest, status: &ManifestStatus) -> bool {
    let Some(before) = &manifest.status else { return false };
    let recorded: HashSet<_> = before.synced.iter().map(identity).collect();
    status.state == State::Processing
        && manifest.metadata.deletion_timestamp.is_none()
        && match before.state {
            State::Processing => true,
            State::Ready => !is_current(manifest, manifest.metadata.generation),
            _ => false,
        }
        && before != status
        && cr_problem(before) == cr_problem(status)
        && status.synced.iter().all(|object| recorded.contains(&identity(object)))
}

/// Default CR trouble that needs user action.
fn cr_problem(status: &ManifestStatus) -> Option<(&str, &str)> {
    let condition = status.conditions.iter().find(|c| c.type_ == conditions::MODULE_CR_STATE)?;
    let is = |state| condition.reason == cr_state_reason(state);
    (is(State::Error) || is(State::Warning))
        .then_some((condition.reason.as_str(), condition.message.as_str()))
}

fn identity(object: &Resource) -> (&str, &str, &str, &str) {
    (&object.group, &object.kind, &object.namespace, &object.name)
}

/// Returns whether the status is about the spec of `generation`.
#[must_use]
pub fn is_current(manifest: &Manifest, generation: Option<i64>) -> bool {
    let conditions = manifest.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.observed_generation == generation)
        || generation == manifest.metadata.generation && is_ready_by_go_manager(manifest)
}

/// State and cause of a Manifest, if current.
#[must_use]
pub fn progress(manifest: &Manifest) -> (State, String) {
    let (state, message) = progress_at(manifest, manifest.metadata.generation);
    (state, message.to_owned())
}

/// State and cause, if about the spec of `generation`.
#[must_use]
pub fn progress_at(manifest: &Manifest, generation: Option<i64>) -> (State, &str) {
    let Some(status) = &manifest.status else { return (State::Processing, "") };
    let current = is_current(manifest, generation);
    let operation = status.last_operation.as_ref().map_or("", |op| op.operation.as_str());
    match status.state {
        State::Empty => (State::Processing, ""),
        _ if !current => (State::Processing, ""),
        State::Ready => (State::Ready, ""),
        // Not a cause.
        State::Processing if operation == APPLYING => (State::Processing, ""),
        state => (state, operation),
    }
}

/// Progress of a deletion; `None` if not being deleted.
#[must_use]
pub fn deletion_message(manifest: &Manifest) -> Option<&str> {
    manifest.metadata.deletion_timestamp.as_ref()?;
    let status = manifest.status.as_ref().filter(|status| status.state != State::Ready);
    let operation = status.and_then(|status| status.last_operation.as_ref());
    Some(operation.map_or("", |op| op.operation.as_str()))
}

/// Message that a skipped Manifest blocks its module.
#[must_use]
pub fn skipped_message(manifest: &Manifest) -> Option<String> {
    manifest.is_skipped().then(|| {
        let label = labels::SKIP_RECONCILIATION;
        format!("the Manifest {} is left alone while its label {label} is true", manifest.name_any())
    })
}

/// Returns whether a Manifest is Ready as the Go manager leaves it.
///
/// Its conditions keep their first generation; an annotation names the installed layer. After a change by the engine, which sets other
/// annotations, only engine conditions count.
#[must_use]
pub fn is_ready_by_go_manager(manifest: &Manifest) -> bool {
    let of = |key| mark(manifest.annotations(), key);
    let wanted = || manifest.spec.install.source.0.get("ref").and_then(Value::as_str);
    manifest.status.as_ref().is_some_and(|status| status.state == State::Ready)
        && of(annotations::SYNC_OCI_REF).is_some_and(|installed| wanted() == Some(installed))
        && [annotations::TEMPLATE_UID, annotations::RUNNING_VERSION].into_iter().all(|key| of(key).is_none())
}

/// Returns whether the module is, or was, Ready for the spec of `generation`. An engine-owned condition preserves that; other managers'
/// values do not count.
#[must_use]
pub fn has_been_ready(manifest: &Manifest, generation: Option<i64>) -> bool {
    let Some(status) = &manifest.status else { return false };
    let is_ready = status.state == State::Ready && !is_word_of_another(&manifest.metadata, &["f:state"]);
    // Trouble with the default CR does not matter.
    is_ready && is_current(manifest, generation)
        || engine_condition_holds(manifest, &[conditions::INSTALLATION, conditions::WAS_READY], generation)
}

/// Returns whether all Jobs that are removed after completion have completed for `generation`; a restart must not rerun them.
#[must_use]
pub fn have_jobs_completed(manifest: &Manifest, generation: Option<i64>) -> bool {
    has_been_ready(manifest, generation)
        || engine_condition_holds(manifest, &[conditions::JOBS_COMPLETED], generation)
}

/// Returns whether an engine-owned condition of these `types` is True for `generation`.
#[must_use]
pub fn engine_condition_holds(manifest: &Manifest, types: &[&str], generation: Option<i64>) -> bool {
    let of = |c: &Condition| c.observed_generation == generation && c.status == "True";
    let is_engine_owned = |c: &Condition| {
        let path = ["f:conditions", &item_of_condition(&c.type_), "f:status"];
        !is_word_of_another(&manifest.metadata, &path)
    };
    let conditions = manifest.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|c| types.contains(&c.type_.as_str())).any(|c| of(c) && is_engine_owned(c))
}

/// Named manager that is none of `objects`, such as an operator.
#[must_use]
pub fn external_manager(manifest: &Manifest, objects: &[ObjectRef]) -> Option<ObjectRef> {
    let manager = manifest.spec.manager.as_ref().filter(|_| !manifest.is_unmanaged())?;
    if manager.name.is_empty() || manager.kind.is_empty() {
        return None;
    }
    let Manager { group, version, kind, namespace, name } = manager.clone();
    let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
    let is_external = !objects.iter().any(|object| is_manager(manager, object));
    is_external.then_some(ObjectRef { gvk: Gvk { group, version, kind }, namespace, name })
}

/// Start of the unready time, from the status.
#[must_use]
pub fn not_ready_since(manifest: &Manifest) -> Option<Timestamp> {
    let installation =
        manifest.status.as_ref()?.conditions.iter().find(|c| c.type_ == conditions::INSTALLATION)?;
    (installation.status == "False").then_some(installation.last_transition_time.0)
}

/// Default CR removed with the Manifest; `None` if user-made.
#[must_use]
pub fn default_cr(manifest: &Manifest) -> Option<ObjectRef> {
    let made = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr());
    made.and_then(|cr| ObjectRef::of(&cr.to_value()))
}

/// Finalizers of an installed Manifest.
#[must_use]
pub fn required_finalizers(manifest: &Manifest) -> Vec<&'static str> {
    let cr = manifest.spec.creates_default_cr().then_some(finalizers::DEFAULT_CR);
    std::iter::once(finalizers::MANIFEST).chain(cr).collect()
}

/// Condition reason for a default CR's state.
#[must_use]
pub const fn cr_state_reason(state: State) -> &'static str {
    match state {
        State::Ready => "Ready",
        State::Warning => "Warning",
        State::Error => "Error",
        State::Deleting => "Deleting",
        State::Processing | State::Unmanaged | State::Empty => "Processing",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_time_of_the_first_failure_outlives_a_restart() {
        let reported = |status: &str| {
            let condition = json!({"type": "Installation", "status": status, "reason": "Ready", "message": "",
                                   "lastTransitionTime": "1970-01-01T00:16:40Z"});
            let status = serde_json::from_value(json!({"state": "", "conditions": [condition]})).unwrap();
            let manifest = Manifest { status, ..Manifest::default() };
            not_ready_since(&manifest)
        };
        assert_eq!(
            (reported("False"), reported("True")),
            (Some(Timestamp::from_second(1_000).unwrap()), None)
        );
        assert_eq!(not_ready_since(&Manifest::default()), None);
    }

    #[test]
    fn a_manager_outside_the_module_is_watched_too() {
        let own =
            [ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: "web".into() }];
        let mut manifest = Manifest::default();
        assert_eq!(external_manager(&manifest, &own), None);
        let manager = |name: &str, namespace: &str| Manager {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        manifest.spec.manager = Some(manager("web", "n"));
        assert_eq!(external_manager(&manifest, &own), None);
        manifest.spec.manager = Some(manager("other", ""));
        let external = external_manager(&manifest, &own).unwrap();
        assert_eq!(
            (external.to_string().as_str(), external.gvk.version.as_str()),
            ("Deployment.apps default/other", "v1")
        );
    }
}
