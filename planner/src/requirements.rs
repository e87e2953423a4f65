//! Requirements of modules (`requires` of a ModuleTemplate): Ready modules and served kinds.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use tidewatch_api::{GroupVersionKind, Manifest, Requires, State};

use super::{
    manifest::progress,
    versions::{Fault, ResolvedModule},
};

/// Default wait before a Warning.
pub const WAIT_DEADLINE: Duration = Duration::from_mins(15);
/// Message prefix.
const WAITS: &str = "waits for ";
const SINCE: &str = "; since ";
/// Subject if an older version is installed.
pub(super) const UPDATE: &str = "its update";

/// Unmet requirements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// Missing things and remedy.
    pub message: String,
    /// Includes an unserved kind.
    pub apis: bool,
    /// Waits for itself; no event in the runtime ends that.
    pub cycle: bool,
}

/// Report about a waiting module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitReport {
    /// State.
    pub state: State,
    /// Message.
    pub message: String,
    /// Time at which the state changes by itself.
    pub recheck_at: Option<Timestamp>,
}

/// Requirements of the chosen version, and whether it is installed. `None` without requirements, or if unmanaged.
fn requirements<'a>(
    resolved_module: &'a ResolvedModule,
    manifests: &[Manifest],
) -> Option<(&'a Requires, bool)> {
    let chosen = resolved_module.outcome.as_ref().ok().filter(|_| resolved_module.entry.managed)?;
    let requires = chosen.template.spec.requires.as_ref()?;
    let same = |m: &Manifest| m.spec.version == chosen.version && m.metadata.deletion_timestamp.is_none();
    Some((requires, of_module(manifests, &resolved_module.entry.name).any(same)))
}

fn of_module<'a>(manifests: &'a [Manifest], module: &'a str) -> impl Iterator<Item = &'a Manifest> {
    manifests.iter().filter(move |m| m.module_name() == Some(module))
}

/// Required kinds, installed or not.
#[must_use]
pub fn kinds(listed_modules: &[ResolvedModule]) -> BTreeSet<GroupVersionKind> {
    let requires = listed_modules.iter().filter_map(|resolved_module| requirements(resolved_module, &[]));
    requires.flat_map(|(requires, _)| requires.apis.iter().cloned()).collect()
}

/// Returns whether an API may have this name.
#[must_use]
pub fn is_name(api: &GroupVersionKind) -> bool {
    let plain = |text: &str| text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'-');
    plain(&api.group) && plain(&api.version) && !api.version.is_empty()
}

/// Groups to watch for CRDs. Built-in kinds have none.
#[must_use]
pub fn defined_groups(kinds: &BTreeSet<GroupVersionKind>) -> BTreeSet<String> {
    let defined = kinds.iter().filter(|kind| is_name(kind) && !kind.group.is_empty());
    defined.map(|kind| kind.group.clone()).collect()
}

/// Next check for kinds that could not be discovered, in 1 minute to 1 hour: no event reports a repaired API server.
#[must_use]
pub fn next_discovery(since: Timestamp, now: Timestamp) -> Timestamp {
    let pause = now.duration_since(since).clamp(SignedDuration::from_mins(1), SignedDuration::from_hours(1));
    now.saturating_add(pause).unwrap_or(Timestamp::MAX)
}

/// Required modules, installed or not.
#[must_use]
pub fn required(listed_modules: &[ResolvedModule]) -> BTreeSet<String> {
    let chosen = listed_modules.iter().filter_map(|resolved_module| resolved_module.outcome.as_ref().ok());
    let requires = chosen.filter_map(|chosen| chosen.template.spec.requires.as_ref());
    requires.flat_map(|requires| requires.modules.iter().cloned()).collect()
}

/// Unmet requirements of planned changes, by module.
#[must_use]
pub fn unmet(
    listed_modules: &[ResolvedModule],
    manifests: &[Manifest],
    served: &BTreeSet<GroupVersionKind>,
) -> BTreeMap<String, Unmet> {
    let listed = listed(listed_modules);
    let user_owned = user_owned(listed_modules);
    let mut all = BTreeMap::new();
    // Module to unready requirements.
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for resolved_module in listed_modules {
        let Some((requires, false)) = requirements(resolved_module, manifests) else { continue };
        let module = resolved_module.entry.name.as_str();
        let mut missing = Vec::new();
        let others: BTreeSet<_> = requires.modules.iter().collect();
        for other in others.into_iter().filter(|other| !user_owned.contains(other.as_str())) {
            let Some(why) = unready_reason(other, manifests, listed.contains(other.as_str())) else {
                continue;
            };
            edges.entry(module).or_default().insert(other);
            missing.push(format!("module '{other}' ({why})"));
        }
        let mut apis = false;
        for api in requires.apis.iter().collect::<BTreeSet<_>>() {
            if !served.contains(api) {
                apis = true;
                missing.push(unserved(api));
            }
        }
        if !missing.is_empty() {
            let message = format!("{WAITS}{}; it goes on by itself when that is there", missing.join(", "));
            all.insert(module.to_owned(), Unmet { message, apis, cycle: false });
        }
    }
    for (module, members) in cycles(&edges) {
        if let Some(unmet) = all.get_mut(module) {
            unmet.cycle = true;
            unmet.message = match members.as_slice() {
                [_] => {
                    format!("{WAITS}itself: its template requires the module '{module}'; release it without")
                }
                round => format!(
                    "{WAITS}itself: the modules {} wait for each other by what their templates require; release one \
                     of them without",
                    round.join(", ")
                ),
            };
        }
    }
    all
}

