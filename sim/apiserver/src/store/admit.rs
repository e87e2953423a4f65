//! Defaults, server-set values and checks before storing.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{
    aggregation,
    cluster::Cluster,
    delete::{FOREGROUND, ORPHAN},
    refusal::Refusal,
    rules::new_finalizers,
};
use crate::{
    json::{DEEPEST, is_deeper},
    kinds::{Kind, Origin, checks, custom, defaults, services, validation},
    object::meta::{self, put},
    proto,
    schema::{builtin, shape},
};

/// Bytes as JSON.
const LARGEST: usize = 3 * 1024 * 1024;
const FIRST_NODE_PORT: u16 = 30_000;
const MOST_NODE_PORTS: u16 = 2_768;
const SUFFIX: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Unqualified finalizers of Kubernetes.
const KUBERNETES_FINALIZERS: [&str; 3] = ["kubernetes", ORPHAN, FOREGROUND];

impl Cluster {
    pub(super) fn generated(&mut self, prefix: &str) -> String {
        let bytes = self.uid().into_bytes();
        let suffix = bytes.iter().take(5).map(|byte| {
            let index = usize::from(*byte) % SUFFIX.len();
            char::from(SUFFIX.get(index).copied().unwrap_or(b'x'))
        });
        prefix.chars().take(58).chain(suffix).collect()
    }

    pub(super) fn shape(object: &mut Value, kind: &Kind) {
        if kind.is_builtin() {
            let schema = kind.schema();
            shape::drop_nulls(object, schema);
            if let Origin::Builtin(definition) = kind.origin {
                proto::drop_zeros(object, definition);
            }
            shape::drop_empty(object, schema);
            defaults::set(object, kind);
        } else {
            if let Some(metadata) = object.get_mut("metadata") {
                let schema = builtin::object_meta();
                shape::drop_nulls(metadata, schema);
                proto::drop_zeros(metadata, builtin::OBJECT_META);
                shape::drop_empty(metadata, schema);
            }
            shape::default(object, kind.schema());
        }
    }

