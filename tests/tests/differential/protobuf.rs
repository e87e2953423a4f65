//! Protobuf bodies: the real server's encodings, and invalid messages.

use anyhow::{Context, Result};
use http_body_util::{BodyExt, Limited};
use hyper::http::Request;
use kube::{Client, client::Body};
use serde_json::{Value, json};

use crate::{
    fixed,
    pair::{Call, Memory, Pair},
    prepare::{CRDS, crd},
};

const MEDIA: &str = "application/vnd.kubernetes.protobuf";
const LARGEST: usize = 1024 * 1024;
/// Map tags for which the real server accepts any wire type.
const LABELS: u8 = 0x5a;
const ANNOTATIONS: u8 = 0x62;
const MAPS: &str = "/api/v1/namespaces/fixed/configmaps";

pub(crate) async fn run(pair: &Pair) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut memories = (Memory::default(), Memory::default());
    let calls = garbage();
    for call in &calls {
        let lines = pair.call(call, &mut memories).await?;
        // Each parser has its own error text.
        found.extend(lines.into_iter().filter(|line| line.contains(" code: ")));
    }
    let mut written = 0;
    for call in fixed::kinds().into_iter().chain(fixed::workloads()).filter(|call| call.method == "POST") {
        if let Some(lines) = again(pair, renamed(call)).await? {
            found.extend(lines);
            written += 1;
        }
    }
    for call in rich() {
        let path = call.path.clone();
        found.extend(
            again(pair, call).await?.unwrap_or_else(|| vec![format!("{path}: real does not take it")]),
        );
        written += 1;
    }
    say!("protobuf: {} calls that are none, {written} objects", calls.len());
    Ok(found.into_iter().map(|line| format!("protobuf {line}")).collect())
}

/// Sends the real server's encoding to both sides. `None`: not encodable.
async fn again(pair: &Pair, call: Call) -> Result<Option<Vec<String>>> {
    let path = format!("{}?dryRun=All", call.path.split('?').next().unwrap_or_default());
    let Some(message) = encoded(&pair.real, &path, &call.body).await? else { return Ok(None) };
    let call = Call { body: call.body, ..Call::raw("POST", path, MEDIA, message) };
    pair.call(&call, &mut (Memory::default(), Memory::default())).await.map(Some)
}

/// Uses a free name.
fn renamed(mut call: Call) -> Call {
    call.body["metadata"]["name"] =
        format!("{}-pb", call.body["metadata"]["name"].as_str().unwrap_or_default()).into();
    // The real server rejects its own allocated addresses.
    if call.path.ends_with("/services") {
        call.body["spec"]["clusterIP"] = "None".into();
    }
    call
}

/// Returns the real server's encoding of an accepted object.
#[expect(clippy::disallowed_methods, reason = "the body is limited")]
async fn encoded(real: &Client, path: &str, body: &Value) -> Result<Option<Vec<u8>>> {
    let request = Request::post(path).header("content-type", "application/json").header("accept", MEDIA);
    let response =
        real.send(request.body(Body::from(body.to_string().into_bytes()))?).await.context(path.to_owned())?;
    if !response.status().is_success() {
        return Ok(None);
    }
    let message = Limited::new(response.into_body(), LARGEST).collect().await;
    Ok(Some(message.map_err(|error| anyhow::anyhow!(error))?.to_bytes().into()))
}

