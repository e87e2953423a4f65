//! `tidewatch certs`: enough PKI to set up an event path by hand.

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context, ensure};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tidewatch_certs::{Ca, ClientRequest, Issued, ServerRequest};

use crate::{files, output::Format};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a CA: ca.crt and ca.key.
    Ca {
        /// Its name.
        #[arg(long, default_value = "tidewatch-ca")]
        name: String,
        /// How long it is valid, in days.
        #[arg(long, default_value_t = 730, value_name = "DAYS")]
        days: u32,
        /// Folder for the files.
        #[arg(long, default_value = ".", value_name = "FOLDER")]
        out: PathBuf,
    },
    /// Issue the receiver's certificate: server.crt and server.key.
    Server {
        #[command(flatten)]
        common: Common,
        /// Address of the receiver (repeatable).
        #[arg(long, value_name = "ADDRESS")]
        ip: Vec<IpAddr>,
    },
    /// Issue an agent's certificate: agent.crt and agent.key.
    Client {
        /// The runtime id, as in the Kyma's label kyma-project.io/runtime-id.
        #[arg(long)]
        runtime_id: String,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// The CA's certificate.
    #[arg(long, default_value = "ca.crt", value_name = "FILE")]
    ca: PathBuf,
    /// The CA's key.
    #[arg(long, default_value = "ca.key", value_name = "FILE")]
    ca_key: PathBuf,
    /// A DNS name (repeatable). For an agent: the Kyma's skr-domain annotation.
    #[arg(long, value_name = "NAME")]
    dns: Vec<String>,
    /// How long the certificate is valid, in days.
    #[arg(long, default_value_t = 60, value_name = "DAYS")]
    days: u32,
    /// Folder for the files.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    out: PathBuf,
}

fn validity(days: u32) -> SignedDuration {
    SignedDuration::from_hours(i64::from(days) * 24)
}

impl Common {
    fn ca(&self) -> anyhow::Result<Ca> {
        let (cert, key) = (files::read(&self.ca)?, files::read(&self.ca_key)?);
        Ca::from_pem(&cert, &key).context("the CA cannot be used; create one with: tidewatch certs ca")
    }

    fn write(&self, name: &str, issued: &Issued, output: Format) -> anyhow::Result<()> {
        let cert = files::write(&self.out.join(format!("{name}.crt")), &issued.cert_pem)?;
        let key = files::write_private(&self.out.join(format!("{name}.key")), issued.key_pem.as_str())?;
        output.print(&json!({"certificate": cert, "key": key, "notAfter": issued.not_after}))?;
        Ok(())
    }
}

pub(crate) fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let now = Timestamp::now();
    match command {
        Command::Ca { name, days, out } => {
            let ca = Ca::create(&name, validity(days), now)?;
            let cert = files::write(&out.join("ca.crt"), ca.cert_pem())?;
            let key = files::write_private(&out.join("ca.key"), ca.key_pem().as_str())?;
            output.print(&json!({"certificate": cert, "key": key, "notAfter": ca.not_after()}))?;
            Ok(())
        }
        Command::Server { common, ip } => {
            ensure!(
                !common.dns.is_empty() || !ip.is_empty(),
                "give at least one --dns or --ip that agents dial"
            );
            let request = ServerRequest {
                common_name: common.dns.first().cloned().unwrap_or_else(|| "tidewatch-receiver".to_owned()),
                dns_names: common.dns.clone(),
                ip_addrs: ip,
                validity: validity(common.days),
            };
            common.write("server", &common.ca()?.issue_server(&request, now)?, output)
        }
        Command::Client { runtime_id, common } => {
            ensure!(!common.dns.is_empty(), "give --dns with the Kyma's skr-domain; the receiver checks it");
            let request = ClientRequest {
                runtime_id,
                dns_names: common.dns.clone(),
                organizations: Vec::new(),
                validity: validity(common.days),
            };
            common.write("agent", &common.ca()?.issue_client(&request, now)?, output)
        }
    }
}
