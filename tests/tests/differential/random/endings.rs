//! Final steps with delayed effects. Waits for controllers on both sides, then compares.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tidewatch_tests::wait;

use super::{Play, content::Kind, dice::Dice, table::Cell};
use crate::{
    pair::{Call, JSON_PATCH, MERGE, Memory, one},
    prepare::{CRDS, crd},
};

const LONG: Duration = Duration::from_mins(1);

/// All changes of the sequence in one watch.
pub(super) const WHOLE: Cell = ("watch", "whole sequence");
const IN_TERMINATING: Cell = ("create", "in a terminating namespace");
const NAMESPACE: Cell = ("delete", "namespace");
const CRD_COMES: Cell = ("create", "CRD, then its objects");
const CRD_CHANGES: Cell = ("patch json", "CRD's schema");
const CRD_GOES: Cell = ("delete", "CRD with its objects");

pub(super) const CELLS: [Cell; 9] = [
    WHOLE,
    Ending::Cascade("Background").cell(),
    Ending::Cascade("Foreground").cell(),
    Ending::Cascade("Orphan").cell(),
    IN_TERMINATING,
    NAMESPACE,
    CRD_COMES,
    CRD_CHANGES,
    CRD_GOES,
];

#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    /// Deletes an owner with this propagation policy.
    Cascade(&'static str),
    /// Deletes the namespace.
    Namespace,
    /// Creates, changes and deletes a CRD.
    Crd,
}

impl Ending {
    pub(super) fn of(dice: &mut Dice) -> Self {
        *dice.pick(&[
            Self::Cascade("Background"),
            Self::Cascade("Foreground"),
            Self::Cascade("Orphan"),
            Self::Namespace,
            Self::Crd,
        ])
    }

    const fn cell(self) -> Cell {
        match self {
            Self::Cascade(policy) => ("delete", policy),
            Self::Namespace => NAMESPACE,
            Self::Crd => CRD_GOES,
        }
    }

    pub(super) async fn play(self, play: &mut Play<'_>) -> Result<()> {
        match self {
            Self::Cascade(policy) => cascade(play, policy, self.cell()).await,
            Self::Namespace => namespace(play).await,
            Self::Crd => definition(play).await,
        }
    }
}

/// Three ownership levels of ConfigMaps. The real collector discovers CRD kinds only twice a minute.
async fn cascade(play: &mut Play<'_>, policy: &str, cell: Cell) -> Result<()> {
    let maps = Kind::Map.base(&play.namespace);
    let owned = |name: &str, owner: &str| {
        let mut object = Kind::Map.named(name);
        object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": owner,
            "uid": format!("{{{owner}.uid}}"), "blockOwnerDeletion": true}]);
        Call::new("POST", maps.clone(), object).saved(name)
    };
    let path = |name: &str| format!("{maps}/{name}");
    let calls = [
        Call::new("POST", maps.clone(), Kind::Map.named("owner")).saved("owner"),
        owned("child", "owner"),
        owned("grandchild", "child"),
        Call::new("DELETE", format!("{}?propagationPolicy={policy}", path("owner")), Value::Null),
    ];
    play.calls(cell, &calls).await?;
    settled(play, &path("owner"), |code, _| code == 404).await?;
    if policy == "Orphan" {
        settled(play, &path("child"), |_, body| body.pointer("/metadata/ownerReferences").is_none()).await?;
    } else {
        settled(play, &path("grandchild"), |code, _| code == 404).await?;
    }
    let seen: Vec<Call> = ["owner", "child", "grandchild"].map(|name| Call::get(path(name))).into();
    play.calls(cell, &seen).await
}

async fn namespace(play: &mut Play<'_>) -> Result<()> {
    let maps = Kind::Map.base(&play.namespace);
    let path = format!("/api/v1/namespaces/{}", play.namespace);
    let mut held = Kind::Map.named("held");
    held["metadata"]["finalizers"] = json!(["example.org/hold"]);
    let calls = [Call::new("POST", maps.clone(), held), Call::new("DELETE", path.clone(), Value::Null)];
    play.calls(NAMESPACE, &calls).await?;
    play.calls(IN_TERMINATING, &[Call::new("POST", maps.clone(), Kind::Map.named("late"))]).await?;
    settled(play, &format!("{maps}/held"), |_, body| body.pointer("/metadata/deletionTimestamp").is_some())
        .await?;
    // Removes finalizers that would hold the namespace.
    let free = json!({"metadata": {"finalizers": null}});
    for name in ["a", "b", "c"] {
        let call = Call::patch(MERGE, format!("{}/{name}", play.base), free.clone());
        for client in [&play.pair.real, &play.pair.simulated] {
            one(client, &call, &mut Memory::default()).await?;
        }
    }
    play.call(&Call::patch(MERGE, format!("{maps}/held"), free)).await?;
    settled(play, &path, |code, _| code == 404).await?;
    play.calls(NAMESPACE, &[Call::get(path), Call::get(format!("{maps}/held")), Call::get(maps)]).await
}

async fn definition(play: &mut Play<'_>) -> Result<()> {
    let group = format!("crd-{}.example.org", play.seed);
    let path = format!("{CRDS}/foos.{group}");
    let objects = format!("/apis/{group}/v1/namespaces/{}/foos", play.namespace);
    let object = |name: &str| json!({"apiVersion": format!("{group}/v1"), "kind": "Foo", "metadata": {"name": name}, "spec": {"a": "x", "late": "y"}});
    play.calls(CRD_COMES, &[Call::get(objects.clone()), Call::new("POST", CRDS, crd("foo", &group))]).await?;
    settled(play, &objects, |code, _| code == 200).await?;
    play.calls(CRD_COMES, &[Call::new("POST", objects.clone(), object("old"))]).await?;
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties";
    let change = json!([{"op": "add", "path": format!("{spec}/late"), "value": {"type": "string", "default": "dawn"}}]);
    play.calls(CRD_CHANGES, &[Call::patch(JSON_PATCH, path.clone(), change)]).await?;
    settled(play, &format!("{objects}/old"), |_, body| body.pointer("/spec/late").is_some()).await?;
    play.calls(
        CRD_CHANGES,
        &[Call::get(format!("{objects}/old")), Call::new("POST", objects.clone(), object("new"))],
    )
    .await?;
    play.calls(CRD_GOES, &[Call::new("DELETE", path.clone(), Value::Null)]).await?;
    settled(play, &path, |code, _| code == 404).await?;
    settled(play, &objects, |code, _| code == 404).await?;
    play.calls(CRD_GOES, &[Call::get(path), Call::get(objects)]).await
}

async fn settled(play: &Play<'_>, path: &str, is: impl Fn(u16, &Value) -> bool) -> Result<()> {
    let (call, is) = (Call::get(path), &is);
    wait::until(&format!("both sides to be done with {path}"), LONG, || async {
        for client in [&play.pair.real, &play.pair.simulated] {
            let answer = one(client, &call, &mut Memory::default()).await?;
            if !is(answer.code, &answer.body) {
                return Ok(None);
            }
        }
        Ok(Some(()))
    })
    .await
}
