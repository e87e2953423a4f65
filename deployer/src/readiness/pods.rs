//! Pods, and the causes they give to workloads.
//!
//! A container that cannot start cycles through states, such as pulling and waiting. Each cycle has one text. Output
//! of containers is never quoted, because it may contain anything.

use serde_json::Value;

use super::{
    Facts, Judgement, text,
    view::{Condition, ObjectView},
};

/// Reason why a pod does not run. The lowest is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodCause {
    /// Whether it may resolve by itself. Others come first.
    may_resolve: bool,
    category: Category,
    pub(super) text: String,
}

/// Most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Category {
    Image,
    Configuration,
    Ended,
    Scheduling,
    Initialising,
    Starting,
    Unready,
}

/// Error: failed, or can never start.
pub(super) fn pod(pod: ObjectView<'_>) -> Judgement {
    match pod.status()["phase"].as_str() {
        Some("Succeeded") => return Judgement::Ready,
        Some("Failed") => return Judgement::Error(failed(pod)),
        _ if pod.holds("Ready") => return Judgement::Ready,
        _ => {}
    }
    unready(pod, &[]).judgement()
}

impl PodCause {
    fn judgement(self) -> Judgement {
        match self.category {
            _ if !self.may_resolve => Judgement::Error(self.text),
            // Retried, but usually needs intervention.
            Category::Image | Category::Configuration | Category::Ended => Judgement::Blocked(self.text),
            Category::Scheduling | Category::Initialising | Category::Starting | Category::Unready => {
                Judgement::Processing(self.text)
            }
        }
    }
}

/// Returns the first cause in any order of pods. Ready, succeeded and deleting pods have none.
pub(super) fn cause(facts: &Facts<'_>) -> Option<PodCause> {
    let pods = facts.pods.iter();
    pods.map(ObjectView)
        .filter(|pod| !pod.is_deleting() && !pod.holds("Ready"))
        .filter_map(|pod| match pod.status()["phase"].as_str() {
            Some("Succeeded") => None,
            Some("Failed") => {
                Some(PodCause { may_resolve: true, category: Category::Ended, text: failed(pod) })
            }
            _ => Some(unready(pod, facts.claims)),
        })
        .min()
}

/// Returns the claims of a pod that cannot be scheduled.
#[must_use]
pub fn claims_of_unscheduled(pod: &Value) -> Vec<String> {
    if ObjectView(pod).condition("PodScheduled").is_none_or(|placed| !placed.fails()) {
        return Vec::new();
    }
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str()).map(str::to_owned).collect()
}

/// Prefers a pod's specific cause, or a refusal to create pods, to `rest`.
pub(super) fn pod_cause_or(rest: String, facts: &Facts<'_>) -> Judgement {
    let cause = cause(facts);
    if let (None, Some(refused)) = (&cause, facts.refused) {
        // The part before may contain a random pod name.
        let why = refused.split_once(" is forbidden: ").map_or(refused, |(_, why)| why);
        return Judgement::Processing(format!("its pods cannot be created: {}", text::masked(why)));
    }
    match cause {
        Some(PodCause { category: Category::Starting | Category::Unready, .. }) | None => {
            Judgement::Processing(rest)
        }
        Some(cause) => cause.judgement(),
    }
}

fn failed(pod: ObjectView<'_>) -> String {
    match pod.status()["reason"].as_str() {
        Some(reason) if !reason.is_empty() => format!("a pod has failed ({})", text::name(reason)),
        _ => "a pod has failed".to_owned(),
    }
}

fn unready(pod: ObjectView<'_>, claims: &[(String, String)]) -> PodCause {
    let status = pod.status();
    let all = |field: &str, init| {
        status[field].as_array().into_iter().flatten().filter_map(move |c| container(pod, c, init))
    };
    if let Some(cause) = all("initContainerStatuses", true).chain(all("containerStatuses", false)).min() {
        return cause;
    }
    let unscheduled = |text: String| PodCause { may_resolve: true, category: Category::Scheduling, text };
    if let Some(scheduled) = pod.condition("PodScheduled").filter(Condition::fails) {
        let own = claims_of_unscheduled(pod.0);
        // The scheduler does not say why a claim is unbound.
        if let Some((claim, why)) = claims.iter().find(|(name, _)| own.contains(name)) {
            return unscheduled(format!("no node can take its pod: its claim {}: {why}", text::name(claim)));
        }
        return match scheduled.reason {
            "SchedulingGated" => unscheduled("its pod is held back by a scheduling gate".into()),
            _ => match text::masked(placement(scheduled.message)) {
                empty if empty.is_empty() => unscheduled("no node can take its pod".into()),
                why => unscheduled(format!("no node can take its pod: {why}")),
            },
        };
    }
    let (category, text) = if status["containerStatuses"].is_array() {
        (Category::Unready, "its containers run and are not ready")
    } else {
        (Category::Starting, "it is being started")
    };
    PodCause { may_resolve: true, category, text: text.into() }
}

/// Drops attempts to make room.
fn placement(message: &str) -> &str {
    const TRIED: [&str; 2] = [" no new claims to deallocate", " preemption:"];
    let end = TRIED.iter().filter_map(|tried| message.find(tried)).min();
    message[..end.unwrap_or(message.len())].trim_end_matches([' ', ','])
}

