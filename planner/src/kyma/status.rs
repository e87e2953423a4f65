//! Kyma status in KCP and in the runtime.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{
    Kyma, KymaStatus, Manifest, ModuleStatus, PartialMeta, State, TrackingObject,
    names::{self, annotations, conditions, labels},
};

use super::{Input, join, namespace_of};
use crate::{
    manifest::{deletion_message, progress_at, skipped_message},
    status::{self, ConditionValue},
    versions::{Chosen, ResolvedModule},
};

/// Entry of a module being removed.
pub(super) fn deleting_module(manifest: &Manifest) -> ModuleStatus {
    let waits = deletion_message(manifest).unwrap_or_default();
    let message = join(waits, &skipped_message(manifest).unwrap_or_default());
    ModuleStatus { state: State::Deleting, message, ..tracked(manifest) }
}

pub(super) fn tracked(manifest: &Manifest) -> ModuleStatus {
    let text = |map: &BTreeMap<String, String>, key| map.get(key).cloned().unwrap_or_default();
    let component = text(manifest.annotations(), annotations::OCM_COMPONENT_NAME);
    ModuleStatus {
        name: manifest.module_name().unwrap_or_default().to_owned(),
        channel: text(manifest.labels(), labels::CHANNEL),
        version: manifest.spec.version.clone(),
        fqdn: component.clone(),
        ocm_component_name: component,
        manifest: Some(tracking("Manifest", manifest, None)),
        ..ModuleStatus::default()
    }
}

/// Entry of a module whose Manifest is planned, without state and message. `generation`: of the template.
pub(super) fn installed(
    choice: &ResolvedModule,
    chosen: &Chosen,
    manifest: &Manifest,
    generation: Option<i64>,
) -> ModuleStatus {
    let resource = manifest.spec.resource.as_ref().filter(|_| manifest.spec.creates_default_cr());
    let resource = resource.map(|cr| {
        // Cluster-scoped ones still have a namespace in the spec.
        let namespace = if chosen.template.is_cluster_scoped() { "" } else { cr.namespace() };
        TrackingObject {
            api_version: cr.api_version().to_owned().into(),
            kind: cr.kind().to_owned().into(),
            metadata: Some(PartialMeta {
                name: cr.name().to_owned(),
                namespace: namespace.to_owned(),
                generation: None,
            }),
        }
    });
    ModuleStatus {
        name: choice.entry.name.clone(),
        channel: choice.channel.clone(),
        version: chosen.version.clone(),
        ocm_component_name: chosen.component.clone(),
        fqdn: chosen.component.clone(),
        manifest: Some(tracking("Manifest", manifest, None)),
        resource,
        template: Some(tracking("ModuleTemplate", chosen.template.as_ref(), generation)),
        ..ModuleStatus::default()
    }
}

fn tracking(kind: &'static str, object: &impl ResourceExt, generation: Option<i64>) -> TrackingObject {
    let (name, namespace) = (object.name_any(), namespace_of(object));
    TrackingObject {
        api_version: names::API_VERSION.into(),
        kind: kind.into(),
        metadata: Some(PartialMeta { name, namespace, generation }),
    }
}

const MAX_NAMED: usize = 5;

/// Lists unready modules and the first cause, those with required action first.
fn unready(modules: &[Arc<ModuleStatus>]) -> Option<String> {
    let mut unready: Vec<&Arc<ModuleStatus>> =
        modules.iter().filter(|m| !matches!(m.state, State::Ready | State::Unmanaged)).collect();
    unready.sort_by_key(|module| match module.state {
        State::Error => 0,
        State::Warning => 1,
        _ => 2,
    });
    let first = unready.first()?;
    let list: Vec<String> =
        unready.iter().take(MAX_NAMED).map(|m| format!("{} ({})", m.name, m.state)).collect();
    let more = unready.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let why =
        if first.message.is_empty() { String::new() } else { format!("; first cause: {}", first.message) };
    Some(format!("not all modules are in ready state: {}{more}{why}", list.join(", ")))
}

pub(super) fn kyma_status(input: &Input<'_>, modules: Vec<Arc<ModuleStatus>>) -> KymaStatus {
    let before = input.kyma.status.as_ref();
    let conditions_before = before.map_or(&[][..], |status| &status.conditions);
    let generation = input.kyma.metadata.generation;
    let now = status::whole_seconds(input.now);
    let unready = unready(&modules);
    let all_ready = unready.is_none();
    let message = unready.unwrap_or_else(|| "all modules are in ready state".to_owned());
    let state = State::aggregate_with_conditions(modules.iter().map(|m| m.state), all_ready);
    let value = [
        ConditionValue {
            type_: conditions::CRDS_SYNC,
            holds: true,
            reason: conditions::REASON_READY,
            message: "CRDs are synchronized to the SKR".into(),
        },
        modules_condition(state, all_ready, message.clone()),
    ];
    let text = if state == State::Ready { "kyma is ready".to_owned() } else { message };
    KymaStatus {
        state,
        conditions: value
            .into_iter()
            .map(|s| status::condition(conditions_before, s, generation, now))
            .collect(),
        modules,
        active_channel: input.wanted.channel.clone(),
        last_operation: Some(status::operation(before.and_then(|b| b.last_operation.as_ref()), text, now)),
    }
}

