//! Defaults of Services.

use serde_json::{Value, json};

use super::defaults::{absent, each};
use crate::object::meta::child_mut;

pub(super) fn set(object: &mut Value) {
    let spec = child_mut(object, "spec");
    absent(spec, "type", json!("ClusterIP"));
    absent(spec, "sessionAffinity", json!("None"));
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    if spec.get("sessionAffinity") == Some(&json!("ClientIP")) {
        absent(spec, "sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10_800}}));
    } else {
        spec.remove("sessionAffinityConfig");
    }
    if kind != "ExternalName" {
        absent(spec, "internalTrafficPolicy", json!("Cluster"));
    }
    if kind == "LoadBalancer" {
        absent(spec, "allocateLoadBalancerNodePorts", json!(true));
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer") || spec.contains_key("externalIPs") {
        absent(spec, "externalTrafficPolicy", json!("Cluster"));
    }
    for port in each(spec, "ports") {
        absent(port, "protocol", json!("TCP"));
        let number = port.get("port").cloned().unwrap_or(json!(0));
        if port.get("targetPort") == Some(&json!(0)) {
            port.remove("targetPort");
        }
        absent(port, "targetPort", number);
    }
}

pub(crate) fn has_node_ports(service: &Value) -> bool {
    let spec = &service["spec"];
    match spec["type"].as_str() {
        Some("NodePort") => true,
        Some("LoadBalancer") => spec["allocateLoadBalancerNodePorts"] != false,
        _ => false,
    }
}

/// Updates addresses and fields that depend on the type.
pub(super) fn follow(object: &mut Value, live: &Value) {
    if has_node_ports(live) && !has_node_ports(object) {
        let had = live["spec"]["ports"].as_array().map_or(&[][..], Vec::as_slice);
        for port in each(child_mut(object, "spec"), "ports") {
            if had.iter().any(|old| old.get("nodePort") == port.get("nodePort")) {
                port.remove("nodePort");
            }
        }
    }
    let was = &live["spec"];
    if object["spec"]["type"] != was["type"] {
        let outside = ["allocateLoadBalancerNodePorts", "loadBalancerClass", "externalTrafficPolicy"];
        let gone = match object["spec"]["type"].as_str() {
            Some("LoadBalancer") => &[][..],
            Some("NodePort") => &outside[..2],
            _ => &outside[..],
        };
        let spec = child_mut(object, "spec");
        for field in gone {
            if spec.get(*field) == was.get(*field) {
                spec.remove(*field);
            }
        }
    }
    let before = live["spec"].get("clusterIPs");
    let old = &live["spec"]["clusterIP"];
    let spec = child_mut(object, "spec");
    let outside = spec.get("type") == Some(&json!("ExternalName")) && live["spec"]["type"] != "ExternalName";
    if outside {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"] {
            spec.remove(field);
        }
    } else if spec.get("clusterIPs") == before && spec.get("clusterIP") != Some(old) {
        match spec.get("clusterIP").filter(|ip| **ip != "").cloned() {
            Some(ip) => _ = spec.insert("clusterIPs".into(), json!([ip])),
            None => {
                spec.insert("clusterIP".into(), old.clone());
            }
        }
    }
}
