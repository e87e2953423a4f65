//! The catalog in a runtime.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::DynamicObject,
};
use serde_json::{Value, json};
use tidewatch_api::{
    Kyma, ModuleReleaseMeta, ModuleTemplate,
    names::{GROUP, RUNTIME_NAMESPACE, VERSION, conditions, labels},
};
use tidewatch_real_only::real_only;
use tidewatch_tests::{fleet, kcp, modules::Version, observed, solo::Solo, wait};

const TEMPLATE: (&str, &str, &str) = (GROUP, VERSION, "ModuleTemplate");
const RELEASE: (&str, &str, &str) = (GROUP, VERSION, "ModuleReleaseMeta");
const KYMA: (&str, &str, &str) = (GROUP, VERSION, "Kyma");
const CRD: (&str, &str, &str) = ("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
const SOON: Duration = Duration::from_mins(1);

fn version(module: &str, version: &str, release: Value) -> Version {
    let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": module, "namespace": "kyma-system"}});
    Version { release, ..Version::new(module, version, vec![object]) }
}

fn both(solo: &Solo) -> [Api<DynamicObject>; 2] {
    [TEMPLATE, RELEASE].map(|gvk| solo.objects(gvk, Some(RUNTIME_NAMESPACE)))
}

/// Names and resourceVersions of the runtime's catalog.
async fn present(solo: &Solo) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for api in both(solo) {
        let all = api.list(&ListParams::default()).await?.items.into_iter();
        let entry = |o: DynamicObject| Some((o.metadata.name?, o.metadata.resource_version?));
        found.extend(all.filter_map(entry));
    }
    Ok(found)
}

/// Waits until the runtime has exactly these objects.
async fn has(solo: &Solo, names: &[&str]) -> Result<BTreeMap<String, String>> {
    wait::until(&format!("the catalog to be {names:?}"), SOON, || async {
        let found = present(solo).await?;
        ensure!(found.keys().map(String::as_str).eq(names.iter().copied()), "it is {:?}", found.keys());
        Ok(Some(found))
    })
    .await
}

