//! `tidewatch certs`: certificates in files for a setup by hand, and revocation.

use std::{net::IpAddr, path::PathBuf};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use tidewatch_certs::{Ca, ClientRequest, Issued, PrivateKeyPem, ServerRequest};

use crate::{
    args::usage,
    certificate_status::{self, Status},
    clusters::ControlPlane,
    files,
    output::Format,
    revocation::{self, Change, Target},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a CA: ca.crt and ca.key.
    Ca {
        /// Common name of the CA.
        #[arg(long, default_value = "tidewatch-ca")]
        name: String,
        /// Validity, in days.
        #[arg(long, default_value_t = 730, value_name = "DAYS")]
        days: u32,
        #[command(flatten)]
        folder: OutputFolder,
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
        /// Runtime id: the Kyma's label kyma-project.io/runtime-id.
        #[arg(long)]
        runtime_id: String,
        #[command(flatten)]
        common: Common,
    },
    /// Refuse a runtime's certificates: its connections are closed within seconds, and it gets no new certificate.
    Revoke {
        #[command(flatten)]
        target: Target,
        /// Also revoke a runtime id that no Kyma has.
        #[arg(long)]
        force: bool,
    },
    /// Accept a revoked runtime again.
    Admit(Target),
    /// Show the CA and its rotation, the ends of all certificates, and the runtimes that a rotation waits for.
    Status(Status),
    /// Replace the CA: agents and receiver get certificates of a new one, without an interruption.
    Rotate(ControlPlane),
}

#[derive(Debug, Args)]
pub(crate) struct Common {
    /// Certificate of the CA.
    #[arg(long, default_value = "ca.crt", value_name = "FILE")]
    ca: PathBuf,
    /// Private key of the CA.
    #[arg(long, default_value = "ca.key", value_name = "FILE")]
    ca_key: PathBuf,
    /// A DNS name (repeatable). For an agent: the Kyma's skr-domain annotation.
    #[arg(long, value_name = "NAME")]
    dns: Vec<String>,
    /// Validity of the certificate, in days.
    #[arg(long, default_value_t = 60, value_name = "DAYS")]
    days: u32,
    #[command(flatten)]
    folder: OutputFolder,
}

/// Output files.
#[derive(Debug, Args)]
pub(crate) struct OutputFolder {
    /// Folder for the files.
    #[arg(long, default_value = ".", value_name = "FOLDER")]
    out: PathBuf,
    /// Replace an existing certificate and key. The new key does not verify certificates of the old key.
    #[arg(long)]
    force: bool,
}

impl OutputFolder {
    /// Existing files fail before anything is issued.
    fn check(&self, name: &str) -> anyhow::Result<()> {
        let there = [self.file(name, "crt"), self.file(name, "key")].into_iter().find(|file| file.exists());
        match there {
            Some(file) if !self.force => bail!(
                "{} is there already and is not overwritten; name another folder with --out, or replace it with --force",
                file.display()
            ),
            _ => Ok(()),
        }
    }

    fn file(&self, name: &str, ending: &str) -> PathBuf {
        self.out.join(format!("{name}.{ending}"))
    }

    fn write(
        &self,
        name: &str,
        cert: &str,
        key: &PrivateKeyPem,
        not_after: Timestamp,
        output: Format,
    ) -> anyhow::Result<()> {
        self.check(name)?;
        let write = |ending: &str, content: &str, mode: u32| {
            let path = self.file(name, ending);
            files::write_new(&path, content, mode, self.force).map(|()| path)
        };
        // Key first: a certificate without its key is useless.
        let key = write("key", key.as_str(), 0o600)?;
        let cert = write("crt", cert, 0o644)?;
        output.print(&json!({"certificate": cert, "key": key, "notAfter": not_after}))
    }
}

fn validity(days: u32) -> SignedDuration {
    SignedDuration::from_hours(i64::from(days) * 24)
}

impl Common {
    fn ca(&self) -> anyhow::Result<Ca> {
        let (cert, key) = (files::read(&self.ca)?, files::read(&self.ca_key)?);
        Ca::from_pem(&cert, &key).context("the CA cannot be used; create one with: tidewatch certs ca")
    }

    fn issue(
        &self,
        name: &str,
        output: Format,
        issue: impl FnOnce(&Ca) -> Result<Issued, tidewatch_certs::Error>,
    ) -> anyhow::Result<()> {
        self.folder.check(name)?;
        let Issued { cert_pem, key_pem, not_after } = issue(&self.ca()?)?;
        self.folder.write(name, &cert_pem, &key_pem, not_after, output)
    }
}

pub(crate) async fn run(command: Command, output: Format) -> anyhow::Result<()> {
    let now = Timestamp::now();
    match command {
        Command::Ca { name, days, folder } => {
            let ca = Ca::create(&name, validity(days), now)?;
            folder.write("ca", ca.cert_pem(), ca.key_pem(), ca.not_after(), output)
        }
        Command::Server { common, ip } => {
            if common.dns.is_empty() && ip.is_empty() {
                return Err(usage("give at least one --dns or --ip that agents dial"));
            }
            let request = ServerRequest {
                common_name: common.dns.first().cloned().unwrap_or_else(|| "tidewatch-receiver".to_owned()),
                dns_names: common.dns.clone(),
                ip_addrs: ip,
                validity: validity(common.days),
            };
            common.issue("server", output, |ca| ca.issue_server(&request, now))
        }
        Command::Revoke { target, force } => revocation::run(&target, Change::Revoke { force }, output).await,
        Command::Status(target) => certificate_status::status(&target, output).await,
        Command::Rotate(target) => certificate_status::rotate(&target, output).await,
        Command::Admit(target) => revocation::run(&target, Change::Admit, output).await,
        Command::Client { runtime_id, common } => {
            if common.dns.is_empty() {
                return Err(usage("give --dns with the Kyma's skr-domain; the receiver checks it"));
            }
            let request = ClientRequest {
                runtime_id,
                dns_names: common.dns.clone(),
                organizations: Vec::new(),
                validity: validity(common.days),
            };
            common.issue("agent", output, |ca| ca.issue_client(&request, now))
        }
    }
}
