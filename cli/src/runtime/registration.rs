//! The registration of a runtime in KCP: the Kyma and the kubeconfig Secret. Pure.

use std::collections::BTreeMap;

use anyhow::{bail, ensure};
use k8s_openapi::ByteString;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{API_VERSION, DEFAULT_CHANNEL, annotations, labels},
};

use crate::clusters::MANAGER;

/// A label that a user sets or removes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelChange {
    key: String,
    /// `None`: removed.
    value: Option<String>,
}

/// Parses `key=value`, or `key-` to remove it.
pub(super) fn label(text: &str) -> Result<LabelChange, String> {
    let change = match (text.split_once('='), text.strip_suffix('-')) {
        (Some((key, value)), _) => (key, Some(value)),
        (None, Some(key)) => (key, None),
        (None, None) => return Err("a label is key=value, or key- to remove it".to_owned()),
    };
    let (key, value) = (change.0.to_owned(), change.1.map(str::to_owned));
    match key.as_str() {
        "" => Err("the label has no key".to_owned()),
        labels::RUNTIME_ID => Err("give --runtime-id instead".to_owned()),
        _ if !is_label_key(&key) => {
            Err("a label's key is [DNS-NAME/]NAME; NAME has up to 63 of a-z, A-Z, 0-9, '-', '.' and '_'"
                .to_owned())
        }
        _ if value.as_deref().is_some_and(|value| !value.is_empty() && !is_label_text(value)) => {
            Err("a label's value has up to 63 of a-z, A-Z, 0-9, '-', '.' and '_'".to_owned())
        }
        _ => Ok(LabelChange { key, value }),
    }
}

fn is_label_key(key: &str) -> bool {
    match key.split_once('/') {
        Some((prefix, name)) => dns_name(prefix).is_ok() && is_label_text(name),
        None => is_label_text(key),
    }
}

fn is_label_text(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let is_outer = |c: char| c.is_ascii_alphanumeric();
    text.len() <= 63 && text.starts_with(is_outer) && text.ends_with(is_outer) && text.chars().all(is_inner)
}

/// Parses a DNS name in lower case.
pub(super) fn dns_name(text: &str) -> Result<String, String> {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_part = |part: &str| {
        (1..=63).contains(&part.len())
            && part.chars().all(is_inner)
            && !part.starts_with('-')
            && !part.ends_with('-')
    };
    if text.len() <= 253 && text.split('.').all(is_part) {
        return Ok(text.to_owned());
    }
    Err("it is no DNS name: parts of a-z, 0-9 and '-' with dots between them".to_owned())
}

/// Parses a channel, as the Kyma's CRD checks it.
pub(super) fn channel(text: &str) -> Result<String, String> {
    if (3..=32).contains(&text.len()) && text.chars().all(|c| c.is_ascii_lowercase()) {
        return Ok(text.to_owned());
    }
    Err("a channel is 3 to 32 of a-z".to_owned())
}

/// The user's wishes.
#[derive(Clone, Debug)]
pub(super) struct Wishes {
    pub(super) kyma: String,
    pub(super) namespace: String,
    pub(super) runtime_id: Option<String>,
    pub(super) domain: Option<String>,
    pub(super) channel: Option<String>,
    pub(super) labels: Vec<LabelChange>,
}

/// A registration without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Registration {
    pub(super) kyma: String,
    pub(super) namespace: String,
    pub(super) runtime_id: String,
    pub(super) domain: String,
    channel: String,
    labels: BTreeMap<String, String>,
}

impl Wishes {
    /// Fills the gaps from the existing Kyma, then with defaults. Labels of earlier runs stay.
    pub(super) fn complete(self, existing: Option<&Kyma>, domain: String) -> anyhow::Result<Registration> {
        let Self { kyma, namespace, runtime_id, domain: wanted, channel, labels } = self;
        let (known_id, known_domain) =
            (existing.and_then(Kyma::runtime_id), existing.and_then(Kyma::skr_domain));
        ensure!(
            existing.is_none_or(|kyma| kyma.metadata.deletion_timestamp.is_none()),
            "the Kyma {kyma} is being deleted; wait until it is gone: kubectl -n {namespace} wait \
             --for=delete kyma/{kyma}"
        );
        if let (Some(known), Some(wanted)) = (known_id, &runtime_id)
            && known != wanted
        {
            bail!(
                "the Kyma {kyma} is registered with the runtime id '{known}', not '{wanted}'; leave out \
                 --runtime-id, or choose another name for this runtime"
            );
        }
        let mut kept = existing.map(own_labels).unwrap_or_default();
        for LabelChange { key, value } in labels {
            match value {
                Some(value) => kept.insert(key, value),
                None => kept.remove(&key),
            };
        }
        let known_channel = existing.map(|kyma| kyma.spec.channel.clone()).filter(|name| !name.is_empty());
        Ok(Registration {
            runtime_id: runtime_id.or(known_id.map(str::to_owned)).unwrap_or_else(|| kyma.clone()),
            domain: wanted.or(known_domain.map(str::to_owned)).unwrap_or(domain),
            channel: channel.or(known_channel).unwrap_or_else(|| DEFAULT_CHANNEL.to_owned()),
            labels: kept,
            kyma,
            namespace,
        })
    }
}

