//! Kills the receiver at every step of a Kyma's deletion.
//!
//! A test finalizer holds each step, so the kill hits exactly this step.

use anyhow::{Context, Result, ensure};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams},
};
use tidewatch_api::{
    State,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tidewatch_tests::{fleet, observed, wait};

use super::{
    SOON, World, beacon, beacons, config_maps, crd_name, crds, deployments, dynamic, put, set_finalizers,
};

const HOLD: &str = "tidewatch.dev/hold";

struct Held {
    api: Api<DynamicObject>,
    name: String,
    /// The status meanwhile.
    says: &'static str,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_survives_kill_9_at_every_step() -> Result<()> {
    let mut world = World::installed("kcp-crash").await?;
    let (runtime, of) = (world.runtime()?, world.namespace);
    let operator = |kind: &str, plural: &str, namespace| {
        dynamic(&runtime, "operator.kyma-project.io/v1beta2", kind, plural, namespace)
    };
    let rbac =
        |kind: &str, plural: &str| dynamic(&runtime, "rbac.authorization.k8s.io/v1", kind, plural, None);
    let held = |api: Api<DynamicObject>, name: &str, says| Held { api, name: name.to_owned(), says };
    let steps = [
        held(
            beacons(&runtime, of, "default"),
            "users",
            "waiting for module crs deletion: Beacon default/users (1)",
        ),
        held(beacons(&runtime, of, RUNTIME_NAMESPACE), "default", "kyma-system/default to be gone"),
        held(deployments(&runtime), "beacon-keeper", "Deployment.apps kyma-system/beacon-keeper to be gone"),
        held(config_maps(&runtime), "beacon-keeper", "ConfigMap kyma-system/beacon-keeper to be gone"),
        held(crds(&runtime), &crd_name(of), "beacons.kcp-crash.tidewatch.dev to be gone"),
        held(
            crds(&runtime),
            "moduletemplates.operator.kyma-project.io",
            "moduletemplates.operator.kyma-project.io to be gone",
        ),
        held(
            crds(&runtime),
            "modulereleasemetas.operator.kyma-project.io",
            "modulereleasemetas.operator.kyma-project.io to be gone",
        ),
        held(
            operator("Kyma", "kymas", Some(RUNTIME_NAMESPACE)),
            RUNTIME_KYMA_NAME,
            "kyma-system/default to be gone",
        ),
        held(crds(&runtime), "kymas.operator.kyma-project.io", "kymas.operator.kyma-project.io to be gone"),
        held(config_maps(&runtime), "tidewatch-agent-config", "ConfigMap kyma-system/tidewatch-agent-config"),
        held(
            rbac("ClusterRoleBinding", "clusterrolebindings"),
            "tidewatch-agent-watches",
            "ClusterRoleBinding.rbac.authorization.k8s.io tidewatch-agent-watches",
        ),
        held(
            rbac("ClusterRole", "clusterroles"),
            "tidewatch-agent-watches",
            "ClusterRole.rbac.authorization.k8s.io tidewatch-agent-watches to be gone",
        ),
    ];
    put(&beacons(&runtime, of, "default"), &beacon(of, "default", "users")).await?;
    for step in &steps {
        hold(&step.api, &step.name).await?;
    }
    let kcp = dynamic(&world.kcp, "operator.kyma-project.io/v1beta2", "Kyma", "kymas", Some(of));
    hold(&kcp, of).await?;
    world.kymas().delete(of, &DeleteParams::default()).await?;

    let mut kills = 0;
    for (number, step) in steps.iter().enumerate() {
        if number == 0 {
            // Users' objects hold the module's objects.
            says(&world, step.says).await?;
            kill(&mut world, &mut kills).await?;
            says(&world, step.says).await?;
            ensure!(
                deployments(&runtime).get("beacon-keeper").await?.metadata.deletion_timestamp.is_none(),
                "too early"
            );
            step.api.delete(&step.name, &DeleteParams::default()).await?;
        }
        wait::until(&format!("{} to be on its way", step.name), SOON, || async {
            let object =
                step.api.get_opt(&step.name).await?.with_context(|| format!("{} is gone", step.name))?;
            Ok(object.metadata.deletion_timestamp.is_some().then_some(()))
        })
        .await?;
        kill(&mut world, &mut kills).await?;
        says(&world, step.says).await?;
        for later in &steps[number + 1..] {
            let object = later
                .api
                .get(&later.name)
                .await
                .with_context(|| format!("{} went before {}", later.name, step.name))?;
            // The agent's three objects are one step.
            let together = number >= 9;
            ensure!(
                together || object.metadata.deletion_timestamp.is_none(),
                "{} goes before {}",
                later.name,
                step.name
            );
        }
        // CRDs have the API server's finalizer besides.
        wait::until(&format!("nothing else to hold {}", step.name), SOON, || async {
            Ok((step.api.get(&step.name).await?.finalizers() == [HOLD]).then_some(()))
        })
        .await?;
        set_finalizers(&step.api, &step.name, &[]).await?;
        // Kills it again during the next step.
        kill(&mut world, &mut kills).await?;
    }
    wait::until("our finalizer to be off the Kyma", SOON, || async {
        let finalizers = kcp.get(of).await?.finalizers().to_vec();
        Ok((finalizers == [HOLD]).then_some(()))
    })
    .await?;
    kill(&mut world, &mut kills).await?;
    set_finalizers(&kcp, of, &[]).await?;
    world.kyma_gone().await?;
    println!("killed {kills} times");
    ensure!(kills >= 10);
    for step in &steps {
        match step.api.get_opt(&step.name).await {
            Ok(None) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => anyhow::bail!("{} is left: {other:?}", step.name),
        }
    }
    ensure!(world.manifests().list(&ListParams::default()).await?.items.is_empty(), "a Manifest is left");

    // The cluster name can be registered again.
    fleet::register(&world.kcp, of, &world.member()).await?;
    fleet::kyma_in_state(&world.kcp, of, of, State::Ready).await?;
    observed::no_panic(&world.receiver.process)
}

/// Adds the finalizer once the object exists: the agent's configuration is written asynchronously.
async fn hold(api: &Api<DynamicObject>, name: &str) -> Result<()> {
    wait::until(&format!("{name} to be held"), SOON, || async {
        let object = api.get(name).await?;
        let all: Vec<&str> = object.finalizers().iter().map(String::as_str).chain([HOLD]).collect();
        set_finalizers(api, name, &all).await?;
        Ok(Some(()))
    })
    .await
}

async fn kill(world: &mut World, kills: &mut u32) -> Result<()> {
    world.receiver.process.kill().await?;
    observed::no_panic(&world.receiver.process)?;
    *kills += 1;
    world.receiver.start_again().await
}

async fn says(world: &World, what: &str) -> Result<()> {
    wait::until(&format!("the status to say '{what}'"), SOON, || async {
        let kyma = world.kymas().get(world.namespace).await?.status.context("the Kyma has no status")?;
        ensure!(kyma.state == State::Deleting, "the Kyma is {:?}", kyma.state);
        let mut texts = vec![kyma.last_operation.map(|op| op.operation).unwrap_or_default()];
        texts.extend(kyma.modules.into_iter().map(|module| module.message.clone()));
        ensure!(texts.iter().any(|text| text.contains(what)), "it says {texts:?}");
        Ok(Some(()))
    })
    .await
}