/// Waits for the True condition on both Kymas.
async fn told(solo: &Solo) -> Result<()> {
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let holds = |k: &Kyma| {
        let all = k.status.iter().flat_map(|s| &s.conditions);
        all.into_iter().any(|c| c.type_ == conditions::MODULE_CATALOG && c.status == "True")
    };
    fleet::kyma_where(kymas, solo.kyma, "ModuleCatalog", holds).await?;
    let runtime: Api<Kyma> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    fleet::kyma_where(runtime, "default", "ModuleCatalog in the runtime", holds).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_has_the_catalog_its_kyma_may_see() -> Result<()> {
    let mut solo = Solo::start("kcp-catalog", "wharf").await?;
    let kelp = Version { labels: json!({labels::BETA: "true"}), ..version("kelp", "1.0.0", json!({})) };
    solo.offer(&kelp).await?;
    solo.offer(&version("limpet", "1.0.0", json!({}))).await?;
    solo.offer(&version("guard", "1.0.0", json!({"mandatory": {"version": "1.0.0"}}))).await?;
    let plain = has(&solo, &["limpet", "limpet-1.0.0"]).await?;
    told(&solo).await?;
    let limpet = both(&solo)[0].get("limpet-1.0.0").await?;
    let managed = limpet.metadata.labels.unwrap_or_default();
    ensure!(managed.get(labels::MANAGED_BY).map(String::as_str) == Some("kyma"), "{managed:?}");

    // The Kyma's labels select modules.
    solo.label(&json!({labels::BETA: "true"})).await?;
    let beta = has(&solo, &["kelp", "kelp-1.0.0", "limpet", "limpet-1.0.0"]).await?;
    ensure!(plain.iter().all(|(name, version)| beta[name] == *version), "{plain:?} {beta:?}");
    solo.label(&json!({labels::BETA: null})).await?;
    has(&solo, &["limpet", "limpet-1.0.0"]).await?;

    // The user's own objects stay.
    let own = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ModuleTemplate", "metadata": {"name": "raft-mine"},
                     "spec": {"moduleName": "raft", "version": "0.1.0", "descriptor": {}}});
    both(&solo)[0].patch("raft-mine", &PatchParams::apply("user"), &Patch::Apply(&own)).await?;

    // Changes of KCP's catalog write only changed objects.
    let next = json!({"channels": [{"channel": "regular", "version": "1.0.0"}, {"channel": "fast", "version": "1.1.0"}]});
    solo.offer(&version("limpet", "1.1.0", next)).await?;
    let grown = has(&solo, &["limpet", "limpet-1.0.0", "limpet-1.1.0", "raft-mine"]).await?;
    ensure!(grown["limpet-1.0.0"] == plain["limpet-1.0.0"], "a template that has not changed was written");

    // A restarted receiver writes nothing except to revert edits.
    fleet::settled(&solo.receiver).await?;
    let (before, applies) = (present(&solo).await?, solo.catalog_applies().await?);
    let others = solo.applies().await?;
    solo.receiver.restart().await?;
    wait::until("the catalog to be looked at", SOON, || async {
        Ok((solo.reconciles("Catalog").await? > 0).then_some(()))
    })
    .await?;
    fleet::settled(&solo.receiver).await?;
    ensure!(present(&solo).await? == before, "{before:?} was written");
    ensure!(solo.catalog_applies().await? == applies, "something of the catalog was applied");
    ensure!(solo.applies().await? == others, "something was applied");
    let edit = json!({"spec": {"version": "6.6.6"}});
    solo.patch(TEMPLATE, RUNTIME_NAMESPACE, "limpet-1.0.0", "user", &edit).await?;
    solo.receiver.restart().await?;
    wait::until("the template to be as in KCP", SOON, || async {
        let now = both(&solo)[0].get("limpet-1.0.0").await?;
        Ok((now.data["spec"]["version"] == "1.0.0").then_some(()))
    })
    .await?;
    ensure!(solo.catalog_applies().await? == applies + 1, "more than the one was applied");

    // A recreated Kyma gets its condition again.
    let kyma = solo.objects(KYMA, Some(RUNTIME_NAMESPACE));
    kyma.delete("default", &DeleteParams::default()).await?;
    solo.tell(KYMA, RUNTIME_NAMESPACE, "default").await?;
    told(&solo).await?;

    let releases: Api<ModuleReleaseMeta> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    releases.delete("limpet", &DeleteParams::default()).await?;
    has(&solo, &["raft-mine"]).await?;
    let templates: Api<ModuleTemplate> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    templates.get("limpet-1.0.0").await.context("KCP's own are none of this")?;
    // Another test can use the runtime.
    both(&solo)[0].delete("raft-mine", &DeleteParams::default()).await?;
    observed::no_panic(&solo.receiver.process)
}

async fn becomes(
    solo: &Solo,
    (gvk, name): ((&str, &str, &str), &str),
    what: &str,
    is: impl Fn(&Value) -> bool + Send + Sync,
) -> Result<()> {
    let namespace = (gvk.0 == GROUP).then_some(RUNTIME_NAMESPACE);
    let api = solo.objects(gvk, namespace);
    wait::until(&format!("{} {name} to be {what}", gvk.2), SOON, || async {
        let there = api.get_opt(name).await?.map(serde_json::to_value).transpose()?;
        let there = there.context("it is not there")?;
        ensure!(is(&there), "it is {there:#}");
        Ok(Some(()))
    })
    .await
}