/// Only "all ready" is True.
fn modules_condition(state: State, ready: bool, message: String) -> ConditionValue<'static> {
    let reason = if ready { conditions::REASON_READY } else { state.as_str() };
    ConditionValue { type_: conditions::MODULES, holds: ready, reason, message }
}

/// Conditions that every reconcile writes.
fn is_always_written(condition: &str) -> bool {
    [conditions::CRDS_SYNC, conditions::MODULES].contains(&condition)
}

/// Returns whether `status` contains a condition; some are optional.
#[must_use]
pub fn is_written(status: &KymaStatus, condition: &str) -> bool {
    is_always_written(condition) || status.conditions.iter().any(|written| written.type_ == condition)
}

/// Conditions kept without new knowledge.
fn is_kept(condition: &str) -> bool {
    is_always_written(condition) || condition == conditions::IMAGE_PULL_SECRET_SYNC
}

/// Status of a failed reconcile: entries only follow their Manifests; the modules condition is False. A deletion continues.
#[must_use]
pub fn failed_status(kyma: &Kyma, manifests: &[Manifest], message: String, now: Timestamp) -> KymaStatus {
    let mut before = kyma.status.clone().unwrap_or_default();
    let now = status::whole_seconds(now);
    let generation = kyma.metadata.generation;
    if kyma.metadata.deletion_timestamp.is_some() {
        let conditions = before.conditions.iter().filter(|c| is_kept(&c.type_)).cloned().collect();
        let last_operation = Some(status::operation(before.last_operation.as_ref(), message, now));
        return KymaStatus { state: State::Deleting, conditions, last_operation, ..before };
    }
    follow_manifests(&mut before.modules, manifests);
    let value = modules_condition(State::Error, false, message.clone());
    let modules = status::condition(&before.conditions, value, generation, now);
    let mut all: Vec<_> = before.conditions.iter().filter(|c| is_kept(&c.type_)).cloned().collect();
    match all.iter_mut().find(|c| c.type_ == conditions::MODULES) {
        Some(condition) => *condition = modules,
        None => all.push(modules),
    }
    KymaStatus {
        state: State::Error,
        conditions: all,
        last_operation: Some(status::operation(before.last_operation.as_ref(), message, now)),
        ..before
    }
}

/// Entries follow worse Manifests, and recover from Error. Gates did not run, so their remarks stay.
fn follow_manifests(modules: &mut [Arc<ModuleStatus>], manifests: &[Manifest]) {
    let rank = |state| match state {
        State::Error => Some(3),
        State::Warning => Some(2),
        State::Processing => Some(1),
        State::Ready => Some(0),
        State::Deleting | State::Unmanaged | State::Empty => None,
    };
    for entry in modules {
        let Some(rank_before) = rank(entry.state) else { continue };
        let name = entry.manifest.as_ref().and_then(|at| at.metadata.as_ref()).map(|at| at.name.as_str());
        let Some(manifest) = manifests.iter().find(|m| m.metadata.name.as_deref() == name) else { continue };
        if manifest.is_unmanaged() || manifest.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let (state, message) = progress_at(manifest, manifest.metadata.generation);
        let counts = entry.state == State::Error || rank(state).is_some_and(|now| now > rank_before);
        if counts && (entry.state, entry.message.as_str()) != (state, message) {
            let entry = Arc::make_mut(entry);
            (entry.state, entry.message) = (state, message.to_owned());
        }
    }
}

/// Status if the runtime rejects the CRDs.
#[must_use]
pub fn crds_failed_status(
    kyma: &Kyma,
    manifests: &[Manifest],
    message: String,
    now: Timestamp,
) -> KymaStatus {
    let mut status = failed_status(kyma, manifests, message.clone(), now);
    let before = kyma.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
    let value = ConditionValue {
        type_: conditions::CRDS_SYNC,
        holds: false,
        reason: conditions::REASON_READY,
        message: format!("CRDs are out of sync and need to be resynchronized: {message}"),
    };
    let generation = kyma.metadata.generation;
    let condition = status::condition(&before, value, generation, status::whole_seconds(now));
    match status.conditions.iter_mut().find(|c| c.type_ == conditions::CRDS_SYNC) {
        Some(present) => *present = condition,
        None => status.conditions.insert(0, condition),
    }
    status
}

/// Status while an operator pauses the engine.
#[must_use]
pub fn paused_status(kyma: &Kyma, now: Timestamp) -> KymaStatus {
    let before = kyma
        .status
        .clone()
        .unwrap_or_else(|| KymaStatus { state: State::Processing, ..KymaStatus::default() });
    let value = ConditionValue {
        type_: conditions::PAUSED,
        holds: true,
        reason: "PausedByOperator",
        message: "the platform's operators have paused all changes to runtimes: nothing is installed, changed, repaired or removed; what \
                  is asked for meanwhile is done when the pause ends"
            .into(),
    };
    let generation = kyma.metadata.generation;
    let condition = status::condition(&before.conditions, value, generation, status::whole_seconds(now));
    let kept = before.conditions.iter().filter(|c| is_kept(&c.type_)).cloned();
    let conditions = kept.chain([condition]).collect();
    KymaStatus { conditions, ..before }
}

