//! Faults by rule and seed; rules may change while servers run.
//!
//! With a share below 1, the seed decides reproducibly whether a cluster's n-th matching call is hit.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{Call, Fault, Faults, Hosted, Outcome, PatchKind, Query, Refusal, Request, Target, User, Verb};

/// A fault and its calls.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Cluster names; `None`: all.
    pub clusters: Option<Arc<BTreeSet<String>>>,
    /// User names; empty: all.
    pub users: Vec<String>,
    /// Verbs; empty: all.
    pub verbs: Vec<String>,
    /// Share of calls hit, 0 to 1.
    pub share: f64,
    /// Fault to inject.
    pub fault: Fault,
}

impl Rule {
    /// Hits every call.
    pub fn always(fault: Fault) -> Self {
        Self { clusters: None, users: Vec::new(), verbs: Vec::new(), share: 1.0, fault }
    }

    fn is_about(&self, call: &Call<'_>) -> bool {
        let any = |list: &[String], one: &str| list.is_empty() || list.iter().any(|have| have == one);
        self.clusters.as_ref().is_none_or(|names| names.contains(call.cluster))
            && any(&self.users, call.user)
            && any(&self.verbs, call.verb)
    }
}

/// Identifies a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId(u64);

/// Active rules; the oldest match decides.
#[derive(Debug)]
pub struct Script {
    seed: u64,
    rules: RwLock<BTreeMap<u64, Active>>,
    last: Mutex<u64>,
}

#[derive(Debug)]
struct Active {
    rule: Rule,
    /// By cluster.
    calls: Mutex<HashMap<String, u64>>,
}

impl Script {
    /// Creates a script without rules.
    pub fn new(seed: u64) -> Self {
        Self { seed, rules: RwLock::default(), last: Mutex::new(0) }
    }

    /// Adds a rule.
    pub fn add(&self, rule: Rule) -> RuleId {
        let mut last = self.last.lock();
        *last += 1;
        self.rules.write().insert(*last, Active { rule, calls: Mutex::default() });
        RuleId(*last)
    }

    /// Removes a rule. Hanging requests and silent watches stay so.
    pub fn remove(&self, id: RuleId) {
        self.rules.write().remove(&id.0);
    }
}

impl Faults for Script {
    fn fault(&self, call: &Call<'_>) -> Fault {
        let rules = self.rules.read();
        for (id, Active { rule, calls }) in rules.iter().filter(|(_, active)| active.rule.is_about(call)) {
            if rule.share >= 1.0 {
                return rule.fault.clone();
            }
            let mut calls = calls.lock();
            let count = calls.entry(call.cluster.to_owned()).or_default();
            *count += 1;
            if chance(self.seed, &format!("{id}/{}/{count}", call.cluster)) < rule.share {
                return rule.fault.clone();
            }
        }
        Fault::None
    }
}

/// Returns a reproducible number in `[0, 1)`.
pub fn chance(seed: u64, text: &str) -> f64 {
    // `f64` holds 53 bits.
    #[expect(clippy::cast_precision_loss, reason = "it has 53 bits")]
    let bits = (xxh3_64_with_seed(text.as_bytes(), seed) >> 11) as f64;
    bits / 9_007_199_254_740_992.0
}

/// Number of calls of one verb.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Counted {
    /// Cluster, if counted separately; else empty.
    pub cluster: String,
    /// `User-Agent` program, or else the user.
    pub client: String,
    /// Authorization verb.
    pub verb: &'static str,
    /// Number of calls.
    pub calls: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Series {
    cluster: String,
    client: String,
    verb: &'static str,
}

/// Counts calls, then delegates.
#[derive(Debug)]
pub struct Tally {
    inner: Arc<dyn Faults>,
    separate: Vec<String>,
    counts: Mutex<BTreeMap<Series, u64>>,
}

impl Tally {
    /// Counts each cluster in `separate` separately.
    pub fn new(inner: Arc<dyn Faults>, separate: Vec<String>) -> Self {
        Self { inner, separate, counts: Mutex::default() }
    }

    /// Returns the counts.
    pub fn counts(&self) -> Vec<Counted> {
        let counts = self.counts.lock();
        let counts = counts.iter().map(|(series, calls)| {
            let Series { cluster, client, verb } = series.clone();
            Counted { cluster, client, verb, calls: *calls }
        });
        counts.collect()
    }
}