/// Only events trigger it: no restart, and the next safety resync is hours away.
#[tokio::test(flavor = "multi_thread")]
async fn changed_catalog_crds_and_namespace_are_reverted_by_event() -> Result<()> {
    let solo = Solo::start_watched("kcp-catalog-drift", "cove", Vec::new()).await?;
    solo.offer(&version("urchin", "1.0.0", json!({}))).await?;
    let agent = solo.agent().await?;
    for watch in [
        "engine.moduletemplates.operator.kyma-project.io.spec",
        "engine.modulereleasemetas.operator.kyma-project.io.spec",
        "engine.customresourcedefinitions.apiextensions.k8s.io.spec",
        "engine.namespaces.spec",
    ] {
        solo.watching(&agent, watch).await?;
    }
    has(&solo, &["urchin", "urchin-1.0.0"]).await?;
    told(&solo).await?;
    fleet::settled(&solo.receiver).await?;

    // One object is read and applied. A full sync would list both kinds; the agent lists periodically.
    let counts = async || -> Result<[u64; 4]> {
        let (gets, lists) = (solo.requests("GET").await?, solo.requests("LIST").await?);
        let of = |requests: &BTreeMap<String, u64>, what: &str| requests.get(what).copied().unwrap_or(0);
        let listed = ["moduletemplates", "modulereleasemetas"].map(|what| of(&lists, what));
        Ok([of(&gets, "moduletemplates"), listed[0], listed[1], solo.catalog_applies().await?])
    };
    let before = counts().await?;
    let version_is = |template: &Value| template["spec"]["version"] == "1.0.0";
    let edit = json!({"spec": {"version": "6.6.6"}});
    solo.patch(TEMPLATE, RUNTIME_NAMESPACE, "urchin-1.0.0", "user", &edit).await?;
    wait::until("the template to be applied", SOON, || async {
        Ok((solo.catalog_applies().await? > before[3]).then_some(()))
    })
    .await?;
    fleet::settled(&solo.receiver).await?;
    let after = counts().await?;
    ensure!(after[3] == before[3] + 1, "{after:?} after {before:?}");
    ensure!(after[1] == before[1] || after[2] == before[2], "{after:?} after {before:?}: all was listed");
    ensure!(after[0] <= before[0] + 2, "{after:?} after {before:?}: its own write is no news");
    becomes(&solo, (TEMPLATE, "urchin-1.0.0"), "as in KCP", version_is).await?;

    // An object without the label leaves the watch, which reports it.
    let label = json!({"metadata": {"labels": {labels::MANAGED_BY: null}}});
    solo.patch(RELEASE, RUNTIME_NAMESPACE, "urchin", "user", &label).await?;
    let is_marked = |object: &Value| object["metadata"]["labels"][labels::MANAGED_BY] == "kyma";
    becomes(&solo, (RELEASE, "urchin"), "marked", is_marked).await?;
    for (api, name) in both(&solo).iter().zip(["urchin-1.0.0", "urchin"]) {
        api.delete(name, &DeleteParams::default()).await?;
    }
    has(&solo, &["urchin", "urchin-1.0.0"]).await?;

    // The common namespace.
    let namespaces = solo.objects(("", "v1", "Namespace"), None);
    let merge = PatchParams { field_manager: Some("user".into()), ..PatchParams::default() };
    let disabled = json!({"metadata": {"labels": {labels::ISTIO_INJECTION: "disabled"}}});
    namespaces.patch(RUNTIME_NAMESPACE, &merge, &Patch::Merge(&disabled)).await?;
    let injects = |object: &Value| object["metadata"]["labels"][labels::ISTIO_INJECTION] == labels::ENABLED;
    becomes(&solo, (("", "v1", "Namespace"), RUNTIME_NAMESPACE), "injected", injects).await?;
    let crds = solo.objects(CRD, None);
    let name = "modulereleasemetas.operator.kyma-project.io";
    let short = json!({"spec": {"names": {"shortNames": ["theirs"]}}});
    crds.patch(name, &merge, &Patch::Merge(&short)).await?;
    let is_ours = |crd: &Value| crd["spec"]["names"]["shortNames"] != json!(["theirs"]);
    becomes(&solo, (CRD, name), "as we bring it", is_ours).await?;
    // Includes all its instances.
    crds.delete(name, &DeleteParams::default()).await?;
    wait::until("the release to be there again", SOON, || async {
        Ok(both(&solo)[1].get_opt("urchin").await?.filter(|o| o.metadata.deletion_timestamp.is_none()))
    })
    .await?;
    told(&solo).await?;

    // A repeated editor is named; the engine backs off.
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let mut rounds = 0;
    let named = |kyma: Kyma| {
        let status = kyma.status.into_iter().flat_map(|s| s.conditions);
        status.into_iter().find(|c| {
            c.type_ == conditions::MODULE_CATALOG
                && c.message.contains("changed back again and again by the field manager 'stubborn'")
        })
    };
    while named(kymas.get(solo.kyma).await?).is_none() {
        ensure!(rounds < 100, "it is set back for ever");
        rounds += 1;
        solo.patch(TEMPLATE, RUNTIME_NAMESPACE, "urchin-1.0.0", "stubborn", &edit).await?;
        wait::until("the template to be set back, or left", SOON, || async {
            let now = both(&solo)[0].get("urchin-1.0.0").await?;
            let left = || async { Ok::<_, anyhow::Error>(named(kymas.get(solo.kyma).await?).is_some()) };
            Ok((now.data["spec"]["version"] == "1.0.0" || left().await?).then_some(()))
        })
        .await?;
    }
    let now = both(&solo)[0].get("urchin-1.0.0").await?;
    ensure!(now.data["spec"]["version"] == "6.6.6", "{now:?}");
    observed::no_panic(&solo.receiver.process)
}

