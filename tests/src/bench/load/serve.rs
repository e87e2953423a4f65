//! What the agents send to: our listener, or the bare server.

use std::{collections::HashMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use futures::StreamExt;
use jiff::Timestamp;
use tidewatch_drain::Drain;
use tidewatch_listener::{Listener, RuntimeLookup};
use tidewatch_telemetry::logging::{self, Format};
use tidewatch_tls::{Pem, Store, server_config};
use tokio::net::TcpListener;

use super::{Kind, agents, orders, say};
use crate::bench::server;

/// Events that wait for the consumer: what several of the largest batches need at the same moment.
const QUEUED: usize = 65_536;

pub(super) async fn run(kind: Kind, folder: &Path, port: u16, runtimes: usize) -> Result<()> {
    // As a receiver logs.
    logging::init(Format::Json, "info")?;
    let read = |name: &str| {
        let file = folder.join(name);
        std::fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
    };
    let pem = Pem { ca: read(agents::CA)?, cert: read(agents::CERT)?, key: read(agents::KEY)? };
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut end = orders::<()>();
    let drain = Drain::new();
    match kind {
        Kind::Listener => {
            let registered: HashMap<String, String> =
                (0..runtimes).map(|n| (agents::runtime_id(n), agents::domain(n))).collect();
            let lookup = move |id: &str| match registered.get(id) {
                Some(domain) => RuntimeLookup::One { kyma: id.to_owned(), domain: Some(domain.clone()) },
                None => RuntimeLookup::Unknown,
            };
            let tls = Arc::new(Store::server(&pem, Timestamp::now())?);
            let (_, mut events) = Listener::new(address, tls, lookup).queued(QUEUED).start(&drain).await?;
            drain.spawn_critical("consumer", async move {
                while let Some(event) = events.next().await {
                    event.ack.finished();
                }
            });
        }
        Kind::Bare => {
            let tls = server_config(&pem.ca, &pem.cert, &pem.key)?;
            let listener = TcpListener::bind(address).await.context("the port is in use")?;
            drain.spawn_critical("bare", server::accept(listener, tls.into()));
        }
    }
    say(&"listening")?;
    // No order is ever given; the end of the input ends it.
    let _ended = end.recv().await;
    let _ = tokio::time::timeout(Duration::from_secs(1), drain.abort()).await;
    Ok(())
}
