//! Servers under load: the product's listener or the bare server.

use std::{collections::HashMap, net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use jiff::Timestamp;
use tidewatch_drain::Drain;
use tidewatch_listener::{
    Admission, Deliveries, Fate, Guard, Host, Intake, Limits, Manager, Metrics, Runtime, RuntimeLookup,
    Ticket, listener,
};
use tidewatch_telemetry::{
    BuildInfo,
    logging::{self, Format},
    metrics::Registry,
};
use tidewatch_tls::{Pem, Store, server_config};
use tidewatch_wire::{Route, SessionId, v2, v3};
use tokio::net::TcpListener;

use super::{Kind, agents, orders, say};
use crate::bench::server::{self, Says};

/// Registered runtimes: id to domain. Every event is finished at once.
struct Memory(HashMap<String, String>);

impl Host for Memory {
    fn lookup(&self, common_name: &str) -> RuntimeLookup {
        match self.0.get(common_name) {
            Some(domain) => RuntimeLookup::One {
                kyma: common_name.to_owned(),
                domain: Some(domain.clone()),
                registered: None,
            },
            None => RuntimeLookup::Unknown,
        }
    }

    fn manager(&self, _: &str) -> Manager {
        Manager::Own
    }

    fn take_v3(&self, _: &Runtime, _: &v3::Request<'_>, _: &v3::Event<'_>, mut ticket: Ticket) -> Fate {
        ticket.hold(Route::engine(), 1).for_each(Guard::finished);
        Fate::Queued
    }

    fn take_v2(&self, _: &Runtime, _: &str, _: &v2::WatchEvent) -> Fate {
        Fate::Queued
    }
}

pub(super) async fn run(kind: Kind, folder: &Path, port: u16, runtimes: usize) -> Result<()> {
    // Logs like a receiver.
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
            let registered = (0..runtimes).map(|n| (agents::runtime_id(n), agents::domain(n))).collect();
            let limits = Limits::default();
            let registry =
                Registry::new("tidewatch_load", BuildInfo::new("tidewatch-load", env!("CARGO_PKG_VERSION")))?;
            let intake = Intake {
                host: Arc::new(Memory(registered)),
                deliveries: Deliveries::new(SessionId::random()).with_capacity(limits.held),
                metrics: Metrics::register(&registry)?,
                admission: Admission::new(limits, Timestamp::now()),
                drain: drain.watch(),
                proxies: Arc::new(tidewatch_tls::Proxies::none()),
                clock: Timestamp::now,
            };
            let tls = Arc::new(Store::server(&pem, Timestamp::now())?);
            let listener = TcpListener::bind(address).await.context("the port is in use")?;
            let serving = listener::serve(listener, tls, Arc::new(intake), Timestamp::now, drain.watch());
            drain.spawn_critical("listener", serving);
        }
        Kind::Bare | Kind::Echo => {
            let tls = server_config(&pem.ca, &pem.cert, &pem.key)?;
            let listener = TcpListener::bind(address).await.context("the port is in use")?;
            let says = if kind == Kind::Echo { Says::Same } else { Says::Little };
            drain.spawn_critical("bare", server::accept(listener, tls.into(), says));
        }
    }
    say(&"listening")?;
    // The end of standard input ends the server.
    let _ended = end.recv().await;
    let _ = tokio::time::timeout(Duration::from_secs(1), drain.abort()).await;
    Ok(())
}
