//! Memory yardstick of an agent: kube's watcher and a minimal object map.

use std::{collections::BTreeMap, path::Path};

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DynamicObject, PartialObjectMeta},
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{WatchStreamExt, watcher},
};

use super::{orders, say};

/// Reports the object count after the first list, then keeps watching.
pub(super) async fn run(kubeconfig: &Path, kind: (&str, &str, &str, &str)) -> Result<()> {
    let (group, version, kind, plural) = kind;
    let file = Kubeconfig::read_from(kubeconfig)?;
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") },
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let api: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(Client::try_from(config)?, &resource);
    let mut events = watcher(api, watcher::Config::default()).default_backoff().boxed();
    let mut known = BTreeMap::new();
    let mut end = orders::<()>();
    loop {
        let event = tokio::select! {
            event = events.next() => event.context("the watch has ended")?,
            _ = end.recv() => return Ok(()),
        };
        match event {
            Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                known.insert((object.namespace(), object.name_any()), object.metadata.generation);
            }
            Ok(watcher::Event::Delete(object)) => {
                known.remove(&(object.namespace(), object.name_any()));
            }
            Ok(watcher::Event::InitDone) => say(&known.len())?,
            Ok(watcher::Event::Init) | Err(_) => {}
        }
    }
}
