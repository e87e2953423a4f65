//! Writes Events (core/v1) about a plan's notices. Never fails a reconcile, and never repeats a notice within an hour.

use std::{
    collections::{BTreeSet, HashMap},
    num::NonZeroUsize,
    time::Duration,
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Event, EventSource, ObjectReference},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, ResourceExt, api::PostParams};
use lru::LruCache;
use parking_lot::Mutex;
use tidewatch_api::names;
use tidewatch_planner::notice::{About, Notice};
use tokio::time::Instant;

use crate::{
    clusters::{Gated, objects},
    error::{Error, chain},
    kcp::Kcp,
    reconcile::runtime_kyma::runtime_kyma,
};

/// Time before a notice may be repeated.
const ONCE_IN: Duration = Duration::from_hours(1);
/// Wait before an Event that could not be written is retried: a runtime may reject all Events.
const FAILED_FOR: Duration = Duration::from_mins(5);
/// When postponed notices are due, unless a reconcile comes sooner.
const LATER: SignedDuration = SignedDuration::from_mins(1);
/// Notices remembered; the oldest are evicted, and may then be repeated sooner.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// Average interval and burst of Events about one Kyma. Excess notices are postponed.
const OF_ONE: (Duration, u32) = (Duration::from_secs(10), 20);
/// Average interval and burst of all Events. The end of a version concerns thousands of Kymas, whose reconciles are already spread.
const OF_ALL: (Duration, u32) = (Duration::from_millis(10), 1_000);
/// Kymas with a rate; an evicted one gets a new burst.
const COUNTED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
const AT_ONCE: usize = 8;
/// Reasons whose notices are not repeated by a later plan.
const ONCE: [&str; 2] = ["ModuleUnmanaged", "ManifestHandedOver"];
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest message that API servers accept, in bytes.
const MAX_MESSAGE: usize = 1024;
const COMPONENT: &str = "tidewatch";

#[derive(Debug)]
pub(crate) struct Told(Mutex<Book>);

/// Modules per Kyma whose return to Ready is not reported yet. Kymas without such modules have no entry.
type Open = HashMap<String, BTreeSet<String>>;

#[derive(Debug)]
struct Book {
    said: LruCache<u64, Said>,
    /// End of all Events so far at the average rate (generic cell rate algorithm), per Kyma and in total.
    over: LruCache<u64, Instant>,
    all_over: Option<Instant>,
    open: Open,
}

#[derive(Clone, Copy, Debug)]
struct Said {
    at: Instant,
    until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    Later,
    Told,
}

impl Default for Told {
    fn default() -> Self {
        Self(Mutex::new(Book {
            said: LruCache::new(REMEMBERED),
            over: LruCache::new(COUNTED),
            all_over: None,
            open: Open::new(),
        }))
    }
}

impl Told {
    /// Decides about a notice and counts it.
    fn admit(&self, kyma: u64, notice: u64, now: Instant) -> Turn {
        let mut book = self.0.lock();
        if book.said.get(&notice).is_some_and(|said| now < said.until) {
            return Turn::Told;
        }
        let one = after(OF_ONE.0, OF_ONE.1, book.over.get(&kyma).copied(), now);
        let all = after(OF_ALL.0, OF_ALL.1, book.all_over, now);
        let (Some(one), Some(all)) = (one, all) else { return Turn::Later };
        book.over.put(kyma, one);
        book.all_over = Some(all);
        book.said.put(notice, Said { at: now, until: now + ONCE_IN });
        Turn::Now
    }

    /// The modules of a Kyma whose return to Ready is not reported yet.
    pub(crate) fn open(&self, kyma: &str) -> BTreeSet<String> {
        self.0.lock().open.get(kyma).cloned().unwrap_or_default()
    }

    pub(crate) fn keep_open(&self, kyma: &str, open: BTreeSet<String>) {
        let all = &mut self.0.lock().open;
        if open.is_empty() {
            all.remove(kyma);
        } else {
            all.insert(kyma.to_owned(), open);
        }
    }

    fn last(&self, notice: u64) -> Option<Instant> {
        self.0.lock().said.get(&notice).map(|said| said.at)
    }

    fn failed(&self, notice: u64, now: Instant) {
        self.0.lock().said.put(notice, Said { at: now, until: now + FAILED_FOR });
    }

