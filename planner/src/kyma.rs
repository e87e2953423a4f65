//! Plan of a Kyma: its Manifests and status.

mod decision;
mod deleting;
mod manifest_of;
mod notices;
mod orphans;
mod restored;
mod running;
mod sources;
mod status;

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use tidewatch_api::{
    CustomResourcePolicy, Kyma, KymaSpec, KymaStatus, Manifest, ModuleStatus, State,
    names::{self, annotations},
};

pub use self::{
    manifest_of::is_up_to_date,
    orphans::{Orphan, has_no_owner},
};
pub(crate) use self::{
    manifest_of::{keep_default_cr, manifest_for, take_over},
    orphans::orphan,
    running::record_running_version,
};
use self::{
    manifest_of::{keep_go_manager_status, keep_version_data, with_policy_ignore},
    orphans::{ModuleObjects, orphaned},
    status::{deleting_module, installed, kyma_status, tracked},
};
use super::{
    gates::{self, Facts, GateDecision, Notes, View},
    naming::manifest_name,
    notice::{About, Notice},
    versions::{Chosen, Fault, Origin, ResolvedModule, may_replace},
};

pub use crate::manifest::{deletion_message, progress, progress_at, skipped_message};
pub use decision::{Decision, DecisionKind};
pub use deleting::with_deleting;
pub use notices::module_notices;
pub use restored::restored;
pub use sources::{ComponentVersion, Source, SourceFault, Sources};
pub use status::{
    crds_failed_status, deleting_status, failed_status, is_written, paused_status, report_pull_secret,
    report_refused, runtime_status,
};

/// Planner input.
pub struct Input<'a> {
    /// Kyma in KCP, freshly read.
    pub kyma: &'a Kyma,
    /// Spec of the runtime's Kyma, freshly read.
    pub wanted: &'a KymaSpec,
    /// Versions for `wanted`; see [`super::versions::choose`].
    pub modules: &'a [ResolvedModule],
    /// Descriptors of chosen versions.
    pub sources: &'a Sources,
    /// Manifests with this Kyma's name.
    pub manifests: &'a [Manifest],
    /// Further gate input.
    pub facts: Facts<'a>,
    /// Current time.
    pub now: Timestamp,
}

/// Planned actions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Missing or different Manifests.
    pub apply: Vec<Manifest>,
    /// Manifests to delete, by name.
    pub delete: Vec<String>,
    /// Manifests to unmanage: name and uid.
    pub unmanage: Vec<(String, String)>,
    /// Status in KCP.
    pub status: KymaStatus,
    /// A failure may pass with a retry.
    pub retry: bool,
    /// Notices to the user.
    pub notices: Vec<Notice>,
    /// Earliest time at which the plan may change by itself.
    pub recheck_at: Option<Timestamp>,
    /// Decisions for the log.
    pub decisions: Vec<Decision>,
}

/// Plans for a Kyma.
#[must_use]
pub fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let many = input.modules.len();
    let (mut statuses, mut listed) = (Vec::with_capacity(many), Vec::with_capacity(many));
    let named: Vec<_> = input.manifests.iter().map(|m| (m.module_name().unwrap_or_default(), m)).collect();
    for (index, module) in input.modules.iter().enumerate() {
        let objects = ModuleObjects::of(input.kyma, &named, index, module);
        statuses.push(match &module.outcome {
            Err(fault @ Fault::Mandatory { .. }) => Arc::new(ModuleStatus {
                name: module.entry.name.clone(),
                channel: module.channel.clone(),
                state: fault.state(objects.manifest.is_some()),
                message: fault.to_string(),
                ..ModuleStatus::default()
            }),
            _ => plan_gated(input, module, &objects, &mut plan),
        });
        listed.push(objects);
    }
    for manifest in input.manifests {
        if !manifest.is_mandatory() && !listed.iter().any(|module| module.has(manifest)) {
            let status = plan_unlisted(input, manifest, &statuses, &mut plan);
            statuses.extend(status.map(Arc::new));
        }
    }
    plan.status = kyma_status(input, statuses);
    plan
}