/// Objects with every kind of field.
fn rich() -> Vec<Call> {
    let of = |path: &str, body: Value| Call::new("POST", path, body);
    let namespaced = |path: &str| path.replace("/v1/", "/v1/namespaces/fixed/");
    let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
    let probe = json!({"exec": {"command": ["a", ""]}, "failureThreshold": 9});
    let pod = json!({
        "automountServiceAccountToken": false, "enableServiceLinks": false,
        "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a"]}], "imagePullSecrets": [{"name": "x"}], "nodeSelector": {"a": ""},
        "securityContext": {"runAsUser": 0, "runAsNonRoot": false, "supplementalGroups": [0, 7, 1_000_000], "sysctls": [{"name": "a.b", "value": "0"}]},
        "tolerations": [{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 0}, {"key": "a", "value": "b"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}],
        "affinity": {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["0"]}]}]}},
            "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "z", "labelSelector": selector}}]},
        },
        "volumes": [
            {"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {"medium": "Memory", "sizeLimit": "1500Mi"}},
            {"name": "c", "configMap": {"name": "c", "optional": false, "defaultMode": 0, "items": [{"key": "k", "path": "p", "mode": 256}]}},
            {"name": "d", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 600}},
                {"downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.labels"}}]}}, {"secret": {"name": "s"}}]}},
            {"name": "e", "hostPath": {"path": "/x", "type": ""}}, {"name": "f", "persistentVolumeClaim": {"claimName": "x", "readOnly": true}},
        ],
        "containers": [{
            "name": "c", "image": "x:1", "args": ["", "b"], "stdin": true, "workingDir": "/",
            "ports": [{"name": "web", "containerPort": 80, "hostPort": 0, "protocol": "UDP"}],
            "env": [{"name": "A"}, {"name": "B", "value": ""}, {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k", "optional": true}}},
                {"name": "D", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}}],
            "envFrom": [{"prefix": "p", "configMapRef": {"name": "x"}}, {"secretRef": {"name": "y", "optional": false}}],
            "resources": {"limits": {"cpu": "0.5", "memory": "1500M"}, "requests": {"cpu": "100m"}},
            "livenessProbe": {"httpGet": {"port": "web", "httpHeaders": [{"name": "A", "value": ""}]}, "terminationGracePeriodSeconds": 1},
            "readinessProbe": {"tcpSocket": {"port": 80}}, "startupProbe": probe,
            "lifecycle": {"preStop": {"sleep": {"seconds": 0}}, "postStart": {"httpGet": {"port": 1, "host": "h"}}},
            "securityContext": {"capabilities": {"drop": ["ALL"]}, "privileged": false, "readOnlyRootFilesystem": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumeMounts": [{"name": "a", "mountPath": "/a", "subPath": "s"}, {"name": "b", "mountPath": "/b", "readOnly": true}],
        }],
    });
    // A pod with requests has another QoS class.
    let mut plain = pod.clone();
    plain["containers"][0]["resources"] = json!({});
    let template = json!({"metadata": {"labels": {"a": "b"}, "annotations": {"c": ""}}, "spec": pod});
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    let metadata = json!({"name": "x", "labels": {"a": ""}, "annotations": {"b": "\u{e9}"}, "finalizers": ["a/b"], "ownerReferences": [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "6e94b08b-d0ce-4eb4-82c1-f272f48599da", "controller": false, "blockOwnerDeletion": true}]});
    let object = |spec: Value| json!({"metadata": metadata, "spec": spec});
    let mut defined = crd("rich", "rich.example.org");
    let version = &mut defined["spec"]["versions"][0];
    version["additionalPrinterColumns"] =
        json!([{"name": "A", "type": "string", "jsonPath": ".spec.a", "priority": 0}]);
    version["selectableFields"] = json!([{"jsonPath": ".spec.a"}]);
    version["subresources"]["scale"] =
        json!({"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.n"});
    version["schema"]["openAPIV3Schema"]["properties"]["more"] = json!({"type": "object", "default": {"x": 2.5}, "properties": {
        "x": {"type": "number", "maximum": 5, "exclusiveMaximum": true, "minimum": -0.5, "multipleOf": 2.5, "default": 0},
        "y": {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": true, "enum": [0, "", "1"]},
        "z": {"type": "object", "not": {"required": ["q"]}, "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "w": {"type": "object", "additionalProperties": {"type": "array", "maxItems": 0, "items": {"type": "boolean", "default": false}}},
    }});
    vec![
        of(CRDS, defined),
        of(
            &namespaced("/apis/apps/v1/deployments"),
            object(
                json!({"replicas": 0, "paused": true, "progressDeadlineSeconds": 7, "selector": selector, "template": template,
                          "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}}),
            ),
        ),
        of(
            &namespaced("/apis/apps/v1/statefulsets"),
            object(
                json!({"serviceName": "s", "selector": selector, "template": template, "volumeClaimTemplates": [
                {"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}],
                "updateStrategy": {"rollingUpdate": {"partition": 0}}}),
            ),
        ),
        of(
            &namespaced("/apis/apps/v1/replicasets"),
            object(json!({"selector": selector, "template": template})),
        ),
        of(
            &namespaced("/apis/batch/v1/jobs"),
            object(
                json!({"backoffLimit": 0, "suspend": true, "ttlSecondsAfterFinished": 0, "manualSelector": true, "selector": {"matchLabels": {"a": "b"}}, "template": once}),
            ),
        ),
        of(&namespaced("/api/v1/pods"), object(plain)),
        of(
            &namespaced("/api/v1/secrets"),
            json!({"metadata": metadata, "data": {"a": "", "b": "AP8="}, "stringData": {"c": ""}, "type": "x/y", "immutable": false}),
        ),
        of(
            &namespaced("/api/v1/configmaps"),
            json!({"metadata": metadata, "data": {"a": ""}, "binaryData": {"b": "/w=="}}),
        ),
        of(
            &namespaced("/api/v1/serviceaccounts"),
            json!({"metadata": metadata, "imagePullSecrets": [{"name": "x"}], "automountServiceAccountToken": false}),
        ),
        of(
            &namespaced("/api/v1/services"),
            object(
                json!({"clusterIP": "None", "selector": {"a": "b"}, "publishNotReadyAddresses": true, "ports": [
                {"name": "a", "port": 80, "targetPort": "web"}, {"name": "b", "port": 81, "targetPort": 8080, "appProtocol": "h2"}]}),
            ),
        ),
        of(
            &namespaced("/apis/coordination.k8s.io/v1/leases"),
            object(json!({"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 0,
                          "acquireTime": "2026-01-02T03:04:05.000006Z", "renewTime": "2026-01-02T03:04:05.123456Z"})),
        ),
        of(
            &namespaced("/apis/policy/v1/poddisruptionbudgets"),
            object(
                json!({"maxUnavailable": "10%", "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"}),
            ),
        ),
        of(
            &namespaced("/apis/networking.k8s.io/v1/networkpolicies"),
            object(json!({"podSelector": selector, "policyTypes": ["Egress"], "egress": [{}, {"to": [
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": "dns", "protocol": "UDP"}, {"port": 1, "endPort": 9}]}]})),
        ),
        of(
            "/apis/storage.k8s.io/v1/storageclasses",
            json!({"metadata": {"name": "x"}, "provisioner": "a.b/c", "parameters": {"k": ""}, "allowVolumeExpansion": false, "mountOptions": ["ro"],
                   "allowedTopologies": [{"matchLabelExpressions": [{"key": "z", "values": ["a"]}]}]}),
        ),
        of(
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            json!({"metadata": {"name": "x"}, "aggregationRule": {"clusterRoleSelectors": [selector]}, "rules": [
                {"nonResourceURLs": ["/x"], "verbs": ["get"]}, {"apiGroups": [""], "resources": ["pods"], "resourceNames": ["p"], "verbs": ["*"]}]}),
        ),
        of(
            "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
            json!({"metadata": {"name": "x"}, "webhooks": [{
                "name": "a.b.c", "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 3, "reinvocationPolicy": "IfNeeded",
                "clientConfig": {"url": "https://x.example.org/y"}, "objectSelector": selector,
                "rules": [{"apiGroups": ["zz.io"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["zz"], "scope": "Namespaced"}]}]}),
        ),
        of(
            "/apis/apiregistration.k8s.io/v1/apiservices",
            json!({"metadata": {"name": "v1.x.example.org"}, "spec": {"group": "x.example.org", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1,
                   "insecureSkipTLSVerify": true, "service": {"name": "s", "namespace": "fixed", "port": 443}}}),
        ),
        of(
            &namespaced("/apis/events.k8s.io/v1/events"),
            json!({"metadata": {"name": "rich-new", "namespace": "fixed"}, "eventTime": "2026-01-02T03:04:05.000000Z", "action": "A", "reason": "R", "type": "Normal",
                   "reportingController": "a.b/c", "reportingInstance": "i", "regarding": {"kind": "ConfigMap", "name": "x", "namespace": "fixed"},
                   "series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:05.500000Z"}}),
        ),
        of(
            &namespaced("/api/v1/events"),
            json!({"metadata": {"name": "rich"}, "count": 3, "firstTimestamp": "2026-01-02T03:04:05Z", "reason": "R", "type": "Warning",
                   "source": {"component": "c"}, "involvedObject": {"kind": "ConfigMap", "name": "x", "namespace": "fixed", "fieldPath": "a{b}"}}),
        ),
    ]
}

/// Invalid envelopes and messages.
fn garbage() -> Vec<Call> {
    // All lengths fit into one byte.
    let short = |bytes: &[u8]| u8::try_from(bytes.len()).unwrap_or_default();
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, short(bytes)], bytes].concat();
    let about = |version: &str, kind: &str| {
        field(1, &[field(1, version.as_bytes()), field(2, kind.as_bytes())].concat())
    };
    let envelope = |fields: &[&[u8]]| [b"k8s\0", fields.concat().as_slice()].concat();
    let post = |raw: Vec<u8>| Call::raw("POST", format!("{MAPS}?dryRun=All"), MEDIA, raw);
    let map = field(1, &field(1, b"pb"));
    let mut calls = vec![
        post(b"garbage".to_vec()),
        post(b"k8s\0".to_vec()),
        post(Vec::new()),
        post(b"k8s\0\xff\xff\xff\xff".to_vec()),
        post(envelope(&[&field(2, &map)])),
        post(envelope(&[&about("", "ConfigMap"), &field(2, &map)])),
        post(envelope(&[&about("v1", "Secret"), &field(2, &map)])),
        post(envelope(&[&about("apps/v1", "Deployment"), &field(2, &map)])),
        // Split messages with unknown fields, one of them a group.
        post(envelope(&[&field(
            2,
            &[map.clone(), field(15, b"x"), vec![0x73, 0x08, 1, 0x74], field(1, &field(2, b"g"))].concat(),
        )])),
        post(envelope(&[&field(2, &[map.clone(), field(2, &field(1, b"a"))].concat())])),
        Call::raw("DELETE", format!("{MAPS}/none"), MEDIA, b"garbage".to_vec()),
        Call::raw(
            "DELETE",
            format!("{MAPS}/none"),
            MEDIA,
            envelope(&[&about("v1", "DeleteOptions"), &field(2, b"")]),
        ),
        Call::raw("DELETE", format!("{MAPS}/none"), MEDIA, envelope(&[&field(2, &map)])),
        Call::raw("PATCH", format!("{MAPS}/none"), MEDIA, envelope(&[&field(2, &map)])),
        Call::raw(
            "DELETE",
            "/apis/fixed.example.org/v1/namespaces/fixed/foos/none",
            MEDIA,
            envelope(&[&about("v1", "DeleteOptions"), &field(2, b"")]),
        ),
    ];
    // Truncated messages and flipped bits.
    let metadata = [field(1, b"pb"), field(8, &[8, 1]), vec![0x50, 0]].concat();
    let whole = field(1, &metadata);
    calls.extend((0..whole.len()).map(|many| post(envelope(&[&field(2, &whole[..many])]))));
    calls.extend((0..whole.len()).flat_map(|place| {
        let with = |bit: u8| {
            let mut other = whole.clone();
            other[place] ^= 1 << bit;
            other
        };
        let readable = |other: &Vec<u8>| !matches!(other[place], LABELS | ANNOTATIONS);
        (0..8)
            .map(with)
            .filter(readable)
            .map(|other| post(envelope(&[&field(2, &other)])))
            .collect::<Vec<_>>()
    }));
    calls
}
