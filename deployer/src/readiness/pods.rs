//! Pods, and the causes they give to workloads.
//!
//! A container that cannot start cycles through states, such as pulling and waiting. Each cycle has one text. Output
//! of containers is never quoted, because it may contain anything.

use serde_json::Value;

use super::{
    Facts, Says,
    seen::{Condition, Seen},
    text,
};

/// Reason why a pod does not run. The lowest is reported.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PodCause {
    /// Whether it may resolve by itself. Others come first.
    ends: bool,
    what: What,
    pub(super) text: String,
}

/// Most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Image,
    Configuration,
    Ended,
    Place,
    Initialises,
    Starts,
    Unready,
}

/// Error: failed, or can never start.
pub(super) fn pod(pod: Seen<'_>) -> Says {
    match pod.status()["phase"].as_str() {
        Some("Succeeded") => return Says::Ready,
        Some("Failed") => return Says::Error(failed(pod)),
        _ if pod.holds("Ready") => return Says::Ready,
        _ => {}
    }
    unready(pod, &[]).says()
}

impl PodCause {
    fn says(self) -> Says {
        match self.what {
            _ if !self.ends => Says::Error(self.text),
            // Retried, but usually needs intervention.
            What::Image | What::Configuration | What::Ended => Says::Blocked(self.text),
            What::Place | What::Initialises | What::Starts | What::Unready => Says::Processing(self.text),
        }
    }
}

/// Returns the first cause in any order of pods. Ready, succeeded and deleting pods have none.
pub(super) fn cause(facts: &Facts<'_>) -> Option<PodCause> {
    let pods = facts.pods.iter();
    pods.map(Seen)
        .filter(|pod| !pod.is_leaving() && !pod.holds("Ready"))
        .filter_map(|pod| match pod.status()["phase"].as_str() {
            Some("Succeeded") => None,
            Some("Failed") => Some(PodCause { ends: true, what: What::Ended, text: failed(pod) }),
            _ => Some(unready(pod, facts.claims)),
        })
        .min()
}

/// Returns the claims of a pod that cannot be scheduled.
#[must_use]
pub fn claims_of_unplaced(pod: &Value) -> Vec<String> {
    if Seen(pod).condition("PodScheduled").is_none_or(|placed| !placed.fails()) {
        return Vec::new();
    }
    let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
    volumes.filter_map(|v| v["persistentVolumeClaim"]["claimName"].as_str()).map(str::to_owned).collect()
}

/// Prefers a pod's specific cause, or a refusal to create pods, to `rest`.
pub(super) fn instead_of(rest: String, facts: &Facts<'_>) -> Says {
    let cause = cause(facts);
    if let (None, Some(refused)) = (&cause, facts.refused) {
        // The part before may contain a random pod name.
        let why = refused.split_once(" is forbidden: ").map_or(refused, |(_, why)| why);
        return Says::Processing(format!("its pods cannot be created: {}", text::tame(why)));
    }
    match cause {
        Some(PodCause { what: What::Starts | What::Unready, .. }) | None => Says::Processing(rest),
        Some(cause) => cause.says(),
    }
}

fn failed(pod: Seen<'_>) -> String {
    match pod.status()["reason"].as_str() {
        Some(reason) if !reason.is_empty() => format!("a pod has failed ({})", text::name(reason)),
        _ => "a pod has failed".to_owned(),
    }
}

fn unready(pod: Seen<'_>, claims: &[(String, String)]) -> PodCause {
    let status = pod.status();
    let all = |field: &str, init| {
        status[field].as_array().into_iter().flatten().filter_map(move |c| container(pod, c, init))
    };
    if let Some(cause) = all("initContainerStatuses", true).chain(all("containerStatuses", false)).min() {
        return cause;
    }
    let place = |text: String| PodCause { ends: true, what: What::Place, text };
    if let Some(placed) = pod.condition("PodScheduled").filter(Condition::fails) {
        let own = claims_of_unplaced(pod.0);
        // The scheduler does not say why a claim is unbound.
        if let Some((claim, why)) = claims.iter().find(|(name, _)| own.contains(name)) {
            return place(format!("no node can take its pod: its claim {}: {why}", text::name(claim)));
        }
        return match placed.reason {
            "SchedulingGated" => place("its pod is held back by a scheduling gate".into()),
            _ => match text::tame(placement(placed.message)) {
                empty if empty.is_empty() => place("no node can take its pod".into()),
                why => place(format!("no node can take its pod: {why}")),
            },
        };
    }
    let (what, text) = if status["containerStatuses"].is_array() {
        (What::Unready, "its containers run and are not ready")
    } else {
        (What::Starts, "it is being started")
    };
    PodCause { ends: true, what, text: text.into() }
}

