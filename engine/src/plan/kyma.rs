//! The plan of one Kyma: which Manifests should exist, and what its status says.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::ResourceExt;
use tidewatch_api::{
    CustomResourcePolicy, EmbeddedObject, ImageSpec, InstallInfo, Kyma, KymaSpec, KymaStatus, Manifest,
    ManifestSpec, Module, ModuleStatus, ModuleTemplate, PartialMeta, SourceType, State, TrackingObject,
    names::{self, annotations, conditions, labels},
};

use super::{
    naming::manifest_name,
    status::{self, Says},
    versions::{Choice, Chosen},
};

/// Where a module's objects come from, read from its component descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Registry and repository prefix, for example `registry.example:5000/modules`.
    pub repo: String,
    /// Digest of the raw-manifest layer.
    pub layer: String,
    /// How the layer is packed.
    pub type_: SourceType,
    /// Images of the component.
    pub images: Vec<String>,
}

/// Why a descriptor could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceFault {
    /// For people; names the cause.
    pub message: String,
    /// Whether trying again can help without anybody changing anything.
    pub retryable: bool,
}

/// Component name and version.
pub type ComponentVersion = (String, String);

/// What the planner looks at.
pub struct Input<'a> {
    /// The Kyma in KCP, freshly read.
    pub kyma: &'a Kyma,
    /// The user's wishes: the spec of the runtime's Kyma, freshly read.
    pub wanted: &'a KymaSpec,
    /// Versions chosen for `wanted` (see [`super::versions::choose`]).
    pub choices: &'a [Choice],
    /// Descriptors of every chosen version.
    pub sources: &'a BTreeMap<ComponentVersion, Result<Source, SourceFault>>,
    /// The Manifests that carry this Kyma's name.
    pub manifests: &'a [Manifest],
    /// Now.
    pub now: Timestamp,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Manifests that do not exist or differ.
    pub apply: Vec<Manifest>,
    /// Names of Manifests that are not wanted any more.
    pub delete: Vec<String>,
    /// The status in KCP.
    pub status: KymaStatus,
    /// Something failed that trying again may mend.
    pub retry: bool,
}

/// Makes the plan.
#[must_use]
pub fn plan(input: &Input<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut modules = Vec::new();
    for choice in input.choices {
        let existing = input.manifests.iter().find(|m| m.module_name() == Some(&choice.module.name));
        modules.push(plan_module(input, choice, existing, &mut plan));
    }
    for manifest in input.manifests {
        let wanted =
            manifest.module_name().is_some_and(|name| input.choices.iter().any(|c| c.module.name == name));
        if wanted || manifest.is_mandatory() {
            continue;
        }
        if manifest.metadata.deletion_timestamp.is_none() {
            plan.delete.push(manifest.name_any());
        }
        modules.push(leaving(manifest));
    }
    plan.status = kyma_status(input, modules);
    plan
}

fn plan_module(
    input: &Input<'_>,
    choice: &Choice,
    existing: Option<&Manifest>,
    plan: &mut Plan,
) -> ModuleStatus {
    let installed = existing.is_some();
    let mut status = ModuleStatus {
        name: choice.module.name.clone(),
        channel: choice.channel.clone(),
        ..existing.map(tracked).unwrap_or_default()
    };
    let fault = |mut status: ModuleStatus, state: State, message: String| {
        status.state = state;
        status.message = message;
        status
    };
    if !choice.module.managed {
        let message = "managed: false is not supported yet; the module is left as it is".to_owned();
        return fault(status, State::Warning, message);
    }
    let chosen = match &choice.outcome {
        Ok(chosen) => chosen,
        Err(why) => return fault(status, why.state(installed), why.to_string()),
    };
    let key = (chosen.component.clone(), chosen.version.clone());
    let source = match input.sources.get(&key) {
        Some(Ok(source)) => source,
        Some(Err(why)) => {
            plan.retry |= why.retryable;
            let state = if installed { State::Warning } else { State::Error };
            return fault(status, state, why.message.clone());
        }
        None => {
            plan.retry = true;
            return fault(
                status,
                State::Processing,
                format!("the component {}:{} is being read", key.0, key.1),
            );
        }
    };
    let wanted = manifest_for(input.kyma, &choice.module, &choice.channel, chosen, source);
    status.version.clone_from(&chosen.version);
    status.ocm_component_name.clone_from(&chosen.component);
    status.fqdn.clone_from(&chosen.component);
    status.manifest = Some(tracking("Manifest", &wanted.name_any(), &namespace_of(&wanted), None));
    status.resource = wanted.spec.resource.as_ref().map(|cr| TrackingObject {
        api_version: cr.api_version().to_owned(),
        kind: cr.kind().to_owned(),
        metadata: Some(PartialMeta {
            name: cr.name().into(),
            namespace: cr.namespace().into(),
            generation: None,
        }),
    });
    status.template = Some(tracking(
        "ModuleTemplate",
        &chosen.template.name_any(),
        &namespace_of(chosen.template.as_ref()),
        chosen.template.metadata.generation,
    ));
    match existing {
        Some(old) if old.metadata.deletion_timestamp.is_some() => {
            // It comes back once the old one is gone; its end is an event.
            fault(status, State::Processing, "the previous installation is still being removed".into())
        }
        Some(old) if same(old, &wanted) => {
            let (state, message) = progress(old);
            fault(status, state, message)
        }
        Some(old) if old.spec == wanted.spec => {
            // Only marks differ, such as the channel's label. What the Manifest says of itself stays true, and is not said
            // again: its generation is the same.
            plan.apply.push(wanted);
            let (state, message) = progress(old);
            fault(status, state, message)
        }
        _ => {
            plan.apply.push(wanted);
            fault(status, State::Processing, String::new())
        }
    }
}

