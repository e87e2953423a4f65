//! Options of agents: their installation, and the certificates of both sides.

use std::path::PathBuf;

use jiff::SignedDuration;
use tidewatch_certs::rotation::Limits;
use tidewatch_engine::{AgentInstall, Authority};
use tidewatch_planner::agent_install::AgentSettings;
use tidewatch_tls::Files;

use crate::pki::{PkiIssuer, PkiSettings};

/// Certificates in files. Without them, the receiver keeps a CA and its own certificate in Secrets of the control plane.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FileArgs {
    /// CA certificates that issue the agents' certificates (PEM). With --tls-cert and --tls-key, the receiver
    /// uses these files instead of its own CA.
    #[arg(long, env = "TIDEWATCH_CLIENT_CA", value_name = "FILE", requires_all = ["tls_cert", "tls_key"])]
    pub client_ca: Option<PathBuf>,
    /// Certificate chain of the receiver (PEM).
    #[arg(long, env = "TIDEWATCH_TLS_CERT", value_name = "FILE", requires = "client_ca")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the receiver (PEM).
    #[arg(long, env = "TIDEWATCH_TLS_KEY", value_name = "FILE", requires = "client_ca")]
    pub tls_key: Option<PathBuf>,
}

/// The receiver's own CA, and the agents that the engine installs (`docs/operate/certificates.md`).
#[derive(Clone, Debug, clap::Args)]
pub struct AgentArgs {
    /// Address that agents dial. With --agent-image, the engine installs an agent in every runtime and signs its
    /// certificate.
    #[arg(long, env = "TIDEWATCH_AGENT_URL", value_name = "https://HOST:PORT", value_parser = agent_url)]
    pub agent_url: Option<String>,
    /// Image of the agents.
    #[arg(
        long,
        env = "TIDEWATCH_AGENT_IMAGE",
        value_name = "IMAGE",
        requires = "agent_url",
        conflicts_with = "client_ca"
    )]
    pub agent_image: Option<String>,
    /// HTTP proxy between agents and receiver, http://HOST:PORT.
    #[arg(long, value_name = "URL")]
    pub agent_proxy: Option<String>,
    /// DNS name or address in the receiver's certificate (repeatable), besides the host of --agent-url.
    #[arg(long, value_name = "NAME")]
    pub server_name: Vec<String>,
    /// Issuer of the CA and of the receiver's certificate. With cert-manager, it makes the Secrets tidewatch-ca and
    /// tidewatch-server; the receiver signs the agents' certificates.
    #[arg(long, default_value = "built-in", value_name = "ISSUER", conflicts_with = "client_ca")]
    pub certificates: PkiIssuer,
    /// Lifetime of agents' certificates, such as 168h. They are renewed at two thirds of it. A replaced CA is trusted
    /// as long.
    #[arg(long, default_value = "168h", value_name = "DURATION", value_parser = lifetime)]
    pub agent_certificate_lifetime: SignedDuration,
    /// Lifetime of the receiver's certificate.
    #[arg(long, default_value = "720h", value_name = "DURATION", value_parser = lifetime)]
    pub server_certificate_lifetime: SignedDuration,
    /// Lifetime of a new CA. It is rotated at two thirds of it.
    #[arg(long, default_value = "17520h", value_name = "DURATION", value_parser = lifetime)]
    pub ca_certificate_lifetime: SignedDuration,
    /// Longest wait of a rotation until all agents trust the next CA. Agents of runtimes that are absent longer enrol
    /// again when they come back.
    #[arg(long, default_value = "24h", value_name = "DURATION", value_parser = lifetime)]
    pub ca_rotation_patience: SignedDuration,
}

/// The source of the receiver's certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    /// Files.
    Files(Files),
    /// Secrets of the control plane.
    Secrets(PkiSettings),
}

impl FileArgs {
    /// The files, if given.
    pub(crate) fn files(self) -> Option<Files> {
        let Self { client_ca, tls_cert, tls_key } = self;
        Some(Files { ca: client_ca?, cert: tls_cert?, key: tls_key? })
    }
}

