//! Services and `NetworkPolicies`.

use serde_json::Value;

use super::{
    metadata, names,
    rule::{BETWEEN_PORTS, Field, PROTOCOL, Rule},
    values::{is_empty, present},
};
use crate::{
    json::{list, text},
    schema::cause::Cause,
};

pub(super) const SERVICE: [Field; 13] = [
    ("spec!.type", Rule::OneOf(&["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"])),
    ("spec!.sessionAffinity", Rule::OneOf(&["ClientIP", "None"])),
    (
        "spec!.sessionAffinityConfig.clientIP.timeoutSeconds",
        Rule::Between(1, 86_400, "must be greater than 0 and less than 86400"),
    ),
    ("spec!.internalTrafficPolicy", Rule::OneOf(&["Cluster", "Local"])),
    ("spec!.trafficDistribution", Rule::OneOf(&["PreferClose", "PreferSameZone", "PreferSameNode"])),
    ("spec!.ipFamilyPolicy", Rule::OneOf(&["PreferDualStack", "RequireDualStack", "SingleStack"])),
    ("spec!.ipFamilies[]", Rule::OneOf(&["IPv4", "IPv6"])),
    ("spec!.selector", Rule::Labels),
    ("spec!.ports", Rule::Check(service_ports)),
    ("spec!.ports[]", Rule::Fields(&SERVICE_PORT)),
    ("spec!", Rule::Check(one_stack)),
    ("spec!.externalIPs[]", Rule::Check(external_ip)),
    ("spec!", Rule::Check(service)),
];
const SERVICE_PORT: [Field; 5] = [
    ("port", Rule::Port),
    ("name", Rule::Form(names::label)),
    ("targetPort", Rule::PortOrName),
    ("protocol", PROTOCOL),
    ("appProtocol", Rule::Form(names::qualified)),
];

/// Several ports need unique names.
fn service_ports(ports: &Value, path: &str, causes: &mut Vec<Cause>) {
    let ports = list(ports);
    for (index, port) in ports.iter().enumerate() {
        let (path, before) = (format!("{path}[{index}]"), ports.get(..index).unwrap_or_default());
        let name = &port["name"];
        if is_empty(name) {
            if ports.len() > 1 {
                causes.push(Cause::required(&format!("{path}.name"), ""));
            }
        } else if before.iter().any(|other| other["name"] == *name) {
            causes.push(Cause::duplicate(&format!("{path}.name"), name));
        }
        if before
            .iter()
            .any(|other| (&other["port"], &other["protocol"]) == (&port["port"], &port["protocol"]))
        {
            causes.push(Cause::duplicate(&path, port));
        }
    }
}

fn external_ip(ip: &Value, path: &str, causes: &mut Vec<Cause>) {
    let address = ip.as_str().unwrap_or_default();
    metadata::check_format(address, names::ip, path, causes);
    let why = match address.parse::<std::net::IpAddr>() {
        Ok(address) if address.is_unspecified() => format!("may not be unspecified ({address})"),
        Ok(address) if address.is_loopback() => {
            "may not be in the loopback range (127.0.0.0/8, ::1/128)".to_owned()
        }
        _ => return,
    };
    causes.push(Cause::invalid(path, ip, &why));
}

fn service(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    let kind = text(spec, "type");
    let at = |field: &str| format!("{path}.{field}");
    let headless = text(spec, "clusterIP") == "None";
    if is_empty(&spec["ports"]) && kind != "ExternalName" && !headless {
        causes.push(Cause::required(&at("ports"), ""));
    }
    cluster_ips(spec, kind, &at("clusterIPs"), causes);
    if kind == "ExternalName" {
        match text(spec, "externalName").trim_end_matches('.') {
            "" => causes.push(Cause::required(&at("externalName"), "")),
            name => metadata::check_format(name, names::subdomain, &at("externalName"), causes),
        }
    }
    if kind == "ClusterIP" {
        for (index, port) in list(&spec["ports"]).iter().enumerate() {
            if port["nodePort"].as_i64().is_some_and(|port| port != 0) {
                let why = "may not be used when `type` is 'ClusterIP'";
                causes.push(Cause::forbidden(&at(&format!("ports[{index}].nodePort")), why));
            }
        }
    }
    if kind != "LoadBalancer" {
        for (field, reported) in [
            ("loadBalancerSourceRanges", "LoadBalancerSourceRanges"),
            ("loadBalancerClass", "loadBalancerClass"),
            ("allocateLoadBalancerNodePorts", "allocateLoadBalancerNodePorts"),
        ] {
            if !is_empty(&spec[field]) {
                causes
                    .push(Cause::forbidden(&at(reported), "may only be used when `type` is 'LoadBalancer'"));
            }
        }
        if let Some(port) = spec.get("healthCheckNodePort").filter(|port| **port != 0) {
            let why = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            causes.push(Cause::invalid(&at("healthCheckNodePort"), port, why));
        }
    }
    let outside = matches!(kind, "LoadBalancer" | "NodePort") || !is_empty(&spec["externalIPs"]);
    let policy = &spec["externalTrafficPolicy"];
    if !outside && !is_empty(policy) {
        let why = "may only be set for externally-accessible services";
        causes.push(Cause::invalid(&at("externalTrafficPolicy"), policy, why));
    }
}