/// What a Manifest says of itself, if what it says is about its present spec.
fn progress(manifest: &Manifest) -> (State, String) {
    let Some(status) = &manifest.status else { return (State::Processing, String::new()) };
    let generation = manifest.metadata.generation;
    let current = status.conditions.iter().any(|c| c.observed_generation == generation);
    match status.state {
        State::Empty => (State::Processing, String::new()),
        _ if !current => (State::Processing, String::new()),
        State::Ready => (State::Ready, String::new()),
        state => (state, status.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default()),
    }
}

/// The entry of a module that is on its way out.
fn leaving(manifest: &Manifest) -> ModuleStatus {
    let message = match &manifest.status {
        Some(s) if manifest.metadata.deletion_timestamp.is_some() && s.state != State::Ready => {
            s.last_operation.as_ref().map(|op| op.operation.clone()).unwrap_or_default()
        }
        _ => String::new(),
    };
    ModuleStatus { state: State::Deleting, message, ..tracked(manifest) }
}

/// What can be said of an installed module by its Manifest alone.
fn tracked(manifest: &Manifest) -> ModuleStatus {
    let text = |map: &BTreeMap<String, String>, key| map.get(key).cloned().unwrap_or_default();
    let component = text(manifest.annotations(), annotations::OCM_COMPONENT_NAME);
    ModuleStatus {
        name: manifest.module_name().unwrap_or_default().to_owned(),
        channel: text(manifest.labels(), labels::CHANNEL),
        version: manifest.spec.version.clone(),
        fqdn: component.clone(),
        ocm_component_name: component,
        manifest: Some(tracking("Manifest", &manifest.name_any(), &namespace_of(manifest), None)),
        ..ModuleStatus::default()
    }
}

/// The namespace of an object in KCP.
fn namespace_of(object: &impl ResourceExt) -> String {
    object.namespace().unwrap_or_else(|| names::KCP_NAMESPACE.into())
}

fn tracking(kind: &str, name: &str, namespace: &str, generation: Option<i64>) -> TrackingObject {
    TrackingObject {
        api_version: names::API_VERSION.into(),
        kind: kind.into(),
        metadata: Some(PartialMeta { name: name.into(), namespace: namespace.into(), generation }),
    }
}

