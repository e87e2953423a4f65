use std::{collections::BTreeSet, sync::Arc};

use kube::core::DynamicObject;
use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate};
use tidewatch_planner::versions::{
    Catalog, ModuleRequest, Origin,
    local::{ignored, usable},
    registry_of, resolve,
};

use crate::assert_message;

/// The module that the runtime's Kyma requests.
const MODULE: &str = "raft";

/// A control plane that knows no module.
struct Nothing;

impl Catalog for Nothing {
    fn release(&self, _: &str) -> Option<Arc<ModuleReleaseMeta>> {
        None
    }

    fn template(&self, _: &str) -> Option<Arc<ModuleTemplate>> {
        None
    }

    fn templates_of(&self, _: &str) -> Vec<Arc<ModuleTemplate>> {
        Vec::new()
    }
}

/// A ModuleTemplate that was made in a runtime: from its JSON to the version that the Kyma gets.
///
/// # Panics
/// If a promise is broken.
pub fn module_template(data: &[u8]) {
    let Ok(object) = serde_json::from_slice::<DynamicObject>(data) else { return };
    let template = match usable(object, &BTreeSet::from([MODULE])) {
        Ok(None) => return,
        Err(why) => return assert_message(&ignored("name", &why).message),
        Ok(Some(template)) => Arc::new(template),
    };
    assert_eq!(template.module_name(), Some(MODULE), "only requested modules count");
    assert_ne!(template.spec.mandatory, Some(true));
    assert!(serde_json::to_vec(&*template).is_ok_and(|text| text.len() <= 128 * 1024));
    let registry = registry_of(&template);
    assert!(registry.is_none_or(|name| name.len() <= 512 && name.bytes().all(|b| b.is_ascii_graphic())));
    for (channel, pin) in
        [("regular", None), (template.spec.channel.as_str(), None), ("regular", Some("0.1.0"))]
    {
        match resolve(
            ModuleRequest { module: MODULE, channel, pin },
            &Nothing,
            std::slice::from_ref(&template),
        ) {
            Err(fault) => assert_message(&fault.to_string()),
            Ok(chosen) => {
                assert_eq!(chosen.origin, Origin::Local, "it gets no credentials of the engine");
                assert!(chosen.version.len() <= 32 && chosen.component.len() <= 255);
                // Both become parts of a registry's URL.
                let is_path = |b: u8| b.is_ascii_alphanumeric() || b"./-_+".contains(&b);
                assert!(chosen.version.bytes().chain(chosen.component.bytes()).all(is_path), "{chosen:?}");
            }
        }
    }
}
