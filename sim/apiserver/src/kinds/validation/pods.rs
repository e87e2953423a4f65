//! Pods and templates.

use serde_json::Value;

use super::{
    containers, metadata, names,
    rule::{ANY_ID, Field, NOT_NEGATIVE, PROTOCOL, Rule, apply},
    scheduling,
    values::is_empty,
    volumes,
};
use crate::{
    json::{list, text},
    object::meta::{as_object, put},
    schema::cause::Cause,
};

pub(super) const POD: [Field; 1] = [("spec!", Rule::Fields(&SPEC))];
pub(super) const TEMPLATE: [Field; 3] = [
    ("metadata", Rule::Check(template_metadata)),
    ("spec!", Rule::Fields(&SPEC)),
    ("spec!.ephemeralContainers", Rule::Forbidden("ephemeral containers not allowed in pod template")),
];
const SPEC: [Field; 28] = [
    ("containers", Rule::Need("")),
    ("containers[]", Rule::Fields(&containers::CONTAINER)),
    ("initContainers[]", Rule::Fields(&containers::CONTAINER)),
    ("initContainers[]", Rule::Check(containers::beginner)),
    (".", Rule::Check(containers::together)),
    (".", Rule::Check(volumes::check)),
    ("restartPolicy", Rule::OneOf(&["Always", "OnFailure", "Never"])),
    ("dnsPolicy", Rule::OneOf(&["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"])),
    ("activeDeadlineSeconds", Rule::Between(1, 2_147_483_647, "must be between 1 and 2147483647, inclusive")),
    ("serviceAccountName", Rule::Form(names::subdomain)),
    ("nodeName", Rule::Form(names::subdomain)),
    ("priorityClassName", Rule::Form(names::subdomain)),
    ("runtimeClassName", Rule::Form(names::subdomain)),
    ("hostname", Rule::Form(names::label)),
    ("subdomain", Rule::Form(names::label)),
    ("preemptionPolicy", Rule::OneOf(&["PreemptLowerPriority", "Never"])),
    ("nodeSelector", Rule::Labels),
    ("readinessGates[].conditionType", Rule::Form(names::qualified)),
    ("schedulingGates[]", Rule::Check(gate)),
    ("hostAliases[].ip", Rule::Form(names::ip)),
    ("hostAliases[].hostnames[]", Rule::Form(names::subdomain)),
    ("dnsConfig.nameservers[]", Rule::Form(names::ip)),
    ("dnsConfig.options[].name", Rule::Need("must not be empty")),
    (".", Rule::Check(together)),
    ("tolerations[]", Rule::Check(scheduling::toleration)),
    ("topologySpreadConstraints", Rule::Check(scheduling::spread)),
    ("affinity", Rule::Fields(&scheduling::AFFINITY)),
    ("securityContext", Rule::Fields(&SECURITY)),
];
const SECURITY: [Field; 8] = [
    ("runAsUser", ANY_ID),
    ("runAsGroup", ANY_ID),
    ("fsGroup", ANY_ID),
    ("supplementalGroups[]", ANY_ID),
    ("fsGroupChangePolicy", Rule::OneOf(&["Always", "OnRootMismatch"])),
    ("seccompProfile", Rule::Check(containers::seccomp)),
    ("sysctls[].name", Rule::Form(sysctl)),
    ("sysctls", Rule::Once("name")),
];

const FIXED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Most of a pod's spec is immutable.
pub(crate) fn change(before: &Value, after: &Value, causes: &mut Vec<Cause>) {
    let lists = ["containers", "initContainers"];
    let counted = lists.into_iter().filter(|field| list(&before[*field]).len() != list(&after[*field]).len());
    let counted: Vec<Cause> = counted
        .map(|field| {
            Cause::forbidden(&format!("spec.{field}"), "pod updates may not add or remove containers")
        })
        .collect();
    if !counted.is_empty() {
        return causes.extend(counted);
    }
    let deadline = &after["activeDeadlineSeconds"];
    let why = match (before["activeDeadlineSeconds"].as_i64(), deadline.as_i64()) {
        (Some(_), None) => Some("must not update from a positive integer to nil value"),
        (Some(before), Some(after)) if after > before => Some("must be less than or equal to previous value"),
        _ => None,
    };
    causes.extend(why.map(|why| Cause::invalid("spec.activeDeadlineSeconds", deadline, why)));
    let lasting = |toleration: &Value| {
        ["key", "operator", "value", "effect"].map(|field| text(toleration, field).to_owned())
    };
    let kept = |old: &Value| list(&after["tolerations"]).iter().any(|new| lasting(new) == lasting(old));
    if !list(&before["tolerations"]).iter().all(kept) {
        let why = "existing toleration can not be modified except its tolerationSeconds";
        causes.push(Cause::forbidden("spec.tolerations", why));
    }
    let gates = list(&before["schedulingGates"]);
    for (index, gate) in list(&after["schedulingGates"]).iter().enumerate() {
        if !gates.contains(gate) {
            let name = text(gate, "name");
            let why = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            causes.push(Cause::forbidden(&format!("spec.schedulingGates[{index}].name"), &why));
        }
    }
    // Other fields are immutable.
    let mut rest = after.clone();
    let free = ["activeDeadlineSeconds", "tolerations", "schedulingGates"];
    // Gated pods may change placement.
    let scheduling_fields: &[&str] = if gates.is_empty() { &[] } else { &["nodeSelector", "affinity"] };
    for field in free.iter().chain(scheduling_fields) {
        put(as_object(&mut rest), field, before.get(*field).cloned());
    }
    for field in lists {
        let containers = rest.get_mut(field).and_then(Value::as_array_mut).into_iter().flatten();
        for (container, old) in containers.zip(list(&before[field])) {
            put(as_object(container), "image", old.get("image").cloned());
        }
    }
    if rest != *before {
        causes.push(Cause::forbidden("spec", FIXED));
    }
}

