//! Deployments and similar kinds, Jobs, `CronJobs`.

use serde_json::{Value, json};

use super::{
    metadata, names, pods,
    rule::{Field, NOT_NEGATIVE, Rule, fields},
    schedule, selectors,
    values::{is_empty, share},
};
use crate::{json::text, schema::cause::Cause};

pub(super) const WORKLOAD: [Field; 4] = [
    ("spec!.replicas", NOT_NEGATIVE),
    ("spec!.minReadySeconds", NOT_NEGATIVE),
    ("spec!.template!", Rule::Fields(&pods::TEMPLATE)),
    ("spec!.template!.spec!.restartPolicy", Rule::OneOf(&["Always"])),
];
pub(super) const DEPLOYMENT: [Field; 5] = [
    ("spec!", Rule::Check(|spec, path, causes| selected(spec, path, "deployment", causes))),
    ("spec!.revisionHistoryLimit", NOT_NEGATIVE),
    ("spec!.progressDeadlineSeconds", NOT_NEGATIVE),
    ("spec!", Rule::Check(progress)),
    ("spec!.strategy", Rule::Check(strategy)),
];
pub(super) const REPLICA_SET: [Field; 1] =
    [("spec!", Rule::Check(|spec, path, causes| selected(spec, path, "deployment", causes)))];
pub(super) const STATEFUL_SET: [Field; 8] = [
    ("spec!", Rule::Check(|spec, path, causes| selected(spec, path, "statefulset", causes))),
    ("spec!.podManagementPolicy", Rule::Check(management)),
    ("spec!.serviceName", Rule::Form(names::label)),
    ("spec!.ordinals.start", NOT_NEGATIVE),
    ("spec!.persistentVolumeClaimRetentionPolicy.whenDeleted", Rule::OneOf(&["Retain", "Delete"])),
    ("spec!.persistentVolumeClaimRetentionPolicy.whenScaled", Rule::OneOf(&["Retain", "Delete"])),
    ("spec!.updateStrategy.rollingUpdate.partition", NOT_NEGATIVE),
    ("spec!.updateStrategy", Rule::Check(stateful_strategy)),
];
pub(super) const DAEMON_SET: [Field; 3] = [
    ("spec!", Rule::Check(|spec, path, causes| selected(spec, path, "daemonset", causes))),
    ("spec!.revisionHistoryLimit", NOT_NEGATIVE),
    ("spec!.updateStrategy", Rule::Check(daemon_strategy)),
];
pub(super) const JOB: [Field; 3] =
    [("spec!", Rule::Fields(&JOB_SPEC)), ("spec!", Rule::Check(manual)), (".", Rule::Check(name_of_pods))];
const JOB_SPEC: [Field; 11] = [
    ("parallelism", NOT_NEGATIVE),
    ("completions", NOT_NEGATIVE),
    ("backoffLimit", NOT_NEGATIVE),
    ("activeDeadlineSeconds", NOT_NEGATIVE),
    ("ttlSecondsAfterFinished", NOT_NEGATIVE),
    ("completionMode", Rule::OneOf(&["NonIndexed", "Indexed"])),
    ("podReplacementPolicy", Rule::OneOf(&["Failed", "TerminatingOrFailed"])),
    (".", Rule::Check(indexed)),
    ("podFailurePolicy.rules[].action", Rule::Only(&["Count", "FailIndex", "FailJob", "Ignore"])),
    ("template!", Rule::Fields(&pods::TEMPLATE)),
    ("template!.spec!", Rule::Check(ends)),
];
pub(super) const CRON_JOB: [Field; 7] = [
    ("spec!", Rule::Check(schedule::check)),
    ("spec!.concurrencyPolicy", Rule::OneOf(&["Allow", "Forbid", "Replace"])),
    ("spec!.startingDeadlineSeconds", NOT_NEGATIVE),
    ("spec!.successfulJobsHistoryLimit", NOT_NEGATIVE),
    ("spec!.failedJobsHistoryLimit", NOT_NEGATIVE),
    ("spec!.jobTemplate!.spec!", Rule::Fields(&JOB_SPEC)),
    ("spec!.jobTemplate!.spec!", Rule::Check(generated)),
];

/// A selector must match its template.
fn selected(spec: &Value, path: &str, kind: &str, causes: &mut Vec<Cause>) {
    let labels = &spec["template"]["metadata"]["labels"];
    let at = format!("{path}.selector");
    let selector = spec.get("selector").filter(|selector| !selector.is_null());
    let before = causes.len();
    if let Some(selector) = selector {
        selectors::check(selector, &at, causes);
        let empty = is_empty(&selector["matchLabels"]) && is_empty(&selector["matchExpressions"]);
        if empty {
            causes.push(Cause::invalid(&at, &json!({}), &format!("empty selector is invalid for {kind}")));
        } else if causes.len() > before && kind == "deployment" {
            causes.push(Cause::invalid(&at, selector, "invalid label selector"));
        }
    } else if kind != "daemonset" {
        causes.push(Cause::required(&at, ""));
    }
    if causes.len() == before && !selector.is_some_and(|selector| selectors::matches(selector, labels))
        || selector.is_none()
    {
        let why = "`selector` does not match template `labels`";
        causes.push(Cause::invalid(&format!("{path}.template.metadata.labels"), labels, why));
    }
    if spec["template"]["spec"].get("activeDeadlineSeconds").is_some() {
        let name = match kind {
            "daemonset" => "DaemonSet",
            "statefulset" => "StatefulSet",
            _ => "ReplicaSet",
        };
        let why = format!("activeDeadlineSeconds in {name} is not Supported");
        causes.push(Cause::forbidden(&format!("{path}.template.spec.activeDeadlineSeconds"), &why));
    }
}

