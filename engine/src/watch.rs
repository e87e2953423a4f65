//! Watches on KCP that keep [`KcpState`] up to date and request reconciles.

mod known;

use std::{collections::HashMap, fmt::Debug, sync::Arc, time::Duration};

use futures::{StreamExt, stream::BoxStream};
use k8s_openapi::{
    api::core::v1::{ConfigMap, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{DeserializeGuard, PartialObjectMeta},
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::{Mutex, RwLock};
use serde::de::DeserializeOwned;
use tidewatch_api::{Kyma, Manifest, ModuleReleaseMeta, ModuleTemplate, Watcher, names::labels};
use tidewatch_deployer::transform::DEPLOYER;
use tidewatch_planner::{policy, rollout, writers::keep_writers};
use tokio::{sync::watch, task::JoinSet};

use self::known::{Known, Others};
use crate::{
    config::EngineConfig,
    index::{KcpState, SecretRef, Wanted},
    key::{Queue, WorkKey},
    queue::{Class, Push},
    trigger::{Change, Trigger},
};

/// Seconds until the server ends a watch, to notice half-open connections. kube adds a few.
const WATCH_SECONDS: u32 = 200;

/// Delay before an overwritten status is restored: the rate limit of a conflict.
pub(crate) const OVERWRITE_DELAY: Duration = Duration::from_secs(5);

/// The watches on KCP. Dropping it ends them.
pub struct Feeds {
    tasks: JoinSet<()>,
    ready: watch::Receiver<usize>,
    count: usize,
}

/// Watch of the image pull Secret.
const PULL_SECRET: &str = "PullSecret";

/// Watch of Secrets with module data.
const MODULE_SECRET: &str = "ModuleSecret";

struct Context {
    state: Arc<RwLock<KcpState>>,
    queue: Queue,
    ready: watch::Sender<usize>,
    /// Rollout window of a catalog change.
    rollout: Duration,
}

/// A requested reconcile, with the changed object's name and change mark.
struct Asked {
    wanted: Wanted,
    object: Arc<str>,
    change: Arc<str>,
}

impl Feeds {
    /// Starts all watches in one KCP namespace.
    ///
    /// Catalog changes reach Kymas spread over the rollout window.
    pub(crate) fn start(
        kcp: &Client,
        config: &EngineConfig,
        state: &Arc<RwLock<KcpState>>,
        queue: &Queue,
    ) -> Self {
        let (client, namespace) = (|| Client::clone(kcp), config.namespace.as_str());
        let (ready_tx, ready) = watch::channel(0);
        let context = Arc::new(Context {
            state: Arc::clone(state),
            queue: queue.clone(),
            ready: ready_tx,
            rollout: config.rollout_window,
        });
        let mut tasks = JoinSet::new();
        let plain = watcher::Config::default().timeout(WATCH_SECONDS);

        macro_rules! feed {
            ($kind:ty, $apply:expr, $remove:expr) => {
                feed!($kind, nothing, $apply, $remove)
            };
            ($kind:ty, $keep:expr, $apply:expr, $remove:expr) => {
                feed!($kind, $keep, $apply, $remove, None)
            };
            ($kind:ty, $keep:expr, $apply:expr, $remove:expr, $others:expr) => {
                let kind = <$kind as Resource>::kind(&()).into_owned();
                let events = guarded::<$kind>(Api::namespaced(client(), namespace), plain.clone(), $keep);
                tasks.spawn(run(Arc::clone(&context), kind, events, $apply, $remove, $others));
            };
        }
        let kymas = Some((|state, names| state.kymas.names_besides(names)) as Others);
        feed!(Kyma, keep_writers, |s, _, o| s.apply_kyma(o), KcpState::delete_kyma, kymas);
        let manifests = Some((|state, names| state.manifests.names_besides(names)) as Others);
        feed!(Manifest, keep_writers, |s, _, o| s.apply_manifest(o), KcpState::delete_manifest, manifests);
        feed!(ModuleTemplate, |s, n, o| s.apply_template(n, Some(o)), |s, n| s.apply_template(n, None));
        feed!(
            ModuleReleaseMeta,
            rollout::keep_time_of_change,
            |s, n, o| s.apply_release(n, Some(o)),
            |s, n| s.apply_release(n, None)
        );
        feed!(Watcher, |s, n, o| s.apply_watcher(n, Some(o)), |s, n| s.apply_watcher(n, None));
        let one = plain.clone().fields(&format!("metadata.name={}", policy::NAME));
        let settings = guarded::<ConfigMap>(Api::namespaced(client(), namespace), one, nothing);
        tasks.spawn(run(
            Arc::clone(&context),
            "ConfigMap".to_owned(),
            settings,
            |s, _, o| {
                s.apply_policy(Some(o.data.as_ref().and_then(|d| d.get(policy::KEY)).map(String::as_str)))
            },
            |s, _| s.apply_policy(None),
            None,
        ));
        let secrets = Secrets { client: client(), namespace: namespace.to_owned(), context };
        if let Some(name) = &config.pull_secret {
            tasks.spawn(secrets.pull_secret(plain.clone(), name));
        }
        tasks.spawn(secrets.module_secrets(plain));
        tasks.spawn(secrets.kubeconfigs());
        let count = tasks.len();
        Self { tasks, ready, count }
    }

    /// Waits for every first list. Earlier plans would be incomplete.
    pub async fn ready(&mut self) {
        let mut ready = self.ready.clone();
        let all = ready.wait_for(|n| *n >= self.count);
        // The senders live as long as self.
        let _ = all.await;
    }

    /// Returns if a watch ends, which is unexpected.
    pub async fn failed(&mut self) {
        self.tasks.join_next().await;
    }
}

/// Starts the watches of Secrets. Their data is never read.
struct Secrets {
    client: Client,
    namespace: String,
    context: Arc<Context>,
}

impl Secrets {
    fn api(&self) -> Api<PartialObjectMeta<Secret>> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// The platform's image pull Secret.
    fn pull_secret(&self, plain: watcher::Config, name: &str) -> impl Future<Output = ()> + Send + use<> {
        let last: Mutex<Option<String>> = Mutex::default();
        let events = metadata(self.api(), plain.fields(&format!("metadata.name={name}")));
        run(
            Arc::clone(&self.context),
            PULL_SECRET.to_owned(),
            events,
            // A relist is no change.
            move |s, _, o| {
                let version = o.resource_version();
                let before = std::mem::replace(&mut *last.lock(), version.clone());
                if before == version { Vec::new() } else { s.pull_secret_changed() }
            },
            |s, _| s.pull_secret_changed(),
            None,
        )
    }

    /// Secrets that the deployer module receives; it gets no others.
    fn module_secrets(&self, plain: watcher::Config) -> impl Future<Output = ()> + Send + use<> {
        let events = metadata(self.api(), plain.labels(&format!("{}={DEPLOYER}", labels::MODULE_NAME)));
        let versions: Arc<Mutex<HashMap<String, Option<String>>>> = Arc::default();
        let deleted = Arc::clone(&versions);
        run(
            Arc::clone(&self.context),
            MODULE_SECRET.to_owned(),
            events,
            // A relist is no change.
            move |s, n, o| {
                let version = o.resource_version();
                let before = versions.lock().insert(n.to_owned(), version.clone());
                if before == Some(version) { Vec::new() } else { s.module_secret_changed() }
            },
            move |s, n| {
                deleted.lock().remove(n);
                s.module_secret_changed()
            },
            None,
        )
    }

    /// Kubeconfigs of runtimes, by the Kyma that their label names.
    fn kubeconfigs(&self) -> impl Future<Output = ()> + Send + use<> {
        let owners: Arc<Mutex<HashMap<String, String>>> = Arc::default();
        let deleted = Arc::clone(&owners);
        run(
            Arc::clone(&self.context),
            "Secret".to_owned(),
            secrets(self.client.clone(), &self.namespace),
            move |s, n, o| {
                let Some(kyma) = o.labels().get(labels::KYMA_NAME).cloned() else { return Vec::new() };
                let before = owners.lock().insert(n.to_owned(), kyma.clone());
                let mut wanted = match before {
                    Some(before) if before != kyma => s.apply_secret(&before, n, None),
                    _ => Vec::new(),
                };
                let secret = SecretRef {
                    name: n.to_owned(),
                    uid: o.uid().unwrap_or_default(),
                    resource_version: o.resource_version().unwrap_or_default(),
                };
                wanted.extend(s.apply_secret(&kyma, n, Some(secret)));
                wanted
            },
            move |s, n| match deleted.lock().remove(n) {
                Some(kyma) => s.apply_secret(&kyma, n, None),
                None => Vec::new(),
            },
            None,
        )
    }
}

/// A watched object, or its parse error.
struct Seen<K> {
    name: String,
    object: Result<K, String>,
    /// Uid and generation.
    change: Arc<str>,
}

type Events<K> = BoxStream<'static, watcher::Result<watcher::Event<Seen<K>>>>;

fn map<A, B>(event: watcher::Event<A>, f: impl FnOnce(A) -> B) -> watcher::Event<B> {
    match event {
        watcher::Event::Apply(o) => watcher::Event::Apply(f(o)),
        watcher::Event::Delete(o) => watcher::Event::Delete(f(o)),
        watcher::Event::InitApply(o) => watcher::Event::InitApply(f(o)),
        watcher::Event::Init => watcher::Event::Init,
        watcher::Event::InitDone => watcher::Event::InitDone,
    }
}

fn change_of(object: &impl ResourceExt) -> Arc<str> {
    rollout::change_of(object).into()
}

/// Drops the large managed fields.
fn nothing(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}

/// Watches whole objects; `keep` reduces managed fields. Unparsable objects do not block others.
fn guarded<K>(api: Api<DeserializeGuard<K>>, config: watcher::Config, keep: fn(&mut ObjectMeta)) -> Events<K>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default + Clone + Send + Sync,
{
    let seen = move |guard: DeserializeGuard<K>| Seen {
        name: guard.name_any(),
        change: change_of(&guard),
        object: guard.0.map_err(|invalid| invalid.error).map(|mut object| {
            keep(object.meta_mut());
            object
        }),
    };
    watcher(api, config).default_backoff().map(move |event| event.map(|event| map(event, seen))).boxed()
}

/// Watches metadata only: kubeconfigs are read on demand, never kept.
fn secrets(client: Client, namespace: &str) -> Events<PartialObjectMeta<Secret>> {
    let api: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, namespace);
    metadata(api, watcher::Config::default().timeout(WATCH_SECONDS).labels(labels::KYMA_NAME))
}

fn metadata(
    api: Api<PartialObjectMeta<Secret>>,
    config: watcher::Config,
) -> Events<PartialObjectMeta<Secret>> {
    let seen = |object: PartialObjectMeta<Secret>| Seen {
        name: object.name_any(),
        change: change_of(&object),
        object: Ok(object),
    };
    watcher(api, config).default_backoff().map(move |event| event.map(|event| map(event, seen))).boxed()
}

/// Message of a forbidden watch.
fn forbidden(error: &watcher::Error) -> Option<&str> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchError(status)) = error
    else {
        return None;
    };
    (status.code == 403).then_some(&*status.message)
}

