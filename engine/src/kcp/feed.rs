//! The watches on KCP that keep [`KcpState`] up to date and ask for reconciles.

use std::{
    collections::{HashMap, HashSet},
    fmt::Debug,
    sync::Arc,
};

use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::PartialObjectMeta,
    runtime::{WatchStreamExt, watcher},
};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tidewatch_api::{Kyma, Manifest, ModuleReleaseMeta, ModuleTemplate, Watcher, names::labels};
use tokio::{sync::watch, task::JoinSet};

use super::state::{KcpState, SecretRef, Wanted};
use crate::{
    key::{Cause, Guard, WorkKey},
    queue::{Class, Push, worker::WorkQueue},
};

/// A watch is ended by the server after this time and started again, so that a half-open connection is
/// noticed (kube adds a few seconds of its own).
const WATCH_SECONDS: u32 = 200;

type Queue = WorkQueue<WorkKey, Cause, Guard>;

/// The watches on KCP. Dropping it ends them.
pub struct Feeds {
    tasks: JoinSet<()>,
    ready: watch::Receiver<usize>,
}

/// Number of watches.
const FEEDS: usize = 6;

struct Context {
    state: Arc<RwLock<KcpState>>,
    queue: Queue,
    ready: watch::Sender<usize>,
}

impl Feeds {
    /// Starts all watches in one namespace.
    #[must_use]
    pub fn start(client: &Client, namespace: &str, state: &Arc<RwLock<KcpState>>, queue: &Queue) -> Self {
        let (ready_tx, ready) = watch::channel(0);
        let context = Arc::new(Context { state: Arc::clone(state), queue: queue.clone(), ready: ready_tx });
        let mut tasks = JoinSet::new();
        let plain = watcher::Config::default().timeout(WATCH_SECONDS);

        macro_rules! feed {
            ($kind:ty, $config:expr, $apply:expr, $remove:expr) => {
                let api: Api<$kind> = Api::namespaced(client.clone(), namespace);
                tasks.spawn(run(Arc::clone(&context), api, $config, $apply, $remove));
            };
        }
        feed!(Kyma, plain.clone(), |s, _, o| s.apply_kyma(o), KcpState::delete_kyma);
        feed!(Manifest, plain.clone(), |s, _, o| s.apply_manifest(o), KcpState::delete_manifest);
        feed!(ModuleTemplate, plain.clone(), |s, n, o| s.apply_template(n, Some(o)), |s, n| s
            .apply_template(n, None));
        feed!(ModuleReleaseMeta, plain.clone(), |s, n, o| s.apply_release(n, Some(o)), |s, n| s
            .apply_release(n, None));
        feed!(
            Watcher,
            plain.clone(),
            |s, n, o| {
                s.apply_watcher(n, Some(o));
                Vec::new()
            },
            |s, n| {
                s.apply_watcher(n, None);
                Vec::new()
            }
        );
        // Metadata only: the kubeconfig itself is read when it is needed, and never kept here.
        let mut owner: HashMap<String, String> = HashMap::new();
        let owners = Arc::new(parking_lot::Mutex::new(std::mem::take(&mut owner)));
        let owners_too = Arc::clone(&owners);
        feed!(
            PartialObjectMeta<Secret>,
            plain.labels(labels::KYMA_NAME),
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
            move |s, n| match owners_too.lock().remove(n) {
                Some(kyma) => s.apply_secret(&kyma, n, None),
                None => Vec::new(),
            }
        );
        Self { tasks, ready }
    }

    /// Waits until every watch has seen what there is. Work must not begin before, or a plan would be
    /// made from half a picture.
    pub async fn ready(&mut self) {
        let mut ready = self.ready.clone();
        let all = ready.wait_for(|n| *n >= FEEDS);
        // The senders live as long as the tasks, and those as long as self.
        let _ = all.await;
    }

    /// Ends if a watch ends, which none does by itself.
    pub async fn failed(&mut self) {
        self.tasks.join_next().await;
    }
}

async fn run<K, A, R>(context: Arc<Context>, api: Api<K>, config: watcher::Config, apply: A, remove: R)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
    K::DynamicType: Default + Send + Sync,
    A: Fn(&mut KcpState, &str, K) -> Vec<Wanted> + Send,
    R: Fn(&mut KcpState, &str) -> Vec<Wanted> + Send,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    let mut stream = watcher(api, config)
        .modify(|o| o.managed_fields_mut().clear())
        .default_backoff()
        .inspect_err(
            |error| tracing::warn!(kind, %error, "the watch on KCP was interrupted and starts again"),
        )
        .boxed();
    let mut known: HashSet<String> = HashSet::new();
    let mut listed: HashSet<String> = HashSet::new();
    let mut pending: Vec<Wanted> = Vec::new();
    let mut first = true;
    while let Some(event) = stream.next().await {
        match event {
            Err(_) => {}
            Ok(watcher::Event::Init) => {
                listed.clear();
                pending.clear();
            }
            Ok(watcher::Event::InitApply(object)) => {
                let name = object.name_any();
                pending.extend(apply(&mut context.state.write(), &name, object));
                listed.insert(name);
            }
            Ok(watcher::Event::InitDone) => {
                for gone in known.difference(&listed) {
                    pending.extend(remove(&mut context.state.write(), gone));
                }
                known = std::mem::take(&mut listed);
                context.push(&kind, &mut pending, first);
                if std::mem::take(&mut first) {
                    context.ready.send_modify(|n| *n += 1);
                }
            }
            Ok(watcher::Event::Apply(object)) => {
                let name = object.name_any();
                pending.extend(apply(&mut context.state.write(), &name, object));
                known.insert(name);
                context.push(&kind, &mut pending, false);
            }
            Ok(watcher::Event::Delete(object)) => {
                let name = object.name_any();
                pending.extend(remove(&mut context.state.write(), &name));
                known.remove(&name);
                context.push(&kind, &mut pending, false);
            }
        }
    }
}

impl Context {
    fn push(&self, kind: &str, wanted: &mut Vec<Wanted>, start: bool) {
        let class = match kind {
            _ if start => Class::Resync,
            "ModuleTemplate" | "ModuleReleaseMeta" => Class::Rollout,
            _ => Class::UserEdit,
        };
        for (key, change) in wanted.drain(..) {
            let cause = if start { Cause::Start } else { Cause::Kcp { object: key.to_string(), change } };
            self.queue.push(key, Push { class, cause: Some(cause), guards: Vec::new() });
        }
    }
}
