//! What the agents of all runtimes watch, made from the Watchers in KCP, and what they may see for it.
//!
//! What Watchers ask for is the same for every runtime; what one has besides is [derived](super::watches). It is written in the agent's own configuration format, and never asks an
//! agent for what its configuration would refuse: such a Watcher is left out and told why.

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

use super::status::{self, Says, whole_seconds};

/// Most watches that Watchers can make; the rest of what one agent takes (256) is for derived ones and its own file.
pub const MAX_WATCHES: usize = 48;
/// Longest name of a watch, as the agent takes it.
const MAX_NAME: usize = 63;
/// Most labels of one Watcher; all of them go into every list request.
const MAX_LABELS: usize = 16;
/// Longest part of a Watcher's own words in a message, in characters.
const MAX_QUOTE: usize = 80;
/// The route of what our own engine gets.
pub const ENGINE_ROUTE: &str = "engine";
/// The manager that our own engine is to the ecosystem.
const OWN_MANAGER: &str = labels::MANAGED_BY_KCP;

/// What all agents get, and what is said to each Watcher about it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentPlan {
    /// What the agents get.
    pub config: AgentConfig,
    /// What their role allows: exactly the configured kinds, sorted, each once.
    pub rules: Vec<Rule>,
    /// By the Watcher's name: the name of its watch, or why there is none. A Watcher that is being deleted has no
    /// entry.
    pub verdicts: BTreeMap<String, Result<String, WatcherFault>>,
}

/// The configuration in the agent's own format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// A hash of the watches (32 hexadecimal digits): the same watches have the same, in every process.
    pub generation: String,
    /// Sorted by name.
    pub watches: Vec<AgentWatch>,
}

/// One watch in the agent's own format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentWatch {
    /// Unique; see [`watch_name`].
    pub name: String,
    /// Who hears of it: [`ENGINE_ROUTE`], or the name of a manager.
    pub route: String,
    /// Empty for the core group.
    pub group: String,
    /// `*` for any.
    pub version: String,
    /// Plural name.
    pub resource: String,
    /// The part of an object that counts.
    pub field: WatchedField,
    /// Labels that an object needs.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

/// A rule of a `ClusterRole`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rule {
    /// One group.
    pub api_groups: Vec<String>,
    /// Its resources, sorted.
    pub resources: Vec<String>,
    /// [`VERBS`]
    pub verbs: Vec<String>,
}

/// What an agent does with a kind.
pub const VERBS: [&str; 3] = ["get", "list", "watch"];

/// Why a Watcher has no watch. Each is ended by a change of the Watcher.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WatcherFault {
    /// It asks for Secrets.
    #[error("Secrets are never watched; name another resource in spec.resourceToWatch")]
    Secrets,
    /// Nobody hears of it.
    #[error("it names no manager; set spec.manager")]
    NoManager,
    /// A value that an agent does not take.
    #[error("{field} {value:?} {problem}")]
    Value {
        /// The field of the Watcher.
        field: &'static str,
        /// Its value, shortened.
        value: String,
        /// What it must be.
        problem: &'static str,
    },
    /// It has more labels than can be asked for.
    #[error("spec.labelsToWatch has more than {MAX_LABELS} labels; a few tell the objects apart")]
    TooManyLabels,
    /// There are more Watchers than an agent takes.
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
        // A value of plain strings and maps always becomes JSON.
        let text = serde_json::to_vec(&watches).unwrap_or_default();
        let mut generation = hex::encode(Sha256::digest(text));
        generation.truncate(32);
        Self { generation, watches }
    }

    /// The text that the agents read: JSON, which is YAML too.
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
    /// The configuration and the rules of a runtime that has derived watches besides those of Watchers.
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

/// The rules for these pairs of group and resource: sorted, each once, one rule per group.
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

/// The writes that bring a role from what it allows to what it should, around the write of the configuration: nothing
/// is watched before it is allowed, nor allowed for longer than it is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleSteps {
    /// Before the configuration is written: what is allowed and what will be, if that is more.
    pub before: Option<Vec<Rule>>,
    /// After it: exactly what should be, if that is less.
    pub after: Option<Vec<Rule>>,
}

