//! Simultaneous deletion of interdependent modules.

use anyhow::{Result, ensure};
use kube::{ResourceExt, api::DeleteParams};
use serde_json::{Value, json};
use tidewatch_api::names::RUNTIME_NAMESPACE;
use tidewatch_tests::{modules::Version, observed, wait};

use super::{SOON, World, config_maps, crds, dynamic, put, set_finalizers};

const MODULES: [&str; 2] = ["port", "starboard"];

/// A group per module.
fn group(of: &str, module: &str) -> String {
    format!("{module}.{of}.tidewatch.dev")
}

fn light(of: &str, module: &str, name: &str) -> Value {
    json!({"apiVersion": format!("{}/v1", group(of, module)), "kind": "Light",
           "metadata": {"name": name, "namespace": RUNTIME_NAMESPACE}, "spec": {}})
}

fn crd(of: &str, module: &str) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("lights.{}", group(of, module))},
        "spec": {"group": group(of, module), "scope": "Namespaced", "names": {"kind": "Light", "plural": "lights"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

/// A CRD and an object of the other module's kind.
fn objects(of: &str, module: &str, other: &str) -> Vec<Value> {
    vec![crd(of, module), light(of, other, "others")]
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_using_each_others_kinds_are_deleted() -> Result<()> {
    let world = World::start("kcp-together").await?;
    let (runtime, of) = (world.runtime()?, world.namespace);
    for (module, other) in [(MODULES[0], MODULES[1]), (MODULES[1], MODULES[0])] {
        let mut offered = Version::new(module, "1.0.0", objects(of, module, other));
        offered.template =
            json!({"associatedResources": [{"group": group(of, module), "version": "v1", "kind": "Light"}]});
        offered.offer(&world.kcp, of, &world.env.registry.of(of)).await?;
    }
    world.enable(&MODULES).await?;
    for module in MODULES {
        world.ready(module).await?;
    }

    // A user's object delays both modules, but not permanently.
    let lights = |module: &str| {
        dynamic(&runtime, &format!("{}/v1", group(of, module)), "Light", "lights", Some(RUNTIME_NAMESPACE))
    };
    put(&lights("port"), &light(of, "port", "mine")).await?;
    world.kymas().delete(of, &DeleteParams::default()).await?;
    let blocked = world.blocked("port", &["Light kyma-system/mine (1)"]).await?;
    ensure!(blocked.status.is_some_and(|status| !status.synced.is_empty()), "its inventory is lost");
    lights("port").delete("mine", &DeleteParams::default()).await?;
    // Each gets the other's events, like from an agent.
    wait::until("the Kyma to be gone", SOON, || async {
        if world.kymas().get_opt(of).await?.is_none() {
            return Ok(Some(()));
        }
        for module in MODULES {
            world.tell_of((&group(of, module), "v1", "Light"), "others").await?;
        }
        Ok(None)
    })
    .await?;
    for module in MODULES {
        let name = format!("lights.{}", group(of, module));
        let left = crds(&runtime).get_opt(&name).await?.map(|crd| crd.name_any());
        ensure!(left.is_none(), "{left:?} is left");
    }
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_are_repaired_while_default_crs_are_finalized() -> Result<()> {
    let world = World::start("kcp-abreast").await?;
    let (runtime, of) = (world.runtime()?, world.namespace);
    let gear = |module: &str| format!("{module}-gear-abreast");
    for module in MODULES {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"cleans": "up"},
                         "metadata": {"name": gear(module), "namespace": RUNTIME_NAMESPACE}});
        let mut offered = Version::new(module, "1.0.0", vec![crd(of, module), map]);
        offered.template = json!({"data": light(of, module, "default")});
        offered.offer(&world.kcp, of, &world.env.registry.of(of)).await?;
    }
    world.enable(&MODULES).await?;
    let lights = |module: &str| {
        dynamic(&runtime, &format!("{}/v1", group(of, module)), "Light", "lights", Some(RUNTIME_NAMESPACE))
    };
    for module in MODULES {
        world.ready(module).await?;
        set_finalizers(&lights(module), "default", &["example.test/cleans-up"]).await?;
    }
    world.kymas().delete(of, &DeleteParams::default()).await?;
    for module in MODULES {
        world.blocked(module, &["Light", "default"]).await?;
    }
    // A deleted controller is restored for the cleanup.
    for module in MODULES {
        config_maps(&runtime).delete(&gear(module), &DeleteParams::default()).await?;
        wait::until("what cleans up to be back", SOON, || async {
            world.tell_of(("", "v1", "ConfigMap"), &gear(module)).await?;
            Ok(config_maps(&runtime).get_opt(&gear(module)).await?.map(drop))
        })
        .await?;
    }
    for module in MODULES {
        set_finalizers(&lights(module), "default", &[]).await?;
    }
    wait::until("the Kyma to be gone", SOON, || async {
        if world.kymas().get_opt(of).await?.is_none() {
            return Ok(Some(()));
        }
        for module in MODULES {
            world.tell_of((&group(of, module), "v1", "Light"), "default").await?;
        }
        Ok(None)
    })
    .await?;
    for module in MODULES {
        ensure!(config_maps(&runtime).get_opt(&gear(module)).await?.is_none(), "{} is left", gear(module));
    }
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shared_kind_goes_with_its_last_module() -> Result<()> {
    let world = World::start("kcp-shared-kind").await?;
    let (runtime, of) = (world.runtime()?, world.namespace);
    let (shared, name) = ("lamp", format!("lights.{}", group(of, "lamp")));
    for module in MODULES {
        // A kind that the template declares delays it, even with other owners.
        let offered = Version::new(module, "1.0.0", vec![crd(of, shared)]);
        offered.offer(&world.kcp, of, &world.env.registry.of(of)).await?;
    }
    world.enable(&MODULES).await?;
    for module in MODULES {
        world.ready(module).await?;
    }
    let lights =
        dynamic(&runtime, &format!("{}/v1", group(of, shared)), "Light", "lights", Some(RUNTIME_NAMESPACE));
    put(&lights, &light(of, shared, "mine")).await?;

    // One controller for the user's object remains.
    world.enable(&MODULES[1..]).await?;
    world.gone(MODULES[0]).await?;
    world.ready(MODULES[1]).await?;
    ensure!(crds(&runtime).get_opt(&name).await?.is_some(), "the kind is gone with the first");
    ensure!(lights.get_opt("mine").await?.is_some(), "the user's light is gone with the first");

    world.enable(&[]).await?;
    world.blocked(MODULES[1], &["Light kyma-system/mine"]).await?;
    lights.delete("mine", &DeleteParams::default()).await?;
    world.tell_of((&group(of, shared), "v1", "Light"), "mine").await?;
    world.gone(MODULES[1]).await?;
    ensure!(crds(&runtime).get_opt(&name).await?.is_none(), "the kind is left");
    observed::no_panic(&world.receiver.process)
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_sharing_a_default_cr_kind_are_deleted() -> Result<()> {
    let world = World::start("kcp-one-kind").await?;
    let (runtime, of) = (world.runtime()?, world.namespace);
    let (shared, name) = ("lamp", format!("lights.{}", group(of, "lamp")));
    for module in MODULES {
        let mut offered = Version::new(module, "1.0.0", vec![crd(of, shared)]);
        offered.template = json!({"data": light(of, shared, module),
            "associatedResources": [{"group": group(of, shared), "version": "v1", "kind": "Light"}]});
        offered.offer(&world.kcp, of, &world.env.registry.of(of)).await?;
    }
    world.enable(&MODULES).await?;
    for module in MODULES {
        world.ready(module).await?;
    }

    // Modules' objects do not count as user objects.
    world.kymas().delete(of, &DeleteParams::default()).await?;
    wait::until("the Kyma to be gone", SOON, || async {
        if world.kymas().get_opt(of).await?.is_none() {
            return Ok(Some(()));
        }
        for module in MODULES {
            world.tell_of((&group(of, shared), "v1", "Light"), module).await?;
        }
        Ok(None)
    })
    .await?;
    ensure!(crds(&runtime).get_opt(&name).await?.is_none(), "the kind is left");
    observed::no_panic(&world.receiver.process)
}
