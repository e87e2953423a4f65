//! Access to internal, beta and restricted modules.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use tidewatch_api::{Manifest, ModuleReleaseMeta, ModuleTemplate, marks::is_enabled, names::labels};

use super::versions::{Catalog, ResolvedModule};

/// Reason for denied access, as shown to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Only for internal Kymas.
    #[error("the module is internal, and this Kyma is not (label operator.kyma-project.io/internal)")]
    Internal,
    /// Only for beta Kymas.
    #[error(
        "the module is in beta, and this Kyma does not take such modules (label operator.kyma-project.io/beta)"
    )]
    Beta,
    /// The ModuleReleaseMeta does not select this Kyma.
    #[error("the module is restricted, and this Kyma is not among those it is for")]
    Restricted,
    /// It selects Kymas, but the central configuration does not list the module.
    #[error(
        "the module is meant for some Kymas only, but is not set up as restricted; nobody gets it until it is"
    )]
    NotSetUp,
}

/// Returns whether a Kyma with these labels may have a module.
///
/// `restricted` modules need a matching selector in the release; an empty or missing one selects no Kyma. Deprecated `beta` and `internal`
/// of the release are ignored, as in the Go manager, so migration removes no module.
pub fn allowed(
    kyma: &BTreeMap<String, String>,
    release: Option<&ModuleReleaseMeta>,
    template: Option<&ModuleTemplate>,
    restricted: &[String],
    module: &str,
) -> Result<(), Denied> {
    let has = |label: &str| kyma.get(label).is_some_and(|value| is_enabled(value));
    if template.is_some_and(ModuleTemplate::is_internal) && !has(labels::INTERNAL) {
        return Err(Denied::Internal);
    }
    if template.is_some_and(ModuleTemplate::is_beta) && !has(labels::BETA) {
        return Err(Denied::Beta);
    }
    let selector = release.and_then(|r| r.spec.kyma_selector.as_ref());
    match (restricted.iter().any(|name| name == module), selector) {
        (false, None) => Ok(()),
        (false, Some(_)) => Err(Denied::NotSetUp),
        (true, Some(selector)) if !is_empty(selector) && selects(selector, kyma) => Ok(()),
        (true, _) => Err(Denied::Restricted),
    }
}

/// Templates of installed versions other than the chosen ones, by name. They restrict versions that stay.
#[must_use]
pub fn staying_templates(
    listed_modules: &[ResolvedModule],
    manifests: &[Manifest],
    catalog: &dyn Catalog,
) -> BTreeMap<String, Arc<ModuleTemplate>> {
    let template_of = |resolved_module: &ResolvedModule, manifest: &Manifest| {
        let version = &manifest.spec.version;
        if resolved_module.outcome.as_ref().is_ok_and(|chosen| chosen.version == *version) {
            return None;
        }
        let name = ModuleTemplate::object_name(&resolved_module.entry.name, version);
        let template = catalog.template(&name)?;
        Some((name, template))
    };
    let others = listed_modules.iter().flat_map(|resolved_module| {
        let of_module = manifests.iter().filter(|m| m.module_name() == Some(&resolved_module.entry.name));
        of_module.filter_map(move |manifest| template_of(resolved_module, manifest))
    });
    others.collect()
}

fn is_empty(selector: &LabelSelector) -> bool {
    selector.match_labels.as_ref().is_none_or(BTreeMap::is_empty)
        && selector.match_expressions.as_ref().is_none_or(Vec::is_empty)
}