fn container(pod: ObjectView<'_>, container: &Value, init: bool) -> Option<PodCause> {
    let name = text::name(container["name"].as_str().unwrap_or("?"));
    let label = if init { "init container" } else { "container" };
    let cause = waiting_cause(pod, container, init).or_else(|| unready_cause(container, init))?;
    Some(PodCause { text: format!("{label} {name} {}", cause.text), ..cause })
}

/// Cause of a container that cannot be created.
fn waiting_cause(pod: ObjectView<'_>, container: &Value, init: bool) -> Option<PodCause> {
    let waiting = &container["state"]["waiting"];
    let reason = waiting["reason"].as_str().unwrap_or_default();
    let message = waiting["message"].as_str().unwrap_or_default();
    let image = || image(pod, container, init);
    let (may_resolve, category, text) = match reason {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "RegistryUnavailable"
        | "ImageInspectError"
        | "SignatureValidationFailed" => {
            let image = image();
            // The kubelet alternates between these.
            let reason = match reason {
                "ErrImagePull" | "ImagePullBackOff" => "ErrImagePull, ImagePullBackOff",
                other => other,
            };
            let why = kubelet(reason, why_not_pulled(message, &image));
            (true, Category::Image, format!("cannot pull its image {image} {why}"))
        }
        "InvalidImageName" => {
            let why = kubelet(reason, message);
            (false, Category::Image, format!("has an image with an invalid name: {} {why}", image()))
        }
        "ErrImageNeverPull" => {
            let text =
                format!("may not pull its image {}, and the node does not have it ({reason})", image());
            (false, Category::Image, text)
        }
        "CreateContainerConfigError" => {
            // The kubelet quotes no values.
            let why = kubelet(reason, message);
            (true, Category::Configuration, format!("cannot be configured {why}"))
        }
        _ => return None,
    };
    Some(PodCause { may_resolve, category, text })
}

/// Cause of a container that ended, does not start, or still initialises.
fn unready_cause(container: &Value, init: bool) -> Option<PodCause> {
    let state = &container["state"];
    let succeeded = state["terminated"]["exitCode"].as_i64() == Some(0);
    // Sidecars among init containers serve.
    if container["ready"].as_bool() == Some(true) || init && succeeded {
        return None;
    }
    let end =
        [&state["terminated"], &container["lastState"]["terminated"]].into_iter().find(|t| t.is_object());
    let reason = state["waiting"]["reason"].as_str().unwrap_or_default();
    let (category, text) = match (end, reason) {
        // Crashing programs alternate between running, ended and waiting.
        (Some(end), _) => {
            let why = match (end["reason"].as_str().unwrap_or_default(), end["exitCode"].as_i64()) {
                ("" | "Error" | "Completed", Some(code)) => format!("exit code {code}"),
                ("", None) => "no reason given".to_owned(),
                (reason, _) => text::name(reason),
            };
            let is_restarted = container["restartCount"].as_i64().is_some_and(|count| count > 0);
            let suffix = if is_restarted { " (CrashLoopBackOff)" } else { "" };
            (Category::Ended, format!("ended ({why}) and is not ready again{suffix}"))
        }
        (None, "CrashLoopBackOff") => (Category::Ended, format!("ended and is not ready again ({reason})")),
        // Messages may contain the command line.
        (None, "CreateContainerError" | "RunContainerError" | "PreStartHookError" | "PostStartHookError") => {
            (Category::Configuration, format!("cannot be started ({reason})"))
        }
        (None, _) if init && state["running"].is_object() => {
            (Category::Initialising, "has not done its work yet".to_owned())
        }
        (None, _) => return None,
    };
    Some(PodCause { may_resolve: true, category, text })
}

fn kubelet(reason: &str, message: &str) -> String {
    match text::masked(message) {
        empty if empty.is_empty() => format!("({reason})"),
        why => format!("({reason}): {why}"),
    }
}

/// Drops the attempts, which repeat the image. The cause comes last.
fn why_not_pulled<'a>(message: &'a str, image: &str) -> &'a str {
    // Older kubelets give no cause while waiting.
    let why = match message.strip_prefix("Back-off pulling image ") {
        Some(rest) => rest.split_once("\": ").map_or("", |(_, why)| why),
        None => message,
    };
    let why = why.strip_prefix("ErrImagePull: ").unwrap_or(why);
    let why = match why.strip_prefix("rpc error: ") {
        Some(rest) => rest.split_once("desc = ").map_or(rest, |(_, why)| why),
        None => why,
    };
    let why = why
        .rsplit_once("failed to resolve reference ")
        .map_or(why, |(_, last)| last.split_once("\": ").map_or(last, |(_, why)| why));
    why.strip_prefix(image).and_then(|rest| rest.strip_prefix(": ")).unwrap_or(why)
}

/// The kubelet's image may have a digest that comes and goes.
fn image(pod: ObjectView<'_>, container: &Value, init: bool) -> String {
    let specs = &pod.spec()[if init { "initContainers" } else { "containers" }];
    let spec = specs.as_array().into_iter().flatten().find(|c| c["name"] == container["name"]);
    text::name(spec.unwrap_or(container)["image"].as_str().unwrap_or("?"))
}
