//! Whether this Kyma may have the module.

use kube::ResourceExt;
use tidewatch_api::{Manifest, ModuleTemplate};

use super::{GateDecision, Notes, View, remove, versions};
use crate::access::{self, Denied};

/// Lost access removes a module normally. User-owned modules pass, but unmanaging cannot keep a denied module.
pub(super) fn judge(view: &View<'_>, notes: &mut Notes) -> GateDecision {
    if !view.module.entry.managed && view.installed.is_none_or(Manifest::is_unmanaged) {
        return GateDecision::Pass;
    }
    let module = &view.module.entry.name;
    let template = view.module.outcome.as_ref().ok().map(|chosen| chosen.template.as_ref());
    let release = view.module.release.as_deref();
    let allowed = |template: Option<&ModuleTemplate>| {
        access::allowed(view.kyma.labels(), release, template, view.facts.restricted, module)
    };
    let Err(why) = allowed(template).and_then(|()| allowed(staying(view))) else { return GateDecision::Pass };
    // Access is unknown without a readable ModuleReleaseMeta, so installed modules stay.
    let unknown = release.is_none() && (view.installed.is_some() || view.module.outcome.is_err());
    if unknown && why == Denied::Restricted {
        return GateDecision::Pass;
    }
    remove(view, notes, "ModuleNotAvailable", why.to_string())
}

/// Template of an installed version that stays. Unknown templates and a runtime's own restrict no access.
fn staying<'a>(view: &View<'a>) -> Option<&'a ModuleTemplate> {
    let manifest = view.installed?;
    let replaced =
        view.module.entry.managed && view.module.outcome.is_ok() && versions::refusal(view).is_none();
    if replaced || manifest.is_of_runtime_template() {
        return None;
    }
    let name = ModuleTemplate::object_name(&view.module.entry.name, &manifest.spec.version);
    view.facts.installed?.get(&name).map(AsRef::as_ref)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jiff::Timestamp;
    use serde_json::{Value, json};
    use tidewatch_api::{Kyma, KymaSpec};

    use super::*;
    use crate::{
        gates::{self, Facts},
        versions::{choose, fixtures::catalog},
    };

    fn judged(entry: &Value, manifest: Option<&Value>, beta: bool) -> GateDecision {
        let mut catalog = catalog();
        let mut template = catalog.templates["lighthouse-1.1.0"].as_ref().clone();
        template.labels_mut().insert("operator.kyma-project.io/beta".into(), "true".into());
        catalog.put(Arc::new(template));
        let mut named = json!({"name": "lighthouse"});
        named.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
        let wanted: KymaSpec =
            serde_json::from_value(json!({"channel": "regular", "modules": [named]})).unwrap();
        let listed_modules = choose(&wanted, &catalog, &[]);
        let labels = if beta { json!({"operator.kyma-project.io/beta": "true"}) } else { json!({}) };
        let kyma: Kyma = serde_json::from_value(json!({"metadata": {"name": "harbour", "labels": labels},
            "spec": {"channel": "regular"}}))
        .unwrap();
        let manifest: Option<Manifest> =
            manifest.map(|manifest| serde_json::from_value(manifest.clone()).unwrap());
        let installed = access::staying_templates(&listed_modules, manifest.as_slice(), &catalog);
        let facts = Facts { installed: Some(&installed), ..Facts::default() };
        let (installed, now) = (manifest.as_ref(), Timestamp::UNIX_EPOCH);
        let view =
            View { module: &listed_modules[0], installed, kyma: &kyma, wanted: &wanted, facts: &facts, now };
        gates::judge(&view, &mut Notes::default())
    }

    fn manifest() -> Value {
        json!({"metadata": {"name": "m", "labels": {"operator.kyma-project.io/module-name": "lighthouse"}},
               "spec": {"version": "1.1.0", "remote": false, "install": {"name": "raw-manifest", "source": {}}}})
    }

    #[test]
    fn an_unmanaged_module_without_access_is_removed() {
        let user_managed = json!({"channel": "fast", "managed": false});
        let left = |manifest: Option<&Value>, beta| {
            matches!(judged(&user_managed, manifest, beta), GateDecision::Unmanage { .. })
        };
        assert!(left(Some(&manifest()), true), "it may");
        let gate = judged(&user_managed, Some(&manifest()), false);
        let GateDecision::Remove { message } = gate else { panic!("{gate:?}") };
        assert!(message.contains("in beta"), "{message}");
        // Its removal waits for user objects.
        let mut deleting = manifest();
        deleting["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!left(Some(&deleting), false));
        let other = json!({"channel": "regular", "managed": false});
        assert!(
            matches!(judged(&other, Some(&deleting), false), GateDecision::Remove { .. }),
            "1.1.0 is what they would keep"
        );
        // Unmanaged earlier: user-owned.
        let mut user_owned = manifest();
        user_owned["metadata"]["annotations"] = json!({"operator.kyma-project.io/is-unmanaged": "true"});
        assert!(left(Some(&user_owned), false) && left(None, false));
    }

    #[test]
    fn an_installed_module_without_access_is_removed() {
        let removed = |entry: Value, manifest: Value| {
            assert!(!matches!(judged(&entry, Some(&manifest), true), GateDecision::Remove { .. }), "{entry}");
            matches!(judged(&entry, Some(&manifest), false), GateDecision::Remove { .. })
        };
        for entry in [json!({"version": "9.9.9"}), json!({"channel": "none"}), json!({"channel": "absent"})] {
            assert!(removed(entry, manifest()));
        }
        assert!(removed(json!({"channel": "regular"}), manifest()), "1.0.0 is no way back");
        let mut lower = manifest();
        lower["spec"]["version"] = "0.9.0".into();
        assert!(!removed(json!({"channel": "regular"}), lower.clone()), "1.0.0 takes its place");
        assert!(!removed(json!({"channel": "none"}), lower), "a template that is not known");
        let mut own = manifest();
        own["metadata"]["annotations"] = json!({"tidewatch.kyma-project.io/runtime-template": "true"});
        assert!(!removed(json!({"channel": "none"}), own), "KCP's template of that number is another one");
    }
}
