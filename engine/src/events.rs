//! Tells users by Events (core/v1) what a plan has noticed. Never fails a reconcile, and never says the same of one occasion twice
//! an hour.

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
    error::chain,
    kcp::{Kcp, writes::lost},
    outcome::Lost,
    reconcile::runtime_kyma::runtime_kyma,
};

/// The same notice is told once in this time.
const ONCE_IN: Duration = Duration::from_hours(1);
/// One that could not be written is tried again after this time at the earliest: a runtime may take no Events at all.
const FAILED_FOR: Duration = Duration::from_mins(5);
/// What is left out is told after this time, if nothing asks for the work sooner.
const LATER: SignedDuration = SignedDuration::from_mins(1);
/// Notices remembered for that; the oldest are forgotten, and may then be told sooner.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// Between two Events about one Kyma, on average, and how many may come at once. What is more is left out, and told later.
const OF_ONE: (Duration, u32) = (Duration::from_secs(10), 20);
/// The same of the whole engine: a version that ends is news for thousands, whose reconciles are spread already.
const OF_ALL: (Duration, u32) = (Duration::from_millis(10), 1_000);
/// Kymas whose Events are counted; one that is forgotten may be told of more at once.
const COUNTED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();
/// Events of one reconcile.
const AT_ONCE: usize = 8;
/// Notices whose cause is gone when they are told: what is left out of them is not noticed again.
const ONCE: [&str; 2] = ["ModuleUnmanaged", "ManifestHandedOver"];
/// The deadline of one Event in KCP.
const DEADLINE: Duration = Duration::from_secs(5);
/// Longest message of an Event that API servers take, in bytes.
const MAX_MESSAGE: usize = 1024;
/// Who says it.
const COMPONENT: &str = "tidewatch";

/// What was told.
#[derive(Debug)]
pub(crate) struct Told(Mutex<Book>);

/// Modules of Kymas of which it is still to be told that they are Ready again; none of a Kyma that has none.
type Open = HashMap<String, BTreeSet<String>>;

#[derive(Debug)]
struct Book {
    said: LruCache<u64, Said>,
    /// When all Events so far would be over, had they come one after the other (the generic cell rate algorithm): of each Kyma, and of
    /// all together.
    over: LruCache<u64, Instant>,
    all_over: Option<Instant>,
    open: Open,
}

/// When a notice was told, and from when on it may be told again.
#[derive(Clone, Copy, Debug)]
struct Said {
    at: Instant,
    until: Instant,
}

/// Whether something may be told now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// It counts as told then.
    Now,
    /// There is no room.
    Later,
    /// It was told, or tried, lately.
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
    /// Whether this may be told of a Kyma now.
    fn admit(&self, kyma: u64, notice: u64, now: Instant) -> Turn {
        let mut book = self.0.lock();
        if book.said.get(&notice).is_some_and(|said| now < said.until) {
            return Turn::Told;
        }
        let one = after(OF_ONE, book.over.get(&kyma).copied(), now);
        let all = after(OF_ALL, book.all_over, now);
        let (Some(one), Some(all)) = (one, all) else { return Turn::Later };
        book.over.put(kyma, one);
        book.all_over = Some(all);
        book.said.put(notice, Said { at: now, until: now + ONCE_IN });
        Turn::Now
    }

    /// The modules of a Kyma of which it is still to be told that they are Ready again.
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

    /// When it was told, or tried, last.
    fn last(&self, notice: u64) -> Option<Instant> {
        self.0.lock().said.get(&notice).map(|said| said.at)
    }

    /// It could not be told after all.
    fn failed(&self, notice: u64, now: Instant) {
        self.0.lock().said.put(notice, Said { at: now, until: now + FAILED_FOR });
    }

    /// Nobody has tried to tell it.
    fn was_not(&self, notice: u64) {
        self.0.lock().said.pop(&notice);
    }
}

/// When they would be over with one more, if there is room for one now.
fn after((step, at_once): (Duration, u32), over: Option<Instant>, now: Instant) -> Option<Instant> {
    let over = over.unwrap_or(now).max(now) + step;
    (over <= now + step * at_once).then_some(over)
}

