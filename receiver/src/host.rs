//! The listener's [`Host`]: queues reconciles and forwards other managers' events.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use prometheus::IntCounterVec;
use tidewatch_api::{Watcher, object::ObjectRef};
use tidewatch_engine::{Acknowledge, Engine, Trigger, Version, WorkKey, index, queue::Push};
use tidewatch_listener::{
    Fate, Guard, Host, LogLine, Manager, RefusalLog, RefusedPeer, Revocations, Runtime, RuntimeLookup, Ticket,
};
use tidewatch_planner::agent::watch_name;
use tidewatch_telemetry::metrics::{MetricsError, Registry};
use tidewatch_wire::{Route, v2, v3};

use crate::{
    claims::ClaimBook,
    forward::{
        Forwarders, Taken, Watchers,
        lane::{Change, Key, Settle},
        target::Target,
    },
    klm::Certificates,
    path_watch::PathWatch,
    paths::Refusal,
    route::{self, Direction, Refused, ReportedEvent, SECOND_LOOK, V2},
};

/// This engine's manager name in v2 paths.
pub const OWN_MANAGER: &str = "lifecycle-manager";

type Ask = Push<Trigger, Box<dyn Acknowledge>>;

/// Returns the reported version; `None` for full reports, which void earlier observations.
fn version_of<'a>(event: &'a v3::Event<'_>) -> Option<Version<'a>> {
    let (uid, resource_version) = (event.uid.as_ref(), event.resource_version.as_ref());
    match event.change {
        _ if event.listed => None,
        v3::Change::Changed => Some(Version::Is { uid, resource_version }),
        v3::Change::Gone => Some(Version::Gone { uid }),
        v3::Change::Resync => None,
    }
}

/// Feeds the engine's queue and other managers' lanes.
pub struct EngineHost {
    /// The engine.
    pub engine: Engine,
    /// Other managers' lanes.
    pub forwarders: Forwarders<Guard>,
    /// Event paths of all runtimes.
    pub paths: PathWatch,
    /// Agents' claims.
    pub claims: ClaimBook,
    /// Set once KCP is fully read; before, no event may count as unowned.
    pub ready: Arc<AtomicBool>,
    /// KCP's namespace, prefix of Watchers' watches.
    pub namespace: String,
    /// By reason.
    pub refused: IntCounterVec,
    /// Limits log lines.
    pub lines: RefusalLog,
    /// Certificate renewals, with object metrics.
    pub certificates: Option<Certificates>,
    /// Revoked runtimes.
    pub revocations: Revocations,
}

/// Registers the metric.
pub fn refused_metric(registry: &Registry) -> Result<IntCounterVec, MetricsError> {
    registry.counter_vec("refused_events_total", "Events that were refused, by reason.", &["reason"])
}

impl EngineHost {
    fn refuse(&self, runtime: &Runtime, why: Refused, watch: &str) -> Fate {
        let watch: String = watch.chars().take(64).collect();
        let (reason, now) = (why.label(), jiff::Timestamp::now());
        if let Some(LogLine { times, left_out }) =
            self.lines.record(&format!("{reason}: {}: {watch}", runtime.id), now)
        {
            tracing::warn!(runtime = runtime.id, watch, reason, times, left_out, "event refused");
        }
        self.refused.with_label_values(&[why.label()]).inc();
        Fate::Refused
    }

    fn forward(
        &self,
        runtime: &Runtime,
        target: &Target,
        object: &ObjectRef,
        guard: Option<(String, Guard)>,
        again_in: Option<std::time::Duration>,
    ) -> Fate {
        if runtime.certificate.is_empty() {
            // The manager could not verify the runtime. It runs in the same cluster, and can watch it.
            if let Some((_, guard)) = guard {
                guard.refused();
            }
            return self.refuse(runtime, Refused::Certificate, &target.manager);
        }
        let change = Change {
            key: Key { runtime: Arc::from(runtime.id.as_str()), object: object.clone() },
            certificate: Arc::clone(&runtime.certificate),
            guard,
            again: None,
        };
        match self.forwarders.take(&target.manager, change, again_in) {
            Taken::Held => Fate::Forwarded,
            Taken::Full => Fate::Full,
            Taken::NoCertificate => self.refuse(runtime, Refused::Certificate, &target.manager),
        }
    }

