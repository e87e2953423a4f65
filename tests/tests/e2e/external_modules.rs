//! Modules of external contributors in their own registry.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};
use tidewatch_api::{
    ModuleTemplate, State,
    names::{API_VERSION, RUNTIME_NAMESPACE, labels},
};
use tidewatch_oci::{self, ModulePackage, OciError, RegistryConfig, push_new};
use tidewatch_real_only::real_only;
use tidewatch_tests::{Registry, env, kcp, modules::Version, solo::Solo};

fn module(name: &str, version: &str) -> Version {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
                     "data": {"version": version}});
    Version::new(name, version, vec![map])
}

/// A descriptor with its component's location.
pub(super) fn found_at(module: &str, version: &str, base: &str, path: &str) -> Value {
    json!({"component": {"name": kcp::component(module), "version": version, "repositoryContexts": [
        {"type": "OCIRegistry", "baseUrl": "first.example", "componentNameMapping": "urlPath"},
        {"type": "OCIRegistry", "baseUrl": base, "subPath": path, "componentNameMapping": "urlPath"}]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn push_new_refuses_to_replace_different_content() -> Result<()> {
    let place = env::shared().await?.registry.of("kcp-pushed");
    let registry = tidewatch_oci::Registry::new(RegistryConfig::default())?;
    let first = module("dinghy", "1.0.0").package();
    let pushed = push_new(&registry, &place, &first).await.context("nothing is there")?;
    let other = module("dinghy", "1.1.0").package();
    push_new(&registry, &place, &other).await.context("another version is there")?;
    ensure!(push_new(&registry, &place, &first).await?.digest == pushed.digest, "it is the same");
    let changed = ModulePackage { raw_manifest: other.raw_manifest, ..first };
    let refused = push_new(&registry, &place, &changed).await;
    ensure!(matches!(refused, Err(OciError::Exists { .. })), "{refused:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_external_module_is_read_from_its_allowed_registry() -> Result<()> {
    let guests = Registry::named(&env::shared().await?.harness, "guests").await?;
    let place = format!("{}/kyma", guests.host());
    let solo =
        Solo::start_with("kcp-external", "wharf", vec![format!("--external-registry={place}")]).await?;
    let from = |version: &str, base: &str, path: &str| Version {
        template: json!({"descriptor": found_at("raft", version, base, path)}),
        ..module("raft", version)
    };

    // The platform's template.
    from("1.0.0", guests.host(), "kyma").offer(&solo.kcp, solo.namespace, &place).await?;
    solo.enable(&json!([{"name": "raft"}])).await?;
    solo.ready("raft", "1.0.0").await?;
    let maps: Api<ConfigMap> = Api::namespaced(solo.runtime.clone(), "default");
    let installed = |map: ConfigMap| map.data.unwrap_or_default().remove("version");
    ensure!(installed(maps.get("raft").await?).as_deref() == Some("1.0.0"), "it is not installed");
    let source = solo.manifest("raft").await?.spec.install.source.0["repo"].clone();
    ensure!(source == place, "the Manifest names {source}");

    // Another path on this host counts as another location and is not contacted. The installation stays.
    from("1.1.0", guests.host(), "").offer(&solo.kcp, solo.namespace, guests.host()).await?;
    let kept = solo.module("raft", "in Warning", |m| m.state == State::Warning).await?;
    let says = format!("names the registry '{}', which is not among those", guests.host());
    ensure!(kept.message.contains(&says) && kept.message.contains("--external-registry"), "{}", kept.message);
    ensure!(installed(maps.get("raft").await?).as_deref() == Some("1.0.0"), "it has been changed");
    from("1.2.0", guests.host(), "kyma").offer(&solo.kcp, solo.namespace, &place).await?;
    solo.ready("raft", "1.2.0").await?;

    // A runtime's own template can use it too.
    module("canoe", "0.1.0").push(&place).await?;
    solo.label(&json!({labels::RUNTIME_TEMPLATES: "true"})).await?;
    let own = json!({"apiVersion": API_VERSION, "kind": "ModuleTemplate", "metadata": {"name": "canoe-mine"}, "spec": {
        "moduleName": "canoe", "channel": "regular", "version": "0.1.0",
        "descriptor": found_at("canoe", "0.1.0", guests.host(), "kyma")}});
    let templates: Api<ModuleTemplate> = Api::namespaced(solo.runtime.clone(), RUNTIME_NAMESPACE);
    templates.patch("canoe-mine", &PatchParams::apply("user"), &Patch::Apply(own)).await?;
    solo.enable(&json!([{"name": "raft"}, {"name": "canoe"}])).await?;
    solo.ready("canoe", "0.1.0").await?;
    ensure!(solo.manifest("canoe").await?.is_of_runtime_template(), "the Manifest does not say whose it is");

    // Without their registry, installations stay and platform modules continue.
    drop(guests);
    solo.offer(&module("buoy", "1.0.0")).await?;
    solo.enable(&json!([{"name": "raft"}, {"name": "canoe"}, {"name": "buoy"}])).await?;
    solo.ready("buoy", "1.0.0").await?;
    solo.ready("raft", "1.2.0").await?;
    solo.ready("canoe", "0.1.0").await
}

/// User `pilot`, bcrypt hash of `tide`.
const PILOT: &str = "pilot:$2b$04$tgQ6rQk1gxX.hu3Yphhgj.2dEb794zJ/E5QJkOChVRQA9EeeStTdW\n";

#[real_only("the fake registry asks nobody for credentials")]
#[tokio::test(flavor = "multi_thread")]
async fn an_external_registry_is_read_with_platform_credentials() -> Result<()> {
    let harness = &env::shared().await?.harness;
    let locked = Registry::locked(harness, "locked", PILOT).await?;
    let place = format!("{}/kyma", locked.host());
    let auths = |password: &str| {
        json!({"auths": {locked.host(): {"username": "pilot", "password": password}}}).to_string()
    };
    let file = harness.write("locked.json", &auths("ebb"))?;
    let args =
        vec![format!("--external-registry={place}"), format!("--registry-credentials={}", file.display())];
    let solo = Solo::start_with("kcp-locked", "jetty", args).await?;
    let gig = Version {
        template: json!({"descriptor": found_at("gig", "1.0.0", locked.host(), "kyma")}),
        pushed_by: Some(("pilot".into(), "tide".into())),
        ..module("gig", "1.0.0")
    };
    gig.offer(&solo.kcp, solo.namespace, &place).await?;
    solo.enable(&json!([{"name": "gig"}])).await?;
    let refused = solo.module("gig", "in Error", |m| m.state == State::Error).await?;
    let says = "check the credentials of this registry";
    ensure!(refused.message.contains(says) && !refused.message.contains("ebb"), "{}", refused.message);

    // A corrected file works without a restart.
    harness.write("locked.json", &auths("tide"))?;
    solo.ready("gig", "1.0.0").await?;
    let maps: Api<ConfigMap> = Api::namespaced(solo.runtime.clone(), "default");
    maps.get("gig").await?;
    Ok(())
}
