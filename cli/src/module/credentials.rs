//! Registry credentials.

use std::{
    env,
    fs::File,
    io::{ErrorKind, Read},
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use tidewatch_oci::{Credentials, MAX_DOCKER_CONFIG, credentials_for};
use tidewatch_telemetry::stdio;

pub(super) struct Found {
    registry: String,
    file: Option<PathBuf>,
    credentials: Option<Credentials>,
}

/// A named file must be usable; Docker's own may be unrelated.
pub(super) fn find(named: Option<&Path>, registry: &str) -> anyhow::Result<Found> {
    let own = || {
        docker_folder(|name| env::var_os(name).map(PathBuf::from)).map(|folder| folder.join("config.json"))
    };
    let Some(file) = named.map(Path::to_owned).or_else(own) else {
        return Ok(Found { registry: registry.to_owned(), file: None, credentials: None });
    };
    let read = || -> anyhow::Result<Option<Credentials>> {
        let text = match (text(&file), named) {
            (Err(error), None) if is_absent(&error) => return Ok(None),
            (text, _) => text?,
        };
        credentials_for(&text, registry).with_context(|| file.display().to_string())
    };
    let credentials = match (read(), named) {
        (Err(error), None) => {
            stdio::note(&format!("note: no credentials are used: {error:#}"));
            None
        }
        (read, _) => read.context("the credentials cannot be used; check --registry-credentials")?,
    };
    Ok(Found { registry: registry.to_owned(), file: Some(file), credentials })
}

fn docker_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.as_os_str().is_empty());
    set("DOCKER_CONFIG").or_else(|| Some(set("HOME")?.join(".docker")))
}

fn text(file: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read {}", file.display());
    let (mut text, limit) = (String::new(), MAX_DOCKER_CONFIG as u64);
    let read = File::open(file).and_then(|file| file.take(limit + 1).read_to_string(&mut text));
    if read.with_context(cannot)? as u64 > limit {
        bail!("{} has more than {limit} bytes; is it a Docker configuration file?", file.display());
    }
    Ok(text)
}

fn is_absent(error: &anyhow::Error) -> bool {
    error
        .root_cause()
        .downcast_ref::<std::io::Error>()
        .is_some_and(|error| error.kind() == ErrorKind::NotFound)
}

impl Found {
    pub(super) fn credentials(&self) -> Option<Credentials> {
        self.credentials.clone()
    }

    pub(super) fn next_step(&self) -> String {
        let Self { registry, file, credentials } = self;
        let file = file.as_ref().map(|file| file.display().to_string());
        match (file, credentials) {
            (Some(file), Some(_)) => {
                format!(
                    "the credentials of {registry} in {file} were refused; they may be old, or may not push there"
                )
            }
            (Some(file), None) => format!(
                "no credentials were sent, as {file} has none for {registry}; log in with docker login {registry}, or give --registry-credentials"
            ),
            (None, _) => "no credentials were sent; give --registry-credentials".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_docker_config_follows_its_environment() {
        let with = |pairs: &[(&str, &str)]| {
            docker_folder(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into()))
        };
        assert_eq!(with(&[("HOME", "/home/a"), ("DOCKER_CONFIG", "/b")]), Some("/b".into()));
        assert_eq!(with(&[("HOME", "/home/a"), ("DOCKER_CONFIG", "")]), Some("/home/a/.docker".into()));
        assert_eq!(with(&[]), None);
    }

    #[test]
    fn a_named_credentials_file_must_be_usable() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        let found = || find(Some(&file), "a.example").map(|found| found.credentials().is_some());
        assert!(format!("{:#}", found().unwrap_err()).contains("config.json"));
        for (content, is_found) in
            [(r#"{"auths": {"a.example": {"auth": "dTpw"}, "b.example": {}}}"#, true), ("{}", false)]
        {
            std::fs::write(&file, content).unwrap();
            assert_eq!(found().unwrap(), is_found, "{content}");
        }
        std::fs::write(&file, r#"{"auths": {"a.example": {}}}"#).unwrap();
        let error = format!("{:#}", found().unwrap_err());
        assert!(error.contains("config.json: the entry of the registry a.example"), "{error}");
    }
}