    /// Returns the request unless the event is an echo, or the reconcile in flight decides at its end.
    fn filter_echo(&self, key: &WorkKey, event: &v3::Event<'_>, push: Ask) -> Option<Ask> {
        let Some(version) = version_of(event) else { return Some(push) };
        let push = self.engine.filter_echo(key, &object_of(event), version, push);
        if push.is_none() {
            tracing::debug!(seq = event.seq.0, object = %object_of(event), %key, "an echo, or left to the reconcile in flight");
        }
        push
    }

    fn queue(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
        event: &v3::Event<'_>,
        ticket: &mut Ticket,
    ) -> Fate {
        let reported = reported(runtime, request, event);
        let targets = route::wanted(&reported, &self.engine.state().read());
        let guards = ticket.hold(Route::engine(), targets.len());
        let owned = !targets.is_empty();
        for (key, guard) in targets.into_iter().zip(guards) {
            let guard = if event.watch == v3::CANARY {
                Box::new(Canary(guard, self.paths.clone(), runtime.kyma.clone())) as Box<dyn Acknowledge>
            } else {
                Box::new(Held(guard))
            };
            let (class, trigger) = (route::class(&reported, &key), Some(route::cause(&reported)));
            if let Some(push) = self.filter_echo(&key, event, Push { class, trigger, guards: vec![guard] }) {
                tracing::debug!(runtime = runtime.id, seq = event.seq.0, object = %reported.object, %key, "event queued");
                self.engine.queue().push(key, push);
            }
        }
        if !owned {
            return Fate::Unowned;
        }
        Fate::Queued
    }
}

