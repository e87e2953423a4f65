use super::{
    super::{
        fingerprint::{self, Part},
        index::ObjectKey,
        resolve::Resolved,
    },
    event::{ObjectEvent, ObservedObject},
    metadata::Metadata,
};
use crate::config::{self, Field};
use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ObjectMeta},
    core::DynamicResourceScope,
    runtime::{WatchStreamExt, watcher},
};
use tidewatch_wire::Route;

/// Load balancers silently cut idle watches after about 240 s.
const WATCH_SECONDS: u32 = 200;

pub(super) fn stream(
    client: &Client,
    spec: &config::Watch,
    resolved: &Resolved,
    whole: bool,
    streaming: bool,
) -> BoxStream<'static, watcher::Result<ObjectEvent>> {
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(selector) = spec.selector() {
        config = config.labels(&selector);
    }
    if streaming {
        config = config.streaming_lists();
    }
    if whole {
        let (part, group) = (part_of(spec), resolved.resource.group.clone());
        let observed = move |object: DynamicObject| observed_whole(part, &group, object);
        watcher(api::<DynamicObject>(client, spec, resolved), config)
            .default_backoff()
            .map(move |event| event.map(|event| ObjectEvent::new(event, &observed)))
            .boxed()
    } else {
        let part = part_of(spec);
        let observed = move |object: Metadata| observed_metadata(part, object);
        watcher(api::<Metadata>(client, spec, resolved), config)
            .default_backoff()
            .map(move |event| event.map(|event| ObjectEvent::new(event, &observed)))
            .boxed()
    }
}

pub(super) fn api<K>(client: &Client, spec: &config::Watch, resolved: &Resolved) -> Api<K>
where
    K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>,
{
    let (resource, client) = (&resolved.resource, client.clone());
    match spec.namespace.as_deref().filter(|_| resolved.namespaced) {
        Some(namespace) => Api::namespaced_with(client, namespace, resource),
        None => Api::all_with(client, resource),
    }
}

/// The engine also watches marks, which it sets.
pub(super) fn part_of(spec: &config::Watch) -> Part {
    match spec.field {
        Field::Status => Part::Status,
        Field::Spec if spec.route == Route::engine().as_str() => Part::Marked,
        Field::Spec => Part::Spec,
    }
}

pub(super) fn observed_metadata(part: Part, object: Metadata) -> ObservedObject {
    let fingerprint = fingerprint::of_metadata(part, &object.metadata);
    observed(object.metadata, fingerprint)
}

pub(super) fn observed_whole(part: Part, group: &str, object: DynamicObject) -> ObservedObject {
    let fingerprint = fingerprint::of_object(part, group, &object);
    let content =
        part == Part::Status || object.metadata.generation.is_none() || !fingerprint::counts_changes(group);
    ObservedObject { content, ..observed(object.metadata, Some(fingerprint)) }
}

fn observed(metadata: ObjectMeta, fingerprint: Option<u64>) -> ObservedObject {
    ObservedObject {
        key: ObjectKey {
            namespace: metadata.namespace.unwrap_or_default().into(),
            name: metadata.name.unwrap_or_default().into(),
        },
        uid: metadata.uid.unwrap_or_default(),
        resource_version: metadata.resource_version.unwrap_or_default(),
        content: false,
        fingerprint,
    }
}
