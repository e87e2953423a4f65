//! Effects that the real server delays and the simulator does not.

use std::time::Duration;

use anyhow::Result;
use futures::future::try_join_all;
use serde_json::{Value, json};
use tidewatch_tests::wait;

use super::{
    GROUP, Known, NAMESPACE,
    Shown::{Both, Words},
    WHOLE_BODY, core, known, pod, post,
};
use crate::{
    access,
    pair::{Call, Memory, Pair, one},
    prepare::{CRDS, crd},
};

/// Roles created at once, to slow the real server's propagation.
const AT_ONCE: usize = 16;
/// Attempts to observe a delay.
const TURNS: usize = 4;
const LONG: Duration = Duration::from_secs(30);
/// The difference that [`roles`] shows.
pub(super) const RBAC: &str = "RBAC: a change has effect a moment later";

/// Returns all rows, with names unique to the turn.
pub(super) fn all(turn: usize) -> Vec<Known> {
    let gone = Words(&["code: 200 and simulated 404", WHOLE_BODY]);
    let maps = core("configmaps");
    let map = |name: &str| json!({"metadata": {"name": name}});
    let named = |name: &str| format!("{name}-{turn}");
    let [owner, child, grandchild, last] = ["owner", "child", "grandchild", "great-grandchild"].map(named);
    let (brief, placed) = (named("known-brief"), named("placed"));
    let group = format!("brief{turn}.{GROUP}");
    let below = |name: &str, owner: &str| {
        let mut map = map(name);
        map["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": format!("{{{owner}.uid}}")}]);
        post(&*maps, map).saved(name)
    };
    let delete = |path: String| Call::new("DELETE", path, Value::Null);
    let namespaces = "/api/v1/namespaces";
    let (cluster_roles, whole, part) =
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles", named("known-all"), named("known-part"));
    let labels = json!({"known": part});
    let aggregated = json!({"metadata": {"name": whole}, "rules": [],
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": labels}]}});
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
    let part = json!({"metadata": {"name": part, "labels": labels}, "rules": rules});
    vec![
        // The collector needs time per ownership level.
        known("cascades take a moment", Call::get(format!("{maps}/{last}")), gone).after(vec![
            post(&*maps, map(&owner)).saved(&owner),
            below(&child, &owner),
            below(&grandchild, &child),
            below(&last, &grandchild),
            delete(format!("{maps}/{owner}")),
        ]),
        known("namespaces go after a moment", Call::get(format!("{namespaces}/{brief}")), gone)
            .after(vec![post(namespaces, map(&brief)), delete(format!("{namespaces}/{brief}"))]),
        known(
            "CRDs are served after a moment",
            Call::get(format!("/apis/{group}/v1/namespaces/{NAMESPACE}/foos")),
            // Its storage exists but is briefly not ready.
            Both(|real, simulated| matches!(real.code, 404 | 429) && simulated.code == 200),
        )
        .after(vec![post(CRDS, crd("foo", &group))]),
        known(
            "RBAC: roles are aggregated after a moment",
            Call::get(format!("{cluster_roles}/{whole}")),
            Words(&[".rules", ".metadata.managedFields"]),
        )
        .after(vec![post(cluster_roles, part), post(cluster_roles, aggregated)]),
        known("deleted pods that have a node", Call::get(core(&format!("pods/{placed}"))), gone).after(vec![
            post(core("pods"), pod(&placed, json!({"nodeName": "none"}))),
            delete(core(&format!("pods/{placed}"))),
        ]),
    ]
}

/// Verifies a row; retries if the delay was too short to observe.
pub(super) async fn shown(pair: &Pair, index: usize) -> Result<Vec<String>> {
    let mut strange = Vec::new();
    for turn in 0..TURNS {
        if let Some(known) = all(turn).get(index) {
            strange = known.shown(pair).await?;
        }
        if strange.is_empty() {
            break;
        }
    }
    Ok(strange)
}

/// Grants many roles until the real server briefly refuses one. The simulator must never refuse.
pub(super) async fn roles(pair: &Pair) -> Result<Vec<String>> {
    let mut first = 0;
    let late = wait::until("RBAC objects to have effect late", LONG, || {
        first += AT_ONCE;
        async move {
            let all = try_join_all((first..first + AT_ONCE).map(|number| given(pair, number))).await?;
            Ok(all.into_iter().flatten().max_by_key(Vec::len))
        }
    });
    Ok(match late.await {
        Ok(found) => found,
        Err(gone) => vec![format!("known ({RBAC}), is alike by now: {gone}")],
    })
}

/// Grants a right and uses it at once. `None`: the real server already allows it.
async fn given(pair: &Pair, number: usize) -> Result<Option<Vec<String>>> {
    let name = format!("known-{number}");
    let folder = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}");
    let rules =
        json!([{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [name], "verbs": ["get"]}]);
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name});
    let subjects =
        json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": access::STRANGER}]);
    let (asked, (real, simulated)) =
        (Call::get(core(&format!("configmaps/{name}"))), pair.clients(access::STRANGER)?);
    // Opening a connection takes longer than the delay.
    one(real, &asked, &mut Memory::default()).await?;
    for call in [
        post(format!("{folder}/roles"), json!({"metadata": {"name": name}, "rules": rules})),
        post(
            format!("{folder}/rolebindings"),
            json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects}),
        ),
    ] {
        one(&pair.simulated, &call, &mut Memory::default()).await?;
        one(&pair.real, &call, &mut Memory::default()).await?;
    }
    let codes = [
        one(real, &asked, &mut Memory::default()).await?.code,
        one(simulated, &asked, &mut Memory::default()).await?.code,
    ];
    // An allowed request gets 404.
    Ok(match codes {
        [403, 404] => Some(Vec::new()),
        [404, 404] => None,
        codes => Some(vec![format!("known ({RBAC}): {codes:?}")]),
    })
}
