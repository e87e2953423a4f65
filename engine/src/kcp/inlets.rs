//! Where the watches on KCP come from: KCP itself, or a record of what they told. And how they are written into one.

use std::{collections::BTreeMap, fmt::Debug};

use futures::{StreamExt, stream};
use kube::{Client, Resource, runtime::watcher};
use serde::{Serialize, de::DeserializeOwned};
use tokio::sync::mpsc;

use super::feed::{Events, Seen, change_of};
use crate::journal::{KcpChange, KcpEvent, Line, redact};

/// Events that wait in an inlet; a replay puts in one at a time.
const WAITING: usize = 4;

/// Where watches come from.
pub(crate) enum Source<'a> {
    /// A control plane, and a namespace in it.
    Live(&'a Client, &'a str),
    /// A record.
    Played(&'a mut Inlets),
}

/// By kind, where a record's events are put in.
#[derive(Debug, Default)]
pub(crate) struct Inlets(BTreeMap<String, mpsc::Sender<KcpEvent>>);

impl Inlets {
    pub(super) fn add(&mut self, kind: &str) -> mpsc::Receiver<KcpEvent> {
        let (sender, receiver) = mpsc::channel(WAITING);
        self.0.insert(kind.to_owned(), sender);
        receiver
    }

    pub(crate) fn into_senders(self) -> BTreeMap<String, mpsc::Sender<KcpEvent>> {
        self.0
    }
}

/// The events of a record.
pub(super) fn played<K>(inlet: mpsc::Receiver<KcpEvent>) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let events = stream::unfold(inlet, |mut inlet| async { inlet.recv().await.map(|event| (event, inlet)) });
    events.map(|event| Ok(event_of(event))).boxed()
}

fn event_of<K: Resource + DeserializeOwned>(event: KcpEvent) -> watcher::Event<Seen<K>> {
    let KcpEvent { kind: _, event, name, object, error } = event;
    let object = match error {
        Some(error) => Err(error),
        None => serde_json::from_value::<K>(object.unwrap_or_default()).map_err(|error| error.to_string()),
    };
    let change = object.as_ref().map_or_else(|_| "unreadable".into(), change_of);
    let seen = Seen { name, object, change };
    match event {
        KcpChange::Init => watcher::Event::Init,
        KcpChange::InitApply => watcher::Event::InitApply(seen),
        KcpChange::InitDone => watcher::Event::InitDone,
        KcpChange::Apply => watcher::Event::Apply(seen),
        KcpChange::Delete => watcher::Event::Delete(seen),
    }
}

/// A line without an object.
pub(super) fn line(kind: &str, event: KcpChange, name: &str) -> Line {
    Line::Kcp(KcpEvent { kind: kind.to_owned(), event, name: name.to_owned(), object: None, error: None })
}

/// A line with an object, without the data of Secrets.
pub(super) fn object_line<K: Serialize>(kind: &str, event: KcpChange, seen: &Seen<K>) -> Line {
    let Line::Kcp(line) = line(kind, event, &seen.name) else { return Line::Gap { lines: 1 } };
    Line::Kcp(match &seen.object {
        Ok(object) => match serde_json::to_value(object) {
            Ok(mut object) => {
                redact::redact(&mut object, kind == "Secret");
                KcpEvent { object: Some(object), ..line }
            }
            Err(error) => KcpEvent { error: Some(error.to_string()), ..line },
        },
        Err(error) => KcpEvent { error: Some(error.clone()), ..line },
    })
}