/// Removes the Manifest of an unlisted module, unless it is orphaned, becomes mandatory or may be required.
fn plan_unlisted(
    input: &Input<'_>,
    manifest: &Manifest,
    statuses: &[Arc<ModuleStatus>],
    plan: &mut Plan,
) -> Option<ModuleStatus> {
    if let Some(why) = orphan(input.kyma, manifest) {
        return Some(orphaned(manifest, why, statuses));
    }
    if manifest.metadata.deletion_timestamp.is_some() {
        deleting::upgrade_deleting(input, manifest, plan);
        return Some(deleting_module(manifest));
    }
    let module = manifest.module_name().unwrap_or_default();
    if input.facts.mandatory.iter().any(|mandatory| mandatory.makes_mandatory(module)) {
        // The mandatory plan takes it over at its turn.
        return None;
    }
    if let Err(why) = input.facts.policy {
        // The policy may require it.
        let (state, message) = (State::Warning, gates::unreadable_policy(why));
        return Some(ModuleStatus { state, message, ..tracked(manifest) });
    }
    plan.remove(manifest, "not asked for any more");
    Some(deleting_module(manifest))
}

fn planned_name(kyma: &Kyma, module: &ResolvedModule) -> Option<String> {
    let chosen = module.outcome.as_ref().ok()?;
    Some(manifest_name(&kyma.name_any(), &chosen.component, &module.entry.name))
}

/// Asks the gates, then plans the module or reports why it waits.
fn plan_gated(
    input: &Input<'_>,
    module: &ResolvedModule,
    objects: &ModuleObjects<'_>,
    plan: &mut Plan,
) -> Arc<ModuleStatus> {
    let existing = objects.manifest;
    let view = View {
        module,
        installed: existing,
        kyma: input.kyma,
        wanted: input.wanted,
        facts: &input.facts,
        now: input.now,
    };
    let mut notes = Notes::default();
    let gate = gates::judge(&view, &mut notes);
    plan.notices.extend(notes.notices);
    plan.recheck_at = [plan.recheck_at, notes.recheck_at].into_iter().flatten().min();
    let applied = plan.apply.len();
    let kind = gate.decision_kind();
    let passes = kind.is_none();
    // An unreadable policy may set this field.
    let ignores =
        matches!(gate, GateDecision::Pass | GateDecision::Keep { .. }) && input.facts.policy.is_ok();
    let mut status = match gate {
        GateDecision::Pass => {
            if !objects.duplicates.is_empty() {
                objects.transfer(planned_name(input.kyma, module), plan);
            }
            plan_module(input, module, objects, plan)
        }
        gate => {
            for other in &objects.duplicates {
                stopped_status(gate.clone(), objects.status, module, Some(other), plan);
            }
            Arc::new(stopped_status(gate, objects.status, module, existing, plan))
        }
    };
    if ignores
        && module.entry.custom_resource_policy == CustomResourcePolicy::Ignore
        && plan.apply.len() == applied
    {
        let owned = existing.filter(|old| orphan(input.kyma, old).is_none());
        let kept = owned.and_then(|old| Some((old, with_policy_ignore(old, &module.entry)?)));
        if let Some((old, mut kept)) = kept {
            record_running_version(old, &mut kept);
            plan.apply.push(kept);
        }
    }
    add_remarks(&mut status, existing, notes.remark);
    let kind = kind.unwrap_or_else(|| match existing {
        _ if plan.apply.len() == applied => DecisionKind::StateOnly,
        None => DecisionKind::Install,
        Some(old) if old.spec.version != status.version => DecisionKind::Upgrade,
        Some(_) => DecisionKind::Change,
    });
    plan.decide(kind, objects.status, existing, &status);
    if let (true, Some(old), Ok(chosen)) = (passes, existing, &module.outcome) {
        // The log line already has both versions.
        running::report_running_version(&mut status, old, &chosen.version);
    }
    status
}

/// Adds a gate's remark and a skipped Manifest's cause.
fn add_remarks(status: &mut Arc<ModuleStatus>, existing: Option<&Manifest>, remark: Option<(State, String)>) {
    // Remarks wait until a module has settled.
    if let Some((state, message)) = remark
        && !matches!(status.state, State::Processing | State::Deleting)
    {
        let status = Arc::make_mut(status);
        // Causes precede remarks.
        status.message = join(&status.message, &message);
        if status.state == State::Ready {
            status.state = state;
        }
    }
    if status.state != State::Ready
        && let Some(why) =
            existing.and_then(skipped_message).filter(|why| !status.message.contains(why.as_str()))
    {
        let status = Arc::make_mut(status);
        status.message = join(&status.message, &why);
    }
}

