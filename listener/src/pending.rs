//! Maps events to reconciles, and reconciles to acknowledgements.

use std::{collections::HashMap, fmt, hash::Hash, sync::Arc};

use futures::{Stream, StreamExt, stream};
use kube::runtime::reflector::{Lookup, ObjectRef};
use parking_lot::Mutex;

use crate::{Ack, RuntimeEvent};

/// Acknowledgements by object, bounded by the listener. Clones share them. After the last drop, events are resent.
pub struct Pending<K: Lookup>(Arc<Mutex<Waiting<K>>>)
where
    K::DynamicType: Hash + Eq;

type Waiting<K> = HashMap<ObjectRef<K>, Vec<Ack>>;

impl<K: Lookup> Pending<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    /// Creates an empty map.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(HashMap::new())))
    }

    /// Adds `ack` to the next reconcile of `object`.
    pub fn add(&self, object: ObjectRef<K>, ack: Ack) {
        self.0.lock().entry(object).or_default().push(ack);
    }

    /// Takes an object's acknowledgements. Call it first in a reconcile: later events wait for the next. The reference
    /// must equal the mapped one.
    pub fn start(&self, object: &ObjectRef<K>) -> Started<K> {
        let acks = self.0.lock().remove(object).unwrap_or_default();
        Started { pending: self.clone(), object: object.clone(), acks }
    }

    /// Number of waiting objects.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether no object waits.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Lookup> Default for Pending<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Lookup> Clone for Pending<K>
where
    K::DynamicType: Hash + Eq,
{
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Lookup> fmt::Debug for Pending<K>
where
    K::DynamicType: Hash + Eq,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").field("objects", &self.0.lock().len()).finish()
    }
}

/// Events of a reconcile. Dropped without [`Started::finished`] (failure, panic, shutdown), they wait for the
/// controller's retry.
#[must_use = "a reconcile acknowledges nothing before it is finished"]
pub struct Started<K: Lookup>
where
    K::DynamicType: Hash + Eq + Clone,
{
    pending: Pending<K>,
    object: ObjectRef<K>,
    acks: Vec<Ack>,
}

impl<K: Lookup> Started<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    /// Acknowledges: the reconcile succeeded, or its failure is persisted for retries.
    pub fn finished(mut self) {
        std::mem::take(&mut self.acks).into_iter().for_each(Ack::finished);
    }
}

impl<K: Lookup> Drop for Started<K>
where
    K::DynamicType: Hash + Eq + Clone,
{
    fn drop(&mut self) {
        if !self.acks.is_empty() {
            let acks = std::mem::take(&mut self.acks);
            self.pending.0.lock().entry(self.object.clone()).or_default().extend(acks);
        }
    }
}

/// Returns the objects for `Controller::reconcile_on`.
///
/// `map` must not block. An event is acknowledged after all its objects are reconciled; without any, immediately.
pub fn reconcile_requests<K, S, M, I>(
    events: S,
    pending: Pending<K>,
    mut map: M,
) -> impl Stream<Item = ObjectRef<K>>
where
    K: Lookup,
    K::DynamicType: Hash + Eq + Clone,
    S: Stream<Item = RuntimeEvent>,
    M: FnMut(&RuntimeEvent) -> I,
    I: IntoIterator<Item = ObjectRef<K>>,
{
    events.flat_map(move |event| {
        let objects: Vec<_> = map(&event).into_iter().collect();
        // Added first, so that the reconcile finds it.
        for (object, ack) in objects.iter().zip(event.ack.split(objects.len())) {
            pending.add(object.clone(), ack);
        }
        stream::iter(objects)
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;
    use crate::operator::tests::Bench;

    fn object(name: &str) -> ObjectRef<ConfigMap> {
        ObjectRef::new(name).within("s")
    }

    fn requested(bench: &mut Bench, pending: &Pending<ConfigMap>, names: &[&str]) -> Vec<String> {
        for (name, seq) in names.iter().zip(1..) {
            bench.send(seq, name);
        }
        let map = |event: &RuntimeEvent| -> Vec<_> {
            event.name.chars().filter(|c| *c != '-').map(|c| object(&c.to_string())).collect()
        };
        let mut requests = Box::pin(reconcile_requests(bench.events.take().unwrap(), pending.clone(), map));
        std::iter::from_fn(|| requests.next().now_or_never().flatten()).map(|o| o.name).collect()
    }

    #[test]
    fn an_event_is_acknowledged_after_all_its_reconciles() {
        let (mut bench, pending) = (Bench::new(9, 900), Pending::new());
        assert_eq!(requested(&mut bench, &pending, &["ab", "-", "b"]), ["a", "b", "b"]);
        assert_eq!([bench.verdict(1), bench.verdict(2), bench.verdict(3)], ["held", "done", "held"]);
        pending.start(&object("b")).finished();
        assert_eq!([bench.verdict(1), bench.verdict(3)], ["held", "done"]);
        pending.start(&object("a")).finished();
        assert_eq!(bench.verdict(1), "done");
        assert!(pending.is_empty());
    }

    #[test]
    fn a_reconcile_acknowledges_only_earlier_events() {
        let (mut bench, pending) = (Bench::new(9, 900), Pending::new());
        bench.send(1, "a");
        pending.add(object("a"), bench.next().unwrap().ack);
        let started = pending.start(&object("a"));
        bench.send(2, "a");
        pending.add(object("a"), bench.next().unwrap().ack);
        started.finished();
        assert_eq!([bench.verdict(1), bench.verdict(2)], ["done", "held"]);
    }

    #[test]
    fn a_failed_reconcile_keeps_its_events_for_the_retry() {
        let (mut bench, pending) = (Bench::new(9, 900), Pending::new());
        requested(&mut bench, &pending, &["a"]);
        drop(pending.start(&object("a")));
        assert_eq!((bench.verdict(1), pending.len()), ("held", 1));
        pending.start(&object("a")).finished();
        assert_eq!(bench.verdict(1), "done");
    }

    #[test]
    fn an_ending_operator_returns_its_events() {
        let (mut bench, pending) = (Bench::new(9, 900), Pending::new());
        requested(&mut bench, &pending, &["a"]);
        drop(pending);
        assert_eq!(bench.verdict(1), "unknown");
    }
}