/// Follows a watch. With `others`, the state holds all its objects.
async fn run<K, A, R>(
    context: Arc<Context>,
    kind: String,
    mut stream: Events<K>,
    apply: A,
    remove: R,
    others: Option<Others>,
) where
    K: Send + 'static,
    A: Fn(&mut KcpState, &str, K) -> Vec<Wanted> + Send,
    R: Fn(&mut KcpState, &str) -> Vec<Wanted> + Send,
{
    let mut known = Known::new(others);
    let mut pending: Vec<Asked> = Vec::new();
    let gone = |name: &str, wanted: Vec<Wanted>| asked(name, &"gone".into(), wanted);
    let mut first = true;
    while let Some(event) = stream.next().await {
        match event {
            Err(error) => match forbidden(&error) {
                Some(why) => tracing::error!(
                    kind,
                    why,
                    "KCP does not allow a watch that the engine needs; it is tried again: the role is in files/rbac/receiver.yaml of the chart"
                ),
                None => tracing::warn!(kind, %error, "the watch on KCP was interrupted and starts again"),
            },
            // An interrupted list's requests stay pending: its objects are in the state.
            Ok(watcher::Event::Init) => known.list_begins(),
            Ok(watcher::Event::InitApply(seen)) => {
                known.listed(&seen.name);
                pending.extend(context.apply(&kind, seen, &apply));
            }
            Ok(watcher::Event::InitDone) => {
                let is_empty = known.is_list_empty();
                let over = known.list_ends(&context.state.read());
                for name in &over {
                    pending.extend(gone(name, remove(&mut context.state.write(), name)));
                }
                // A missing policy is also a policy.
                if first && kind == "ConfigMap" && is_empty {
                    pending.extend(gone(policy::NAME, remove(&mut context.state.write(), policy::NAME)));
                }
                context.push(&kind, &mut pending, first);
                if std::mem::take(&mut first) {
                    context.ready.send_modify(|n| *n += 1);
                }
            }
            Ok(watcher::Event::Apply(seen)) => {
                known.shown(&seen.name);
                pending.extend(context.apply(&kind, seen, &apply));
                context.push(&kind, &mut pending, false);
            }
            Ok(watcher::Event::Delete(seen)) => {
                pending.extend(gone(&seen.name, remove(&mut context.state.write(), &seen.name)));
                known.gone(&seen.name);
                context.push(&kind, &mut pending, false);
            }
        }
    }
}

