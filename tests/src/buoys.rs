//! The module `buoys`: Deployments for random changes, and a check of the result.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use anyhow::{Context, Result, ensure};
use futures::TryStreamExt;
use k8s_openapi::api::apps::v1::Deployment;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
    core::Status,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tidewatch_oci::{ModulePackage, Registry, RegistryConfig, push};

use crate::{kcp, story::set_modules, wait};

/// The module's name, and the label `app` of its Deployments.
pub const MODULE: &str = "buoys";
/// Channel, version and Deployment numbers. An upgrade keeps some, creates one and prunes one.
const RELEASES: [(&str, &str, [u32; 5]); 2] =
    [("regular", "1.0.0", [0, 1, 2, 3, 4]), ("fast", "2.0.0", [0, 1, 2, 3, 5])];

/// Pushes both versions and releases them as `regular` and `fast`. Both directions are allowed.
pub async fn release(kcp: &Client, namespace: &str, registry: &str) -> Result<()> {
    let client = Registry::new(RegistryConfig::default())?;
    for (_, version, numbers) in RELEASES {
        let documents: Vec<String> = numbers.iter().map(|n| deployment(*n, version).to_string()).collect();
        let package = ModulePackage {
            sources: Vec::new(),
            component_name: kcp::component(MODULE),
            version: version.to_owned(),
            raw_manifest: documents.join("\n---\n"),
            default_cr: None,
            images: vec![image(version)],
        };
        push(&client, registry, &package).await?;
        kcp::put_template(kcp, namespace, MODULE, version).await?;
    }
    let channels = RELEASES.map(|(channel, version, _)| (channel, version));
    kcp::put_release(kcp, namespace, MODULE, &channels).await?;
    kcp::allow_downgrade(kcp, namespace, MODULE).await
}

fn image(version: &str) -> String {
    format!("example.local/buoy:{version}")
}

fn name(number: u32) -> String {
    format!("buoy-{number}")
}

/// Has zero replicas: Pods would only cost time.
fn deployment(number: u32, version: &str) -> Value {
    let (name, labels) = (name(number), json!({"app": MODULE, "buoy": number.to_string()}));
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": RUNTIME_NAMESPACE, "labels": labels},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels},
                              "spec": {"containers": [{"name": "buoy", "image": image(version)}]}}}
    })
}

/// A user's change in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Deletes a Deployment.
    Delete(u32),
    /// Changes a Deployment's image.
    Edit(u32),
    /// Enables the module in the first or second channel.
    Enable(bool),
    /// Disables the module.
    Disable,
}

/// A reproducible random number generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a number below `end`. `end` must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    /// Returns a change, mostly of objects, sometimes of the Kyma.
    pub fn change(&mut self) -> Change {
        let number = u32::try_from(self.below(6)).unwrap_or(0);
        match self.below(16) {
            0..8 => Change::Delete(number),
            8..12 => Change::Edit(number),
            12..15 => Change::Enable(self.below(2) == 1),
            _ => Change::Disable,
        }
    }
}

/// The runtime as its users see it.
#[derive(Clone)]
pub struct Buoys {
    client: Client,
    deployments: Api<Deployment>,
}

impl Buoys {
    /// Uses an administrator's client.
    pub fn of(client: Client) -> Self {
        Self { deployments: Api::namespaced(client.clone(), RUNTIME_NAMESPACE), client }
    }

