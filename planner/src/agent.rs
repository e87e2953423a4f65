//! Configuration and role of all agents, from the Watchers in KCP.
//!
//! [Derived](super::watches) watches are added per runtime. A Watcher that agents would reject is left out and reported.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use kube::ResourceExt;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tidewatch_api::{
    State, Watcher, WatcherStatus,
    names::{conditions, labels},
    watcher::WatchedField,
};

use super::status::{self, ConditionValue, whole_seconds};

/// Maximum watches from Watchers, of an agent's 256.
pub const MAX_WATCHES: usize = 48;
/// The agent's limit.
const MAX_NAME: usize = 63;
/// Every list request contains all labels.
const MAX_LABELS: usize = 16;
/// Characters of a Watcher quoted in a message.
const MAX_QUOTE: usize = 80;
/// Route to the engine.
pub const ENGINE_ROUTE: &str = "engine";
/// The engine's manager name.
const OWN_MANAGER: &str = labels::MANAGED_BY_KCP;

/// Configuration of all agents, and the verdict on each Watcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlan {
    /// Configuration.
    pub config: AgentConfig,
    /// Exactly the configured kinds, sorted and unique.
    pub rules: Vec<Rule>,
    /// Watch name or fault, by Watcher name; none during deletion.
    pub verdicts: BTreeMap<String, Result<String, WatcherFault>>,
}

/// Configuration in the agent's format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// Hash of the watches, 32 hexadecimal digits, stable across processes.
    pub generation: String,
    /// Sorted by name.
    pub watches: Vec<AgentWatch>,
}

/// Watch in the agent's format.
///
/// Agents refuse unknown fields, and those of the former version read this until their upgrade: write a new field only one minor version
/// after agents read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentWatch {
    /// Unique; see [`watch_name`].
    pub name: String,
    /// [`ENGINE_ROUTE`], or a manager's name.
    pub route: String,
    /// Empty for the core group.
    pub group: String,
    /// `*` for any.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// Observed part of an object.
    pub field: WatchedField,
    /// Required labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// Rule of a `ClusterRole`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// One group.
    pub api_groups: Vec<String>,
    /// Sorted resources.
    pub resources: Vec<String>,
    /// [`VERBS`]
    pub verbs: Vec<String>,
}

/// Verbs that an agent needs.
pub const VERBS: [&str; 3] = ["get", "list", "watch"];

/// Reason why a Watcher has no watch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatcherFault {
    /// Secrets are never watched.
    #[error("Secrets are never watched; name another resource in spec.resourceToWatch")]
    Secrets,
    /// No manager.
    #[error("it names no manager; set spec.manager")]
    NoManager,
    /// The agent rejects a value.
    #[error("{field} {value:?} {problem}")]
    Value {
        /// Field of the Watcher.
        field: &'static str,
        /// Shortened value.
        value: String,
        /// Violated requirement.
        problem: &'static str,
    },
    /// More labels than list requests allow.
    #[error("spec.labelsToWatch has more than {MAX_LABELS} labels; a few tell the objects apart")]
    TooManyLabels,
    /// More Watchers than agents accept.
    #[error("there are more than {MAX_WATCHES} Watchers, and those last by name are left out; remove some")]
    TooMany,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl AgentConfig {
    fn new(watches: Vec<AgentWatch>) -> Self {
        // Strings and maps always serialize.
        let text = serde_json::to_vec(&watches).unwrap_or_default();
        let mut generation = hex::encode(Sha256::digest(text));
        generation.truncate(32);
        Self { generation, watches }
    }

    /// Returns JSON, which is also YAML.
    #[must_use]
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Plans for all Watchers.
#[must_use]
pub fn plan<'a>(watchers: impl IntoIterator<Item = &'a Watcher>) -> AgentPlan {
    let mut sorted: Vec<&Watcher> =
        watchers.into_iter().filter(|w| w.metadata.deletion_timestamp.is_none()).collect();
    sorted.sort_by_key(|w| (w.namespace(), w.name_any()));
    let (mut chosen, mut verdicts) = (Vec::new(), BTreeMap::new());
    for watcher in sorted {
        let verdict = watch(watcher).and_then(|watch| {
            if chosen.len() >= MAX_WATCHES {
                return Err(WatcherFault::TooMany);
            }
            let name = watch.name.clone();
            chosen.push(watch);
            Ok(name)
        });
        verdicts.insert(watcher.name_any(), verdict);
    }
    chosen.sort_by(|a: &AgentWatch, b| a.name.cmp(&b.name));
    let kinds = chosen.iter().map(|w| (w.group.clone(), w.resource.clone()));
    AgentPlan { rules: rules(kinds), config: AgentConfig::new(chosen), verdicts }
}

