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
const REPEAT_AFTER: Duration = Duration::from_hours(1);
/// Wait before an Event that could not be written is retried: a runtime may reject all Events.
const RETRY_AFTER: Duration = Duration::from_mins(5);
/// When postponed notices are due, unless a reconcile comes sooner.
const POSTPONED_FOR: SignedDuration = SignedDuration::from_mins(1);
/// Notices remembered; the oldest are evicted, and may then be repeated sooner.
const MAX_NOTICES: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// Rate of Events about one Kyma. Excess notices are postponed.
const KYMA_RATE: Rate = Rate { interval: Duration::from_secs(10), burst: 20 };
/// Rate of all Events. The end of a version concerns thousands of Kymas, whose reconciles are already spread.
const TOTAL_RATE: Rate = Rate { interval: Duration::from_millis(10), burst: 1_000 };
/// Kymas with a rate; an evicted one gets a new burst.
const MAX_KYMAS: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// Events written by one call of [`Notifier::notify`].
const MAX_PER_CALL: usize = 8;
/// Reasons whose notices are not repeated by a later plan.
const UNREPEATED: [&str; 2] = ["ModuleUnmanaged", "ManifestHandedOver"];
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest message that API servers accept, in bytes.
const MAX_MESSAGE: usize = 1024;
const COMPONENT: &str = "tidewatch";

/// An average interval and a burst.
struct Rate {
    interval: Duration,
    burst: u32,
}

impl Rate {
    /// The end of all Events so far at the average rate, with one more (generic cell rate algorithm); `None` if the rate is exceeded.
    fn admit(&self, ends_at: Option<Instant>, now: Instant) -> Option<Instant> {
        let ends_at = ends_at.unwrap_or(now).max(now) + self.interval;
        (ends_at <= now + self.interval * self.burst).then_some(ends_at)
    }
}

/// The Events written before, for deduplication and rates.
#[derive(Debug)]
pub(crate) struct SentNotices(Mutex<Sent>);

/// Modules per Kyma whose return to Ready is not reported yet. Kymas without such modules have no entry.
type Unreported = HashMap<String, BTreeSet<String>>;

#[derive(Debug)]
struct Sent {
    notices: LruCache<u64, SentNotice>,
    /// See [`Rate::admit`]; by the hash of the Kyma's name.
    kymas_end_at: LruCache<u64, Instant>,
    total_ends_at: Option<Instant>,
    unreported: Unreported,
}

#[derive(Clone, Copy, Debug)]
struct SentNotice {
    at: Instant,
    suppressed_until: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    Postponed,
    Sent,
}

impl Default for SentNotices {
    fn default() -> Self {
        Self(Mutex::new(Sent {
            notices: LruCache::new(MAX_NOTICES),
            kymas_end_at: LruCache::new(MAX_KYMAS),
            total_ends_at: None,
            unreported: Unreported::new(),
        }))
    }
}

impl SentNotices {
    /// Decides about a notice and counts it.
    fn admit(&self, kyma: u64, notice: u64, now: Instant) -> Turn {
        let mut sent = self.0.lock();
        if sent.notices.get(&notice).is_some_and(|notice| now < notice.suppressed_until) {
            return Turn::Sent;
        }
        let kyma_ends_at = KYMA_RATE.admit(sent.kymas_end_at.get(&kyma).copied(), now);
        let total_ends_at = TOTAL_RATE.admit(sent.total_ends_at, now);
        let (Some(kyma_ends_at), Some(total_ends_at)) = (kyma_ends_at, total_ends_at) else {
            return Turn::Postponed;
        };
        sent.kymas_end_at.put(kyma, kyma_ends_at);
        sent.total_ends_at = Some(total_ends_at);
        sent.notices.put(notice, SentNotice { at: now, suppressed_until: now + REPEAT_AFTER });
        Turn::Now
    }

    /// The modules of a Kyma whose return to Ready is not reported yet.
    pub(crate) fn unreported(&self, kyma: &str) -> BTreeSet<String> {
        self.0.lock().unreported.get(kyma).cloned().unwrap_or_default()
    }

    pub(crate) fn set_unreported(&self, kyma: &str, modules: BTreeSet<String>) {
        let unreported = &mut self.0.lock().unreported;
        if modules.is_empty() {
            unreported.remove(kyma);
        } else {
            unreported.insert(kyma.to_owned(), modules);
        }
    }

