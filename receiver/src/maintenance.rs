//! Policy of maintenance windows from a file, reloaded on change.

use std::{io, path::PathBuf, time::Duration};

use prometheus::Gauge;
use tidewatch_drain::ShutdownSignal;
use tidewatch_engine::Engine;
use tidewatch_planner::windows::{MAX_POLICY, Policy, PolicyError};
use tidewatch_telemetry::{
    chain,
    metrics::{MetricsError, Registry},
};
use tokio::{fs::File, io::AsyncReadExt};
use xxhash_rust::xxh3::xxh3_64;

/// Check interval. Compares content, as a mounted ConfigMap changes by symbolic links.
const CHECK_EVERY: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error("{0:?} cannot be read; check that it exists and its permissions")]
    File(PathBuf, #[source] io::Error),
    #[error("it has bytes that are no UTF-8; write it as JSON in UTF-8")]
    Utf8,
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

/// Sets the engine's policy from the file.
pub struct PolicyFile {
    file: PathBuf,
    engine: Engine,
    readable: Gauge,
    /// Last hash or error, to log each once.
    last: Option<Result<u64, String>>,
}

impl PolicyFile {
    /// Returns `None` without a file.
    pub fn new(
        file: Option<PathBuf>,
        engine: &Engine,
        registry: &Registry,
    ) -> Result<Option<Self>, MetricsError> {
        let readable = registry.gauge(
            "maintenance_policy_read_success",
            "Whether the policy of maintenance windows could be read the last time; 1 without one.",
        )?;
        let shared = readable.clone();
        registry.named_as("lifecycle_mgr").gauge_fn(
            "maintenance_window_config_read_success",
            "Whether the policy of maintenance windows could be read the last time; 1 without one. The Go manager's name for maintenance_policy_read_success.",
            move || shared.get(),
        )?;
        readable.set(1.0);
        let engine = engine.clone();
        Ok(file.map(|file| Self { file, engine, readable, last: None }))
    }

    /// Applies a changed, usable file.
    pub async fn reload(&mut self) {
        let read = self.read().await;
        self.readable.set(f64::from(u8::from(read.is_ok())));
        let result = read.as_ref().map(|(hash, _)| *hash).map_err(|error| chain(error).to_string());
        if self.last.as_ref() == Some(&result) {
            return;
        }
        match read {
            Ok((hash, policy)) => {
                tracing::info!(rules = policy.rules().len(), "the policy of maintenance windows was read");
                self.engine.set_windows(Some(policy), &format!("{hash:016x}"));
            }
            Err(error) => {
                tracing::error!(
                    error = %chain(&error),
                    "the policy of maintenance windows cannot be used; the previous one stays in force"
                );
            }
        }
        self.last = Some(result);
    }

    async fn read(&self) -> Result<(u64, Policy), Unusable> {
        let failed = |error| Unusable::File(self.file.clone(), error);
        let file = File::open(&self.file).await.map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_POLICY as u64 + 1).read_to_end(&mut bytes).await.map_err(failed)?;
        if bytes.len() > MAX_POLICY {
            return Err(PolicyError::TooLarge { size: bytes.len() }.into());
        }
        let text = str::from_utf8(&bytes).map_err(|_| Unusable::Utf8)?;
        Ok((xxh3_64(&bytes), Policy::parse(text)?))
    }

    /// Returns the last read's error.
    pub fn unusable(&self) -> Option<&str> {
        self.last.as_ref()?.as_ref().err().map(String::as_str)
    }

    /// Follows the file.
    pub async fn follow(mut self, drain: ShutdownSignal) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            self.reload().await;
        }
    }
}