    /// Reverts an admission without a try.
    fn was_not(&self, notice: u64) {
        self.0.lock().said.pop(&notice);
    }
}

/// The new end at the average rate; `None` if the rate is exceeded.
fn after(step: Duration, at_once: u32, over: Option<Instant>, now: Instant) -> Option<Instant> {
    let over = over.unwrap_or(now).max(now) + step;
    (over <= now + step * at_once).then_some(over)
}

fn hash(kyma: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(kyma.as_bytes())
}

fn fingerprint(kyma: &str, notice: &Notice) -> u64 {
    let Notice { about, kind, reason, message, occasion } = notice;
    let text = format!("{kyma}\n{about:?}\n{kind:?}\n{reason}\n{occasion}\n{message}");
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// Builds the Event. Its name is constant for an hour, so that another process does not repeat it.
fn event(notice: &Notice, object: ObjectReference, fingerprint: u64, now: Timestamp) -> Event {
    let hour = now.as_second() / 3600;
    let name = format!("{}.{fingerprint:016x}.{hour:x}", object.name.as_deref().unwrap_or_default());
    let mut end = notice.message.len().min(MAX_MESSAGE);
    while !notice.message.is_char_boundary(end) {
        end -= 1;
    }
    Event {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: object.namespace.clone(),
            ..ObjectMeta::default()
        },
        involved_object: object,
        type_: Some(notice.kind.as_str().to_owned()),
        reason: Some(notice.reason.to_owned()),
        message: Some(notice.message[..end].to_owned()),
        source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
        reporting_component: Some(COMPONENT.to_owned()),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        ..Event::default()
    }
}

