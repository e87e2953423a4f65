//! The engine as the listener's host: who is registered is what KCP says, and an event becomes reconciles.

use std::time::Duration;

use tidewatch_engine::{
    Acknowledge, Cause, Engine, kcp,
    plan::object::ObjectRef,
    queue::{Class, Push},
};
use tidewatch_listener::{Fate, Guard, Host, Manager, Runtime, RuntimeLookup, Ticket};
use tidewatch_wire::{Route, v2, v3};

use crate::route;

/// The manager that stands for our own engine in v2 paths.
pub const OWN_MANAGER: &str = "lifecycle-manager";
/// A v2 event comes from an admission webhook, before the change is committed: look again after this.
const SECOND_LOOK: Duration = Duration::from_secs(20);

/// Feeds the engine's queue.
pub struct EngineHost(pub Engine);

impl EngineHost {
    fn targets(&self, runtime: &Runtime, object: &ObjectRef) -> Vec<tidewatch_engine::WorkKey> {
        route::targets(&runtime.kyma, object, &self.0.state().read())
    }
}

impl Host for EngineHost {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        match self.0.state().read().runtime(common_name) {
            kcp::RuntimeLookup::Unknown => RuntimeLookup::Unknown,
            kcp::RuntimeLookup::One { kyma, domain } => RuntimeLookup::One { kyma, domain },
            kcp::RuntimeLookup::Ambiguous(n) => RuntimeLookup::Ambiguous(n),
        }
    }

    fn manager(&self, name: &str) -> Manager {
        if name == OWN_MANAGER {
            Manager::Own
        } else if self.0.state().read().has_manager(name) {
            Manager::Other
        } else {
            Manager::Unknown
        }
    }

    fn take_v3(
        &self,
        runtime: &Runtime,
        request: &v3::Request,
        event: &v3::Event,
        mut ticket: Ticket,
    ) -> Fate {
        let object = route::object(&event.group, &event.version, &event.kind, &event.namespace, &event.name);
        let targets = self.targets(runtime, &object);
        let guards = ticket.hold(Route::engine(), targets.len());
        if targets.is_empty() {
            return Fate::Unowned;
        }
        for (key, guard) in targets.into_iter().zip(guards) {
            let cause = Cause::Event {
                epoch: request.epoch.to_string(),
                seq: event.seq.0,
                watch: event.watch.clone(),
                object: object.to_string(),
            };
            tracing::debug!(runtime = runtime.id, seq = event.seq.0, %object, %key, "event queued");
            let guards = vec![Box::new(Held(guard)) as _];
            self.0.queue().push(key, Push { class: Class::UserEdit, cause: Some(cause), guards });
        }
        Fate::Queued
    }

    fn take_v2(&self, runtime: &Runtime, _manager: &str, event: &v2::WatchEvent) -> Fate {
        let gvk = &event.watched_gvk;
        let object =
            route::object(&gvk.group, &gvk.version, &gvk.kind, &event.watched.namespace, &event.watched.name);
        let targets = self.targets(runtime, &object);
        if targets.is_empty() {
            return Fate::Unowned;
        }
        for key in targets {
            let cause =
                Cause::Event { epoch: "v2".into(), seq: 0, watch: "v2".into(), object: object.to_string() };
            let push = Push { class: Class::UserEdit, cause: Some(cause), guards: Vec::new() };
            self.0.queue().push(key.clone(), push);
            self.0.queue().look_again(key, Class::UserEdit, SECOND_LOOK);
        }
        Fate::Queued
    }
}

/// A listener's guard in the engine's queue.
struct Held(Guard);

impl Acknowledge for Held {
    fn finished(self: Box<Self>) {
        self.0.finished();
    }
}
