//! Readiness of installed objects, and causes of unreadiness.
//!
//! [`readiness`] judges one object, [`combine`] a module. Causes go to three statuses, so texts have no changing
//! numbers: "not all of 2 replicas are available", never "1 of 2". Quoted messages are masked.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use serde_json::Value;
use tidewatch_api::{
    Manager,
    object::{Gvk, ObjectRef, is_manager},
    readiness::Readiness,
};

mod apis;
mod custom;
mod deadline;
mod pod_checks;
mod pods;
mod storage;
mod text;
mod view;
mod workloads;

pub use custom::module_cr;
pub use deadline::{DEADLINE, deadline_end, deadline_of, not_within};
pub use pod_checks::{is_first_check_due, next_pod_check, selector};
pub use pods::claims_of_unscheduled;
pub use storage::unbound;
use view::{NOT_OBSERVED, ObjectView};
pub use workloads::{JobResult, is_deleted_when_finished, job_result};

/// Readiness of one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectReadiness {
    /// Serves, or is complete.
    Ready,
    /// In progress.
    Processing {
        /// Cause.
        cause: Cause,
    },
    /// In progress, with retries that keep failing.
    Warning {
        /// Cause.
        cause: Cause,
    },
    /// Needs intervention, or missed its deadline.
    Error {
        /// Cause.
        cause: Cause,
    },
    /// The kind has no readiness, or the object reports none.
    Unknown,
}

/// Reason for unreadiness. The lowest is the first to investigate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// Unready object.
    pub object: ObjectRef,
    /// One stable line of at most a few hundred characters.
    pub text: String,
}

/// Input besides the object.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Pods of a workload, if read. A few suffice.
    pub pods: &'a [Value],
    /// Why claims of these pods have no volume, by name; see [`unbound`].
    pub claims: &'a [(String, String)],
    /// Last refusal to create pods, if there are none and Events were read.
    pub refused: Option<&'a str>,
    /// Storage class of a claim, if looked up; null if missing.
    pub storage_class: Option<&'a Value>,
    /// Since when the object or its module is continuously unready. `None`: first observation.
    pub not_ready_since: Option<Timestamp>,
    /// The engine's field manager. Its last change restarts the deadline.
    pub installer: &'a str,
    /// Deadline for readiness.
    pub deadline: Duration,
}

impl Default for Facts<'_> {
    fn default() -> Self {
        Self {
            pods: &[],
            claims: &[],
            refused: None,
            storage_class: None,
            not_ready_since: None,
            installer: tidewatch_api::names::field_managers::APPLIER,
            deadline: DEADLINE,
        }
    }
}

/// Result of a kind's rule, before the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Judgement {
    Ready,
    Processing(String),
    /// Failing retries. Their duration decides the severity.
    Blocked(String),
    Warning(String),
    Error(String),
    Unknown,
}

/// Judges any object.
///
/// An object is never ready before its controller has observed the newest generation. Past [`Facts::deadline`],
/// progress is an error. Accepts any JSON.
#[must_use]
pub fn readiness(object: &Value, facts: &Facts<'_>, now: Timestamp) -> ObjectReadiness {
    let Some(id) = ObjectRef::of(object) else { return ObjectReadiness::Unknown };
    let cause = |text| Cause { object: id.clone(), text };
    match deadline::judge(judge_kind(&id.gvk, object, facts), object, facts, now) {
        Judgement::Ready => ObjectReadiness::Ready,
        Judgement::Unknown => ObjectReadiness::Unknown,
        Judgement::Processing(text) | Judgement::Blocked(text) => {
            ObjectReadiness::Processing { cause: cause(text) }
        }
        Judgement::Warning(text) => ObjectReadiness::Warning { cause: cause(text) },
        Judgement::Error(text) => ObjectReadiness::Error { cause: cause(text) },
    }
}

fn judge_kind(gvk: &Gvk, object: &Value, facts: &Facts<'_>) -> Judgement {
    let object = ObjectView(object);
    if object.is_deleting() {
        return Judgement::Processing("it is being deleted".into());
    }
    let rule: fn(ObjectView<'_>, &Facts<'_>) -> Judgement = match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment") => workloads::deployment,
        ("apps", "StatefulSet") => workloads::stateful_set,
        ("apps", "DaemonSet") => workloads::daemon_set,
        ("batch", "Job") => workloads::job,
        ("", "Pod") => |pod, _| pods::pod(pod),
        ("", "PersistentVolumeClaim") => storage::claim,
        ("", "Service") => |service, _| apis::service(service),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => |crd, _| apis::crd(crd),
        ("apiregistration.k8s.io", "APIService") => |service, _| apis::api_service(service),
        (group, _) if is_builtin(group) => return Judgement::Unknown,
        _ => |object, _| custom::judge(object),
    };
    if object.is_outdated() {
        return Judgement::Processing(NOT_OBSERVED.into());
    }
    rule(object, facts)
}

