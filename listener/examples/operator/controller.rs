//! Reconciles ConfigMaps of a cluster.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Result;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
    runtime::{
        Controller,
        controller::{Action, Error},
        reflector::ObjectRef,
        watcher,
    },
};
use tidewatch_drain::Drain;
use tidewatch_listener::{Pending, RuntimeEvent, reconcile_requests};
use tidewatch_wire::{Epoch, Seq};

use crate::{agent::request, plain};

const RETRY: Duration = Duration::from_secs(10);

/// An error keeps the events for the retry.
async fn reconcile(object: Arc<ConfigMap>, pending: Arc<Pending<ConfigMap>>) -> Result<Action, kube::Error> {
    // First: later events wait for the next reconcile.
    let started = pending.start(&ObjectRef::from_obj(&*object));
    // The operator's code, with `?`, goes here. Only then:
    started.finished();
    Ok(Action::await_change())
}

pub(crate) async fn run(kubeconfig: PathBuf, drain: &Drain) -> Result<usize> {
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default())
            .await?;
    let client = Client::try_from(config)?;
    let (events, mut agent) = plain::start(drain).await?;

    let pending = Pending::new();
    // Must equal the reconcile's reference.
    let map = |event: &RuntimeEvent| Some(ObjectRef::new(&event.name).within(&event.namespace));
    let requests = reconcile_requests(events, pending.clone(), map);
    let controller = Controller::new(Api::<ConfigMap>::all(client), watcher::Config::default())
        .reconcile_on(requests)
        .run(reconcile, |_, _, _| Action::requeue(RETRY), Arc::new(pending.clone()))
        .for_each(|result| {
            // Absent, so there is nothing to reconcile.
            if let Err(Error::ObjectNotFound(object)) = result {
                pending.start(&object.into_kind_unchecked(())).finished();
            }
            std::future::ready(())
        });
    let agent = async {
        let epoch = Epoch::random();
        // Kubernetes creates the first in every namespace. The second does not exist.
        let names = ["kube-root-ca.crt", "absent"];
        agent.post(&request(epoch, &names, false)).await?;
        loop {
            let answer = agent.post(&request(epoch, &names, true)).await?;
            let done = |seq: u64| answer.acks.iter().any(|ack| ack.done.contains(Seq(seq)));
            if (1..=2).all(done) {
                return Ok(names.len());
            }
        }
    };
    tokio::select! {
        done = agent => done,
        () = controller => anyhow::bail!("the controller has ended"),
    }
}
