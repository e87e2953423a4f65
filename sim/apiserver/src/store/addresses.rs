//! Addresses and node ports of Services.

use serde_json::{Value, json};

use crate::{
    kinds::services,
    object::meta::{self, put},
};

const FIRST_NODE_PORT: u16 = 30_000;
const NODE_PORTS: u16 = 2_768;

#[derive(Debug)]
pub(super) struct Addresses {
    /// Last address in 10.0.0.0/8.
    last: u32,
    /// Last node port, counted from [`FIRST_NODE_PORT`].
    last_port: u16,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { last: 1, last_port: 0 }
    }
}

impl Addresses {
    /// Sets the missing addresses and node ports of a Service.
    pub(super) fn assign(&mut self, service: &mut Value, live: Option<&Value>) {
        self.set_address(service, live);
        self.set_node_ports(service, live);
    }

    fn set_address(&mut self, object: &mut Value, live: Option<&Value>) {
        let before = live.and_then(|live| live.pointer("/spec/clusterIP")).cloned();
        let is_new = before.is_none();
        let spec = meta::child_mut(object, "spec");
        if spec.get("type") == Some(&json!("ExternalName")) {
            return;
        }
        let given = spec.get("clusterIP").filter(|ip| **ip != "").cloned();
        let ip = given.or(before).unwrap_or_else(|| {
            self.last += 1;
            let [_, high, middle, low] = self.last.to_be_bytes();
            json!(format!("10.{high}.{middle}.{low}"))
        });
        spec.insert("clusterIPs".into(), json!([ip]));
        spec.insert("clusterIP".into(), ip);
        // Without addresses and pods the IP family is unknown.
        let headless = spec.get("clusterIP") == Some(&json!("None"));
        let selects = spec.get("selector").and_then(Value::as_object).is_some_and(|all| !all.is_empty());
        let policy = if headless && !selects && is_new && !spec.contains_key("ipFamilyPolicy") {
            let families = spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"])).as_array_mut();
            if let Some([only]) = families.as_deref().map(Vec::as_slice) {
                let other = if only == "IPv4" { "IPv6" } else { "IPv4" };
                let both = json!([only, other]);
                spec.insert("ipFamilies".into(), both);
            }
            "RequireDualStack"
        } else {
            "SingleStack"
        };
        spec.entry("ipFamilies").or_insert_with(|| json!(["IPv4"]));
        spec.entry("ipFamilyPolicy").or_insert_with(|| json!(policy));
    }

    fn set_node_ports(&mut self, object: &mut Value, live: Option<&Value>) {
        if !services::has_node_ports(object) {
            return;
        }
        let had = live.and_then(|live| live["spec"]["ports"].as_array()).map_or(&[][..], Vec::as_slice);
        let ports = meta::child_mut(object, "spec").get_mut("ports").and_then(Value::as_array_mut);
        for port in
            ports.into_iter().flatten().filter(|port| port["nodePort"].as_i64().unwrap_or_default() == 0)
        {
            let same = |old: &&Value| old["port"] == port["port"] && old["protocol"] == port["protocol"];
            let number = had.iter().find(same).and_then(|old| old.get("nodePort")).cloned();
            let number = number.unwrap_or_else(|| {
                self.last_port = (self.last_port + 1) % NODE_PORTS;
                json!(FIRST_NODE_PORT + self.last_port)
            });
            put(meta::as_object(port), "nodePort", Some(number));
        }
    }
}