fn hash(kyma: &str) -> u64 {
    xxhash_rust::xxh3::xxh3_64(kyma.as_bytes())
}

/// The same for the same notice about the same object, in every process.
fn fingerprint(kyma: &str, notice: &Notice) -> u64 {
    let Notice { about, kind, reason, message, occasion } = notice;
    let text = format!("{kyma}\n{about:?}\n{kind:?}\n{reason}\n{occasion}\n{message}");
    xxhash_rust::xxh3::xxh3_64(text.as_bytes())
}

/// The Event. Its name is the same for an hour, so that another process does not say it again.
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

/// Whether there is an object of that name already.
fn is_taken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

/// Writes Events (core/v1) about Kymas and Manifests.
pub(crate) struct Notifier {
    kcp: Kcp,
    pub(crate) told: Told,
}

impl Notifier {
    pub(crate) fn new(kcp: Kcp) -> Self {
        Self { kcp, told: Told::default() }
    }

    /// Tells something to a runtime's user, about their Kyma.
    pub(crate) async fn notify_user(&self, kyma: &str, runtime: &Gated, notice: Notice) {
        let there = objects::look(runtime, &runtime_kyma()).await.ok().flatten();
        let uid = there.map(|there| there.uid).unwrap_or_default();
        let _alone = self.notify(kyma, Some((runtime, &uid)), &[notice]).await;
    }

    /// Tells what was noticed about a Kyma and its Manifests. `runtime` is its runtime, if there is one to be told in, and
    /// the uid of the Kyma in it, without which tools do not find the Event. Returns when what there was no room for may be told, if
    /// anything was left out.
    pub(crate) async fn notify(
        &self,
        kyma: &str,
        runtime: Option<(&Gated, &str)>,
        notices: &[Notice],
    ) -> Option<Timestamp> {
        let now = Instant::now();
        // First what does not come again, and what was not told for longest: else those at the end were never told.
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
                // After one that was not taken, as where a webhook does not answer, no other one is tried.
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

    /// Tells in KCP what has to be told, before the work that it is about ends: unlike other notices it is never left out, and one that
    /// cannot be written is tried again with that work.
    pub(crate) async fn audit(&self, kyma: &str, notices: &[Notice]) -> Result<(), Lost> {
        for notice in notices {
            if self.kcp.gate.kcp()?.is_dry() {
                continue;
            }
            let Some(object) = self.reference(kyma, &notice.about) else { continue };
            let event = event(notice, object, fingerprint(kyma, notice), self.kcp.now());
            match self.create_event(&event).await {
                Ok(Ok(())) => {}
                // It would be refused again, and holds nothing up: the log has said the same.
                Ok(Err(kube::Error::Api(status))) if matches!(status.code, 400 | 403 | 404 | 422) => {
                    tracing::warn!(
                        kyma,
                        reason = notice.reason,
                        error = status.message,
                        "KCP does not take an Event"
                    );
                }
                Ok(Err(error)) => {
                    return Err(lost(format!("writing the Event {} of {kyma}", notice.reason), error));
                }
                Err(_) => return Err(Lost::Deadline(DEADLINE)),
            }
        }
        Ok(())
    }

    /// What a notice in KCP is about; `None` for one that is told in a runtime.
    fn reference(&self, kyma: &str, about: &About) -> Option<ObjectReference> {
        let namespace = &*self.kcp.namespace;
        Some(match about {
            About::Kyma => {
                let uid = self.kcp.index().kyma(kyma).and_then(|k| k.uid());
                reference("Kyma", namespace, kyma, uid)
            }
            About::Manifest(name) => {
                let manifests = self.kcp.index().manifests_of(kyma);
                let uid = manifests.iter().find(|m| m.name_any() == *name).and_then(ResourceExt::uid);
                reference("Manifest", namespace, name, uid)
            }
            About::RuntimeKyma => return None,
        })
    }

    /// Writes an Event in KCP, unless it is there.
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

/// Why an Event was not written.
enum NotWritten {
    /// Nothing may be written at the moment.
    Held,
    /// The API server has not taken it, or not answered.
    Failed(String),
}

#[cfg(test)]
mod tests;
