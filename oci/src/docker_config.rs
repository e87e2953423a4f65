//! Registry credentials in Docker's format, as in `kubernetes.io/dockerconfigjson` Secrets.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;

use super::Credentials;

/// Maximum bytes of a file.
pub const MAX_DOCKER_CONFIG: usize = 1024 * 1024;

/// Reason why credentials are unusable. Names registries, but no other content.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DockerConfigError {
    /// The text has another format.
    #[error(
        "it is no JSON as Docker's config.json (line {line}, column {column}); it has to be {{\"auths\": {{\"HOST\": {{\"auth\": …}}}}}}"
    )]
    Malformed {
        /// From 1; 0 at the end.
        line: usize,
        /// From 1; 0 at the end.
        column: usize,
    },
    /// Unusable entry.
    #[error(
        "the entry of the registry {0} has neither 'auth', the base64 of USER:PASSWORD, nor 'username' and 'password'; \
         programs that keep credentials (credsStore, credHelpers) are not asked: give a file that has them"
    )]
    Entry(String),
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
}

/// Returns credentials by `host[:port]`. Schemes and paths in keys are ignored.
///
/// # Errors
/// Also for helper programs, which a receiver does not have.
pub fn credentials_of(text: &str) -> Result<BTreeMap<String, Credentials>, DockerConfigError> {
    let read = |(host, entry): (String, Entry)| entry.read(host.clone()).map(|found| (host, found));
    entries(text)?.into_iter().map(read).collect()
}

/// Returns one registry's credentials (`host[:port]`). Other entries may be unusable.
pub fn credentials_for(text: &str, registry: &str) -> Result<Option<Credentials>, DockerConfigError> {
    let entry = entries(text)?.into_iter().find(|(host, _)| host == registry);
    entry.map(|(host, entry)| entry.read(host)).transpose()
}

fn entries(text: &str) -> Result<Vec<(String, Entry)>, DockerConfigError> {
    // Serde's messages quote the file.
    let malformed =
        |e: serde_json::Error| DockerConfigError::Malformed { line: e.line(), column: e.column() };
    let file: File = serde_json::from_str(text).map_err(malformed)?;
    let entries = file.auths.into_iter().map(|(key, entry)| {
        let address = key.split_once("://").map_or(key.as_str(), |(_, rest)| rest);
        (address.split('/').next().unwrap_or_default().to_owned(), entry)
    });
    Ok(entries.collect())
}

impl Entry {
    fn read(self, host: String) -> Result<Credentials, DockerConfigError> {
        self.credentials().ok_or(DockerConfigError::Entry(host))
    }

    fn credentials(self) -> Option<Credentials> {
        let (username, password) = if self.auth.is_empty() {
            (self.username, self.password)
        } else {
            let text = String::from_utf8(BASE64_STANDARD.decode(self.auth.trim()).ok()?).ok()?;
            // Some programs pad it.
            let (username, password) = text.trim_end_matches('\0').split_once(':')?;
            (username.to_owned(), password.to_owned())
        };
        (!username.is_empty()).then_some(Credentials::Basic { username, password })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn basic(username: &str, password: &str) -> Credentials {
        Credentials::Basic { username: username.into(), password: password.into() }
    }

    #[test]
    fn credentials_of_docker_and_of_secrets_are_read() {
        let text = r#"{"auths": {
            "registry.example:5000": {"auth": "dXNlcjpwYXNzOndvcmQ="},
            "https://other.example/v2/": {"username": "u", "password": "p", "email": "e"},
            "third.example/modules": {"auth": "", "username": "u", "password": ""}
        }, "credsStore": "desktop"}"#;
        let wanted = [
            ("other.example", basic("u", "p")),
            ("registry.example:5000", basic("user", "pass:word")),
            ("third.example", basic("u", "")),
        ];
        assert_eq!(credentials_of(text), Ok(wanted.map(|(host, c)| (host.to_owned(), c)).into()));
        assert_eq!(credentials_of("{}"), Ok(BTreeMap::new()));
    }

    #[test]
    fn unusable_entries_of_other_registries_are_ignored() {
        let text = r#"{"auths": {"https://a.example/v2/": {"auth": "dTpw"}, "b.example": {}}, "credsStore": "desktop"}"#;
        assert_eq!(credentials_for(text, "a.example"), Ok(Some(basic("u", "p"))));
        assert_eq!(credentials_for(text, "c.example"), Ok(None));
        let helped = credentials_for(text, "b.example").unwrap_err();
        assert_eq!(helped, DockerConfigError::Entry("b.example".into()));
    }

    #[test]
    fn an_unusable_config_is_named_and_not_quoted() {
        for (text, says) in [
            (r#"{"auths": {"a.example": {}}}"#, "registry a.example has neither"),
            (r#"{"auths": {"a.example": {"auth": "c2VjcmV0"}}}"#, "registry a.example has neither"),
            (r#"{"auths": {"a.example": {"auth": "secret!"}}}"#, "registry a.example has neither"),
            (r#"{"auths": {"a.example": "secret"}}"#, "line 1, column"),
            (r#"{"auths": {"a.example": {"auth": "c2VjcmV0OnNlY3JldA=="}"#, "line 1, column"),
            ("secret", "line 1, column"),
        ] {
            let message = credentials_of(text).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
            assert!(!message.contains("secret") && !message.contains("c2Vj"), "{message}");
        }
    }
}