/// Skips networks and containers.
pub(crate) fn status(before: &Value, after: &Value, causes: &mut Vec<Cause>) {
    for (index, condition) in list(&after["conditions"]).iter().enumerate() {
        metadata::check_format(
            text(condition, "type"),
            names::qualified,
            &format!("status.conditions[{index}].Type"),
            causes,
        );
    }
    if after["qosClass"] != before["qosClass"] {
        causes.push(Cause::invalid("status.qosClass", &after["qosClass"], "field is immutable"));
    }
}

/// Kubernetes omits `metadata` from these paths.
fn template_metadata(given: &Value, path: &str, causes: &mut Vec<Cause>) {
    let path = path.trim_end_matches(".metadata");
    metadata::labels(&given["labels"], &format!("{path}.labels"), causes);
    metadata::annotations(&given["annotations"], &format!("{path}.annotations"), causes);
}

fn gate(gate: &Value, path: &str, causes: &mut Vec<Cause>) {
    metadata::check_format(text(gate, "name"), names::qualified, path, causes);
}

fn sysctl(name: &str) -> Vec<String> {
    const NAME: &str = r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let is = crate::schema::patterns::compiled(NAME).is_some_and(|regex| regex.is_match(name))
        && name.len() <= 253;
    if is { Vec::new() } else { vec![format!("must have at most 253 characters and match regex {NAME}")] }
}

fn together(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    if text(spec, "dnsPolicy") == "None" && is_empty(&spec["dnsConfig"]["nameservers"]) {
        let (at, why) = match spec.get("dnsConfig") {
            None => (format!("{path}.dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None"),
            Some(_) => (
                format!("{path}.dnsConfig.nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ),
        };
        causes.push(Cause::required(&at, why));
    }
    if spec["shareProcessNamespace"] == true && spec["hostPID"] == true {
        let why = "ShareProcessNamespace and HostPID cannot both be enabled";
        let at = format!("{path}.securityContext.shareProcessNamespace");
        causes.push(Cause::invalid(&at, &true.into(), why));
    }
    if let Some(system) = spec.get("os") {
        let name = &system["name"];
        if !matches!(name.as_str(), Some("linux" | "windows")) {
            causes.push(Cause::unsupported(&format!("{path}.os"), name, &["linux", "windows"]));
        }
    }
    for list_name in ["containers", "initContainers"] {
        for (index, container) in list(&spec[list_name]).iter().enumerate() {
            containers::of_pod(container, spec, &format!("{path}.{list_name}[{index}]"), causes);
        }
    }
}

pub(super) const PORT: [Field; 4] = [
    ("containerPort", Rule::NeededPort),
    ("hostPort", Rule::Check(host_port)),
    ("protocol", PROTOCOL),
    ("name", Rule::Form(names::port_name)),
];

/// 0: no port.
fn host_port(port: &Value, path: &str, causes: &mut Vec<Cause>) {
    if *port != 0 {
        apply(Rule::Port, Some(port), path, causes);
    }
}

pub(super) const PROBE_NUMBERS: [Field; 5] = [
    ("initialDelaySeconds", NOT_NEGATIVE),
    ("timeoutSeconds", NOT_NEGATIVE),
    ("periodSeconds", NOT_NEGATIVE),
    ("successThreshold", NOT_NEGATIVE),
    ("failureThreshold", NOT_NEGATIVE),
];