/// Simulated clusters are IPv4-only.
fn one_stack(spec: &Value, path: &str, causes: &mut Vec<Cause>) {
    for (index, family) in
        list(&spec["ipFamilies"]).iter().enumerate().filter(|(_, family)| **family == "IPv6")
    {
        let at = format!("{path}.ipFamilies[{index}]");
        causes.push(Cause::invalid(&at, family, "not configured on this cluster"));
    }
    let policy = &spec["ipFamilyPolicy"];
    if policy == "RequireDualStack" {
        let why = "this cluster is not configured for dual-stack services";
        causes.push(Cause::invalid(&format!("{path}.ipFamilyPolicy"), policy, why));
    }
}

fn cluster_ips(spec: &Value, kind: &str, path: &str, causes: &mut Vec<Cause>) {
    let (ip, ips) = (text(spec, "clusterIP"), &spec["clusterIPs"]);
    let first = list(ips).first().and_then(Value::as_str).unwrap_or(ip);
    if kind == "ExternalName" {
        if !first.is_empty() {
            causes.push(Cause::forbidden(path, "may not be set for ExternalName services"));
        }
        return;
    }
    if ip.is_empty() && !is_empty(ips) {
        return causes.push(Cause::invalid(path, ips, "must be empty when `clusterIP` is not specified"));
    }
    if first != ip {
        causes.push(Cause::invalid(path, ips, "first value must match `clusterIP`"));
    }
    let path = format!("{path}[0]");
    match first {
        "None" if kind != "ClusterIP" => {
            let why = format!("may not be set to 'None' for {kind} services");
            causes.push(Cause::invalid(&path, &"None".into(), &why));
        }
        "" | "None" => {}
        first => metadata::check_format(first, names::ip, &path, causes),
    }
}

pub(super) const POLICY: [Field; 7] = [
    ("spec!.podSelector", Rule::Selector),
    ("spec!.policyTypes[]", Rule::OneOf(&["Ingress", "Egress"])),
    ("spec!.policyTypes", Rule::Check(policy_types)),
    ("spec!.ingress[].from[]", Rule::Fields(&PEER)),
    ("spec!.egress[].to[]", Rule::Fields(&PEER)),
    ("spec!.ingress[].ports[]", Rule::Fields(&POLICY_PORT)),
    ("spec!.egress[].ports[]", Rule::Fields(&POLICY_PORT)),
];
const PEER: [Field; 4] = [
    (".", Rule::Check(peer)),
    ("podSelector", Rule::Selector),
    ("namespaceSelector", Rule::Selector),
    ("ipBlock", Rule::Check(block)),
];
const POLICY_PORT: [Field; 3] = [
    ("protocol", Rule::OneOf(&["TCP", "UDP", "SCTP"])),
    ("port", Rule::PortOrName),
    (".", Rule::Check(end_port)),
];

fn policy_types(types: &Value, path: &str, causes: &mut Vec<Cause>) {
    if list(types).len() > 2 {
        causes.push(Cause::invalid(path, types, "may not specify more than two policyTypes"));
    }
}

fn peer(peer: &Value, path: &str, causes: &mut Vec<Cause>) {
    let fields = present(peer, &["podSelector", "namespaceSelector", "ipBlock"]);
    if fields.is_empty() {
        causes.push(Cause::required(path, "must specify a peer"));
    }
    if fields.len() > 1 && fields.contains(&"ipBlock") {
        causes.push(Cause::forbidden(path, "may not specify both ipBlock and another peer"));
    }
}

fn block(block: &Value, path: &str, causes: &mut Vec<Cause>) {
    let (cidr, path) = (text(block, "cidr"), |field: &str| format!("{path}.{field}"));
    if cidr.is_empty() {
        return causes.push(Cause::required(&path("cidr"), ""));
    }
    metadata::check_format(cidr, names::cidr, &path("cidr"), causes);
    for (index, except) in list(&block["except"]).iter().enumerate() {
        let (path, text) = (path(&format!("except[{index}]")), except.as_str().unwrap_or_default());
        metadata::check_format(text, names::cidr, &path, causes);
        let (Some((whole, prefix)), Some((part, length))) = (names::network(cidr), names::network(text))
        else {
            continue;
        };
        let shift =
            |address| names::bits(address).checked_shr(128_u32.saturating_sub(prefix)).unwrap_or_default();
        if length <= prefix || shift(part) != shift(whole) {
            causes.push(Cause::invalid(&path, except, "must be a strict subset of `cidr`"));
        }
    }
}

fn end_port(port: &Value, path: &str, causes: &mut Vec<Cause>) {
    let Some(end) = port.get("endPort") else { return };
    let path = format!("{path}.endPort");
    let (begin, end_number) = (&port["port"], end.as_i64().unwrap_or_default());
    if is_empty(begin) {
        causes.push(Cause::invalid(&path, end, "may not be specified when `port` is not specified"));
    } else if begin.is_string() {
        causes.push(Cause::invalid(&path, end, "may not be specified when `port` is non-numeric"));
    } else if begin.as_i64().is_some_and(|begin| begin > end_number) {
        causes.push(Cause::invalid(&path, begin, "must be greater than or equal to `port`"));
    } else if !(1..=65_535).contains(&end_number) {
        causes.push(Cause::invalid(&path, end, BETWEEN_PORTS));
    }
}