/// KCP allows the runtime's own templates. The engine's own watch reports them; no Watcher does.
#[tokio::test(flavor = "multi_thread")]
async fn a_users_template_takes_effect_by_event() -> Result<()> {
    let solo = Solo::start_watched("kcp-users-templates", "estuary", Vec::new()).await?;
    for number in ["0.1.0", "0.2.0"] {
        version("anchor", number, json!({})).push(&solo.env.registry.of(solo.namespace)).await?;
    }
    solo.label(&json!({labels::RUNTIME_TEMPLATES: "true"})).await?;
    let agent = solo.agent().await?;
    solo.watching(&agent, "engine.moduletemplates.operator.kyma-project.io.spec").await?;
    let modules = json!({"spec": {"modules": [{"name": "anchor"}]}});
    solo.patch(KYMA, RUNTIME_NAMESPACE, "default", "user", &modules).await?;
    let [templates, _] = both(&solo);
    for number in ["0.1.0", "0.2.0"] {
        let own = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ModuleTemplate",
            "metadata": {"name": "anchor-regular", "labels": {labels::MODULE_NAME: "anchor"}},
            "spec": {"channel": "regular",
                     "descriptor": {"component": {"name": kcp::component("anchor"), "version": number}}}});
        templates.patch("anchor-regular", &PatchParams::apply("user"), &Patch::Apply(&own)).await?;
        solo.ready_by_its_agent("anchor", number).await?;
    }
    templates.delete("anchor-regular", &DeleteParams::default()).await?;
    observed::no_panic(&solo.receiver.process)
}

#[real_only("a ValidatingAdmissionPolicy has to refuse an object")]
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_template_does_not_block_others() -> Result<()> {
    let solo = Solo::start("kcp-refusing", "lagoon").await?;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-barnacles"},
        "spec": {"failurePolicy": "Fail",
                 "matchConstraints": {"resourceRules": [{"apiGroups": [GROUP], "apiVersions": ["*"],
                     "operations": ["CREATE", "UPDATE"], "resources": ["moduletemplates"]}]},
                 "validations": [{"expression": "!object.metadata.name.startsWith('barnacle')", "message": "no barnacles here"}]}
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-barnacles"}, "spec": {"policyName": "no-barnacles", "validationActions": ["Deny"]}
    });
    for (kind, body) in
        [("ValidatingAdmissionPolicy", &policy), ("ValidatingAdmissionPolicyBinding", &binding)]
    {
        let api = solo.objects(("admissionregistration.k8s.io", "v1", kind), None);
        api.patch("no-barnacles", &PatchParams::apply("somebody"), &Patch::Apply(body)).await?;
    }
    // A policy becomes effective with a delay.
    let denied = json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ModuleTemplate", "metadata": {"name": "barnacle-0"},
                        "spec": {"moduleName": "barnacle", "version": "0.1.0", "descriptor": {}}});
    let [templates, _] = both(&solo);
    let dry = PatchParams { dry_run: true, ..PatchParams::apply("somebody") };
    wait::until("the policy to count", SOON, || async {
        Ok(templates.patch("barnacle-0", &dry, &Patch::Apply(&denied)).await.err())
    })
    .await?;

    solo.offer(&version("barnacle", "1.0.0", json!({}))).await?;
    solo.offer(&version("whelk", "1.0.0", json!({}))).await?;
    has(&solo, &["barnacle", "whelk", "whelk-1.0.0"]).await?;
    let kymas: Api<Kyma> = Api::namespaced(solo.kcp.clone(), solo.namespace);
    let says = |k: &Kyma| {
        let all = k.status.iter().flat_map(|s| &s.conditions);
        all.into_iter().any(|c| {
            c.type_ == conditions::MODULE_CATALOG
                && c.status == "False"
                && c.message.contains("no barnacles here")
        })
    };
    fleet::kyma_where(kymas, solo.kyma, "ModuleCatalog is False", says).await?;

    solo.objects(("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding"), None)
        .delete("no-barnacles", &DeleteParams::default())
        .await?;
    has(&solo, &["barnacle", "barnacle-1.0.0", "whelk", "whelk-1.0.0"]).await?;
    told(&solo).await?;
    observed::no_panic(&solo.receiver.process)
}
