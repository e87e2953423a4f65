//! Applies configuration changes without a restart.
//!
//! A broken source changes nothing and is reported. A deleted ConfigMap is not an empty one.

mod status;

pub use status::{Configuration, SourceState};

use crate::{
    config::{self, Config, ConfigError, ConfigMapRef, Watch, WatchSet},
    jitter,
    metrics::Metrics,
    observe::supervisor::Supervisor,
};
use futures::{StreamExt, stream, stream::BoxStream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher},
};
use std::{path::PathBuf, time::Duration};
use tidewatch_delivery::{backoff::Backoff, pace::Pace};
use tidewatch_drain::ShutdownSignal;
use tidewatch_telemetry::{Readiness, chain};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::{Instant, MissedTickBehavior},
};

/// Interval of file checks. They compare content: symlinks of a mounted ConfigMap keep their times.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Delay of repeated changes, as each restarts watches. The first is immediate.
const FLIPS: Backoff = Backoff { base: Duration::from_millis(250), max: Duration::from_secs(15) };
/// Load balancers cut longer ones silently.
const WATCH_SECONDS: u32 = 200;

pub(crate) struct Live {
    /// The file's configuration; start-only fields keep their first values.
    file: Config,
    /// Path and latest text, even if invalid.
    source: Option<(PathBuf, String)>,
    set: Option<WatchSet>,
    supervisor: Supervisor,
    status: Configuration,
    metrics: Metrics,
    clock: fn() -> Timestamp,
    flips: Pace,
    start: Instant,
}

impl Live {
    /// Without `path` the file is not reread.
    pub(crate) async fn start(
        file: Config,
        path: Option<PathBuf>,
        mut supervisor: Supervisor,
        readiness: &Readiness,
        status: Configuration,
        metrics: Metrics,
        clock: fn() -> Timestamp,
    ) -> Self {
        let now = clock();
        status.file(SourceState::Applied, "", now);
        if let Some(map) = &file.config_map {
            status.map(map, SourceState::Waiting, "", now);
        }
        let alone = file.config_map.is_none();
        supervisor.apply(file.watches.clone(), file.max_objects_per_watch, Some(readiness), alone).await;
        // Makes the first check read the file.
        let source = path.map(|path| (path, String::new()));
        let (flips, start) = (Pace::default(), Instant::now());
        Self { file, source, set: None, supervisor, status, metrics, clock, flips, start }
    }