impl Host for EngineHost {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        if !self.ready.load(Ordering::Acquire) {
            return RuntimeLookup::Starting;
        }
        match self.engine.state().read().kymas.runtime(common_name) {
            index::KymaLookup::Unknown => RuntimeLookup::Unknown,
            index::KymaLookup::One { kyma, domain, created } => {
                // Certificates of others may be older than the Kyma.
                let registered = created.filter(|_| self.engine.enrols_agents());
                RuntimeLookup::One { kyma, domain, registered }
            }
            index::KymaLookup::Ambiguous(n) => RuntimeLookup::Ambiguous(n),
        }
    }

    fn revocations(&self) -> Option<&Revocations> {
        Some(&self.revocations)
    }

    fn manager(&self, name: &str) -> Manager {
        if name == OWN_MANAGER || self.forwarders.table().manager(name).is_some() {
            Manager::Own
        } else if self.engine.state().read().watchers.has_manager(name) {
            Manager::Other
        } else {
            Manager::Unknown
        }
    }

    fn received(&self, runtime: &Runtime, request: &v3::Request<'_>) -> bool {
        self.paths.received(&runtime.kyma, request.health.clone());
        // The receiver's own cluster has no certificate.
        if !runtime.certificate.is_empty() {
            self.paths.certificate(&runtime.kyma, runtime.not_after);
            if let Some(certificates) = &self.certificates {
                certificates.seen(&runtime.kyma, runtime.renewed_by);
            }
        }
        self.claims.must_resync(&runtime.kyma, &runtime.id, request)
    }

    fn refused(&self, peer: &RefusedPeer) {
        let RefusedPeer { reason, verified, names } = peer;
        // Claimed names are unbounded: keep registered ones.
        let Some(id) = &names.common_name else { return };
        let index::KymaLookup::One { kyma, .. } = self.engine.state().read().kymas.runtime(id) else {
            return;
        };
        let refusal = Refusal {
            reason,
            at: jiff::Timestamp::now(),
            subject: names.subject.clone(),
            issuer: names.issuer.clone(),
            not_after: names.not_after,
            verified: *verified,
        };
        self.paths.refused(&kyma, refusal);
    }

    fn mark(&self) -> u64 {
        self.claims.mark()
    }

    fn take_v3(
        &self,
        runtime: &Runtime,
        request: &v3::Request<'_>,
        event: &v3::Event<'_>,
        mut ticket: Ticket,
    ) -> Fate {
        let table = self.forwarders.table();
        match route::direction(&table, &self.namespace, &event.watch, &event.group) {
            Direction::Engine => self.queue(runtime, request, event, &mut ticket),
            // The other managers' contract requires an object's name.
            Direction::Manager(target) if event.change == v3::Change::Resync => {
                ticket.done(Route::manager(target.manager.as_str()));
                let _ = self.queue(runtime, request, event, &mut ticket);
                Fate::Unowned
            }
            Direction::Manager(target) => {
                let route = Route::manager(target.manager.as_str());
                let guard = ticket.hold(route, 1).next().map(|guard| (event.watch.to_string(), guard));
                let fate = self.forward(runtime, &target, &object_of(event), guard, None);
                // Modules may own the object, too.
                if fate == Fate::Forwarded || runtime.certificate.is_empty() {
                    let _ = self.queue(runtime, request, event, &mut ticket);
                }
                fate
            }
            Direction::Refused(why, manager) => {
                // The agent may wait for any route.
                if let Some(manager) = manager {
                    ticket.refuse(Route::manager(manager));
                }
                ticket.refuse(Route::engine());
                self.refuse(runtime, why, &event.watch)
            }
        }
    }

    fn take_v2(&self, runtime: &Runtime, manager: &str, event: &v2::WatchEvent) -> Fate {
        let gvk = &event.watched_gvk;
        let object =
            route::object(&gvk.group, &gvk.version, &gvk.kind, &event.watched.namespace, &event.watched.name);
        if manager != OWN_MANAGER {
            let table = self.forwarders.table();
            return match table.manager(manager) {
                Some(target) if target.groups().contains(gvk.group.as_str()) => {
                    self.forward(runtime, target, &object, None, Some(SECOND_LOOK))
                }
                Some(_) => self.refuse(runtime, Refused::OtherKind, manager),
                None => self.refuse(runtime, Refused::UnknownWatch, manager),
            };
        }
        let reported = ReportedEvent {
            kyma: runtime.kyma.clone(),
            epoch: V2.to_owned(),
            seq: 0,
            watch: V2.to_owned(),
            object,
            of_kind: false,
            listed: false,
        };
        let targets = route::wanted(&reported, &self.engine.state().read());
        if targets.is_empty() {
            return Fate::Unowned;
        }
        for key in targets {
            let class = route::class(&reported, &key);
            let push = Push { class, trigger: Some(route::cause(&reported)), guards: Vec::new() };
            self.engine.queue().push(key.clone(), push);
            route::reconcile_again(&self.engine, key, &reported);
        }
        Fate::Queued
    }
}

fn object_of(event: &v3::Event<'_>) -> ObjectRef {
    route::object(&event.group, &event.version, &event.kind, &event.namespace, &event.name)
}

fn reported(runtime: &Runtime, request: &v3::Request<'_>, event: &v3::Event<'_>) -> ReportedEvent {
    ReportedEvent {
        kyma: runtime.kyma.clone(),
        epoch: request.epoch.to_string(),
        seq: event.seq.0,
        watch: event.watch.to_string(),
        object: object_of(event),
        of_kind: event.change == v3::Change::Resync,
        listed: event.listed,
    }
}

/// Proves the event path when its reconcile has finished.
struct Canary(Guard, PathWatch, String);

impl Acknowledge for Canary {
    fn finished(self: Box<Self>) {
        self.1.canary(&self.2);
        self.0.finished();
    }
}

struct Held(Guard);

impl Acknowledge for Held {
    fn finished(self: Box<Self>) {
        self.0.finished();
    }

    fn is_wanted(&self) -> bool {
        self.0.is_wanted()
    }
}

impl Settle for Guard {
    fn done(self) {
        self.finished();
    }

    fn refused(self) {
        Guard::refused(self);
    }
}

impl Watchers for Engine {
    fn version(&self) -> u64 {
        self.state().read().watchers.version()
    }

    fn all(&self) -> (u64, Vec<Arc<Watcher>>) {
        let state = self.state().read();
        (state.watchers.version(), state.watchers.all())
    }

    fn watch_name(&self, namespace: &str, name: &str) -> String {
        watch_name(namespace, name)
    }
}

#[cfg(test)]
#[path = "span_tests.rs"]
mod span_tests;
#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