impl Faults for Tally {
    fn fault(&self, call: &Call<'_>) -> Fault {
        let cluster = if self.separate.iter().any(|name| name == call.cluster) { call.cluster } else { "" };
        let client = if call.agent.is_empty() { call.user } else { call.agent };
        let series = Series { cluster: cluster.to_owned(), client: client.to_owned(), verb: call.verb };
        *self.counts.lock().entry(series).or_default() += 1;
        self.inner.fault(call)
    }
}

const ANCHOR: &str = "simulated-anchor";
const ANCHOR_FINALIZER: &str = "simulator.tidewatch.dev/never";

/// Deletes a namespace and keeps it terminating by a finalizer.
pub fn stick_namespace(hosted: &Hosted, namespace: &str, now: Timestamp) -> Result<(), Refusal> {
    let anchor = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": ANCHOR, "namespace": namespace, "finalizers": [ANCHOR_FINALIZER]},
    });
    ask(hosted, Verb::Create(anchor), "configmaps", namespace, "", now)?;
    ask(hosted, Verb::Delete(Value::Null), "namespaces", "", namespace, now)
}

/// Undoes [`stick_namespace`].
pub fn free_namespace(hosted: &Hosted, namespace: &str, now: Timestamp) -> Result<(), Refusal> {
    let patch = json!({"metadata": {"finalizers": null}});
    ask(hosted, Verb::Patch(PatchKind::Merge, patch), "configmaps", namespace, ANCHOR, now)
}

fn ask(
    hosted: &Hosted,
    verb: Verb,
    resource: &str,
    namespace: &str,
    name: &str,
    now: Timestamp,
) -> Result<(), Refusal> {
    let user = User { groups: Vec::new(), ..User::admin("simulator") };
    let target = Target {
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Target::default()
    };
    let agent = "simulator".to_owned();
    let request = Request { user: Arc::new(user), agent, verb, target, query: Query::default() };
    match hosted.apply(&request, now) {
        Outcome::Refused(refusal) => Err(*refusal),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(cluster: &'a str, user: &'a str, verb: &'static str) -> Call<'a> {
        Call { cluster, method: "GET", path: "/", verb, is_watch: verb == "watch", user, agent: "" }
    }

    #[test]
    fn a_rule_applies_to_its_calls_until_removed() {
        let script = Script::new(1);
        let rule = Rule {
            clusters: Some(Arc::new(BTreeSet::from(["one".to_owned()]))),
            users: vec!["agent".to_owned()],
            verbs: vec!["list".to_owned()],
            ..Rule::always(Fault::Drop)
        };
        let id = script.add(rule);
        assert_eq!(script.fault(&call("one", "agent", "list")), Fault::Drop);
        for other in
            [call("two", "agent", "list"), call("one", "engine", "list"), call("one", "agent", "get")]
        {
            assert_eq!(script.fault(&other), Fault::None, "{other:?}");
        }
        script.remove(id);
        assert_eq!(script.fault(&call("one", "agent", "list")), Fault::None);
    }

    #[test]
    fn the_seed_selects_the_affected_calls() {
        let hits = |seed| {
            let script = Script::new(seed);
            script.add(Rule { share: 0.3, ..Rule::always(Fault::Drop) });
            (0..1000).map(|_| script.fault(&call("one", "a", "get")) == Fault::Drop).collect::<Vec<_>>()
        };
        assert_eq!(hits(7), hits(7));
        assert_ne!(hits(7), hits(8));
        let share = hits(7).iter().filter(|hit| **hit).count();
        assert!((250..350).contains(&share), "{share}");
    }

    #[test]
    fn calls_are_counted_by_program_and_verb() {
        let tally = Tally::new(Arc::new(crate::NoFaults), vec!["kcp".to_owned()]);
        for cluster in ["kcp", "one", "two"] {
            tally.fault(&call(cluster, "engine", "list"));
        }
        tally.fault(&Call { agent: "kubectl", ..call("one", "engine", "list") });
        let counts: Vec<_> =
            tally.counts().into_iter().map(|c| (c.cluster, c.client, c.verb, c.calls)).collect();
        let one = |cluster: &str, client: &str, calls| (cluster.to_owned(), client.to_owned(), "list", calls);
        assert_eq!(counts, [one("", "engine", 2), one("", "kubectl", 1), one("kcp", "engine", 1)]);
    }
}