impl AgentPlan {
    /// Adds a runtime's derived watches.
    #[must_use]
    pub fn with(&self, derived: Vec<AgentWatch>) -> (AgentConfig, Vec<Rule>) {
        if derived.is_empty() {
            return (self.config.clone(), self.rules.clone());
        }
        let mut all: Vec<AgentWatch> = self.config.watches.iter().cloned().chain(derived).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        let rules = rules(all.iter().map(|w| (w.group.clone(), w.resource.clone())));
        (AgentConfig::new(all), rules)
    }
}

/// Returns one rule per group, sorted and unique.
#[must_use]
pub fn rules(kinds: impl IntoIterator<Item = (String, String)>) -> Vec<Rule> {
    let mut groups: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (group, resource) in kinds {
        groups.entry(group).or_default().insert(resource);
    }
    let rule = |(group, resources): (String, BTreeSet<String>)| Rule {
        api_groups: vec![group],
        resources: resources.into_iter().collect(),
        verbs: VERBS.map(str::to_owned).to_vec(),
    };
    groups.into_iter().map(rule).collect()
}

/// Role writes around the configuration write: a kind is allowed before it is watched, and no longer than that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleSteps {
    /// Present and wanted kinds, if more than present.
    pub before: Option<Vec<Rule>>,
    /// Wanted kinds, if fewer.
    pub after: Option<Vec<Rule>>,
}

/// Steps from a role's present `rules` (`None`: no role). Unplanned rules are dropped.
#[must_use]
pub fn role_steps(present: Option<&Value>, wanted: &[Rule]) -> RoleSteps {
    let pairs = |rules: &[Rule]| -> BTreeSet<(String, String)> {
        let of = |rule: &Rule| {
            let (groups, resources) = (rule.api_groups.clone(), rule.resources.clone());
            groups.into_iter().flat_map(move |g| resources.clone().into_iter().map(move |r| (g.clone(), r)))
        };
        rules.iter().flat_map(of).collect()
    };
    let role = present.map(|rules| {
        let rules = if rules.is_null() { Ok(Vec::new()) } else { serde_json::from_value(rules.clone()) };
        let rules: Vec<Rule> = rules.unwrap_or_default();
        let is_planned_kind = |(group, resource): &(String, String)| {
            is_name(resource, 253, "-")
                && (group.is_empty() || is_name(group, 253, "-."))
                && !(group.is_empty() && resource == "secrets")
        };
        pairs(&rules).into_iter().filter(is_planned_kind).collect::<BTreeSet<_>>()
    });
    let exact = |kinds: &BTreeSet<_>| present.is_some_and(|p| same_rules(p, &rules(kinds.iter().cloned())));
    let wanted_pairs = pairs(wanted);
    let union: BTreeSet<_> = role.unwrap_or_default().union(&wanted_pairs).cloned().collect();
    RoleSteps {
        before: (!exact(&union)).then(|| rules(union.iter().cloned())),
        after: (union != wanted_pairs).then(|| wanted.to_vec()),
    }
}

fn same_rules(present: &Value, wanted: &[Rule]) -> bool {
    match present {
        Value::Null => wanted.is_empty(),
        present => serde_json::to_value(wanted).is_ok_and(|wanted| *present == wanted),
    }
}

