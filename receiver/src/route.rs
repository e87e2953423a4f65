//! Which reconciles could care about an event. Pure: it looks at what is known of KCP.

use tidewatch_api::names;
use tidewatch_engine::{
    WorkKey,
    kcp::KcpState,
    plan::object::{Gvk, ObjectRef},
};

/// The object an event names.
pub fn object(group: &str, version: &str, kind: &str, namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        gvk: Gvk { group: group.into(), version: version.into(), kind: kind.into() },
        namespace: namespace.into(),
        name: name.into(),
    }
}

/// The reconciles for an object of a runtime: its Kyma's for the runtime's Kyma, its owners' for an
/// installed object or a default CR. None means that nothing of ours depends on it.
pub fn targets(kyma: &str, object: &ObjectRef, state: &KcpState) -> Vec<WorkKey> {
    if object.gvk.group == names::GROUP && object.gvk.kind == "Kyma" {
        let ours = object.namespace == names::RUNTIME_NAMESPACE && object.name == names::RUNTIME_KYMA_NAME;
        return if ours { vec![WorkKey::Kyma { kyma: kyma.to_owned() }] } else { Vec::new() };
    }
    let owners = state.owners.of(kyma, object);
    owners.into_iter().map(|name| WorkKey::Manifest { kyma: kyma.to_owned(), name }).collect()
}

/// The reconciles for whatever may have happened to objects of a kind: its Kyma's for Kymas, those of all its
/// owners for any other.
pub fn targets_of_kind(kyma: &str, group: &str, kind: &str, state: &KcpState) -> Vec<WorkKey> {
    if group == names::GROUP && kind == "Kyma" {
        return vec![WorkKey::Kyma { kyma: kyma.to_owned() }];
    }
    let owners = state.owners.of_kind(kyma, group, kind);
    owners.into_iter().map(|name| WorkKey::Manifest { kyma: kyma.to_owned(), name }).collect()
}

#[cfg(test)]
mod tests {
    use tidewatch_engine::plan::owners::Speaker;

    use super::*;

    #[test]
    fn an_event_finds_the_reconciles_that_could_care() {
        let mut state = KcpState::default();
        let deployment = object("apps", "v1", "Deployment", "s", "d");
        state.owners.claim(Speaker::Watch, "harbour", "m", std::slice::from_ref(&deployment));
        let of = |kyma: &str, o: &ObjectRef| -> Vec<String> {
            targets(kyma, o, &state).iter().map(ToString::to_string).collect()
        };
        assert_eq!(of("harbour", &deployment), ["Manifest/m"]);
        assert!(of("other", &deployment).is_empty(), "a runtime speaks for itself only");
        let kyma = object("operator.kyma-project.io", "v1beta2", "Kyma", "kyma-system", "default");
        assert_eq!(of("harbour", &kyma), ["Kyma/harbour"]);
        let stray = object("operator.kyma-project.io", "v1beta2", "Kyma", "default", "default");
        assert!(of("harbour", &stray).is_empty());
        assert!(of("harbour", &object("", "v1", "ConfigMap", "s", "d")).is_empty());
        let of_kind = |kyma: &str, group: &str, kind: &str| -> Vec<String> {
            targets_of_kind(kyma, group, kind, &state).iter().map(ToString::to_string).collect()
        };
        assert_eq!(of_kind("harbour", "apps", "Deployment"), ["Manifest/m"]);
        assert_eq!(of_kind("harbour", "operator.kyma-project.io", "Kyma"), ["Kyma/harbour"]);
        assert!(of_kind("other", "apps", "Deployment").is_empty());
    }
}
