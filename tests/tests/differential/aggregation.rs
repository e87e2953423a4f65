//! `APIServices` without a Service: their status and the answers in their place.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidewatch_tests::wait;

use crate::pair::{Call, MERGE, Memory, Pair, one};

const SOON: Duration = Duration::from_secs(30);
const ALL: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const ONE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.gone.example.org";
const SERVICES: &str = "/api/v1/namespaces/default/services";
const GROUP: &str = "/apis/gone.example.org";

pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    let service = json!({"name": "gone", "namespace": "default"});
    let spec = json!({"group": "gone.example.org", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 10,
        "insecureSkipTLSVerify": true, "service": service});
    let mut memories = (Memory::default(), Memory::default());
    let create = Call::new("POST", ALL, json!({"metadata": {"name": "v1.gone.example.org"}, "spec": spec}));
    let mut found = pair.call(&create, &mut memories).await?;
    both(pair, ONE, |body| reason(body) == "ServiceNotFound").await?;
    both(pair, GROUP, |body| body["kind"] == "APIGroup").await?;
    both(pair, &format!("{GROUP}/v1"), |body| *body == "service unavailable\n").await?;
    let below = |path: &str| format!("{GROUP}/{path}");
    for call in [
        Call::get(ONE),
        Call::get(GROUP),
        Call::get(below("v1")),
        Call::get(below("v2")),
        Call::get(below("v1/namespaces/default/foos/x")),
        Call::get(below("v1/watch/foos")),
        Call::new("POST", below("v1/foos"), json!({})),
    ] {
        found.extend(pair.call(&call, &mut memories).await?);
    }
    let ports = |port: u16| json!({"metadata": {"name": "gone"}, "spec": {"ports": [{"port": port}]}});
    for (call, why) in [
        (Call::new("POST", SERVICES, ports(80)), "ServicePortError"),
        (Call::patch(MERGE, format!("{SERVICES}/gone"), ports(443)), "EndpointsNotFound"),
        (Call::new("DELETE", format!("{SERVICES}/gone"), Value::Null), "ServiceNotFound"),
    ] {
        found.extend(pair.call(&call, &mut memories).await?);
        both(pair, ONE, |body| reason(body) == why).await?;
        found.extend(pair.call(&Call::get(ONE), &mut memories).await?);
    }
    found.extend(pair.call(&Call::new("DELETE", ONE, Value::Null), &mut memories).await?);
    // Discovery is incomplete while one exists.
    both(pair, GROUP, |body| body["kind"] != "APIGroup").await?;
    Ok(found.into_iter().map(|line| format!("aggregation: {line}")).collect())
}

/// The reason of its availability.
fn reason(body: &Value) -> &str {
    body.pointer("/status/conditions/0/reason").and_then(Value::as_str).unwrap_or_default()
}

async fn both(pair: &Pair, path: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
    wait::until("both servers to have noticed an APIService", SOON, || async {
        let call = Call::get(path);
        let real = one(&pair.real, &call, &mut Memory::default()).await?;
        let simulated = one(&pair.simulated, &call, &mut Memory::default()).await?;
        Ok((is_so(&real.body) && is_so(&simulated.body)).then_some(()))
    })
    .await
}