/// Lost requirements of installed modules, which stay. Existing required modules report for themselves.
#[must_use]
pub fn lost(
    listed_modules: &[ResolvedModule],
    manifests: &[Manifest],
    served: &BTreeSet<GroupVersionKind>,
) -> BTreeMap<String, String> {
    let (listed, user_owned) = (listed(listed_modules), user_owned(listed_modules));
    let is_installed =
        |module: &str| of_module(manifests, module).any(|m| m.metadata.deletion_timestamp.is_none());
    let mut all = BTreeMap::new();
    for resolved_module in listed_modules {
        let Some((requires, true)) = requirements(resolved_module, manifests) else { continue };
        let others: BTreeSet<_> = requires.modules.iter().collect();
        let others =
            others.into_iter().filter(|other| !user_owned.contains(other.as_str()) && !is_installed(other));
        let modules = others.filter_map(|other| {
            let why = unready_reason(other, manifests, listed.contains(other.as_str()))?;
            Some(format!("module '{other}' ({why})"))
        });
        let apis: BTreeSet<_> = requires.apis.iter().collect();
        let apis = apis.into_iter().filter(|api| !served.contains(api)).map(unserved);
        let missing: Vec<String> = modules.chain(apis).collect();
        if !missing.is_empty() {
            let message = format!("what it needs is not there: {}; it stays as it is", missing.join(", "));
            all.insert(resolved_module.entry.name.clone(), message);
        }
    }
    all
}

fn listed(listed_modules: &[ResolvedModule]) -> BTreeSet<&str> {
    listed_modules.iter().map(|resolved_module| resolved_module.entry.name.as_str()).collect()
}

/// User-owned modules, assumed present because unobserved.
fn user_owned(listed_modules: &[ResolvedModule]) -> BTreeSet<&str> {
    let is_user_owned = |resolved_module: &&ResolvedModule| {
        !resolved_module.entry.managed && !matches!(resolved_module.outcome, Err(Fault::Mandatory { .. }))
    };
    listed_modules
        .iter()
        .filter(is_user_owned)
        .map(|resolved_module| resolved_module.entry.name.as_str())
        .collect()
}

fn unserved(api: &GroupVersionKind) -> String {
    let GroupVersionKind { group, version, kind } = api;
    let slash = if group.is_empty() { "" } else { "/" };
    let why = if is_name(api) { "not served" } else { "no API can have that name" };
    format!("the kind {kind} of {group}{slash}{version} ({why})")
}

fn unready_reason(module: &str, manifests: &[Manifest], is_listed: bool) -> Option<&'static str> {
    let states: Vec<State> = of_module(manifests, module)
        .map(|m| if m.metadata.deletion_timestamp.is_some() { State::Deleting } else { progress(m).0 })
        .collect();
    if states.contains(&State::Ready) {
        return None;
    }
    Some(match states.first() {
        Some(State::Deleting) => "on its way out",
        Some(State::Error) => "in error",
        Some(State::Warning) => "with a warning",
        Some(_) => "not Ready yet",
        None if is_listed => "not installed yet",
        None => "not enabled",
    })
}

/// Modules on cycles, with their cycles' members.
fn cycles<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<(&'a str, Vec<&'a str>)> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reachable(edges, from))).collect();
    let same_cycle = |a: &str, b: &str| {
        let to = |from: &str, to: &str| reach.get(from).is_some_and(|reached| reached.contains(to));
        to(a, b) && to(b, a)
    };
    let on_cycles = edges.keys().copied().filter(|module| same_cycle(module, module));
    on_cycles
        .map(|module| (module, edges.keys().copied().filter(|other| same_cycle(module, other)).collect()))
        .collect()
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = edges.get(from).into_iter().flatten().copied().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(edges.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Checks for a leading wait; otherwise the Warning has another cause.
fn reports_wait(message: &str) -> bool {
    let update = || message.strip_prefix(UPDATE).and_then(|rest| rest.strip_prefix(' '));
    message.starts_with(WAITS) || update().is_some_and(|rest| rest.starts_with(WAITS))
}

fn wait_start(message: &str) -> Option<Timestamp> {
    let (_, waits) = message.split_once(WAITS)?;
    let (_, rest) = waits.split_once(SINCE)?;
    rest.split(';').next()?.parse().ok()
}

/// Builds the report. The wait began at `since`, or earlier by the status `before`, which survives restarts.
#[must_use]
pub fn wait_report(
    unmet: &Unmet,
    since: Timestamp,
    deadline: Duration,
    before: Option<(State, &str)>,
    now: Timestamp,
) -> WaitReport {
    let since = before.and_then(|(_, message)| wait_start(message)).map_or(since, |noted| noted.min(since));
    let due = since.saturating_add(deadline).unwrap_or(Timestamp::MAX);
    // Stays late, even with another deadline or an old status format.
    let was_late = before.is_some_and(|(state, message)| state == State::Warning && reports_wait(message));
    let is_late = unmet.cycle || was_late || due <= now;
    WaitReport {
        state: if is_late { State::Warning } else { State::Processing },
        message: format!("{}{SINCE}{since:.0}", unmet.message),
        recheck_at: (!is_late).then_some(due),
    }
}

#[cfg(test)]
mod tests;