/// Labels that this command has set before, but not the runtime id.
fn own_labels(kyma: &Kyma) -> BTreeMap<String, String> {
    let entries = kyma.metadata.managed_fields.iter().flatten();
    let own = entries.filter(|entry| entry.manager.as_deref() == Some(MANAGER));
    let fields =
        own.filter_map(|entry| entry.fields_v1.as_ref()?.0.pointer("/f:metadata/f:labels")?.as_object());
    let keys: Vec<&str> = fields.flatten().filter_map(|(key, _)| key.strip_prefix("f:")).collect();
    let all = kyma.labels().iter().filter(|(key, _)| keys.contains(&key.as_str()));
    all.filter(|(key, _)| *key != labels::RUNTIME_ID).map(|(k, v)| (k.clone(), v.clone())).collect()
}

impl Registration {
    /// Name of the kubeconfig Secret.
    pub(super) fn secret_name(&self) -> String {
        format!("kubeconfig-{}", self.kyma)
    }

    /// Returns the kubeconfig Secret.
    pub(super) fn secret(&self, kubeconfig: &str) -> Value {
        let mut secret = self.secret_without_data();
        secret["data"] = json!({"config": ByteString(kubeconfig.as_bytes().to_vec())});
        secret
    }

    /// Returns the kubeconfig Secret for readers, not encoded.
    pub(super) fn printed_secret(&self, kubeconfig: &str) -> Value {
        let mut secret = self.secret_without_data();
        secret["stringData"] = json!({"config": kubeconfig});
        secret
    }

