//! What the modules of a Kyma need before they are installed or changed: other modules that are Ready, and kinds that the
//! runtime serves (`requires` of a ModuleTemplate).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use tidewatch_api::{GroupVersionKind, Manifest, Requires, State};

use super::{
    kyma::progress,
    versions::{Choice, Fault},
};

/// How long a module may wait for what it needs before that is a warning, unless somebody says otherwise.
pub const PATIENCE: Duration = Duration::from_mins(15);
/// What each message of a module that waits begins with.
const WAITS: &str = "waits for ";
/// What stands before it where an older version is installed.
pub(super) const UPDATE: &str = "its update";

/// What a module waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmet {
    /// For people: what is missing, and what ends it.
    pub message: String,
    /// Whether a kind is among it that is not served.
    pub apis: bool,
    /// Whether it waits for itself, by way of others: nothing that happens in the runtime can end that.
    pub cycle: bool,
}

/// What is said of a module that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waits {
    /// Its state.
    pub state: State,
    /// For people.
    pub message: String,
    /// When that state becomes another one though nothing has changed.
    pub look_at: Option<Timestamp>,
}

/// What a module would need if it were installed or changed now; `None` where nothing is to be done about it.
fn needed<'a>(choice: &'a Choice, manifests: &[Manifest]) -> Option<&'a Requires> {
    let chosen = choice.outcome.as_ref().ok().filter(|_| choice.module.managed)?;
    let requires = chosen.template.spec.requires.as_ref()?;
    // What is installed in this version stays, whatever has become of what it needs.
    let same = |m: &Manifest| m.spec.version == chosen.version && m.metadata.deletion_timestamp.is_none();
    (!of_module(manifests, &choice.module.name).any(same)).then_some(requires)
}

fn of_module<'a>(manifests: &'a [Manifest], module: &'a str) -> impl Iterator<Item = &'a Manifest> {
    manifests.iter().filter(move |m| m.module_name() == Some(module))
}

/// The kinds that modules need which are to be installed or changed, each once.
#[must_use]
pub fn kinds(choices: &[Choice], manifests: &[Manifest]) -> BTreeSet<GroupVersionKind> {
    let requires = choices.iter().filter_map(|choice| needed(choice, manifests));
    requires.flat_map(|requires| requires.apis.iter().cloned()).collect()
}

/// The modules that modules of the list require, each once, whether or not these are there already.
#[must_use]
pub fn required(choices: &[Choice]) -> BTreeSet<String> {
    let chosen = choices.iter().filter_map(|choice| choice.outcome.as_ref().ok());
    let requires = chosen.filter_map(|chosen| chosen.template.spec.requires.as_ref());
    requires.flat_map(|requires| requires.modules.iter().cloned()).collect()
}

/// What each module waits for, by its name. One that lacks nothing, or that is not to be installed or changed, has no entry.
#[must_use]
pub fn unmet(
    choices: &[Choice],
    manifests: &[Manifest],
    served: &BTreeSet<GroupVersionKind>,
) -> BTreeMap<String, Unmet> {
    let asked: BTreeSet<&str> = choices.iter().map(|choice| choice.module.name.as_str()).collect();
    // What a user manages is there if its user says so: nothing of ours tells of it.
    let is_theirs =
        |choice: &&Choice| !choice.module.managed && !matches!(choice.outcome, Err(Fault::Mandatory { .. }));
    let theirs: BTreeSet<&str> =
        choices.iter().filter(is_theirs).map(|choice| choice.module.name.as_str()).collect();
    let mut all = BTreeMap::new();
    // Which module waits for which.
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for choice in choices {
        let Some(requires) = needed(choice, manifests) else { continue };
        let module = choice.module.name.as_str();
        let mut missing = Vec::new();
        let others: BTreeSet<_> = requires.modules.iter().collect();
        for other in others.into_iter().filter(|other| !theirs.contains(other.as_str())) {
            let Some(why) = lacks(other, manifests, asked.contains(other.as_str())) else { continue };
            edges.entry(module).or_default().insert(other);
            missing.push(format!("module '{other}' ({why})"));
        }
        let mut apis = false;
        for api in requires.apis.iter().collect::<BTreeSet<_>>() {
            if !served.contains(api) {
                apis = true;
                let GroupVersionKind { group, version, kind } = api;
                let slash = if group.is_empty() { "" } else { "/" };
                missing.push(format!("the kind {kind} of {group}{slash}{version} (not served)"));
            }
        }
        if !missing.is_empty() {
            let message = format!("{WAITS}{}; it goes on by itself when that is there", missing.join(", "));
            all.insert(module.to_owned(), Unmet { message, apis, cycle: false });
        }
    }
    for (module, round) in cycles(&edges) {
        if let Some(unmet) = all.get_mut(module) {
            unmet.cycle = true;
            unmet.message = match round.as_slice() {
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

/// Why a module that another one needs is not what it takes.
fn lacks(module: &str, manifests: &[Manifest], asked: bool) -> Option<&'static str> {
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
        None if asked => "not installed yet",
        None => "not enabled",
    })
}

/// The modules that wait for themselves, each with the modules on all ways from it back to it, sorted. A Kyma's list is short.
fn cycles<'a>(edges: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Vec<(&'a str, Vec<&'a str>)> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|from| (*from, reachable(edges, from))).collect();
    let together = |a: &str, b: &str| {
        let to = |from: &str, to: &str| reach.get(from).is_some_and(|reached| reached.contains(to));
        to(a, b) && to(b, a)
    };
    let alone = edges.keys().copied().filter(|module| together(module, module));
    alone
        .map(|module| (module, edges.keys().copied().filter(|other| together(module, other)).collect()))
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

/// Whether a module's message says first that it, or its update, waits. Where something else stands before that, it is what the warning
/// is about.
fn says_so(message: &str) -> bool {
    let update = || message.strip_prefix(UPDATE).and_then(|rest| rest.strip_prefix(' '));
    message.starts_with(WAITS) || update().is_some_and(|rest| rest.starts_with(WAITS))
}

/// What is said of what a module lacks, which it has lacked `since`; `before` is what its status says.
#[must_use]
pub fn waits(
    unmet: &Unmet,
    since: Timestamp,
    patience: Duration,
    before: Option<(State, &str)>,
    now: Timestamp,
) -> Waits {
    let due = since.saturating_add(patience).unwrap_or(Timestamp::MAX);
    // After a restart nobody remembers since when, but that it was too long stands in the status.
    let was = before.is_some_and(|(state, message)| state == State::Warning && says_so(message));
    let late = unmet.cycle || was || due <= now;
    Waits {
        state: if late { State::Warning } else { State::Processing },
        message: unmet.message.clone(),
        look_at: (!late).then_some(due),
    }
}

#[cfg(test)]
mod tests;
