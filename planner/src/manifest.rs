//! Facts that a Manifest's status records, and that outlive the receiver.

use std::collections::HashSet;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;
use serde_json::Value;
use tidewatch_api::{
    Manager, Manifest, ManifestStatus, Resource, State,
    marks::mark,
    names::{annotations, conditions, finalizers},
    object::{Gvk, ObjectRef, is_manager},
};

use super::writers::{is_word_of_another, item_of_condition};

/// What is said while the objects of a new version are brought there. It names no cause, so nobody has to be told of it.
pub const APPLYING: &str = "the module's objects are being applied";

/// Whether it can wait a moment to say this of a Manifest, as it was last read: that it is on its way. What stands there must not
/// say that it is Ready as it is asked for now, since after a restart nobody would look at it again; no object may be missing in its
/// inventory; and its default CR may have no other trouble than the one that is told.
#[must_use]
pub fn may_wait(manifest: &Manifest, status: &ManifestStatus) -> bool {
    let Some(before) = &manifest.status else { return false };
    let known: HashSet<_> = before.synced.iter().map(identity).collect();
    status.state == State::Processing
        && manifest.metadata.deletion_timestamp.is_none()
        && match before.state {
            State::Processing => true,
            State::Ready => !is_current(manifest, manifest.metadata.generation),
            _ => false,
        }
        && before != status
        && trouble(before) == trouble(status)
        && status.synced.iter().all(|object| known.contains(&identity(object)))
}

/// What a default CR says that its user has to do something about.
fn trouble(status: &ManifestStatus) -> Option<(&str, &str)> {
    let said = status.conditions.iter().find(|c| c.type_ == conditions::MODULE_CR_STATE)?;
    let is = |state| said.reason == reason(state);
    (is(State::Error) || is(State::Warning)).then_some((said.reason.as_str(), said.message.as_str()))
}

fn identity(object: &Resource) -> (&str, &str, &str, &str) {
    (&object.group, &object.kind, &object.namespace, &object.name)
}

/// Whether what a Manifest says of itself is about the spec of this generation.
#[must_use]
pub fn is_current(manifest: &Manifest, generation: Option<i64>) -> bool {
    let conditions = manifest.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|c| c.observed_generation == generation)
        || generation == manifest.metadata.generation && is_as_left(manifest)
}

/// Whether a Manifest is Ready as the Go manager leaves one that it has finished. Its conditions name the generation at which they
/// became True for the first time, and no upgrade makes them False again; what is installed it notes in an annotation. A change of ours
/// leaves a mark that it does not know: then our own conditions count.
#[must_use]
pub fn is_as_left(manifest: &Manifest) -> bool {
    let of = |key| mark(manifest.annotations(), key);
    let wanted = || manifest.spec.install.source.0.get("ref").and_then(Value::as_str);
    manifest.status.as_ref().is_some_and(|status| status.state == State::Ready)
        && of(annotations::SYNC_OCI_REF).is_some_and(|installed| wanted() == Some(installed))
        && [annotations::TEMPLATE_UID, annotations::RUNNING_VERSION].into_iter().all(|key| of(key).is_none())
}

/// Whether the module is Ready, or was so before, for the spec of this generation. Of one that was, a condition of our own is all that
/// is left: that it has come this far must outlive its troubles and the receiver, and be known without a write of its own. What somebody else
/// says counts for nothing.
#[must_use]
pub fn has_been_ready(manifest: &Manifest, generation: Option<i64>) -> bool {
    let Some(status) = &manifest.status else { return false };
    let is_ready = status.state == State::Ready && !is_word_of_another(&manifest.metadata, &["f:state"]);
    // One whose default CR has a trouble is installed all the same.
    is_ready && is_current(manifest, generation)
        || we_said(manifest, &[conditions::INSTALLATION, conditions::WAS_READY], generation)
}

/// Whether each Job of the module that is removed after its end has completed, for the spec of this generation. It outlives the
/// receiver, as [`has_been_ready`] does: or a module that waits for something else would have its Jobs run again.
#[must_use]
pub fn have_jobs_completed(manifest: &Manifest, generation: Option<i64>) -> bool {
    has_been_ready(manifest, generation) || we_said(manifest, &[conditions::JOBS_COMPLETED], generation)
}