/// Returns a Watcher's status.
#[must_use]
pub fn watcher_status(
    watcher: &Watcher,
    verdict: &Result<String, WatcherFault>,
    now: Timestamp,
) -> WatcherStatus {
    let before = watcher.status.clone().unwrap_or_default();
    let (state, message) = match verdict {
        Ok(watch) => (State::Ready, format!("in the agents' configuration as watch {watch}")),
        Err(fault) => (State::Error, format!("left out of the agents' configuration: {fault}")),
    };
    let value = ConditionValue {
        type_: conditions::VIRTUAL_SERVICE,
        holds: verdict.is_ok(),
        reason: conditions::REASON_READY,
        message,
    };
    let generation = watcher.metadata.generation;
    let condition = status::condition(&before.conditions, value, generation, whole_seconds(now));
    let mut all: Vec<_> =
        before.conditions.into_iter().filter(|c| c.type_ != conditions::VIRTUAL_SERVICE).collect();
    all.push(condition);
    WatcherStatus { state, conditions: all, observed_generation: generation }
}

/// Returns `<namespace>.<name>`, unique because namespaces have no dots. Long names are cut and end in a hash.
#[must_use]
pub fn watch_name(namespace: &str, name: &str) -> String {
    cut_name(format!("{namespace}.{name}"))
}

pub(super) fn cut_name(full: String) -> String {
    if full.len() <= MAX_NAME {
        return full;
    }
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(full.as_bytes()));
    // ASCII: characters are bytes.
    let head: String = full.chars().take(MAX_NAME - 1 - hash.len()).collect();
    format!("{head}-{hash}")
}

fn watch(watcher: &Watcher) -> Result<AgentWatch, WatcherFault> {
    let spec = &watcher.spec;
    let manager = watcher.manager_name().ok_or(WatcherFault::NoManager)?;
    let invalid = |field, value: &str, problem| {
        Err(WatcherFault::Value { field, value: value.chars().take(MAX_QUOTE).collect(), problem })
    };
    if !is_name(manager, 63, "-.") || manager == ENGINE_ROUTE {
        return invalid("spec.manager", manager, "must be 1 to 63 of a-z, 0-9, - and ., and not \"engine\"");
    }
    let kind = &spec.resource_to_watch;
    if kind.group.is_empty() && kind.resource.eq_ignore_ascii_case("secrets") {
        return Err(WatcherFault::Secrets);
    }
    if !is_name(&kind.resource, 253, "-") {
        let problem = "must be one resource's plural name in lower case, as \"deployments\"";
        return invalid("spec.resourceToWatch.resource", &kind.resource, problem);
    }
    if !kind.group.is_empty() && !is_name(&kind.group, 253, "-.") {
        return invalid("spec.resourceToWatch.group", &kind.group, "is not an API group, as \"apps\"");
    }
    let version = if kind.version.is_empty() { "*" } else { &kind.version };
    if version != "*" && !is_name(version, 63, "-") {
        let problem = "must be a version as \"v1\", or \"*\" for the preferred one";
        return invalid("spec.resourceToWatch.version", version, problem);
    }
    if spec.labels_to_watch.len() > MAX_LABELS {
        return Err(WatcherFault::TooManyLabels);
    }
    for (key, value) in &spec.labels_to_watch {
        if !is_label(key, 317, "-_./") || key.is_empty() || !is_label(value, 63, "-_.") {
            return invalid("spec.labelsToWatch", &format!("{key}={value}"), "is not a label");
        }
    }
    Ok(AgentWatch {
        name: watch_name(&watcher.namespace().unwrap_or_default(), &watcher.name_any()),
        route: if manager == OWN_MANAGER { ENGINE_ROUTE } else { manager }.to_owned(),
        group: kind.group.clone(),
        version: version.to_owned(),
        resource: kind.resource.clone(),
        field: spec.field,
        labels: spec.labels_to_watch.clone(),
    })
}

fn is_name(text: &str, longest: usize, also: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || also.contains(c);
    !text.is_empty() && text.len() <= longest && text.chars().all(allowed)
}

fn is_label(text: &str, longest: usize, also: &str) -> bool {
    text.len() <= longest && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
}

#[cfg(test)]
mod tests;
