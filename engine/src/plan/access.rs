//! Who may have a module: internal, beta and restricted ones.

use std::collections::BTreeMap;

use tidewatch_api::{ModuleReleaseMeta, ModuleTemplate};

/// Why a Kyma may not have a module. The text is shown to the user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {}

/// Whether a Kyma with these labels may have a module. `restricted` names the modules that only those get whom the
/// release meta selects. Everybody may have everything yet.
pub fn allowed(
    _kyma: &BTreeMap<String, String>,
    _release: Option<&ModuleReleaseMeta>,
    _template: &ModuleTemplate,
    _restricted: &[String],
) -> Result<(), Denied> {
    Ok(())
}
