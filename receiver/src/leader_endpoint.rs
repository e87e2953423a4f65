//! The endpoint of the agents' Service: only the leader's address.
//!
//! All receivers are ready, so that a rollout waits for a standby that can take over. The Service has no selector; the leader writes its
//! `EndpointSlice`, which Kubernetes allows for Services without selectors. A label on the leader's pod would do too, but needs the right
//! to change pods.

use std::{net::IpAddr, time::Duration};

use k8s_openapi::api::{
    core::v1::ObjectReference,
    discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice},
};
use kube::{
    Api, Client,
    api::{ObjectMeta, Patch, PatchParams},
};
use tidewatch_drain::ShutdownSignal;
use tidewatch_telemetry::chain;

/// Name of the Service's port.
const PORT: &str = "agents";
const FIELD_MANAGER: &str = "tidewatch-receiver";
/// Restores a deleted slice. An equal apply writes nothing.
const AGAIN: Duration = Duration::from_mins(1);
const RETRY: Duration = Duration::from_secs(2);

/// The Service to which the leader belongs.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct LeaderServiceArgs {
    /// Service without selector that agents dial, in the receiver's namespace. The leader makes its
    /// address the only endpoint of it. Without it, agents must reach the leader in another way.
    #[arg(long, env = "TIDEWATCH_LEADER_SERVICE", value_name = "NAME", requires = "pod_ip")]
    pub leader_service: Option<String>,
    /// Address of this pod.
    #[arg(long, env = "TIDEWATCH_POD_IP", value_name = "IP")]
    pub pod_ip: Option<IpAddr>,
    /// Node of this pod. Services with externalTrafficPolicy Local need it.
    #[arg(long, env = "TIDEWATCH_NODE_NAME", value_name = "NAME")]
    pub node_name: Option<String>,
}

/// The leader's endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderEndpoint {
    /// The Service.
    pub service: String,
    /// The pod's address.
    pub address: IpAddr,
    /// The agents' port.
    pub port: u16,
    /// The pod's node.
    pub node: Option<String>,
    /// The pod.
    pub pod: String,
}

impl LeaderServiceArgs {
    /// The endpoint, if there is a Service.
    pub(crate) fn endpoint(self, port: u16, pod: &str) -> Option<LeaderEndpoint> {
        let Self { leader_service, pod_ip, node_name } = self;
        Some(LeaderEndpoint {
            service: leader_service?,
            address: pod_ip?,
            port,
            node: node_name,
            pod: pod.to_owned(),
        })
    }
}

impl LeaderEndpoint {
    fn slice(&self, namespace: &str) -> EndpointSlice {
        let labels = [
            ("kubernetes.io/service-name", self.service.as_str()),
            ("endpointslice.kubernetes.io/managed-by", FIELD_MANAGER),
        ];
        let endpoint = Endpoint {
            addresses: vec![self.address.to_string()],
            conditions: Some(EndpointConditions { ready: Some(true), ..EndpointConditions::default() }),
            node_name: self.node.clone(),
            target_ref: Some(ObjectReference {
                kind: Some("Pod".to_owned()),
                namespace: Some(namespace.to_owned()),
                name: Some(self.pod.clone()),
                ..ObjectReference::default()
            }),
            ..Endpoint::default()
        };
        let port = EndpointPort {
            name: Some(PORT.to_owned()),
            port: Some(self.port.into()),
            protocol: Some("TCP".to_owned()),
            ..EndpointPort::default()
        };
        EndpointSlice {
            metadata: ObjectMeta {
                name: Some(self.service.clone()),
                namespace: Some(namespace.to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            address_type: if self.address.is_ipv4() { "IPv4" } else { "IPv6" }.to_owned(),
            endpoints: Some(vec![endpoint]),
            ports: Some(vec![port]),
        }
    }

    /// Keeps the slice until shutdown. The next leader replaces it.
    pub async fn publish(self, client: Client, namespace: String, stop: ShutdownSignal) {
        let api: Api<EndpointSlice> = Api::namespaced(client, &namespace);
        let slice = self.slice(&namespace);
        let params = PatchParams::apply(FIELD_MANAGER).force();
        loop {
            let pause = match api.patch(&self.service, &params, &Patch::Apply(&slice)).await {
                Ok(_) => AGAIN,
                Err(error) => {
                    tracing::warn!(error = %chain(&error), service = self.service,
                        "agents cannot find this leader: its EndpointSlice is not written; check the receiver's role; trying again");
                    RETRY
                }
            };
            tokio::select! {
                () = stop.signaled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        service: LeaderServiceArgs,
    }

    #[test]
    fn slice_has_the_leaders_address_alone() {
        let args = ["receiver", "--leader-service=receiver", "--pod-ip=2001:db8::7", "--node-name=n1"];
        let only = Only::try_parse_from(args).unwrap();
        let endpoint = only.service.endpoint(8443, "receiver-0").unwrap();
        assert_eq!(
            serde_json::to_value(endpoint.slice("kcp")).unwrap(),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv6",
                "metadata": {"name": "receiver", "namespace": "kcp", "labels": {
                    "kubernetes.io/service-name": "receiver",
                    "endpointslice.kubernetes.io/managed-by": "tidewatch-receiver"}},
                "endpoints": [{
                    "addresses": ["2001:db8::7"], "conditions": {"ready": true}, "nodeName": "n1",
                    "targetRef": {"kind": "Pod", "namespace": "kcp", "name": "receiver-0"}}],
                "ports": [{"name": "agents", "port": 8443, "protocol": "TCP"}]
            })
        );
    }

    #[test]
    fn leader_service_needs_the_pods_address() {
        assert!(Only::try_parse_from(["receiver", "--leader-service=receiver"]).is_err());
        assert_eq!(Only::try_parse_from(["receiver"]).unwrap().service.endpoint(1, "a"), None);
    }
}