    fn last_sent(&self, notice: u64) -> Option<Instant> {
        self.0.lock().notices.get(&notice).map(|notice| notice.at)
    }

    fn failed(&self, notice: u64, now: Instant) {
        self.0.lock().notices.put(notice, SentNotice { at: now, suppressed_until: now + RETRY_AFTER });
    }

    /// Reverts an admission without a try.
    fn retract(&self, notice: u64) {
        self.0.lock().notices.pop(&notice);
    }
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
    pub(crate) sent: SentNotices,
}

impl Notifier {
    pub(crate) fn new(kcp: Kcp) -> Self {
        Self { kcp, sent: SentNotices::default() }
    }

    /// Writes an Event about the runtime's Kyma for its user.
    pub(crate) async fn notify_user(&self, kyma: &str, runtime: &Gated, notice: Notice) {
        let present = objects::find(runtime, &runtime_kyma(runtime)).await.ok().flatten();
        let uid = present.map(|present| present.uid).unwrap_or_default();
        let _not_postponed = self.notify(kyma, Some((runtime, &uid)), &[notice]).await;
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
        let (mut written, mut is_postponed, mut runtime_failed) = (0, false, false);
        for (number, notice) in self.by_urgency(kyma, notices) {
            let is_of_runtime = notice.about == About::RuntimeKyma;
            // After a failure in the runtime, such as an unavailable webhook, skip its other Events.
            if is_of_runtime && runtime_failed || !self.may_write(notice, runtime) {
                continue;
            }
            let turn = if written < MAX_PER_CALL {
                self.sent.admit(hash(kyma), number, now)
            } else {
                Turn::Postponed
            };
            match turn {
                Turn::Now => {}
                Turn::Sent => continue,
                Turn::Postponed => {
                    is_postponed |= self.sent.last_sent(number).is_none();
                    continue;
                }
            }
            let Some((object, runtime)) = self.target(kyma, &notice.about, runtime) else { continue };
            let event = event(notice, object, number, self.kcp.now());
            match self.write_event(&event, runtime).await {
                Ok(()) => written += 1,
                Err(NotWritten::Held) => self.sent.retract(number),
                Err(NotWritten::Failed(error)) => {
                    self.sent.failed(number, now);
                    runtime_failed |= is_of_runtime;
                    let reason = notice.reason;
                    tracing::debug!(
                        kyma,
                        reason,
                        error,
                        "an Event could not be written; the status has the same message"
                    );
                }
            }
        }
        is_postponed.then(|| self.kcp.now().saturating_add(POSTPONED_FOR).unwrap_or(Timestamp::MAX))
    }

    /// The notices with their fingerprints. Unrepeatable notices and those not written for longest go first, so that all get their turn.
    fn by_urgency<'a>(&self, kyma: &str, notices: &'a [Notice]) -> Vec<(u64, &'a Notice)> {
        let mut sorted: Vec<_> = notices.iter().map(|notice| (fingerprint(kyma, notice), notice)).collect();
        sorted.sort_by_cached_key(|(number, notice)| {
            (self.sent.last_sent(*number), !UNREPEATED.contains(&notice.reason))
        });
        sorted
    }

    /// Whether the gate allows the Event. A dry run writes none.
    fn may_write(&self, notice: &Notice, runtime: Option<(&Gated, &str)>) -> bool {
        let permit = match runtime {
            _ if notice.about != About::RuntimeKyma => self.kcp.gate.kcp(),
            Some((runtime, _)) => runtime.permit(),
            None => return false,
        };
        permit.is_ok_and(|permit| !permit.is_dry())
    }

    /// The object of a notice, and the runtime if the Event is written there.
    fn target<'a>(
        &self,
        kyma: &str,
        about: &About,
        runtime: Option<(&'a Gated, &str)>,
    ) -> Option<(ObjectReference, Option<&'a Gated>)> {
        if let Some(object) = self.reference(kyma, about) {
            return Some((object, None));
        }
        let (runtime, uid) = runtime?;
        let uid = (!uid.is_empty()).then(|| uid.to_owned());
        let kyma = runtime_kyma(runtime);
        let object = reference("Kyma", &kyma.namespace, &kyma.name, uid);
        Some((object, Some(runtime)))
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
                        "KCP rejects an Event"
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