/// Status of a module that a gate stopped.
fn stopped_status(
    gate: GateDecision,
    status_before: Option<&Arc<ModuleStatus>>,
    module: &ResolvedModule,
    existing: Option<&Manifest>,
    plan: &mut Plan,
) -> ModuleStatus {
    let name = module.entry.name.clone();
    let before = || ModuleStatus {
        name: name.clone(),
        channel: module.channel.clone(),
        ..existing.map(tracked).unwrap_or_default()
    };
    match (gate, existing) {
        (GateDecision::Keep { state, message, maintenance, .. }, _) => {
            let mut kept = before();
            // Only the status knows the template of the installed version.
            if let Some(reported) = status_before.filter(|reported| reported.version == kept.version) {
                kept.resource.clone_from(&reported.resource);
                kept.template.clone_from(&reported.template);
            }
            ModuleStatus { state, message, maintenance, ..kept }
        }
        (GateDecision::Remove { message }, Some(manifest)) => {
            if manifest.metadata.deletion_timestamp.is_none() {
                plan.delete.push(manifest.name_any());
            }
            let status = deleting_module(manifest);
            ModuleStatus { message: join(&message, &status.message), ..status }
        }
        (GateDecision::Remove { message }, None) => ModuleStatus { state: State::Error, message, ..before() },
        (GateDecision::Refuse { state, message }, _) => ModuleStatus { state, message, ..before() },
        (GateDecision::Unmanage { .. }, Some(manifest)) => unmanage(manifest, before(), plan),
        (GateDecision::Unmanage { state }, None) => {
            // The Go manager keeps an uninstalled module's version.
            let reported = status_before.filter(|status| status.state == state && status.manifest.is_none());
            // Without the message, or remarks would accumulate.
            let reported =
                reported.map(|status| ModuleStatus { message: String::new(), ..ModuleStatus::clone(status) });
            reported.unwrap_or_else(|| ModuleStatus { name, state, ..ModuleStatus::default() })
        }
        (GateDecision::Pass, _) => before(),
    }
}

/// Unmanages a module; its state stays until the Manifest is gone.
fn unmanage(manifest: &Manifest, before: ModuleStatus, plan: &mut Plan) -> ModuleStatus {
    if !manifest.is_unmanaged() {
        plan.unmanage.push((manifest.name_any(), manifest.uid().unwrap_or_default()));
        plan.notices.push(Notice::normal(About::RuntimeKyma, "ModuleUnmanaged", format!(
                "module '{}' is unmanaged: its objects stay and are user-owned; set managed: true to manage them again",
                before.name
            )).of_occasion(manifest.uid().unwrap_or_default()));
    }
    let (state, message) = progress(manifest);
    let message = if message.is_empty() { "the module is being unmanaged".to_owned() } else { message };
    ModuleStatus { state, message, ..before }
}

fn plan_module(
    input: &Input<'_>,
    choice: &ResolvedModule,
    there: &ModuleObjects<'_>,
    plan: &mut Plan,
) -> Arc<ModuleStatus> {
    let existing = there.manifest;
    let fault = |(state, message)| {
        let (name, channel) = (choice.entry.name.clone(), choice.channel.clone());
        Arc::new(ModuleStatus { name, channel, state, message, ..existing.map(tracked).unwrap_or_default() })
    };
    let chosen = match &choice.outcome {
        Ok(chosen) => chosen,
        Err(why) => return fault((why.state(existing.is_some()), why.to_string())),
    };
    let (mut wanted, generation) = match wanted_manifest(input, choice, chosen, existing, plan) {
        Ok(wanted) => wanted,
        Err(why) => return fault(why),
    };
    let entry = installed(choice, chosen, &wanted, generation);
    let (state, message, is_written) = match existing {
        // Reinstalled once the Manifest is gone.
        Some(old) if old.is_unmanaged() => (State::Processing, UNMANAGED.to_owned(), false),
        Some(old) if old.metadata.deletion_timestamp.is_some() => {
            // Reinstalled after its deletion. Until then it follows versions: an upgrade may repair a blocked removal, but a downgrade may
            // break user objects.
            let allowed =
                choice.release.as_ref().is_some_and(|release| release.spec.allow_downgrade == Some(true));
            let follows = old.spec != wanted.spec
                && may_replace(Some(&old.spec.version), &chosen.version, allowed).is_ok();
            (State::Processing, previous_deletion(old), follows)
        }
        // An equal spec keeps generation and status.
        Some(old) if old.spec == wanted.spec => {
            let differs = !is_up_to_date(old, &wanted);
            if differs {
                keep_go_manager_status(old, &mut wanted);
            }
            let (state, message) = progress(old);
            (state, message, differs)
        }
        _ => (State::Processing, String::new(), true),
    };
    if is_written {
        plan.apply.push(wanted);
    }
    Arc::new(ModuleStatus { state, message, ..entry })
}

