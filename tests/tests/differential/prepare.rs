//! Setup of a sequence.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidewatch_tests::wait;

use crate::pair::{Call, Memory, Pair, one};

const LONG: Duration = Duration::from_secs(30);
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Creates a namespace with its default objects and a served CRD.
pub(crate) async fn prepare(pair: &Pair, namespace: &str, group: &str) -> Result<()> {
    let mut memories = (Memory::default(), Memory::default());
    for call in [
        Call::new("POST", "/api/v1/namespaces", json!({"metadata": {"name": namespace}})),
        Call::new("POST", CRDS, crd("foo", group)),
    ] {
        pair.call(&call, &mut memories).await?;
    }
    for path in [
        format!("/api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt"),
        format!("/api/v1/namespaces/{namespace}/serviceaccounts/default"),
        format!("/apis/{group}/v1/namespaces/{namespace}/foos"),
    ] {
        wait::until("both servers to be ready", LONG, || async {
            let call = Call::get(&path);
            let real = one(&pair.real, &call, &mut Memory::default()).await?;
            let simulated = one(&pair.simulated, &call, &mut Memory::default()).await?;
            Ok((real.code == 200 && simulated.code == 200).then_some(()))
        })
        .await?;
    }
    // The real server delays POSTs for two seconds after a CRD is established.
    let first = json!({"apiVersion": format!("{group}/v1"), "kind": "Foo", "metadata": {"name": "first"}, "spec": {"a": "x"}});
    pair.call(
        &Call::new("POST", format!("/apis/{group}/v1/namespaces/{namespace}/foos"), first),
        &mut memories,
    )
    .await?;
    Ok(())
}

/// A CRD with fields of every relevant kind.
pub(crate) fn crd(singular: &str, group: &str) -> Value {
    let text = json!({"type": "string"});
    let item = json!({"type": "object", "required": ["name"], "properties": {
        "name": text, "v": text, "d": {"type": "string", "default": "dd"},
    }});
    let spec = json!({"type": "object", "required": ["a"], "properties": {
        "a": {"type": "string", "maxLength": 5},
        "n": {"type": "integer", "default": 3, "minimum": 1, "maximum": 9},
        "r": {"type": "integer"},
        "e": {"type": "string", "enum": ["x", "y"]},
        "p": {"type": "string", "pattern": "^a+$"},
        "nul": {"type": "string", "nullable": true},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "m": {"type": "object", "additionalProperties": text},
        "ios": {"x-kubernetes-int-or-string": true},
        "set": {"type": "array", "items": text, "x-kubernetes-list-type": "set"},
        "al": {"type": "array", "items": text, "maxItems": 2},
        "l": {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    }});
    let status = json!({"type": "object", "properties": {"state": text, "r": {"type": "integer"}}});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{singular}s.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "names": {"plural": format!("{singular}s"), "kind": "Foo", "shortNames": ["fo"]},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.r", "statusReplicasPath": ".status.r"}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": status}}}}],
        },
    })
}
