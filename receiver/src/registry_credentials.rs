//! The credentials of registries: a file, read anew when it has changed.

use std::{io, path::PathBuf, time::Duration};

use tidewatch_drain::Watch;
use tidewatch_engine::Engine;
use tidewatch_oci::{DockerConfigError, MAX_DOCKER_CONFIG, credentials_of};
use tidewatch_telemetry::chain;
use tokio::{fs::File, io::AsyncReadExt};
use xxhash_rust::xxh3::xxh3_64;

/// How often the file is looked at. Its content counts, not its time: a mounted Secret changes by a swap of symbolic links.
const LOOK: Duration = Duration::from_secs(5);

/// Why the file is not in use.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error("{0:?} cannot be read; check that it exists and its permissions")]
    File(PathBuf, #[source] io::Error),
    /// It is too large, or no text.
    #[error(
        "{0:?} is larger than {MAX_DOCKER_CONFIG} bytes, or no UTF-8; it has to be a Docker configuration file"
    )]
    Text(PathBuf),
    /// It says something else.
    #[error("{0:?} cannot be used")]
    Content(PathBuf, #[source] DockerConfigError),
}

/// Follows the file, and sets the engine's credentials.
pub struct RegistryCredentials {
    file: PathBuf,
    engine: Engine,
    /// What was read last, by hash, or why nothing could be, so that each is told once.
    last: Result<u64, String>,
}

impl RegistryCredentials {
    /// Reads the file, and follows it.
    ///
    /// # Errors
    /// If it cannot be used now: without credentials nothing could be installed.
    pub async fn new(file: PathBuf, engine: &Engine) -> Result<Self, Unusable> {
        let mut this = Self { file, engine: engine.clone(), last: Err(String::new()) };
        this.last = Ok(this.read().await?);
        Ok(this)
    }

    /// Reads it, and takes over what is new.
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

    /// Follows the file until the process ends. What cannot be used changes nothing.
    pub async fn follow(mut self, drain: Watch) {
        loop {
            tokio::select! {
                () = drain.signaled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            let read = self.read().await.map_err(|error| chain(&error).to_string());
            if let Err(error) = &read
                && self.last.as_ref() != Err(error)
            {
                tracing::error!(%error, "the credentials of registries cannot be used; those before stay");
            }
            self.last = read;
        }
    }
}
