//! What happens a moment after a call on the real one, and within it on the simulated one.

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

/// Roles that are given at once: it takes the real one a while to hear of all of them.
const AT_ONCE: usize = 16;
/// How often a moment is looked for.
const TURNS: usize = 4;
const LONG: Duration = Duration::from_secs(30);
/// What [`roles`] shows.
pub(super) const RBAC: &str = "RBAC: a change has effect a moment later";

/// Each of them, with names that were not there in other turns.
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
        // The collector goes from owner to owned: it needs a moment for each.
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
            // For a moment its storage is there, but not ready.
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

/// Shows one of them. The moment may be over before anybody looks: then it is tried again.
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

/// Roles are given, many at once, until the real one has refused what it allows a moment later. The simulated one never does.
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

/// Gives a stranger a name and asks for it at once; `None`: the real one has heard of it already.
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
    // A connection takes longer to make than the moment lasts.
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
    // Who may ask is told that it is not there.
    Ok(match codes {
        [403, 404] => Some(Vec::new()),
        [404, 404] => None,
        codes => Some(vec![format!("known ({RBAC}): {codes:?}")]),
    })
}
