//! Whether what is installed is ready, and if not, why: the first cause, in words that stay.
//!
//! [`readiness`] judges one object by its own status and by what was read beside it ([`Facts`]).
//! [`whole`] makes one verdict of all of a module's objects. Causes are written to three statuses, so
//! their text has no number that moves while nothing is decided: "not all of 2 replicas are available",
//! never "1 of 2". What other programs say is quoted with its moving parts masked.

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
mod pods;
mod search;
mod seen;
mod storage;
mod text;
mod workloads;

pub use custom::module_cr;
pub use deadline::{DEADLINE, deadline_of, look_at, not_within};
pub use pods::claims_of_unplaced;
pub use search::{is_due, next_look, selector};
use seen::{Seen, UNSEEN};
pub use storage::unbound;
pub use workloads::{End, end_of, goes_when_finished};

/// What one object says. Unlike [`Readiness`], it can say nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectReadiness {
    /// It serves, or has done its work.
    Ready,
    /// It is on its way.
    Processing {
        /// What it waits for.
        cause: Cause,
    },
    /// It is on its way, and has failed for a while at what is tried again and again.
    Warning {
        /// What is wrong.
        cause: Cause,
    },
    /// It will not get there by itself, or has been on its way for too long.
    Error {
        /// What is wrong.
        cause: Cause,
    },
    /// Objects of its kind have no readiness, or this one does not tell: nothing waits for it.
    Unknown,
}

/// Why an object is not ready. Ordered by where to look first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    /// The object that is not ready.
    pub object: ObjectRef,
    /// Why, in words that stay while nothing is decided; at most a few hundred characters, one line.
    pub text: String,
}

/// What is known beside the object itself.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Pods of the object, if it is a workload and they were read. A few are enough; they give the cause.
    pub pods: &'a [Value],
    /// Why no volume is there for claims of these pods, by the claim's name; see [`unbound`].
    pub claims: &'a [(String, String)],
    /// What the object's controller was last told where it could not make a pod, if there are none and its Events were read.
    pub refused: Option<&'a str>,
    /// The storage class of the object, if it is a claim and the class was looked for; null where there is none.
    pub storage_class: Option<&'a Value>,
    /// Since when the object, or the module that it belongs to, was seen not ready, without a break.
    /// `None`: it is seen for the first time.
    pub not_ready_since: Option<Timestamp>,
    /// The field manager that installs: its last change of the object starts the deadline anew.
    pub installer: &'a str,
    /// How long an object may be on its way before that is an error.
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

/// What a rule for one kind says, before it is put together with the object and the deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Says {
    Ready,
    Processing(String),
    /// On its way, and tried again and again; how serious that is depends on for how long.
    Blocked(String),
    Warning(String),
    Error(String),
    Unknown,
}

/// Whether an object of any kind is ready.
///
/// An object whose controller has not seen its newest generation is never ready, whatever its status says.
/// One that is being deleted is on its way. Whatever is on its way for longer than [`Facts::deadline`] is an error with the same
/// cause. Total: any JSON gives an answer.
#[must_use]
pub fn readiness(object: &Value, facts: &Facts<'_>, now: Timestamp) -> ObjectReadiness {
    let Some(id) = ObjectRef::of(object) else { return ObjectReadiness::Unknown };
    let cause = |text| Cause { object: id.clone(), text };
    match deadline::judge(says(&id.gvk, object, facts), object, facts, now) {
        Says::Ready => ObjectReadiness::Ready,
        Says::Unknown => ObjectReadiness::Unknown,
        Says::Processing(text) | Says::Blocked(text) => ObjectReadiness::Processing { cause: cause(text) },
        Says::Warning(text) => ObjectReadiness::Warning { cause: cause(text) },
        Says::Error(text) => ObjectReadiness::Error { cause: cause(text) },
    }
}

fn says(gvk: &Gvk, object: &Value, facts: &Facts<'_>) -> Says {
    let object = Seen(object);
    if object.is_leaving() {
        return Says::Processing("it is being deleted".into());
    }
    let rule: fn(Seen<'_>, &Facts<'_>) -> Says = match (gvk.group.as_str(), gvk.kind.as_str()) {
        ("apps", "Deployment") => workloads::deployment,
        ("apps", "StatefulSet") => workloads::stateful_set,
        ("apps", "DaemonSet") => workloads::daemon_set,
        ("batch", "Job") => workloads::job,
        ("", "Pod") => |pod, _| pods::pod(pod),
        ("", "PersistentVolumeClaim") => storage::claim,
        ("", "Service") => |service, _| apis::service(service),
        ("apiextensions.k8s.io", "CustomResourceDefinition") => |crd, _| apis::crd(crd),
        ("apiregistration.k8s.io", "APIService") => |service, _| apis::api_service(service),
        (group, _) if is_builtin(group) => return Says::Unknown,
        _ => |object, _| custom::says(object),
    };
    if object.is_behind() {
        return Says::Processing(UNSEEN.into());
    }
    rule(object, facts)
}

/// Whether the API server itself serves the group. Other groups below `k8s.io` are custom resources like any other.
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

/// One verdict of all of a module's objects, the same whatever their order: an error outranks a warning, and that what is on its way. Of
/// several causes the one that the others may follow from is told ([`Cause`]'s order).
///
/// With a `manager`, that object alone decides; it is on its way while it is not among `all`.
#[must_use]
pub fn whole<'a>(
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

/// [`whole`] for the objects of a module and its manager, which decides if it is among `judged`.
#[must_use]
pub fn of_module(manager: Option<&Manager>, judged: &[(ObjectRef, ObjectReadiness)]) -> Readiness {
    let manager = manager.filter(|m| judged.iter().any(|(object, _)| is_manager(m, object)));
    whole(manager, judged.iter().map(|(object, readiness)| (object, readiness)))
}

impl ObjectReadiness {
    /// Whether something waits for it.
    #[must_use]
    pub const fn is_unready(&self) -> bool {
        matches!(self, Self::Processing { .. } | Self::Warning { .. } | Self::Error { .. })
    }
}

impl Cause {
    /// What others wait for comes first: what serves a kind before objects of it, a claim before the pods that mount it.
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
        // The version is no part of what an object is, but equal causes must be equal in all.
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