fn reference(kind: &str, namespace: &str, name: &str, uid: Option<String>) -> ObjectReference {
    ObjectReference {
        api_version: Some(names::API_VERSION.to_owned()),
        kind: Some(kind.to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(name.to_owned()),
        uid,
        ..ObjectReference::default()
    }
}

fn is_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub(crate) struct Notifier {
    kcp: Kcp,
    pub(crate) told: Told,
}

impl Notifier {
    pub(crate) fn new(kcp: Kcp) -> Self {
        Self { kcp, told: Told::default() }
    }

    /// Writes an Event about the runtime's Kyma for its user.
    pub(crate) async fn notify_user(&self, kyma: &str, runtime: &Gated, notice: Notice) {
        let there = objects::look(runtime, &runtime_kyma()).await.ok().flatten();
        let uid = there.map(|there| there.uid).unwrap_or_default();
        let _alone = self.notify(kyma, Some((runtime, &uid)), &[notice]).await;
    }

    /// Writes notices about a Kyma and its Manifests. Returns when postponed notices are due.
    ///
    /// `runtime` holds the runtime's client and the uid of its Kyma; without the uid, tools do not find the Event.
    pub(crate) async fn notify(
        &self,
        kyma: &str,
        runtime: Option<(&Gated, &str)>,
        notices: &[Notice],
    ) -> Option<Timestamp> {
        let now = Instant::now();
        // Unrepeatable notices and those not written for longest go first, so that all get their turn.
        let mut all: Vec<_> = notices
            .iter()
            .map(|notice| (notice, fingerprint(kyma, notice)))
            .map(|(notice, number)| (self.told.last(number), !ONCE.contains(&notice.reason), number, notice))
            .collect();
        all.sort_by_key(|(last, again, ..)| (*last, *again));
        let (mut told, mut left_out, mut deaf) = (0, false, false);
        for (_, _, number, notice) in all {
            let of_runtime = notice.about == About::RuntimeKyma;
            let leave = match runtime {
                // After a failure in the runtime, such as an unavailable webhook, skip its other Events.
                _ if of_runtime && deaf => continue,
                None if of_runtime => continue,
                Some((runtime, _)) if of_runtime => runtime.permit(),
                _ => self.kcp.gate.kcp(),
            };
            if leave.map_or(true, |permit| permit.is_dry()) {
                continue;
            }
            let turn = if told < AT_ONCE { self.told.admit(hash(kyma), number, now) } else { Turn::Later };
            match turn {
                Turn::Now => {}
                Turn::Told => continue,
                Turn::Later => {
                    left_out |= self.told.last(number).is_none();
                    continue;
                }
            }
            let (object, runtime) = match (self.reference(kyma, &notice.about), runtime) {
                (Some(object), _) => (object, None),
                (None, Some((runtime, uid))) => {
                    let (namespace, name) = (names::RUNTIME_NAMESPACE, names::RUNTIME_KYMA_NAME);
                    let uid = (!uid.is_empty()).then(|| uid.to_owned());
                    (reference("Kyma", namespace, name, uid), Some(runtime))
                }
                (None, None) => continue,
            };
            let event = event(notice, object, number, self.kcp.now());
            match self.write_event(&event, runtime).await {
                Ok(()) => told += 1,
                Err(NotWritten::Held) => self.told.was_not(number),
                Err(NotWritten::Failed(error)) => {
                    let reason = notice.reason;
                    self.told.failed(number, now);
                    deaf |= of_runtime;
                    tracing::debug!(
                        kyma,
                        reason,
                        error,
                        "an Event could not be written; the status says the same"
                    );
                }
            }
        }
        left_out.then(|| self.kcp.now().saturating_add(LATER).unwrap_or(Timestamp::MAX))
    }

    /// Writes notices in KCP before their reconcile ends. They are never postponed, and a failure fails the reconcile.
    pub(crate) async fn audit(&self, kyma: &str, notices: &[Notice]) -> Result<(), Error> {
        for notice in notices {
            if self.kcp.gate.kcp()?.is_dry() {
                continue;
            }
            let Some(object) = self.reference(kyma, &notice.about) else { continue };
            let event = event(notice, object, fingerprint(kyma, notice), self.kcp.now());
            match self.create_event(&event).await {
                Ok(Ok(())) => {}
                // A retry would be rejected again. Do not block: the log has the same message.
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 403 | 404 | 422) => {
                    tracing::warn!(
                        kyma,
                        reason = notice.reason,
                        error = status.message,
                        "KCP does not take an Event"
                    );
                }
                Ok(Err(error)) => {
                    return Err(Error::kcp(format!("writing the Event {} of {kyma}", notice.reason), error));
                }
                Err(_) => return Err(Error::Deadline(DEADLINE)),
            }
        }
        Ok(())
    }

    /// The object of a notice in KCP; `None` for one in a runtime.
    fn reference(&self, kyma: &str, about: &About) -> Option<ObjectReference> {
        let namespace = &*self.kcp.namespace;
        Some(match about {
            About::Kyma => {
                let uid = self.kcp.index().kymas.get(kyma).and_then(|k| k.uid());
                reference("Kyma", namespace, kyma, uid)
            }
            About::Manifest(name) => {
                let manifests = self.kcp.index().manifests.list(kyma);
                let uid = manifests.iter().find(|m| m.name_any() == *name).and_then(ResourceExt::uid);
                reference("Manifest", namespace, name, uid)
            }
            About::RuntimeKyma => return None,
        })
    }

    async fn create_event(&self, event: &Event) -> Result<kube::Result<()>, tokio::time::error::Elapsed> {
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(self.kcp.client.clone(), &namespace);
        let params = PostParams::default();
        let written = tokio::time::timeout(DEADLINE, api.create(&params, event)).await?;
        Ok(match written {
            Err(error) if !is_taken(&error) => Err(error),
            _ => Ok(()),
        })
    }

    async fn write_event(&self, event: &Event, runtime: Option<&Gated>) -> Result<(), NotWritten> {
        let failed = |error: &dyn std::error::Error| NotWritten::Failed(chain(error));
        let Some(runtime) = runtime else {
            let written = self.create_event(event).await.map_err(|elapsed| failed(&elapsed))?;
            return written.map_err(|error| failed(&error));
        };
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let api: Api<Event> = Api::namespaced(runtime.kube(), &namespace);
        let create = async {
            match api.create(&PostParams::default(), event).await {
                Err(error) if !is_taken(&error) => Err(error),
                _ => Ok(()),
            }
        };
        match runtime.write("writing an Event", create).await {
            Ok(written) => written.map_err(|error| failed(&error)),
            Err(_) => Err(NotWritten::Held),
        }
    }
}

enum NotWritten {
    Held,
    Failed(String),
}

#[cfg(test)]
mod tests;