/// The steps from a role's present `rules` (`None`: there is no role). Present rules that this plan never makes are
/// not kept.
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
        let ours = |(group, resource): &(String, String)| {
            is_name(resource, 253, "-")
                && (group.is_empty() || is_name(group, 253, "-."))
                && !(group.is_empty() && resource == "secrets")
        };
        pairs(&rules).into_iter().filter(ours).collect::<BTreeSet<_>>()
    });
    let exact = |kinds: &BTreeSet<_>| present.is_some_and(|p| same_rules(p, &rules(kinds.iter().cloned())));
    let wanted_pairs = pairs(wanted);
    let union: BTreeSet<_> = role.unwrap_or_default().union(&wanted_pairs).cloned().collect();
    RoleSteps {
        before: (!exact(&union)).then(|| rules(union.iter().cloned())),
        after: (union != wanted_pairs).then(|| wanted.to_vec()),
    }
}

/// Whether a role's `rules` as read are these; none may be absent.
fn same_rules(present: &Value, wanted: &[Rule]) -> bool {
    match present {
        Value::Null => wanted.is_empty(),
        present => serde_json::to_value(wanted).is_ok_and(|wanted| *present == wanted),
    }
}

/// The status of a Watcher with this verdict.
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
    let says = Says {
        type_: conditions::VIRTUAL_SERVICE,
        holds: verdict.is_ok(),
        reason: conditions::REASON_READY,
        message,
    };
    let generation = watcher.metadata.generation;
    let condition = status::condition(&before.conditions, says, generation, whole_seconds(now));
    let mut all: Vec<_> =
        before.conditions.into_iter().filter(|c| c.type_ != conditions::VIRTUAL_SERVICE).collect();
    all.push(condition);
    WatcherStatus { state, conditions: all, observed_generation: generation }
}

/// The name of a Watcher's watch: `<namespace>.<name>`, which no other Watcher has since namespaces have no dots. A
/// longer one than an agent takes is cut, and ends in a hash of the whole.
#[must_use]
pub fn watch_name(namespace: &str, name: &str) -> String {
    cut_name(format!("{namespace}.{name}"))
}

/// A name that an agent takes: a longer one is cut, and ends in a hash of the whole.
pub(super) fn cut_name(full: String) -> String {
    if full.len() <= MAX_NAME {
        return full;
    }
    let hash = format!("{:016x}", xxhash_rust::xxh3::xxh3_64(full.as_bytes()));
    // Names of objects are ASCII, so characters are bytes.
    let head: String = full.chars().take(MAX_NAME - 1 - hash.len()).collect();
    format!("{head}-{hash}")
}

fn watch(watcher: &Watcher) -> Result<AgentWatch, WatcherFault> {
    let spec = &watcher.spec;
    let manager = watcher.manager_name().ok_or(WatcherFault::NoManager)?;
    let wrong = |field, value: &str, problem| {
        Err(WatcherFault::Value { field, value: value.chars().take(MAX_QUOTE).collect(), problem })
    };
    if !is_name(manager, 63, "-.") || manager == ENGINE_ROUTE {
        return wrong("spec.manager", manager, "must be 1 to 63 of a-z, 0-9, - and ., and not \"engine\"");
    }
    let kind = &spec.resource_to_watch;
    if kind.group.is_empty() && kind.resource.eq_ignore_ascii_case("secrets") {
        return Err(WatcherFault::Secrets);
    }
    if !is_name(&kind.resource, 253, "-") {
        let problem = "must be one resource's plural name in lower case, as \"deployments\"";
        return wrong("spec.resourceToWatch.resource", &kind.resource, problem);
    }
    if !kind.group.is_empty() && !is_name(&kind.group, 253, "-.") {
        return wrong("spec.resourceToWatch.group", &kind.group, "is not an API group, as \"apps\"");
    }
    let version = if kind.version.is_empty() { "*" } else { &kind.version };
    if version != "*" && !is_name(version, 63, "-") {
        let problem = "must be a version as \"v1\", or \"*\" for the preferred one";
        return wrong("spec.resourceToWatch.version", version, problem);
    }
    if spec.labels_to_watch.len() > MAX_LABELS {
        return Err(WatcherFault::TooManyLabels);
    }
    for (key, value) in &spec.labels_to_watch {
        if !is_label(key, 317, "-_./") || key.is_empty() || !is_label(value, 63, "-_.") {
            return wrong("spec.labelsToWatch", &format!("{key}={value}"), "is not a label");
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
