//! Certificates in files, and agents that a person has installed and configured: for tests of these, of the v2 contract and of odd settings.

use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use tidewatch_certs::{Ca, ServerRequest};
pub use tidewatch_demo::fleet::watches;
use tidewatch_demo::{
    files::write_private,
    fleet::{AgentFiles, admit_agent, agent_config},
    pki::{self, Identity},
};

use crate::{
    ControlPlane, Harness,
    fleet::{AGENT_USER, Agent, Member, Receiver, agent_process, run},
    ports,
};

const CA_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 365);
const SERVER_VALIDITY: SignedDuration = SignedDuration::from_hours(24 * 60);

/// CA and receiver certificate for `localhost` and 127.0.0.1.
struct EventPath {
    ca: Ca,
    /// Its certificate file.
    ca_file: PathBuf,
    /// The receiver's.
    server: Identity,
}

impl EventPath {
    /// Creates it in `folder`.
    fn create(folder: &Path) -> Result<Self> {
        let now = Timestamp::now();
        let ca = Ca::create("tidewatch-event-path", CA_VALIDITY, now)?;
        let request = ServerRequest {
            common_name: "tidewatch-receiver".to_owned(),
            dns_names: vec!["localhost".to_owned()],
            ip_addrs: vec!["127.0.0.1".parse()?],
            validity: SERVER_VALIDITY,
        };
        let issued = ca.issue_server(&request, now)?;
        let ca_file = folder.join("ca.crt");
        write_private(&ca_file, ca.cert_pem())?;
        let server = pki::write(folder, "server", issued)?;
        Ok(Self { ca, ca_file, server })
    }
}

/// Starts a receiver with certificates in files, which its arguments may use. It installs no agents. Waits until it is ready.
pub async fn receiver(
    harness: &Harness,
    kcp: &ControlPlane,
    namespace: &str,
    modules: &str,
    more: impl FnOnce(&Ca) -> Result<Vec<String>>,
) -> Result<Receiver> {
    let folder = format!("receiver-{namespace}");
    let EventPath { ca, ca_file, server } = EventPath::create(&harness.folder().join(&folder))?;
    let (events, admin) = (ports::free()?, ports::free()?);
    let mut args = vec![
        format!("--client-ca={}", ca_file.display()),
        format!("--tls-cert={}", server.cert.display()),
        format!("--tls-key={}", server.key.display()),
    ];
    args.extend(more(&ca)?);
    let process = run(harness, kcp, namespace, modules, &folder, (events, admin), args)?;
    let admin = format!("http://127.0.0.1:{admin}");
    let url = format!("https://127.0.0.1:{events}");
    let receiver = Receiver { ca, ca_file, url, admin, process, namespace: namespace.to_owned() };
    receiver.ready().await?;
    Ok(receiver)
}

/// The settings of an agent.
pub struct Settings<'a> {
    /// The contract's version.
    pub protocol: &'a str,
    /// The receiver's address.
    pub receiver: &'a str,
    /// The API server's address.
    pub api: &'a str,
    /// The watches of its file.
    pub watches: Value,
    /// Whether it also has the watches that the engine configures in this runtime, which can be those of another test.
    pub follows_engine: bool,
}

impl Settings<'_> {
    /// Starts the agent with the shipped role and a certificate that the receiver's CA issues. Does not wait until it is connected.
    pub async fn start(self, harness: &Harness, receiver: &Receiver, member: &Member<'_>) -> Result<Agent> {
        admit_agent(&member.cluster.client()?).await?;
        let identity = receiver.identity(harness, member.id, &member.domain())?;
        let admin = ports::free()?;
        let folder = format!("agent-{}-{}", receiver.namespace, member.kyma);
        let kubeconfig = member.cluster.kubeconfig_with(member.cluster.token(AGENT_USER)?, self.api);
        let kubeconfig = harness.write(&format!("{folder}/runtime.yaml"), &kubeconfig)?;
        let files = AgentFiles {
            id: member.id,
            receiver: self.receiver,
            protocol: self.protocol,
            ca: &receiver.ca_file,
            identity: &identity,
            kubeconfig: &kubeconfig,
            admin: &format!("127.0.0.1:{admin}"),
        };
        let mut config = agent_config(files, &self.watches);
        if let Some(config) = config.as_object_mut().filter(|_| !self.follows_engine) {
            config.remove("configMap");
        }
        let config = harness.write(&format!("{folder}/agent.yaml"), &config.to_string())?;
        let process = agent_process(harness, &folder, &config)?;
        let agent = Agent { admin: format!("http://127.0.0.1:{admin}"), identity, process };
        agent.lives().await?;
        Ok(agent)
    }
}