/// Drops attempts to make room.
fn placement(message: &str) -> &str {
    const TRIED: [&str; 2] = [" no new claims to deallocate", " preemption:"];
    let end = TRIED.iter().filter_map(|tried| message.find(tried)).min();
    message[..end.unwrap_or(message.len())].trim_end_matches([' ', ','])
}

fn container(pod: Seen<'_>, container: &Value, init: bool) -> Option<PodCause> {
    let name = text::name(container["name"].as_str().unwrap_or("?"));
    let which = if init { "init container" } else { "container" };
    let state = &container["state"];
    let say =
        |ends, what, text: String| Some(PodCause { ends, what, text: format!("{which} {name} {text}") });
    let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
    let message = state["waiting"]["message"].as_str().unwrap_or_default();
    match waiting {
        "ImagePullBackOff"
        | "ErrImagePull"
        | "RegistryUnavailable"
        | "ImageInspectError"
        | "SignatureValidationFailed" => {
            let image = image(pod, container, init);
            // The kubelet alternates between these.
            let reason = match waiting {
                "ErrImagePull" | "ImagePullBackOff" => "ErrImagePull, ImagePullBackOff",
                other => other,
            };
            let why = kubelet(reason, why_not_pulled(message, &image));
            return say(true, What::Image, format!("cannot pull its image {image} {why}"));
        }
        "InvalidImageName" => {
            let image = image(pod, container, init);
            let why = kubelet(waiting, message);
            return say(false, What::Image, format!("has an image with an invalid name: {image} {why}"));
        }
        "ErrImageNeverPull" => {
            let image = image(pod, container, init);
            return say(
                false,
                What::Image,
                format!("may not pull its image {image}, and the node does not have it ({waiting})"),
            );
        }
        "CreateContainerConfigError" => {
            // The kubelet quotes no values.
            let why = kubelet(waiting, message);
            return say(true, What::Configuration, format!("cannot be configured {why}"));
        }
        _ => {}
    }
    let end =
        [&state["terminated"], &container["lastState"]["terminated"]].into_iter().find(|t| t.is_object());
    let served = container["ready"].as_bool() == Some(true);
    let done = |end: &Value| end["exitCode"].as_i64() == Some(0);
    // Sidecars among init containers serve.
    if served || (init && state["terminated"].is_object() && done(&state["terminated"])) {
        return None;
    }
    match end {
        // Crashing programs alternate between running, ended and waiting.
        Some(end) => {
            let why = match (end["reason"].as_str().unwrap_or_default(), end["exitCode"].as_i64()) {
                ("" | "Error" | "Completed", Some(code)) => format!("exit code {code}"),
                ("", None) => "no reason given".to_owned(),
                (reason, _) => text::name(reason),
            };
            let again = container["restartCount"].as_i64().is_some_and(|count| count > 0);
            let circle = if again { " (CrashLoopBackOff)" } else { "" };
            say(true, What::Ended, format!("ended ({why}) and is not ready again{circle}"))
        }
        None => match waiting {
            "CrashLoopBackOff" => say(true, What::Ended, format!("ended and is not ready again ({waiting})")),
            // Messages may contain the command line.
            "CreateContainerError" | "RunContainerError" | "PreStartHookError" | "PostStartHookError" => {
                say(true, What::Configuration, format!("cannot be started ({waiting})"))
            }
            _ if init && state["running"].is_object() => {
                say(true, What::Initialises, "has not done its work yet".into())
            }
            _ => None,
        },
    }
}

fn kubelet(reason: &str, message: &str) -> String {
    match text::tame(message) {
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
fn image(pod: Seen<'_>, container: &Value, init: bool) -> String {
    let specs = &pod.spec()[if init { "initContainers" } else { "containers" }];
    let asked = specs.as_array().into_iter().flatten().find(|c| c["name"] == container["name"]);
    text::name(asked.unwrap_or(container)["image"].as_str().unwrap_or("?"))
}