impl AgentArgs {
    /// Settings of the installed agents; `None` without an image. `pull_secret`: the image pull Secret of runtimes.
    pub(crate) fn install(&self, pull_secret: Option<String>) -> Option<AgentInstall> {
        let settings = AgentSettings {
            url: self.agent_url.clone()?,
            image: self.agent_image.clone()?,
            proxy: self.agent_proxy.clone(),
            pull_secret,
        };
        let lifetime = self.agent_certificate_lifetime;
        Some(AgentInstall { settings, authority: Authority::default(), lifetime })
    }

    /// Settings of the receiver's own CA and certificate.
    pub(crate) fn pki(&self) -> PkiSettings {
        let mut server_names = self.server_name.clone();
        server_names.extend(self.agent_url.as_deref().and_then(host));
        PkiSettings {
            issuer: self.certificates,
            server_names,
            server_lifetime: self.server_certificate_lifetime,
            ca_lifetime: self.ca_certificate_lifetime,
            rotation: Limits { patience: self.ca_rotation_patience, agents: self.agent_certificate_lifetime },
        }
    }
}

/// Seconds to 20 years.
fn lifetime(text: &str) -> Result<SignedDuration, String> {
    let range = SignedDuration::from_secs(10)..=SignedDuration::from_hours(20 * 366 * 24);
    let lifetime: Option<SignedDuration> = text.parse().ok();
    lifetime
        .filter(|lifetime| range.contains(lifetime))
        .ok_or_else(|| "use a duration such as 168h, from 10s to 20 years".to_owned())
}

/// The host of an URL, without the brackets of an IPv6 address.
fn host(url: &str) -> Option<String> {
    let uri: http::Uri = url.parse().ok()?;
    Some(uri.host()?.trim_matches(['[', ']']).to_owned())
}

fn agent_url(text: &str) -> Result<String, String> {
    let uri: Option<http::Uri> = text.parse().ok();
    let good = uri.is_some_and(|uri| {
        uri.scheme_str() == Some("https")
            && uri.port_u16().is_some_and(|port| port > 0)
            && matches!(uri.path(), "" | "/")
            && uri.query().is_none()
    });
    good.then(|| text.trim_end_matches('/').to_owned()).ok_or_else(|| "use https://HOST:PORT".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        files: FileArgs,
        #[command(flatten)]
        agents: AgentArgs,
    }

    fn parse(args: &[&str]) -> Result<Only, clap::Error> {
        Only::try_parse_from([&["receiver"], args].concat())
    }

    #[test]
    fn an_agent_image_and_url_have_the_engine_install_agents() {
        let only = parse(&[
            "--agent-url=https://[2001:db8::1]:8443/",
            "--agent-image=agent:1",
            "--server-name=a.example",
        ])
        .unwrap();
        let install = only.agents.install(Some("pull".into())).unwrap();
        assert_eq!(install.settings.url, "https://[2001:db8::1]:8443");
        assert_eq!(install.lifetime, SignedDuration::from_hours(168));
        assert_eq!(only.agents.pki().server_names, ["a.example", "2001:db8::1"]);
        assert!(only.files.files().is_none());
        let observed_only = parse(&["--agent-url=https://a:1"]).unwrap();
        assert!(observed_only.agents.install(None).is_none(), "without an image, others install the agents");
    }

    #[test]
    fn the_three_files_are_given_together_and_exclude_installed_agents() {
        let files = ["--client-ca=ca", "--tls-cert=crt", "--tls-key=key"];
        assert!(parse(&files).unwrap().files.files().is_some());
        for some in [&files[..1], &files[..2], &files[1..], &files[2..]] {
            assert!(parse(some).is_err(), "{some:?}");
        }
        assert!(parse(&[&files[..], &["--agent-url=https://a:1", "--agent-image=i"]].concat()).is_err());
        assert!(parse(&["--agent-image=i"]).is_err(), "agents need an address");
    }

    #[test]
    fn an_agent_url_has_scheme_host_and_port_only() {
        for bad in ["http://a:1", "https://a", "a:1", "https://a:1/path", "https://a:0", "https://a:1/?q"] {
            assert!(parse(&["--agent-url", bad]).is_err(), "{bad}");
        }
    }
}