    /// Runs until shutdown, or until a watch ends.
    pub(crate) async fn run(mut self, client: Client, shutdown: ShutdownSignal) {
        let mut maps = match &self.file.config_map {
            Some(map) => maps(client, map),
            None => stream::pending().boxed(),
        };
        // Without a file, the signal is the process's own.
        let mut hangups = self.source.as_ref().and_then(|_| signal(SignalKind::hangup()).ok());
        let mut latest = None;
        let mut check = tokio::time::interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = shutdown.signaled() => return,
                () = self.supervisor.failed() => {
                    tracing::error!("a watch has ended by itself");
                    return;
                }
                // The latest change counts.
                Some(event) = maps.next() => latest = Some(event),
                () = tokio::time::sleep_until(self.start + self.flips.until()), if latest.is_some() => {
                    if let Some(latest) = latest.take() {
                        self.map_changed(latest).await;
                    }
                }
                _ = check.tick() => self.check_file().await,
                () = hangup(&mut hangups) => {
                    tracing::info!("SIGHUP: reading the configuration file again");
                    self.check_file().await;
                }
            }
        }
    }

    async fn map_changed(&mut self, latest: Result<Option<ConfigMap>, watcher::Error>) {
        let Some(at) = self.file.config_map.clone() else { return };
        let now = (self.clock)();
        let map = match latest {
            Err(error) => {
                let (state, message) = fault(&error);
                return self.status.map(&at, state, &message, now);
            }
            Ok(None) if self.set.is_some() => {
                let message =
                    "the ConfigMap is gone; its last watches stay until it comes back or the agent restarts";
                return self.status.map(&at, SourceState::Gone, message, now);
            }
            Ok(None) => {
                let message = "there is no such ConfigMap (yet); the file's watches are at work";
                return self.status.map(&at, SourceState::Absent, message, now);
            }
            Ok(Some(map)) => map,
        };
        let text = map.data.as_ref().and_then(|data| data.get(config::CONFIG_MAP_KEY)).map(String::as_str);
        let set = text
            .ok_or(ConfigError::NoKey)
            .and_then(WatchSet::parse)
            .and_then(|set| Ok((config::all_watches(&self.file.watches, &set.watches)?, set)));
        match set {
            Err(error) => {
                let message = format!("{}; nothing was changed", chain(&error));
                tracing::warn!(error = message, "the ConfigMap's configuration is refused");
                self.metrics.configuration("configMap", false);
                self.status.map(&at, SourceState::Refused, &message, now);
            }
            Ok((watches, set)) => {
                if self.set.as_ref() != Some(&set) {
                    tracing::info!(
                        generation = set.generation,
                        watches = set.watches.len(),
                        "new configuration"
                    );
                    self.supervisor.apply(watches, self.file.max_objects_per_watch, None, true).await;
                    self.metrics.configuration("configMap", true);
                    self.flips.demanded(&FLIPS, jitter::random(), self.start.elapsed());
                }
                self.status.applied(&at, &set.generation, text.unwrap_or_default(), now);
                self.set = Some(set);
            }
        }
    }

    async fn check_file(&mut self) {
        let Some(text) = self.changed_text().await else { return };
        let set = self.set.as_ref().map_or(&[][..], |set| &set.watches);
        let parsed =
            Config::parse(&text).and_then(|config| Ok((config::all_watches(&config.watches, set)?, config)));
        match parsed {
            Err(error) => {
                let problem = format!("{}; nothing was changed", chain(&error));
                tracing::warn!(error = problem, "the configuration file is refused");
                self.metrics.configuration("file", false);
                self.status.file(SourceState::Refused, &problem, (self.clock)());
            }
            Ok((watches, new)) => self.apply_file(watches, new).await,
        }
    }

    /// Reads the file. Returns its text if it has changed.
    async fn changed_text(&mut self) -> Option<String> {
        let (path, before) = self.source.as_mut()?;
        let path = path.clone();
        // The disk may be slow.
        let read = tokio::task::spawn_blocking(move || config::read(&path)).await.ok()?;
        match read {
            Ok(text) if text == *before => None,
            Ok(text) => {
                before.clone_from(&text);
                Some(text)
            }
            Err(error) => {
                let problem = chain(&error).to_string();
                before.clear();
                if self.status.file(SourceState::Refused, &problem, (self.clock)()) {
                    tracing::warn!(
                        error = problem,
                        "the configuration file cannot be read; nothing was changed"
                    );
                    self.metrics.configuration("file", false);
                }
                None
            }
        }
    }

    /// Applies the file `new`; `all` includes the ConfigMap's watches.
    async fn apply_file(&mut self, all: Vec<Watch>, new: Config) {
        let fixed = self.file.fixed_differences(&new).join(", ");
        let mut advice = String::new();
        if !fixed.is_empty() {
            tracing::warn!(fields = fixed, "these fields are only read at a start: restart the agent");
            advice = format!("restart the agent for: {fixed}");
        }
        let Config { watches, max_objects_per_watch: max, .. } = new;
        if (&watches, max) != (&self.file.watches, self.file.max_objects_per_watch) {
            tracing::info!(watches = watches.len(), "the configuration file has changed");
            let complete = self.set.is_some() || self.file.config_map.is_none();
            self.supervisor.apply(all, max, None, complete).await;
            self.metrics.configuration("file", true);
            (self.file.watches, self.file.max_objects_per_watch) = (watches, max);
        }
        self.status.file(SourceState::Applied, &advice, (self.clock)());
    }
}

/// Pending forever without SIGHUP.
async fn hangup(signals: &mut Option<Signal>) {
    let signal = match signals {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if signal.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Yields the ConfigMap, or `None` while it is missing.
fn maps(client: Client, map: &ConfigMapRef) -> BoxStream<'static, Result<Option<ConfigMap>, watcher::Error>> {
    let api: Api<ConfigMap> = Api::namespaced(client, &map.namespace);
    let config =
        watcher::Config::default().timeout(WATCH_SECONDS).fields(&format!("metadata.name={}", map.name));
    let mut found = false;
    let mut latest = move |event| match event {
        Ok(watcher::Event::Init) => {
            found = false;
            None
        }
        Ok(watcher::Event::InitApply(map) | watcher::Event::Apply(map)) => {
            found = true;
            Some(Ok(Some(map)))
        }
        Ok(watcher::Event::InitDone) => (!found).then_some(Ok(None)),
        Ok(watcher::Event::Delete(_)) => Some(Ok(None)),
        Err(error) => Some(Err(error)),
    };
    watcher(api, config).default_backoff().filter_map(move |event| std::future::ready(latest(event))).boxed()
}

fn fault(error: &watcher::Error) -> (SourceState, String) {
    use watcher::Error::{InitialListFailed, NoResourceVersion, WatchError, WatchFailed, WatchStartFailed};
    let status = match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        InitialListFailed(_) | WatchStartFailed(_) | WatchFailed(_) | NoResourceVersion => None,
    };
    match status {
        Some(status) if status.code == 403 => (SourceState::Forbidden, status.message.clone()),
        Some(status) => (SourceState::Unreachable, status.message.clone()),
        None => (SourceState::Unreachable, error.to_string()),
    }
}

#[cfg(test)]
mod tests;