fn progress(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let deadline = &spec["progressDeadlineSeconds"];
    let ready = spec["minReadySeconds"].as_i64().unwrap_or_default();
    if deadline.as_i64().is_some_and(|deadline| deadline <= ready) {
        let why = "must be greater than minReadySeconds";
        causes.push(Cause::invalid(&format!("{path}.progressDeadlineSeconds"), deadline, why));
    }
}

const ROLLING: [Field; 2] =
    [("maxUnavailable", Rule::CountOrShare(false)), ("maxSurge", Rule::CountOrShare(true))];

fn strategy(strategy: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rolling = &strategy["rollingUpdate"];
    let at = format!("{path}.rollingUpdate");
    match text(strategy, "type") {
        "Recreate" if !rolling.is_null() => {
            causes.push(Cause::forbidden(&at, "may not be specified when strategy `type` is 'Recreate'"));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            fields(rolling, &ROLLING, &at, causes);
            let unavailable = &rolling["maxUnavailable"];
            if is_nothing(unavailable) && is_nothing(&rolling["maxSurge"]) {
                let why = "may not be 0 when `maxSurge` is 0";
                causes.push(Cause::invalid(&format!("{at}.maxUnavailable"), unavailable, why));
            }
        }
        _ => causes.push(Cause::unsupported(path, strategy, &["Recreate", "RollingUpdate"])),
    }
}

fn daemon_strategy(strategy: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rolling = &strategy["rollingUpdate"];
    let at = format!("{path}.rollingUpdate");
    match text(strategy, "type") {
        "OnDelete" => {}
        "RollingUpdate" => {
            fields(rolling, &[ROLLING[0], ("maxSurge", Rule::CountOrShare(false))], &at, causes);
            match (is_nothing(&rolling["maxUnavailable"]), is_nothing(&rolling["maxSurge"])) {
                (true, true) => {
                    causes.push(Cause::required(
                        &format!("{at}.maxUnavailable"),
                        "cannot be 0 when maxSurge is 0",
                    ));
                }
                (false, false) => {
                    let why = "may not be set when maxUnavailable is non-zero";
                    causes.push(Cause::invalid(&format!("{at}.maxSurge"), &rolling["maxSurge"], why));
                }
                _ => {}
            }
        }
        _ => causes.push(Cause::unsupported(path, strategy, &["RollingUpdate", "OnDelete"])),
    }
}

fn is_nothing(value: &Value) -> bool {
    value.is_null() || *value == 0 || share(value) == Some(0)
}

fn management(policy: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !["OrderedReady", "Parallel"].iter().any(|known| policy == known) {
        causes.push(Cause::invalid(path, policy, "must be 'OrderedReady' or 'Parallel'"));
    }
}

fn stateful_strategy(strategy: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rolling = &strategy["rollingUpdate"];
    match text(strategy, "type") {
        "OnDelete" if !rolling.is_null() => {
            let why = "only allowed for updateStrategy 'RollingUpdate'";
            causes.push(Cause::invalid(&format!("{path}.rollingUpdate"), rolling, why));
        }
        "OnDelete" | "RollingUpdate" => {}
        _ => causes.push(Cause::invalid(path, strategy, "must be 'RollingUpdate' or 'OnDelete'")),
    }
}

/// Job pods must end.
fn ends(pod: &Value, path: &str, causes: &mut Vec<Cause>) {
    if !matches!(text(pod, "restartPolicy"), "OnFailure" | "Never") {
        let why = "valid values: \"OnFailure\", \"Never\"";
        causes.push(Cause::required(&format!("{path}.restartPolicy"), why));
    }
}

fn indexed(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let indexed = text(spec, "completionMode") == "Indexed";
    if indexed && spec.get("completions").is_none() {
        let why = "when completion mode is Indexed";
        causes.push(Cause::required(&format!("{path}.completions"), why));
    }
    if let Some(limit) = spec.get("backoffLimitPerIndex").filter(|_| !indexed) {
        let why = "requires indexed completion mode";
        causes.push(Cause::invalid(&format!("{path}.backoffLimitPerIndex"), limit, why));
    }
}

/// The server generates non-manual selectors.
fn manual(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (manual, selector) = (spec["manualSelector"] == true, spec.get("selector"));
    match selector {
        None if manual => causes.push(Cause::required(&format!("{path}.selector"), "")),
        Some(selector) if !manual => {
            causes.push(Cause::invalid(
                &format!("{path}.selector"),
                selector,
                "`selector` not auto-generated",
            ));
        }
        None => return,
        Some(_) => {}
    }
    // Generated selectors use the uid.
    let labels = if manual { &spec["template"]["metadata"]["labels"] } else { &Value::Null };
    if !selector.is_some_and(|selector| selectors::matches(selector, labels)) {
        let why = "`selector` does not match template `labels`";
        causes.push(Cause::invalid(&format!("{path}.template.metadata.labels"), labels, why));
    }
}

/// Pods get the name as a label.
fn name_of_pods(job: &Value, _: &str, causes: &mut Vec<Cause>) {
    if job["spec"]["manualSelector"] != true {
        metadata::check_format(
            text(&job["metadata"], "name"),
            names::label_value,
            "spec.template.labels",
            causes,
        );
    }
}

fn generated(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    if let Some(selector) = spec.get("selector") {
        causes.push(Cause::invalid(
            &format!("{path}.selector"),
            selector,
            "`selector` will be auto-generated",
        ));
    }
    if spec["manualSelector"] == true {
        causes.push(Cause::unsupported(&format!("{path}.manualSelector"), &json!(true), &["nil", "false"]));
    }
}