/// The Manifest of one module of one Kyma.
fn manifest_for(kyma: &Kyma, module: &Module, channel: &str, chosen: &Chosen, source: &Source) -> Manifest {
    let kyma_name = kyma.name_any();
    let entry = |k: &str, v: &str| (k.to_owned(), v.to_owned());
    let owner = OwnerReference {
        api_version: names::API_VERSION.into(),
        kind: "Kyma".into(),
        name: kyma_name.clone(),
        uid: kyma.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    };
    let create = module.custom_resource_policy == CustomResourcePolicy::CreateAndDelete;
    let image = ImageSpec {
        repo: source.repo.clone(),
        name: chosen.component.clone(),
        ref_: source.layer.clone(),
        type_: source.type_,
    };
    Manifest {
        metadata: ObjectMeta {
            name: Some(manifest_name(&kyma_name, &chosen.component, &module.name)),
            // An engine may be told to work in another namespace than the usual one.
            namespace: Some(namespace_of(kyma)),
            labels: Some(BTreeMap::from([
                entry(labels::CHANNEL, channel),
                entry(labels::CONTROLLER_NAME, &module.controller),
                entry(labels::KYMA_NAME, &kyma_name),
                entry(labels::MANAGED_BY, labels::MANAGED_BY_KCP),
                entry(labels::MODULE_NAME, &module.name),
            ])),
            annotations: Some(BTreeMap::from([
                entry(annotations::FQDN, &chosen.component),
                entry(annotations::OCM_COMPONENT_NAME, &chosen.component),
            ])),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ManifestSpec {
            custom_resource_policy: module.custom_resource_policy,
            remote: false,
            version: chosen.version.clone(),
            install: InstallInfo { source: image.to_source(), name: "raw-manifest".into() },
            resource: chosen
                .template
                .spec
                .data
                .as_ref()
                .filter(|_| create)
                .map(|cr| default_cr(cr, &chosen.template)),
            localized_images: source.images.clone(),
            manager: chosen.template.spec.manager.clone(),
            ..ManifestSpec::default()
        },
        status: None,
    }
}

/// The default CR, in the runtime's Kyma namespace unless it says otherwise or has none.
fn default_cr(data: &EmbeddedObject, template: &ModuleTemplate) -> EmbeddedObject {
    let mut cr = data.clone();
    if data.namespace().is_empty()
        && !template.is_cluster_scoped()
        && let Some(metadata) = cr.0.get_mut("metadata").and_then(|m| m.as_object_mut())
    {
        metadata.insert("namespace".into(), names::RUNTIME_NAMESPACE.into());
    }
    cr
}

/// Whether applying `wanted` would change nothing.
fn same(existing: &Manifest, wanted: &Manifest) -> bool {
    let has = |map: &BTreeMap<String, String>, part: &BTreeMap<String, String>| {
        part.iter().all(|(k, v)| map.get(k) == Some(v))
    };
    existing.spec == wanted.spec
        && has(existing.labels(), wanted.labels())
        && has(existing.annotations(), wanted.annotations())
        && existing.owner_references() == wanted.owner_references()
}

fn kyma_status(input: &Input<'_>, modules: Vec<ModuleStatus>) -> KymaStatus {
    let before = input.kyma.status.clone().unwrap_or_default();
    let generation = input.kyma.metadata.generation;
    let now = status::whole_seconds(input.now);
    let unready: Vec<&ModuleStatus> =
        modules.iter().filter(|m| !matches!(m.state, State::Ready | State::Unmanaged)).collect();
    let all_ready = unready.is_empty();
    let message = match unready.first() {
        None => "all modules are in ready state".to_owned(),
        Some(first) => {
            let list: Vec<String> =
                unready.iter().take(5).map(|m| format!("{} ({})", m.name, m.state)).collect();
            let more =
                if unready.len() > 5 { format!(" and {} more", unready.len() - 5) } else { String::new() };
            let why = if first.message.is_empty() {
                String::new()
            } else {
                format!("; first cause: {}", first.message)
            };
            format!("not all modules are in ready state: {}{more}{why}", list.join(", "))
        }
    };
    let says = [
        Says {
            type_: conditions::CRDS_SYNC,
            holds: true,
            reason: conditions::REASON_READY,
            message: "CRDs are synchronized to the SKR".into(),
        },
        Says {
            type_: conditions::MODULES,
            holds: all_ready,
            reason: conditions::REASON_READY,
            message: message.clone(),
        },
    ];
    let state = State::aggregate_with_conditions(modules.iter().map(|m| m.state), all_ready);
    let text = if state == State::Ready { "kyma is ready".to_owned() } else { message };
    KymaStatus {
        state,
        conditions: says
            .into_iter()
            .map(|s| status::condition(&before.conditions, s, generation, now))
            .collect(),
        modules,
        active_channel: input.wanted.channel.clone(),
        last_operation: Some(status::operation(before.last_operation.as_ref(), text, now)),
    }
}

/// Whether a condition of a Kyma is written by the Kyma's reconcile; others belong to other writers.
#[must_use]
pub fn is_own(condition: &str) -> bool {
    [conditions::CRDS_SYNC, conditions::MODULES].contains(&condition)
}

/// The status of a Kyma whose reconcile could not go on: the modules stay as they were, but nobody can say
/// any more that they are all ready.
#[must_use]
pub fn failed_status(kyma: &Kyma, state: State, message: String, now: Timestamp) -> KymaStatus {
    let before = kyma.status.clone().unwrap_or_default();
    let now = status::whole_seconds(now);
    let generation = kyma.metadata.generation;
    let says = Says {
        type_: conditions::MODULES,
        holds: false,
        reason: conditions::REASON_READY,
        message: message.clone(),
    };
    let modules = status::condition(&before.conditions, says, generation, now);
    let mut all: Vec<_> = before.conditions.iter().filter(|c| is_own(&c.type_)).cloned().collect();
    match all.iter_mut().find(|c| c.type_ == conditions::MODULES) {
        Some(condition) => *condition = modules,
        None => all.push(modules),
    }
    KymaStatus {
        state,
        conditions: all,
        last_operation: Some(status::operation(before.last_operation.as_ref(), message, now)),
        ..before
    }
}

/// The status as the runtime's user sees it: nothing that only exists in KCP.
#[must_use]
pub fn runtime_status(status: &KymaStatus) -> KymaStatus {
    let mut status = status.clone();
    for module in &mut status.modules {
        module.manifest = None;
        if let Some(metadata) = module.template.as_mut().and_then(|t| t.metadata.as_mut()) {
            metadata.namespace = names::RUNTIME_NAMESPACE.into();
        }
    }
    status
}

#[cfg(test)]
mod tests;