/// Reports the sync of the image pull Secret; without it, no Kyma is Ready.
pub fn report_pull_secret(status: &mut KymaStatus, kyma: &Kyma, synced: &Result<(), String>, now: Timestamp) {
    let before = kyma.status.clone().unwrap_or_default();
    let now = status::whole_seconds(now);
    let message = match synced {
        Ok(()) => "skr image pull secret is synchronized".to_owned(),
        Err(why) => format!("skr image pull secret is out of sync and needs to be resynchronized: {why}"),
    };
    if synced.is_err() && status.state == State::Ready {
        status.state = State::Processing;
        status.last_operation = Some(status::operation(before.last_operation.as_ref(), message.clone(), now));
    }
    let value = ConditionValue {
        type_: conditions::IMAGE_PULL_SECRET_SYNC,
        holds: synced.is_ok(),
        reason: conditions::REASON_READY,
        message,
    };
    status.conditions.push(status::condition(&before.conditions, value, kyma.metadata.generation, now));
}

/// Reports modules with Manifests that KCP rejects.
pub fn report_refused(status: &mut KymaStatus, kyma: &Kyma, refused: &[(String, String)], now: Timestamp) {
    let Some((first, why)) = refused.first() else { return };
    for (module, why) in refused {
        if let Some(entry) = status.modules.iter_mut().find(|entry| entry.name == *module) {
            let entry = Arc::make_mut(entry);
            (entry.state, entry.message) = (State::Error, why.clone());
        }
    }
    let message = format!("not all modules are in ready state; first cause: {first}: {why}");
    let (before, now) = (kyma.status.clone().unwrap_or_default(), status::whole_seconds(now));
    status.state = State::aggregate_with_conditions(status.modules.iter().map(|m| m.state), false);
    let value = modules_condition(status.state, false, message.clone());
    let modules = status::condition(&before.conditions, value, kyma.metadata.generation, now);
    if let Some(condition) = status.conditions.iter_mut().find(|c| c.type_ == conditions::MODULES) {
        *condition = modules;
    }
    status.last_operation = Some(status::operation(before.last_operation.as_ref(), message, now));
}

/// Status during deletion, with all blockers. Mandatory modules have no entry, so the message names theirs.
#[must_use]
pub fn deleting_status(
    kyma: &Kyma,
    manifests: &[Manifest],
    mut message: String,
    now: Timestamp,
) -> KymaStatus {
    for manifest in manifests.iter().filter(|m| m.is_mandatory()) {
        if let Some(waits) = deletion_message(manifest).filter(|waits| !waits.is_empty()) {
            message = format!("{message}; {}: {waits}", manifest.module_name().unwrap_or_default());
        }
    }
    let before = kyma.status.clone().unwrap_or_default();
    let now = status::whole_seconds(now);
    let mut conditions: Vec<_> = before.conditions.iter().filter(|c| is_kept(&c.type_)).cloned().collect();
    if let Some(modules) = conditions.iter_mut().find(|c| c.type_ == conditions::MODULES) {
        let value = modules_condition(State::Deleting, false, message.clone());
        *modules = status::condition(&before.conditions, value, kyma.metadata.generation, now);
    }
    let last_operation = Some(status::operation(before.last_operation.as_ref(), message, now));
    KymaStatus {
        state: State::Deleting,
        conditions,
        modules: manifests
            .iter()
            .filter(|m| !m.is_mandatory())
            .map(|m| Arc::new(deleting_module(m)))
            .collect(),
        last_operation,
        ..before
    }
}

/// The runtime's copy, without references to objects in KCP.
#[must_use]
pub fn runtime_status(status: &KymaStatus) -> KymaStatus {
    let mut status = status.clone();
    for module in &mut status.modules {
        let module = Arc::make_mut(module);
        module.manifest = None;
        if let Some(metadata) = module.template.as_mut().and_then(|t| t.metadata.as_mut()) {
            metadata.namespace = names::RUNTIME_NAMESPACE.into();
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actionable_modules_are_named_first() {
        let module = |name: &str, state| {
            Arc::new(ModuleStatus {
                name: name.into(),
                state,
                message: format!("why {name}"),
                ..ModuleStatus::default()
            })
        };
        let waits = ["a", "b", "c", "d", "e"].map(|name| module(name, State::Processing));
        let all: Vec<_> = waits
            .into_iter()
            .chain([module("f", State::Warning), module("g", State::Error), module("h", State::Ready)])
            .collect();
        assert_eq!(
            unready(&all).unwrap(),
            "not all modules are in ready state: g (Error), f (Warning), a (Processing), b (Processing), c (Processing) and 2 \
             more; first cause: why g"
        );
        assert_eq!(unready(&all[7..]), None);
    }
}
