//! Module templates that were created in a runtime, where KCP allows them.

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

/// Page size and most pages. KCP's copies may be among the results.
const PAGE: u32 = 100;
const PAGES: usize = 20;

#[derive(Debug, Default)]
pub(super) struct Local {
    pub(super) templates: Vec<Arc<ModuleTemplate>>,
    pub(super) notices: Vec<Notice>,
}

impl KymaReconciler {
    /// Returns the runtime's templates for wanted modules or versions that KCP lacks. Reads them only if needed, and if the Kyma in KCP
    /// allows it.
    pub(super) async fn local_templates(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        wanted: &KymaSpec,
    ) -> Result<Local, ObjectError> {
        if !kyma.uses_runtime_templates() || runtime.is_own_cluster() {
            return Ok(Local::default());
        }
        let unknown: BTreeSet<&str> = self.kcp.index().catalog.unknown(wanted);
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
                // A copy of KCP's template, even if KCP has deleted it since.
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
