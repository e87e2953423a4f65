//! Follows one object of the control plane, such as a ConfigMap.

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};

/// Calls `apply` with each state of the ConfigMap, `None` while there is none. While it cannot be watched, the last state applies.
pub(crate) async fn follow(
    client: Client,
    namespace: &str,
    name: &str,
    mut apply: impl FnMut(Option<&ConfigMap>),
) {
    let api: Api<ConfigMap> = Api::namespaced(client, namespace);
    let one = watcher::Config::default().fields(&format!("metadata.name={name}")).timeout(200);
    let mut events = watcher(api, one).default_backoff().boxed();
    let mut listed = None;
    while let Some(event) = events.next().await {
        match event {
            Ok(watcher::Event::Init) => listed = None,
            Ok(watcher::Event::InitApply(map)) => listed = Some(map),
            Ok(watcher::Event::InitDone) => apply(listed.take().as_ref()),
            Ok(watcher::Event::Apply(map)) => apply(Some(&map)),
            Ok(watcher::Event::Delete(_)) => apply(None),
            Err(error) => {
                tracing::warn!(%error, name, "a ConfigMap cannot be watched; its last state applies");
            }
        }
    }
}