/// Whether the API server itself serves a group. Other `k8s.io` groups are custom.
fn is_builtin(group: &str) -> bool {
    const PLAIN: [&str; 6] = ["", "apps", "autoscaling", "batch", "extensions", "policy"];
    const BELOW_K8S_IO: [&str; 16] = [
        "admissionregistration",
        "apiextensions",
        "apiregistration",
        "authentication",
        "authorization",
        "certificates",
        "coordination",
        "discovery",
        "events",
        "flowcontrol.apiserver",
        "networking",
        "node",
        "rbac.authorization",
        "resource",
        "scheduling",
        "storage",
    ];
    PLAIN.contains(&group) || group.strip_suffix(".k8s.io").is_some_and(|name| BELOW_K8S_IO.contains(&name))
}

/// Combines the objects of a module, in any order. Errors precede warnings, and warnings precede progress.
///
/// A `manager` decides alone. Its absence is progress.
#[must_use]
pub fn combine<'a>(
    manager: Option<&Manager>,
    all: impl IntoIterator<Item = (&'a ObjectRef, &'a ObjectReadiness)>,
) -> Readiness {
    let (mut error, mut warning, mut processing): (Option<&Cause>, Option<&Cause>, Option<&Cause>) =
        (None, None, None);
    let mut found = manager.is_none();
    for (object, readiness) in all {
        if manager.is_some_and(|manager| !is_manager(manager, object)) {
            continue;
        }
        found = true;
        let (first, cause) = match readiness {
            ObjectReadiness::Error { cause } => (&mut error, cause),
            ObjectReadiness::Warning { cause } => (&mut warning, cause),
            ObjectReadiness::Processing { cause } => (&mut processing, cause),
            ObjectReadiness::Ready | ObjectReadiness::Unknown => continue,
        };
        if first.is_none_or(|first| cause < first) {
            *first = Some(cause);
        }
    }
    match (error, warning.or(processing), manager) {
        (Some(cause), _, _) => Readiness::Error(cause.to_string()),
        (None, Some(cause), _) if warning.is_some() => Readiness::Warning(cause.to_string()),
        (None, Some(cause), _) => Readiness::Processing(cause.to_string()),
        (None, None, Some(manager)) if !found => Readiness::Processing(format!(
            "the module's manager {} {} is not there",
            text::name(&manager.kind),
            text::name(&manager.name)
        )),
        (None, None, _) => Readiness::Ready,
    }
}

/// [`combine`], but a manager decides only if judged.
#[must_use]
pub fn of_module(manager: Option<&Manager>, judged: &[(ObjectRef, ObjectReadiness)]) -> Readiness {
    let manager = manager.filter(|m| judged.iter().any(|(object, _)| is_manager(m, object)));
    combine(manager, judged.iter().map(|(object, readiness)| (object, readiness)))
}

impl ObjectReadiness {
    /// Whether the module waits for it.
    #[must_use]
    pub const fn is_unready(&self) -> bool {
        matches!(self, Self::Processing { .. } | Self::Warning { .. } | Self::Error { .. })
    }
}

impl Cause {
    /// Dependencies first: CRDs before their objects, claims before pods.
    fn order(&self) -> (u8, &str, &str, &str, &str, &str) {
        let o = &self.object;
        let rank = match (o.gvk.group.as_str(), o.gvk.kind.as_str()) {
            ("", "Namespace") => 0,
            ("apiextensions.k8s.io", _) => 1,
            ("", "PersistentVolumeClaim") => 2,
            ("apps" | "batch", _) | ("", "Pod") => 3,
            (group, _) if is_builtin(group) && group != "apiregistration.k8s.io" => 4,
            ("apiregistration.k8s.io", _) => 5,
            _ => 6,
        };
        (rank, &o.gvk.kind, &o.gvk.group, &o.namespace, &o.name, &self.text)
    }
}

impl PartialOrd for Cause {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Cause {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        // Versions do not identify objects, but equality includes them.
        self.order().cmp(&other.order()).then_with(|| self.object.gvk.version.cmp(&other.object.gvk.version))
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.object;
        f.write_str(&text::name(&o.gvk.kind))?;
        if !is_builtin(&o.gvk.group) {
            write!(f, ".{}", text::name(&o.gvk.group))?;
        }
        f.write_str(" ")?;
        if !o.namespace.is_empty() {
            write!(f, "{}/", text::name(&o.namespace))?;
        }
        write!(f, "{}: {}", text::name(&o.name), self.text)
    }
}

#[cfg(test)]
mod tests;
