//! Module templates that were made in a runtime, where KCP allows them for its Kyma.

use std::{collections::BTreeSet, sync::Arc};

use kube::{ResourceExt, api::ListParams};
use tidewatch_api::{
    Kyma, KymaSpec, ModuleTemplate,
    names::{self, field_managers::CATALOG_SYNC},
    object::Gvk,
};
use tidewatch_planner::{
    notice::Notice,
    versions::local::{MAX_TEMPLATES, ignored, usable},
};

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    reconcile::kyma::KymaReconciler,
};

/// Templates read at once, and how often. KCP's own may be among them, which do not count.
const PAGE: u32 = 100;
const PAGES: usize = 20;

/// What a runtime offers itself.
#[derive(Debug, Default)]
pub(super) struct Local {
    /// Its templates.
    pub(super) templates: Vec<Arc<ModuleTemplate>>,
    /// What its user is told of those that are no good.
    pub(super) notices: Vec<Notice>,
}

impl KymaReconciler {
    /// The runtime's own templates of modules that its user asks for and KCP has nothing of, or not in the version that is
    /// asked for. Read freshly, and only if there are such modules and the Kyma in KCP allows it.
    pub(super) async fn local_templates(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        wanted: &KymaSpec,
    ) -> Result<Local, ObjectError> {
        if !kyma.takes_runtime_templates() {
            return Ok(Local::default());
        }
        let unknown: BTreeSet<&str> = self.kcp.index().unknown(wanted);
        if unknown.is_empty() {
            return Ok(Local::default());
        }
        let gvk = Gvk::of(names::API_VERSION, "ModuleTemplate");
        let api = objects::api(runtime, &gvk, names::RUNTIME_NAMESPACE).await?;
        let mut params = ListParams::default().limit(PAGE);
        let mut local = Local::default();
        for _ in 0..PAGES {
            let page = match runtime.call("listing the ModuleTemplates", api.list(&params)).await {
                Ok(page) => page,
                Err(error) => return Err(objects::explain(runtime, &gvk, error).await),
            };
            for object in page.items {
                let name = object.metadata.name.clone().unwrap_or_default();
                // A copy of KCP's is nobody's own, though KCP may not have it any more.
                if object.managed_fields().iter().any(|f| f.manager.as_deref() == Some(CATALOG_SYNC)) {
                    continue;
                }
                match usable(object, &unknown) {
                    Ok(template) => local.templates.extend(template.map(Arc::new)),
                    Err(why) => local.notices.push(ignored(&name, &why)),
                }
            }
            params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
            if params.continue_token.is_none() || local.templates.len() >= MAX_TEMPLATES {
                break;
            }
        }
        local.templates.truncate(MAX_TEMPLATES);
        Ok(local)
    }
}
