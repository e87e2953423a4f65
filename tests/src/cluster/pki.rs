//! A control plane's own CA, serving certificate, service-account key and static tokens.

use std::{collections::BTreeMap, fmt, net::Ipv4Addr, path::PathBuf};

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use tidewatch_certs::{Ca, ServerRequest};
use uuid::Uuid;

use super::{ADMIN, User};
use crate::Harness;

/// Longer than any kept demo.
const VALIDITY: SignedDuration = SignedDuration::from_hours(30 * 24);
/// The name in the API server's default RBAC objects.
pub(super) const CONTROLLER_MANAGER: &str = "system:kube-controller-manager";
pub(super) const SCHEDULER: &str = "system:kube-scheduler";

pub(super) struct Pki {
    ca_pem: String,
    tokens: BTreeMap<String, String>,
    pub(super) ca_file: PathBuf,
    pub(super) cert_file: PathBuf,
    pub(super) key_file: PathBuf,
    pub(super) service_account_key_file: PathBuf,
    pub(super) service_account_public_file: PathBuf,
    pub(super) token_file: PathBuf,
}

impl Pki {
    pub(super) fn create(harness: &Harness, cluster: &str, users: &[User]) -> Result<Self> {
        let now = Timestamp::now();
        let ca = Ca::create(&format!("{cluster} CA"), VALIDITY, now)?;
        let request = |common_name: &str| ServerRequest {
            common_name: common_name.to_owned(),
            dns_names: ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
                .map(str::to_owned)
                .to_vec(),
            ip_addrs: vec![Ipv4Addr::LOCALHOST.into()],
            validity: VALIDITY,
        };
        let serving = ca.issue_server(&request("kube-apiserver"), now)?;
        // Only the key pair matters; the public half comes from the certificate.
        let service_account = ca.issue_server(&request("service-accounts"), now)?;

        let own = |name: &str, group: &str| User { name: name.to_owned(), groups: vec![group.to_owned()] };
        let mut all = vec![
            own(ADMIN, "system:masters"),
            own(CONTROLLER_MANAGER, "system:authenticated"),
            own(SCHEDULER, "system:authenticated"),
        ];
        all.extend_from_slice(users);
        let mut tokens = BTreeMap::new();
        let mut lines = String::new();
        for user in &all {
            let token = Uuid::new_v4().simple().to_string();
            lines.push_str(&token_line(user, &token)?);
            let twice = tokens.insert(user.name.clone(), token);
            ensure!(twice.is_none(), "{cluster}: the user {} is named twice", user.name);
        }

        let write = |name: &str, content: &str| harness.write(&format!("{cluster}/{name}"), content);
        Ok(Self {
            ca_file: write("ca.crt", ca.cert_pem())?,
            cert_file: write("apiserver.crt", &serving.cert_pem)?,
            key_file: write("apiserver.key", serving.key_pem.as_str())?,
            service_account_key_file: write("service-accounts.key", service_account.key_pem.as_str())?,
            service_account_public_file: write("service-accounts.crt", &service_account.cert_pem)?,
            token_file: write("tokens.csv", &lines).context("cannot write the tokens")?,
            ca_pem: ca.cert_pem().to_owned(),
            tokens,
        })
    }

    pub(super) fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    pub(super) fn token(&self, user: &str) -> Option<&str> {
        self.tokens.get(user).map(String::as_str)
    }
}

impl fmt::Debug for Pki {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pki").field("users", &self.tokens.keys()).finish_non_exhaustive()
    }
}

/// `token,user,uid,"group1,group2"`
fn token_line(user: &User, token: &str) -> Result<String> {
    let plain = |text: &String| !text.is_empty() && !text.contains(['"', ',', '\n', '\r']);
    ensure!(
        plain(&user.name) && user.groups.iter().all(plain),
        "the user '{}' cannot be written into a token file: no quotes, commas or line ends",
        user.name
    );
    let groups = user.groups.join(",");
    Ok(if groups.is_empty() {
        format!("{token},{0},{0}\n", user.name)
    } else {
        format!("{token},{0},{0},\"{groups}\"\n", user.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_line_has_the_api_servers_format() {
        let user = |name: &str, groups: &[&str]| User {
            name: name.into(),
            groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        };
        assert_eq!(token_line(&user("agent", &[]), "t").unwrap(), "t,agent,agent\n");
        assert_eq!(token_line(&user("agent", &["a", "b"]), "t").unwrap(), "t,agent,agent,\"a,b\"\n");
        token_line(&user("agent,admin", &[]), "t").unwrap_err();
        token_line(&user("agent", &["a\",b"]), "t").unwrap_err();
    }
}