    fn secret_without_data(&self) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": self.secret_name(), "namespace": self.namespace, "labels": {
                labels::KYMA_NAME: self.kyma, labels::MANAGED_BY: labels::MANAGED_BY_KCP}},
        })
    }

    /// Returns the Kyma.
    pub(super) fn kyma(&self) -> Value {
        let mut kyma = json!({
            "apiVersion": API_VERSION, "kind": "Kyma",
            "metadata": {"name": self.kyma, "namespace": self.namespace, "labels": self.labels,
                         "annotations": {annotations::SKR_DOMAIN: self.domain}},
            "spec": {"channel": self.channel},
        });
        kyma["metadata"]["labels"][labels::RUNTIME_ID] = self.runtime_id.as_str().into();
        kyma
    }

    /// Refuses a registration that would compete with others in KCP: Kymas with this runtime id, and kubeconfig
    /// Secrets of this Kyma, by name.
    pub(super) fn check_unique(&self, kymas: &[String], secrets: &[String]) -> anyhow::Result<()> {
        let Self { kyma, namespace, runtime_id, .. } = self;
        if let Some(other) = kymas.iter().find(|name| *name != kyma) {
            bail!(
                "the Kyma {other} has the runtime id '{runtime_id}' already; give this runtime another one with \
                 --runtime-id, or update that Kyma: tidewatch runtime add {other}"
            );
        }
        if let Some(other) = secrets.iter().find(|name| **name != self.secret_name()) {
            bail!(
                "the Secret {other} is another kubeconfig of the Kyma {kyma}, and the engine accepts only one; delete \
                 it: kubectl -n {namespace} delete secret {other}"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wishes() -> Wishes {
        let (kyma, namespace) = ("k".to_owned(), "kcp-system".to_owned());
        Wishes { kyma, namespace, runtime_id: None, domain: None, channel: None, labels: Vec::new() }
    }

    fn existing(metadata: &Value) -> Kyma {
        serde_json::from_value(json!({"metadata": metadata, "spec": {"channel": "fast"}})).unwrap()
    }

    #[test]
    fn a_new_registration_gets_defaults() {
        let registration = wishes().complete(None, "d.example".into()).unwrap();
        let kyma = registration.kyma();
        assert_eq!(kyma["metadata"]["labels"], json!({"kyma-project.io/runtime-id": "k"}));
        assert_eq!(kyma["metadata"]["annotations"], json!({"skr-domain": "d.example"}));
        assert_eq!(kyma["spec"]["channel"], "regular");
        let secret = registration.secret("text");
        assert_eq!(secret["metadata"]["labels"]["operator.kyma-project.io/kyma-name"], "k");
        assert_eq!(secret["data"]["config"], "dGV4dA==");
        assert_eq!(registration.printed_secret("text")["stringData"]["config"], "text");
    }

    #[test]
    fn a_second_run_keeps_id_domain_channel_and_its_own_labels() {
        let metadata = json!({
            "labels": {"kyma-project.io/runtime-id": "id", "a": "1", "b": "2", "other": "3"},
            "annotations": {"skr-domain": "old.example"},
            "managedFields": [
                {"manager": "tidewatch", "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": {
                    "f:kyma-project.io/runtime-id": {}, "f:a": {}, "f:b": {}}}}},
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:other": {}}}}}]});
        let labels = vec![label("b-").unwrap(), label("c=4").unwrap()];
        let registration =
            Wishes { labels, ..wishes() }.complete(Some(&existing(&metadata)), "new.example".into()).unwrap();
        let kyma = registration.kyma();
        assert_eq!(
            kyma["metadata"]["labels"],
            json!({"kyma-project.io/runtime-id": "id", "a": "1", "c": "4"})
        );
        assert_eq!((registration.domain.as_str(), &kyma["spec"]["channel"]), ("old.example", &json!("fast")));
        let moved = Wishes { domain: Some("x.example".into()), channel: Some("regular".into()), ..wishes() };
        let moved = moved.complete(Some(&existing(&metadata)), String::new()).unwrap();
        assert_eq!((moved.domain.as_str(), moved.channel.as_str()), ("x.example", "regular"));
    }

    #[test]
    fn conflicts_are_refused_with_the_next_step() {
        let other_id = existing(&json!({"labels": {"kyma-project.io/runtime-id": "id"}}));
        let other =
            Wishes { runtime_id: Some("else".into()), ..wishes() }.complete(Some(&other_id), String::new());
        assert!(other.unwrap_err().to_string().contains("leave out --runtime-id"));
        let deleted = existing(&json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}));
        let deleted = wishes().complete(Some(&deleted), String::new());
        assert!(deleted.unwrap_err().to_string().contains("kubectl -n kcp-system wait"));

        let registration = wishes().complete(None, String::new()).unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        registration.check_unique(&names(&["k"]), &names(&["kubeconfig-k"])).unwrap();
        let kyma = registration.check_unique(&names(&["k", "l"]), &[]).unwrap_err().to_string();
        assert!(kyma.contains("tidewatch runtime add l"), "{kyma}");
        let secret = registration.check_unique(&[], &names(&["mine"])).unwrap_err().to_string();
        assert!(secret.contains("delete secret mine"), "{secret}");
    }

    #[test]
    fn labels_are_parsed() {
        for (text, error) in [
            ("a", "key=value"),
            ("=b", "no key"),
            ("kyma-project.io/runtime-id=x", "--runtime-id"),
            ("a b=c", "key is"),
            ("/a=b", "key is"),
            ("A.example/a=b", "key is"),
            ("a=b c", "value has"),
            ("a=-", "value has"),
        ] {
            assert!(label(text).unwrap_err().contains(error), "{text}");
        }
        assert_eq!(label("a=").unwrap().value.as_deref(), Some(""));
        assert_eq!(label("a-").unwrap().value, None);
        label("kyma-project.io/region=eu_1.A-b").unwrap();
    }

    #[test]
    fn domains_and_channels_are_parsed() {
        for name in ["c1.example.com", "localhost", "1.a-b"] {
            dns_name(name).unwrap();
        }
        let long = format!("{}.example", "a".repeat(64));
        for name in ["", "a..b", "-a.b", "a-.b", "A.b", "a_b", "*.example", "https://a", long.as_str()] {
            dns_name(name).unwrap_err();
        }
        channel("regular").unwrap();
        for name in ["", "ab", "Fast", "fast1"] {
            channel(name).unwrap_err();
        }
    }
}