    /// Makes the change and returns whether the API server accepted it. A missing object is no error.
    pub async fn make(&self, change: Change) -> Result<bool> {
        let missing = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
        match change {
            Change::Delete(number) => {
                match self.deployments.delete(&name(number), &DeleteParams::background()).await {
                    Ok(_) => Ok(true),
                    Err(error) if missing(&error) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            Change::Edit(number) => {
                let containers = json!([{"name": "buoy", "image": "example.local/buoy:drifting"}]);
                let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
                let params = PatchParams::default();
                match self.deployments.patch(&name(number), &params, &Patch::Strategic(patch)).await {
                    Ok(_) => Ok(true),
                    Err(error) if missing(&error) => Ok(false),
                    Err(error) => Err(error.into()),
                }
            }
            Change::Enable(second) => {
                let (channel, ..) = RELEASES[usize::from(second)];
                set_modules(&self.client, &json!([{"name": MODULE, "channel": channel}])).await?;
                Ok(true)
            }
            Change::Disable => {
                set_modules(&self.client, &json!([])).await?;
                Ok(true)
            }
        }
    }

    /// Returns the differences from the runtime's Kyma.
    pub async fn differences(&self) -> Result<Vec<String>> {
        let kymas: Api<Kyma> = Api::namespaced(self.client.clone(), RUNTIME_NAMESPACE);
        let kyma = kymas.get(RUNTIME_KYMA_NAME).await?;
        let wanted = kyma.spec.modules.iter().find(|module| module.name == MODULE);
        let expected: BTreeMap<String, String> = match wanted {
            None => BTreeMap::new(),
            Some(module) => {
                let asked = module.channel.as_deref().unwrap_or("regular");
                let release = RELEASES.iter().find(|(channel, ..)| *channel == asked);
                let (_, version, numbers) = release.with_context(|| format!("no channel {asked}"))?;
                numbers.iter().map(|number| (name(*number), image(version))).collect()
            }
        };
        let list = ListParams::default().labels(&format!("app={MODULE}"));
        let mut found = BTreeMap::new();
        for deployment in self.deployments.list(&list).await?.items {
            let containers = deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            let image = containers.and_then(|spec| spec.containers.first()?.image.clone());
            let ending = deployment.metadata.deletion_timestamp.is_some();
            found.insert(
                deployment.name_any(),
                if ending { "ending".to_owned() } else { image.unwrap_or_default() },
            );
        }
        let mut differences: Vec<String> = expected
            .iter()
            .filter(|(name, image)| found.get(*name) != Some(image))
            .map(|(name, image)| format!("{name} should be {image} and is {:?}", found.get(name)))
            .collect();
        differences.extend(
            found.keys().filter(|name| !expected.contains_key(*name)).map(|name| format!("{name} is left")),
        );
        Ok(differences)
    }

    /// Makes an effective change: deletes an existing Deployment, or enables the module if there is none.
    pub async fn make_last(&self, dice: &mut Dice) -> Result<Change> {
        let list = ListParams::default().labels(&format!("app={MODULE}"));
        let there: Vec<u32> = self
            .deployments
            .list(&list)
            .await?
            .items
            .iter()
            .filter_map(|deployment| deployment.labels().get("buoy")?.parse().ok())
            .collect();
        let picked = dice.below(there.len().max(1) as u64);
        let picked = usize::try_from(picked).ok().and_then(|at| there.get(at));
        let change = picked.map_or(Change::Enable(false), |number| Change::Delete(*number));
        // Another writer deleted it first, so this was not the last change.
        if !self.make(change).await? {
            self.make(Change::Disable).await?;
            self.make(Change::Enable(true)).await?;
            return Ok(Change::Enable(true));
        }
        Ok(change)
    }

    /// Returns the resource version of the Deployment list.
    pub async fn version(&self) -> Result<String> {
        let list = self.deployments.list(&ListParams::default()).await?;
        list.metadata.resource_version.context("a list without a version")
    }

    /// Returns whether a watch from that version gets 410 Gone.
    pub async fn is_expired(&self, version: &str) -> Result<bool> {
        let gone = |status: &Status| status.code == 410;
        let mut events = match self.deployments.watch(&WatchParams::default().timeout(2), version).await {
            Ok(events) => pin!(events),
            Err(kube::Error::Api(status)) if gone(&status) => return Ok(true),
            Err(error) => return Err(error.into()),
        };
        match events.try_next().await {
            Ok(Some(WatchEvent::Error(status))) | Err(kube::Error::Api(status)) => Ok(gone(&status)),
            other => Ok(other.map(|_| false)?),
        }
    }

    /// Waits until the runtime matches its Kyma.
    pub async fn as_asked(&self, within: Duration) -> Result<()> {
        wait::until("the Deployments that the Kyma asks for", within, || async {
            let differences = self.differences().await?;
            ensure!(differences.is_empty(), "{}", differences.join("; "));
            Ok(Some(()))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_reproduces_changes_of_every_kind() {
        let row = |seed| {
            let mut dice = Dice::new(seed);
            (0..60).map(|_| dice.change()).collect::<Vec<_>>()
        };
        assert_eq!(row(7), row(7));
        assert_ne!(row(7), row(8));
        let kinds: HashSet<_> = row(7).iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), 4);
    }
}