/// Whether one of these conditions is True for this generation, and of our own writing.
#[must_use]
pub fn we_said(manifest: &Manifest, types: &[&str], generation: Option<i64>) -> bool {
    let of = |c: &Condition| c.observed_generation == generation && c.status == "True";
    let is_ours = |c: &Condition| {
        let path = ["f:conditions", &item_of_condition(&c.type_), "f:status"];
        !is_word_of_another(&manifest.metadata, &path)
    };
    let conditions = manifest.status.iter().flat_map(|status| &status.conditions);
    conditions.filter(|c| types.contains(&c.type_.as_str())).any(|c| of(c) && is_ours(c))
}

/// The manager that a Manifest names, if it is none of its own `objects`: something else installs it, such as the module's operator.
#[must_use]
pub fn manager_beside(manifest: &Manifest, objects: &[ObjectRef]) -> Option<ObjectRef> {
    let manager = manifest.spec.manager.as_ref().filter(|_| !manifest.is_unmanaged())?;
    if manager.name.is_empty() || manager.kind.is_empty() {
        return None;
    }
    let Manager { group, version, kind, namespace, name } = manager.clone();
    let namespace = if namespace.is_empty() { "default".to_owned() } else { namespace };
    let beside = !objects.iter().any(|object| is_manager(manager, object));
    beside.then_some(ObjectRef { gvk: Gvk { group, version, kind }, namespace, name })
}

/// Since when a Manifest is not installed, as its status says: it is what is left of the first sight after a restart.
#[must_use]
pub fn not_ready_since(manifest: &Manifest) -> Option<Timestamp> {
    let installation =
        manifest.status.as_ref()?.conditions.iter().find(|c| c.type_ == conditions::INSTALLATION)?;
    (installation.status == "False").then_some(installation.last_transition_time.0)
}

/// The identity of the default CR that goes with a Manifest: not of one that its user is to make.
#[must_use]
pub fn default_cr(manifest: &Manifest) -> Option<ObjectRef> {
    let made = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr());
    made.and_then(|cr| ObjectRef::of(&cr.to_value()))
}

/// The finalizers of a Manifest that is installed: what it has is removed before it goes.
#[must_use]
pub fn held_by(manifest: &Manifest) -> Vec<&'static str> {
    let cr = manifest.spec.creates_default_cr().then_some(finalizers::DEFAULT_CR);
    std::iter::once(finalizers::MANIFEST).chain(cr).collect()
}

/// The reason of a condition that tells the state of a default CR.
#[must_use]
pub const fn reason(state: State) -> &'static str {
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
        let said = |status: &str| {
            let condition = json!({"type": "Installation", "status": status, "reason": "Ready", "message": "",
                                   "lastTransitionTime": "1970-01-01T00:16:40Z"});
            let status = serde_json::from_value(json!({"state": "", "conditions": [condition]})).unwrap();
            let manifest = Manifest { status, ..Manifest::default() };
            not_ready_since(&manifest)
        };
        assert_eq!((said("False"), said("True")), (Some(Timestamp::from_second(1_000).unwrap()), None));
        assert_eq!(not_ready_since(&Manifest::default()), None);
    }

    #[test]
    fn a_manager_is_watched_beside_the_objects_that_it_is_none_of() {
        let own =
            [ObjectRef { gvk: Gvk::of("apps/v1", "Deployment"), namespace: "n".into(), name: "web".into() }];
        let mut manifest = Manifest::default();
        assert_eq!(manager_beside(&manifest, &own), None);
        let manager = |name: &str, namespace: &str| Manager {
            group: "apps".into(),
            version: "v1".into(),
            kind: "Deployment".into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        manifest.spec.manager = Some(manager("web", "n"));
        assert_eq!(manager_beside(&manifest, &own), None);
        manifest.spec.manager = Some(manager("other", ""));
        let beside = manager_beside(&manifest, &own).unwrap();
        assert_eq!(
            (beside.to_string().as_str(), beside.gvk.version.as_str()),
            ("Deployment.apps default/other", "v1")
        );
    }
}