/// The Manifest of a chosen version, and its template's generation. An error is the module's state and its cause.
fn wanted_manifest(
    input: &Input<'_>,
    choice: &ResolvedModule,
    chosen: &Chosen,
    existing: Option<&Manifest>,
    plan: &mut Plan,
) -> Result<(Manifest, Option<i64>), (State, String)> {
    let faulty = if existing.is_some() { State::Warning } else { State::Error };
    let source = match input.sources.of_or_noted(chosen, existing) {
        Some(Ok(source)) => source,
        Some(Err(why)) => {
            plan.retry |= why.retryable;
            return Err((faulty, why.message.clone()));
        }
        None => {
            plan.retry = true;
            let message = format!("the component {}:{} is being read", chosen.component, chosen.version);
            return Err((State::Processing, message));
        }
    };
    let wanted = manifest_for(input.kyma, &choice.entry, &choice.channel, chosen, &source);
    let mut wanted = wanted.map_err(|why| (faulty, why))?;
    if let Some(other) = name_owner(&wanted, &choice.entry.name, input.manifests) {
        let (name, other) = (wanted.name_any(), other.module_name().unwrap_or_default());
        let message = format!(
            "its Manifest would have the name {name}, which is that of the module '{other}'; call the module otherwise"
        );
        return Err((faulty, message));
    }
    let Some(old) = existing else { return Ok((wanted, chosen.template.metadata.generation)) };
    let generation = keep_version_data(input.kyma, old, chosen, &mut wanted, &mut plan.notices);
    // Nothing of a tenant's version stays.
    let is_replaced = old.is_of_runtime_template() && chosen.origin != Origin::Local;
    if old.metadata.deletion_timestamp.is_none() && !old.is_unmanaged() && !is_replaced {
        keep_default_cr(old, &mut wanted);
    }
    record_running_version(old, &mut wanted);
    Ok((wanted, generation))
}

/// Returns another module's Manifest with the wanted name. Names can collide: a runtime's templates choose their input. A Manifest with a
/// changed module label is repaired instead.
fn name_owner<'a>(wanted: &Manifest, module: &str, manifests: &'a [Manifest]) -> Option<&'a Manifest> {
    let present = manifests.iter().find(|present| present.metadata.name == wanted.metadata.name)?;
    let other = present.module_name().filter(|other| *other != module)?;
    let component = present.annotations().get(annotations::FQDN).map(String::as_str).unwrap_or_default();
    let has_derived_name =
        || manifest_name(present.kyma_name().unwrap_or_default(), component, other) == present.name_any();
    (present.is_mandatory() || has_derived_name()).then_some(present)
}

fn join(first: &str, then: &str) -> String {
    let between = if first.is_empty() || then.is_empty() { "" } else { "; " };
    format!("{first}{between}{then}")
}

const UNMANAGED: &str = "it is installed again once it is unmanaged";
const PREVIOUS_INSTALLATION: &str = "the previous installation is still being removed";

fn previous_deletion(old: &Manifest) -> String {
    match deletion_message(old).filter(|waits| !waits.is_empty()) {
        Some(waits) => format!("{PREVIOUS_INSTALLATION}: {waits}"),
        None => PREVIOUS_INSTALLATION.to_owned(),
    }
}

fn namespace_of(object: &impl ResourceExt) -> String {
    object.namespace().unwrap_or_else(|| names::KCP_NAMESPACE.into())
}

#[cfg(test)]
mod tests;