/// Returns whether a selector matches, as in Kubernetes: an empty one always, an invalid expression never.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let equal = selector.match_labels.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    equal
        && selector.match_expressions.iter().flatten().all(|e| {
            let value = labels.get(&e.key);
            let values = e.values.as_deref().unwrap_or_default();
            let listed = || value.is_some_and(|value| values.contains(value));
            match (e.operator.as_str(), values.is_empty()) {
                ("In", false) => listed(),
                ("NotIn", false) => !listed(),
                ("Exists", true) => value.is_some(),
                ("DoesNotExist", true) => value.is_none(),
                _ => false,
            }
        })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kyma(labels: &[&str]) -> BTreeMap<String, String> {
        labels
            .iter()
            .map(|l| l.split_once('=').unwrap_or((l, "true")))
            .map(|(k, v)| {
                (if k == "plan" { k.into() } else { format!("operator.kyma-project.io/{k}") }, v.into())
            })
            .collect()
    }

    fn release(spec: &serde_json::Value) -> ModuleReleaseMeta {
        serde_json::from_value(json!({"metadata": {"name": "m"}, "spec": spec})).unwrap()
    }

    fn template(labels: &[&str]) -> ModuleTemplate {
        serde_json::from_value(json!({"metadata": {"name": "m-1", "labels": kyma(labels)},
                                      "spec": {"descriptor": {}}}))
        .unwrap()
    }

    #[test]
    fn internal_and_beta_follow_the_templates_label() {
        let of = |kyma_labels: &[&str], template_labels: &[&str]| {
            // Deprecated and ignored.
            let release = release(&json!({"internal": true, "beta": true}));
            allowed(&kyma(kyma_labels), Some(&release), Some(&template(template_labels)), &[], "m")
        };
        assert_eq!(of(&[], &[]), Ok(()));
        assert_eq!(of(&["internal", "beta"], &[]), Ok(()));
        assert_eq!(of(&[], &["internal"]), Err(Denied::Internal));
        assert_eq!(of(&["beta"], &["internal"]), Err(Denied::Internal));
        assert_eq!(of(&["internal=false"], &["internal"]), Err(Denied::Internal));
        assert_eq!(of(&["internal"], &["internal"]), Ok(()));
        assert_eq!(of(&["internal"], &["beta"]), Err(Denied::Beta));
        assert_eq!(of(&["beta"], &["beta"]), Ok(()));
        assert_eq!(of(&["internal"], &["beta", "internal"]), Err(Denied::Beta), "both count");
        for value in ["True", "TRUE"] {
            let (is, of_kyma) = (format!("internal={value}"), format!("beta={value}"));
            assert_eq!(of(&[], &[&is]), Err(Denied::Internal), "however it is written");
            assert_eq!(of(&[&of_kyma], &["beta"]), Ok(()), "however it is written");
        }
        assert_eq!(allowed(&kyma(&[]), Some(&release(&json!({"beta": true}))), None, &[], "m"), Ok(()));
    }

    #[test]
    fn restricted_modules_need_a_matching_selector() {
        let listed = ["m".to_owned()];
        let of = |selector: serde_json::Value, restricted: &[String], labels: &[&str]| {
            let spec = if selector.is_null() { json!({}) } else { json!({"kymaSelector": selector}) };
            allowed(&kyma(labels), Some(&release(&spec)), None, restricted, "m")
        };
        let trial = || json!({"matchLabels": {"plan": "trial"}});
        assert_eq!(of(trial(), &listed, &["plan=trial"]), Ok(()));
        assert_eq!(of(trial(), &listed, &["plan=paid"]), Err(Denied::Restricted));
        assert_eq!(of(trial(), &[], &["plan=trial"]), Err(Denied::NotSetUp), "a selector without the list");
        assert_eq!(of(json!(null), &listed, &["plan=trial"]), Err(Denied::Restricted), "no selector: nobody");
        assert_eq!(of(json!({}), &listed, &["plan=trial"]), Err(Denied::Restricted), "an empty one: nobody");
        assert_eq!(
            allowed(&kyma(&[]), None, None, &listed, "m"),
            Err(Denied::Restricted),
            "no release: nobody"
        );
    }

    #[test]
    fn selectors_match_as_in_kubernetes() {
        let by = |expression: serde_json::Value, labels: &[&str]| {
            let selector = serde_json::from_value(json!({"matchExpressions": [expression]})).unwrap();
            selects(&selector, &kyma(labels))
        };
        let with =
            |operator: &str, values: &[&str]| json!({"key": "plan", "operator": operator, "values": values});
        for (expression, trial, paid, none) in [
            (with("In", &["trial", "free"]), true, false, false),
            (with("NotIn", &["trial"]), false, true, true),
            (with("Exists", &[]), true, true, false),
            (with("DoesNotExist", &[]), false, false, true),
            (with("Near", &["trial"]), false, false, false),
            (with("In", &[]), false, false, false),
            (with("NotIn", &[]), false, false, false),
            (json!({"key": "plan", "operator": "NotIn"}), false, false, false),
            (with("Exists", &["trial"]), false, false, false),
            (with("DoesNotExist", &["trial"]), false, false, false),
        ] {
            assert_eq!(by(expression.clone(), &["plan=trial"]), trial, "{expression}");
            assert_eq!(by(expression.clone(), &["plan=paid"]), paid, "{expression}");
            assert_eq!(by(expression.clone(), &[]), none, "{expression}");
        }
        assert!(selects(&LabelSelector::default(), &kyma(&[])));
    }
}
