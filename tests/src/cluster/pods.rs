//! The fake Node for pods.

use anyhow::Result;
use k8s_openapi::{
    api::core::v1::{Node, NodeStatus},
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::ObjectMeta},
};
use kube::{Api, Client, api::PostParams};

const NODE: &str = "node-1";
/// More than any test requests. kwok's default lacks ephemeral storage, so the scheduler rejects pods that
/// request it.
const RESOURCES: [(&str, &str); 4] =
    [("cpu", "1k"), ("memory", "1Ti"), ("pods", "1M"), ("ephemeral-storage", "1Ti")];

pub(super) async fn create_node(client: &Client) -> Result<()> {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let resources = RESOURCES.map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned())));
    let node = Node {
        metadata: ObjectMeta {
            name: Some(NODE.to_owned()),
            annotations: Some([pair("kwok.x-k8s.io/node", "fake")].into()),
            labels: Some(
                [
                    pair("kubernetes.io/hostname", NODE),
                    pair("kubernetes.io/os", "linux"),
                    pair("kubernetes.io/arch", "amd64"),
                ]
                .into(),
            ),
            ..ObjectMeta::default()
        },
        status: Some(NodeStatus {
            allocatable: Some(resources.clone().into()),
            capacity: Some(resources.into()),
            ..NodeStatus::default()
        }),
        ..Node::default()
    };
    Api::all(client.clone()).create(&PostParams::default(), &node).await?;
    Ok(())
}

/// Ready, and without the not-ready taint that keeps pods off.
pub(super) async fn node_ready(client: &Client) -> Result<Option<()>> {
    let node: Node = Api::all(client.clone()).get(NODE).await?;
    let conditions = node.status.and_then(|status| status.conditions).unwrap_or_default();
    let ready = conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let tainted = node.spec.and_then(|spec| spec.taints).is_some_and(|taints| !taints.is_empty());
    Ok((ready && !tainted).then_some(()))
}
