//! What the agents of all runtimes watch, made from the Watchers in KCP, and what they may see for it.
//!
//! The plan is the same for every runtime. It is written in the agent's own configuration format, and never asks an
//! agent for what its configuration would refuse: such a Watcher is left out and told why.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tidewatch_api::{Watcher, names::labels, watcher::WatchedField};

/// Most watches that Watchers can make; the rest of what one agent takes (64) is for its own file.
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

/// A rule of a ClusterRole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
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
    let (mut watches, mut verdicts) = (Vec::new(), BTreeMap::new());
    for watcher in sorted {
        let verdict = watch(watcher).and_then(|watch| {
            if watches.len() >= MAX_WATCHES {
                return Err(WatcherFault::TooMany);
            }
            let name = watch.name.clone();
            watches.push(watch);
            Ok(name)
        });
        verdicts.insert(watcher.name_any(), verdict);
    }
    watches.sort_by(|a: &AgentWatch, b| a.name.cmp(&b.name));
    let kinds = watches.iter().map(|w| (w.group.clone(), w.resource.clone()));
    AgentPlan { rules: rules(kinds), config: AgentConfig::new(watches), verdicts }
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

/// The name of a Watcher's watch: `<namespace>.<name>`, which no other Watcher has since namespaces have no dots. A
/// longer one than an agent takes is cut, and ends in a hash of the whole.
#[must_use]
pub fn watch_name(namespace: &str, name: &str) -> String {
    let full = format!("{namespace}.{name}");
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
