//! The example without a cluster.

use std::{net::Ipv4Addr, sync::Arc};

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use tidewatch_drain::Drain;
use tidewatch_listener::{Events, Listener, RuntimeLookup};
use tidewatch_tls::{Pem, Store};
use tidewatch_wire::{Epoch, v3::Response};

use crate::agent::{Agent, DOMAIN, RUNTIME, certificates, request};

pub(crate) async fn start(drain: &Drain) -> Result<(Events, Agent)> {
    let folder = tempfile::tempdir()?;
    let (files, agent): (_, Pem) = certificates(folder.path()).await?;
    let tls = Arc::new(Store::server(&files.read().await?, Timestamp::now())?);
    // An operator looks up its own objects. The domain pins the certificate.
    let lookup = |id: &str| match id {
        RUNTIME => RuntimeLookup::One {
            kyma: "anchor".to_owned(),
            domain: Some(DOMAIN.to_owned()),
            registered: None,
        },
        _ => RuntimeLookup::Unknown,
    };
    let any = (Ipv4Addr::LOCALHOST, 0).into();
    let (address, events) = Listener::new(any, tls, lookup).start(drain).await?;
    Ok((events, Agent::connect(address, &agent).await?))
}

pub(crate) struct Seen {
    pub(crate) object: String,
    pub(crate) answer: Response,
    pub(crate) polled: Response,
}

pub(crate) async fn round(drain: &Drain) -> Result<Seen> {
    let (mut events, mut agent) = start(drain).await?;
    let epoch = Epoch::random();
    let answer = agent.post(&request(epoch, &["settings"], false)).await?;

    let event = events.next().await.context("the stream has ended")?;
    let object = format!("{} {} {}/{}", event.runtime.id, event.gvk.kind, event.namespace, event.name);
    // The operator's code goes here. Only then:
    event.ack.finished();

    let polled = agent.post(&request(epoch, &["settings"], true)).await?;
    Ok(Seen { object, answer, polled })
}
