use super::{
    super::{
        fingerprint::{self, Part},
        index::ObjectKey,
        resolve::Resolved,
    },
    Heard, Metadata, Seen, WATCH_SECONDS,
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

pub(super) fn stream(
    client: &Client,
    spec: &config::Watch,
    resolved: &Resolved,
    whole: bool,
    streaming: bool,
) -> BoxStream<'static, watcher::Result<Heard>> {
    let mut config = watcher::Config::default().timeout(WATCH_SECONDS);
    if let Some(selector) = spec.selector() {
        config = config.labels(&selector);
    }
    if streaming {
        config = config.streaming_lists();
    }
    if whole {
        let (part, group) = (part_of(spec), resolved.resource.group.clone());
        let seen = move |object: DynamicObject| seen_whole(part, &group, object);
        watcher(api::<DynamicObject>(client, spec, resolved), config)
            .default_backoff()
            .map(move |event| event.map(|event| heard(event, &seen)))
            .boxed()
    } else {
        let part = part_of(spec);
        let seen = move |object: Metadata| seen_metadata(part, object);
        watcher(api::<Metadata>(client, spec, resolved), config)
            .default_backoff()
            .map(move |event| event.map(|event| heard(event, &seen)))
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

pub(super) fn heard<K>(event: watcher::Event<K>, seen: &impl Fn(K) -> Seen) -> Heard {
    match event {
        watcher::Event::Init => Heard::ListBegins,
        watcher::Event::InitApply(object) | watcher::Event::Apply(object) => Heard::Applied(seen(object)),
        watcher::Event::Delete(object) => Heard::Deleted(seen(object)),
        watcher::Event::InitDone => Heard::ListEnds,
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

pub(super) fn seen_metadata(part: Part, object: Metadata) -> Seen {
    let fingerprint = fingerprint::of_metadata(part, &object.metadata);
    seen(object.metadata, fingerprint)
}

pub(super) fn seen_whole(part: Part, group: &str, object: DynamicObject) -> Seen {
    let fingerprint = fingerprint::of_object(part, group, &object);
    let content =
        part == Part::Status || object.metadata.generation.is_none() || !fingerprint::counts_changes(group);
    Seen { content, ..seen(object.metadata, Some(fingerprint)) }
}

fn seen(metadata: ObjectMeta, fingerprint: Option<u64>) -> Seen {
    Seen {
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
