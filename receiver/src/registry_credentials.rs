//! Registry credentials from a file, reloaded on change.

use std::{io, path::PathBuf, time::Duration};

use tidewatch_drain::ShutdownSignal;
use tidewatch_engine::Engine;
use tidewatch_oci::{DockerConfigError, MAX_DOCKER_CONFIG, credentials_of};
use tidewatch_telemetry::chain;
use tokio::{fs::File, io::AsyncReadExt};
use xxhash_rust::xxh3::xxh3_64;

/// Check interval. Compares content, as a mounted Secret changes by symbolic links.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// A problem with the file.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Not readable.
    #[error("{0:?} cannot be read; check that it exists and its permissions")]
    File(PathBuf, #[source] io::Error),
    /// Too large or not UTF-8.
    #[error(
        "{0:?} is larger than {MAX_DOCKER_CONFIG} bytes, or no UTF-8; it has to be a Docker configuration file"
    )]
    Text(PathBuf),
    /// No valid Docker configuration.
    #[error("{0:?} cannot be used")]
    Content(PathBuf, #[source] DockerConfigError),
}

/// Sets the engine's credentials from the file.
pub struct RegistryCredentials {
    file: PathBuf,
    engine: Engine,
    /// Last hash or error, to log each once.
    last: Result<u64, String>,
}

impl RegistryCredentials {
    /// Reads the file; fails if unusable, as no module could be installed.
    pub async fn new(file: PathBuf, engine: &Engine) -> Result<Self, Unusable> {
        let mut this = Self { file, engine: engine.clone(), last: Err(String::new()) };
        this.last = Ok(this.read().await?);
        Ok(this)
    }

    async fn read(&self) -> Result<u64, Unusable> {
        let failed = |error| Unusable::File(self.file.clone(), error);
        let file = File::open(&self.file).await.map_err(failed)?;
        let mut bytes = Vec::new();
        file.take(MAX_DOCKER_CONFIG as u64 + 1).read_to_end(&mut bytes).await.map_err(failed)?;
        let text = str::from_utf8(&bytes).ok().filter(|text| text.len() <= MAX_DOCKER_CONFIG);
        let text = text.ok_or_else(|| Unusable::Text(self.file.clone()))?;
        let hash = xxh3_64(&bytes);
        if self.last.as_ref() == Ok(&hash) {
            return Ok(hash);
        }
        let credentials =
            credentials_of(text).map_err(|error| Unusable::Content(self.file.clone(), error))?;
        let registries: Vec<&String> = credentials.keys().collect();
        tracing::info!(?registries, "the credentials of registries were read");
        self.engine.set_registry_credentials(credentials);
        Ok(hash)
    }

    /// Follows the file. An unusable one changes nothing.
    pub async fn follow(mut self, drain: ShutdownSignal) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(CHECK_EVERY) => {}
            }
            let read = self.read().await.map_err(|error| chain(&error).to_string());
            if let Err(error) = &read
                && self.last.as_ref() != Err(error)
            {
                tracing::error!(%error, "the credentials of registries cannot be used; the previous ones stay in force");
            }
            self.last = read;
        }
    }
}
