//! The Kyma in the runtime: its spec, labels and status.

use kube::ResourceExt;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, KymaSpec,
    names::{self, field_managers},
};
use tidewatch_planner::{
    kyma::restored,
    notice::{About, Notice},
};

use crate::{
    clusters::{
        Gated,
        objects::{self, ObjectError},
    },
    kcp::writes::differs,
    reconcile::{
        kyma::KymaReconciler,
        prepare::had_list,
        runtime_kyma::{runtime_kyma, runtime_mark},
    },
};

impl KymaReconciler {
    /// Returns the runtime's Kyma with the engine's labels, created from KCP's if missing. `found` is the Kyma that was read; null if
    /// missing or not served.
    pub(crate) async fn runtime_kyma_of(
        &self,
        kyma: &Kyma,
        runtime: &Gated,
        found: Value,
    ) -> Result<Value, ObjectError> {
        if runtime.is_own_cluster() {
            // It is the Kyma in KCP: the user's, without a copy.
            return Ok(found);
        }
        let id = runtime_kyma(runtime);
        let mark = runtime_mark(kyma, &self.kcp.namespace);
        let lost = self.clusters.records.read(&kyma.name_any(), |record| record.prepared.lost);
        let there = if found.is_null() { objects::get(runtime, &id).await? } else { Some(found) };
        let remote = match there {
            Some(remote) => {
                if lost {
                    self.preparer.found_kyma(&kyma.name_any(), runtime).await?;
                }
                remote
            }
            None => {
                // The spec has its own field manager, so that later label applies keep it. A crash in between leaves a Kyma that gets its
                // labels next time.
                let (name, namespace) = (&mark["metadata"]["name"], &mark["metadata"]["namespace"]);
                let spec = if lost { self.restored_spec(kyma) } else { kyma.spec.clone() };
                let fresh = json!({
                    "apiVersion": names::API_VERSION, "kind": "Kyma",
                    "metadata": {"name": name, "namespace": namespace}, "spec": spec
                });
                let made = objects::create(runtime, &fresh, field_managers::KCP).await?;
                let name = kyma.name_any();
                if lost {
                    self.preparer.found_kyma(&name, runtime).await?;
                }
                if lost || had_list(kyma) {
                    let what = made_again(&spec, lost);
                    tracing::warn!(kyma = name, detail = what, "the runtime's Kyma is made again");
                    let uid = made.as_ref().and_then(|made| made["metadata"]["uid"].as_str());
                    let user = uid.map(|uid| (runtime, uid));
                    let _alone = self.notifier.notify(&name, user, &restored_notices(&what)).await;
                }
                Value::Null
            }
        };
        if differs(&remote["metadata"], &mark["metadata"]) {
            return objects::apply(runtime, &mark, field_managers::KYMA_SYNC).await;
        }
        Ok(remote)
    }
}

impl KymaReconciler {
    fn restored_spec(&self, kyma: &Kyma) -> KymaSpec {
        let manifests = self.kcp.index().manifests.list(&kyma.name_any());
        restored(kyma, &manifests)
    }
}

fn made_again(spec: &KymaSpec, lost: bool) -> String {
    let modules: Vec<_> = spec.modules.iter().map(|module| module.name.as_str()).collect();
    let modules = if modules.is_empty() { "none".to_owned() } else { modules.join(", ") };
    if lost {
        format!(
            "the runtime's Kyma was lost with its CRD and has been made again with the modules that it had by the status in KCP \
             ({modules}); its user should look whether that is what they want"
        )
    } else {
        format!(
            "the runtime's Kyma was deleted and has been made again with the defaults (modules: {modules}); a module that it had and \
             that is not among these is removed, unless its list has it again"
        )
    }
}

fn restored_notices(what: &str) -> [Notice; 2] {
    [About::Kyma, About::RuntimeKyma].map(|about| Notice::warning(about, "KymaRestored", what.to_owned()))
}