impl Context {
    /// Applies an object; an unparsable one changes nothing.
    fn apply<K>(
        &self,
        kind: &str,
        seen: Seen<K>,
        apply: &impl Fn(&mut KcpState, &str, K) -> Vec<Wanted>,
    ) -> Vec<Asked> {
        let Seen { name, object, change } = seen;
        match object {
            Ok(object) => asked(&name, &change, apply(&mut self.state.write(), &name, object)),
            Err(error) => {
                tracing::warn!(kind, name, error, "an object in KCP cannot be read and is passed over");
                Vec::new()
            }
        }
    }

    fn push(&self, kind: &str, asked: &mut Vec<Asked>, start: bool) {
        for Asked { wanted: (key, change), object, change: which } in asked.drain(..) {
            // At a start each Kyma's reconcile requests its agent after preparing the runtime.
            if start && matches!(key, WorkKey::AgentConfig { .. }) {
                continue;
            }
            let class = match kind {
                _ if matches!(key, WorkKey::Catalog { .. }) => Class::Catalog,
                _ if start => Class::Resync,
                _ if matches!(key, WorkKey::AgentConfig { .. }) => Class::Rollout,
                // Interference may repeat, so it is not urgent.
                _ if change.is_interference() => Class::Resync,
                "ModuleTemplate" | "ModuleReleaseMeta" | "Watcher" | "ConfigMap" | PULL_SECRET
                | MODULE_SECRET => Class::Rollout,
                "Manifest" if change == Change::ManifestStatus => self.state.read().manifests.class(&object),
                _ => Class::UserEdit,
            };
            let delay = match kind {
                // A release's deletion concerns no single Kyma.
                "ModuleTemplate" | "ModuleReleaseMeta" | "ConfigMap" | PULL_SECRET
                    if !start && !key.kyma().is_empty() =>
                {
                    rollout::delay(key.kyma(), &which, self.rollout)
                }
                // After the Manifest's own reconcile, which may report more.
                _ if change == Change::ManifestStatusOverwritten && !start => 2 * OVERWRITE_DELAY,
                _ if change.is_interference() && !start => OVERWRITE_DELAY,
                _ => Duration::ZERO,
            };
            let cause = if start { Trigger::Start } else { Trigger::Kcp { object: key.clone(), change } };
            if delay.is_zero() {
                self.queue.push(key, Push { class, trigger: Some(cause), guards: Vec::new() });
            } else {
                self.queue.push_later(key, class, Some(cause), delay);
            }
        }
    }
}

fn asked(object: &str, change: &Arc<str>, wanted: Vec<Wanted>) -> Vec<Asked> {
    let object: Arc<str> = object.into();
    let of = |wanted| Asked { wanted, object: Arc::clone(&object), change: Arc::clone(change) };
    wanted.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests;