    /// Sets server values, which have no owner.
    pub(super) fn assign(&mut self, object: &mut Value, kind: &Kind, live: Option<&Value>) {
        if kind.is("", "services") {
            self.address(object, live);
            self.number_ports(object, live);
        }
        match live {
            None => defaults::admit(object, kind),
            // Only the finalize path changes finalizers.
            Some(live) if kind.is("", "namespaces") => {
                put(meta::as_object(object), "spec", live.get("spec").cloned());
            }
            Some(_) => {}
        }
        defaults::always(object, kind);
        if aggregation::is_api_service(kind)
            && live.is_none()
            && let Some(status) = aggregation::first_status(object)
        {
            put(meta::as_object(object), "status", Some(status));
        }
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") && live.is_none() {
            let versions = object.pointer("/spec/versions").and_then(Value::as_array);
            let stored: Vec<Value> = versions
                .into_iter()
                .flatten()
                .filter(|version| version.get("storage") == Some(&json!(true)))
                .filter_map(|version| version.get("name").cloned())
                .collect();
            let names = json!({"kind": "", "plural": ""});
            let status = json!({"conditions": null, "acceptedNames": names, "storedVersions": stored});
            put(meta::as_object(object), "status", Some(status));
        }
    }

    pub(super) fn address(&mut self, object: &mut Value, live: Option<&Value>) {
        let before = live.and_then(|live| live.pointer("/spec/clusterIP")).cloned();
        let is_new = before.is_none();
        let spec = meta::child_mut(object, "spec");
        if spec.get("type") == Some(&json!("ExternalName")) {
            return;
        }
        let given = spec.get("clusterIP").filter(|ip| **ip != "").cloned();
        let ip = given.or(before).unwrap_or_else(|| {
            self.addresses += 1;
            let [_, high, middle, low] = self.addresses.to_be_bytes();
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

    fn number_ports(&mut self, object: &mut Value, live: Option<&Value>) {
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
                self.node_ports = (self.node_ports + 1) % MOST_NODE_PORTS;
                json!(FIRST_NODE_PORT + self.node_ports)
            });
            put(meta::as_object(port), "nodePort", Some(number));
        }
    }

    pub(super) fn check(&self, kind: &Kind, object: &Value, live: Option<&Value>) -> Result<(), Refusal> {
        // First, since later checks recurse.
        if is_deeper(object, DEEPEST) {
            return Err(Refusal::too_deep());
        }
        if let Some(what) = unsupported(kind, object)
            && !(self.options.ignore_cel && what.contains("CEL"))
        {
            return Err(Refusal::not_simulated(&what));
        }
        let mut causes = if live.is_none() { checks::name(object, kind) } else { Vec::new() };
        causes.extend(checks::object(object, live, kind));
        if let Some(live) = live {
            causes.extend(checks::change(live, object, kind));
            causes.extend(new_finalizers(live, object));
        }
        if !causes.is_empty() {
            // Events of both groups share objects.
            let group = if kind.is("events.k8s.io", "events") { "" } else { &kind.group };
            return Err(Refusal::invalid(&kind.kind, group, meta::name(object), &causes));
        }
        if kind.is("apiextensions.k8s.io", "customresourcedefinitions") && self.has_names_taken(kind, object)
        {
            return Err(Refusal::not_simulated("definitions of which another one of their group has a name"));
        }
        if object.to_string().len() > LARGEST {
            return Err(Refusal::new(
                413,
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3145728",
            ));
        }
        Ok(())
    }

    /// Whether another CRD of the group uses one of its names.
    fn has_names_taken(&self, kind: &Kind, object: &Value) -> bool {
        let names = |object: &Value| {
            let names = &object["spec"]["names"];
            let fields = ["plural", "singular"].map(|field| names[field].as_str().map(str::to_lowercase));
            let short = names["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let kinds = ["kind", "listKind"].map(|field| names[field].as_str().map(str::to_owned));
            let paths: BTreeSet<String> =
                fields.into_iter().flatten().chain(short.map(str::to_owned)).collect();
            (paths, kinds.into_iter().flatten().collect::<BTreeSet<String>>())
        };
        let (paths, kinds) = names(object);
        let others = self.range(kind, "").filter(|(key, _)| *key.name != *meta::name(object));
        let mut of_group = others
            .map(|(_, stored)| stored.render())
            .filter(|other| other["spec"]["group"] == object["spec"]["group"]);
        of_group.any(|other| {
            let (their_paths, their_kinds) = names(&other);
            !paths.is_disjoint(&their_paths) || !kinds.is_disjoint(&their_kinds)
        })
    }

    /// Warns about ignored features and unqualified finalizers.
    pub(super) fn warned(&self, kind: &Kind, object: &Value, before: Option<&Value>) -> Vec<String> {
        let ignored = unsupported(kind, object).filter(|_| self.options.ignore_cel);
        let ignored = ignored.map(|what| format!("not simulated, and ignored: {what}"));
        let had = before.map(meta::finalizers).unwrap_or_default();
        let bare =
            |name: &&str| !name.contains('/') && !KUBERNETES_FINALIZERS.contains(name) && !had.contains(name);
        let bare = meta::finalizers(object).into_iter().filter(|_| !kind.is_builtin()).filter(bare);
        let bare = bare.map(|name| {
            format!(
                "metadata.finalizers: {}: prefer a domain-qualified finalizer name to avoid accidental conflicts with other finalizer writers",
                Value::from(name)
            )
        });
        ignored.into_iter().chain(bare).collect()
    }
}

fn unsupported(kind: &Kind, object: &Value) -> Option<String> {
    if kind.is("apiextensions.k8s.io", "customresourcedefinitions") {
        return custom::unsupported(object);
    }
    if kind.is_builtin() { validation::unsupported(object, kind) } else { None }
}
