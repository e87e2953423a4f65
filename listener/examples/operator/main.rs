//! An operator that reconciles on events: `cargo run -p tidewatch-listener --example operator`.
//!
//! With `--kubeconfig FILE`, events reconcile ConfigMaps (read only) through `Controller::reconcile_on`. Without, no
//! cluster is needed.

mod agent;
mod controller;
mod plain;

use std::{path::PathBuf, time::Duration};

use clap::Parser;
use tidewatch_drain::Drain;

#[derive(Parser)]
struct Args {
    /// Kubeconfig of the cluster with the ConfigMaps to reconcile.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "it shows what happens")]
async fn main() -> anyhow::Result<()> {
    let drain = Drain::new();
    if let Some(kubeconfig) = Args::parse().kubeconfig {
        println!("{} events reconciled and acknowledged", controller::run(kubeconfig, &drain).await?);
    } else {
        let seen = plain::round(&drain).await?;
        println!(
            "event    {}\ntold     {:?}\npolled   {:?}",
            seen.object, seen.answer.acks, seen.polled.acks
        );
    }
    let _outcome = drain.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
