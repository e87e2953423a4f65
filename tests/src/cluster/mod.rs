//! A control plane on either backend.
//!
//! A real one is kube-apiserver and kube-controller-manager; for pods also kube-scheduler and kwok with one
//! fake Node. A fake one is a simulated API server in this process.

pub mod audit;
mod kubeconfig;
mod pki;
mod pods;
mod programs;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use kube::{Api, Client};

use crate::{Backend, Etcd, Harness, Process, fake::Fake, ports};
use pki::Pki;

/// Timeout of each startup step. Two loaded cores need far less.
const READY: Duration = Duration::from_secs(90);
const API_SERVER: &str = "kube-apiserver";
/// The user in `system:masters`.
pub const ADMIN: &str = "admin";

/// A static user with a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The user name in RBAC subjects.
    pub name: String,
    /// Its groups besides `system:authenticated`.
    pub groups: Vec<String>,
}

/// Options of a control plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name: lower-case letters, digits and `-`. It is also the etcd prefix and log folder, so unique per
    /// etcd.
    pub name: String,
    /// Whether pods get scheduled and become ready.
    pub pods: bool,
    /// Users besides [`ADMIN`]. RBAC objects grant their rights.
    pub users: Vec<User>,
}

impl Options {
    /// Options without pods or further users.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), pods: false, users: Vec::new() }
    }
}

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    name: String,
    url: String,
    host: Host,
}

#[derive(Debug)]
enum Host {
    Real(Real),
    Fake(Fake),
}

#[derive(Debug)]
struct Real {
    port: u16,
    pki: Pki,
    /// In shutdown order: clients before the server.
    processes: Vec<Process>,
}

impl ControlPlane {
    /// Starts the control plane and waits for the API, the default `ServiceAccount`, the root CA `ConfigMap`
    /// and the Node, if any.
    pub async fn start(harness: &Harness, etcd: &Etcd, options: Options) -> Result<Self> {
        match harness.backend() {
            Backend::Real => Self::start_real(harness, etcd, options).await,
            Backend::Fake => {
                let name = options.name.clone();
                let fake = Fake::start(options).await?;
                Ok(Self { name, url: fake.url.clone(), host: Host::Fake(fake) })
            }
        }
    }

    async fn start_real(harness: &Harness, etcd: &Etcd, options: Options) -> Result<Self> {
        let Options { name, pods, users } = options;
        let pki = Pki::create(harness, &name, &users)?;
        let port = ports::free()?;
        let url = format!("https://127.0.0.1:{port}");

        let apiserver = programs::apiserver(harness, &name, etcd, &pki, port)?;
        let host = Host::Real(Real { port, pki, processes: vec![apiserver] });
        let mut cluster = Self { name, url, host };
        let client = cluster.client()?;
        cluster.wait_for_api(&client).await?;
        // Starting earlier slows the API server on few cores. Requests refused before RBAC exists are retried
        // only after seconds.
        cluster.add(programs::controller_manager(harness, &cluster, pods)?)?;
        if pods {
            cluster.add(programs::scheduler(harness, &cluster)?)?;
            pods::create_node(&client).await?;
            cluster.add(programs::kwok(harness, &cluster)?)?;
        }
        cluster.wait_for_controllers(&client).await?;
        if pods {
            cluster
                .process("kwok")?
                .ready("to make the Node ready", READY, || pods::node_ready(&client))
                .await?;
        }
        Ok(cluster)
    }

    /// Kills only the API server (SIGKILL).
    pub async fn kill_api(&self) -> Result<()> {
        match &self.host {
            Host::Real(_) => self.process(API_SERVER)?.kill().await,
            Host::Fake(fake) => {
                fake.kill();
                Ok(())
            }
        }
    }

    /// Suspends the API server: connections stay open without answers.
    pub async fn freeze_api(&self) -> Result<()> {
        match &self.host {
            Host::Real(_) => self.process(API_SERVER)?.freeze().await,
            Host::Fake(fake) => {
                fake.freeze();
                Ok(())
            }
        }
    }

    /// Resumes it after [`Self::freeze_api`] and waits until it is ready.
    pub async fn thaw_api(&self) -> Result<()> {
        match &self.host {
            Host::Real(_) => {
                self.process(API_SERVER)?.thaw().await?;
                self.wait_for_api(&self.client()?).await
            }
            Host::Fake(fake) => {
                fake.recover();
                Ok(())
            }
        }
    }

    /// Restarts the API server after [`Self::kill_api`] with its objects, port and certificates. Waits until
    /// it is ready. Truncates its log.
    pub async fn start_api(&mut self, harness: &Harness, etcd: &Etcd) -> Result<()> {
        let again = match &self.host {
            Host::Fake(fake) => {
                fake.recover();
                return Ok(());
            }
            Host::Real(real) => programs::apiserver(harness, &self.name, etcd, &real.pki, real.port)?,
        };
        let name = process_name(&self.name, API_SERVER);
        let dead = self.real_mut()?.processes.iter_mut().find(|process| process.name() == name);
        *dead.with_context(|| format!("{name} was never started"))? = again;
        self.wait_for_api(&self.client()?).await
    }

    fn add(&mut self, process: Process) -> Result<()> {
        self.real_mut()?.processes.insert(0, process);
        Ok(())
    }

    fn real(&self) -> Result<&Real> {
        match &self.host {
            Host::Real(real) => Ok(real),
            Host::Fake(_) => bail!("{} is a fake API server: it has no processes", self.name),
        }
    }

    fn real_mut(&mut self) -> Result<&mut Real> {
        match &mut self.host {
            Host::Real(real) => Ok(real),
            Host::Fake(_) => bail!("{} is a fake API server: it has no processes", self.name),
        }
    }

    async fn wait_for_api(&self, client: &Client) -> Result<()> {
        let probe = || async {
            let request = http_request("/readyz")?;
            Ok((client.request_text(request).await? == "ok").then_some(()))
        };
        self.process(API_SERVER)?.ready("to answer /readyz", READY, probe).await
    }

    async fn wait_for_controllers(&self, client: &Client) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        let config_maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
        let probe = || async {
            let account = accounts.get_opt("default").await?;
            let root_ca = config_maps.get_opt("kube-root-ca.crt").await?;
            Ok(account.and(root_ca).map(|_| ()))
        };
        self.process("kube-controller-manager")?.ready("to publish the default objects", READY, probe).await
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `https://127.0.0.1:port`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the CA of the serving certificate.
    pub fn ca_pem(&self) -> &str {
        match &self.host {
            Host::Real(real) => real.pki.ca_pem(),
            Host::Fake(fake) => fake.ca_pem(),
        }
    }

    /// Returns the token of [`ADMIN`] or of a user in [`Options`].
    pub fn token(&self, user: &str) -> Result<&str> {
        let token = match &self.host {
            Host::Real(real) => real.pki.token(user),
            Host::Fake(fake) => fake.token(user),
        };
        token.with_context(|| format!("{} has no user {user}", self.name))
    }

    /// Returns a kubeconfig with inline CA and token.
    pub fn kubeconfig_yaml(&self, user: &str) -> Result<String> {
        Ok(kubeconfig::yaml(&self.name, &self.url, self.ca_pem(), user, self.token(user)?))
    }

    /// Returns a kubeconfig with any token and address, such as that of a proxy.
    pub fn kubeconfig_with(&self, token: &str, url: &str) -> String {
        kubeconfig::yaml(&self.name, url, self.ca_pem(), "token", token)
    }

    /// Returns an [`ADMIN`] client bound to the current tokio runtime.
    pub fn client(&self) -> Result<Client> {
        self.client_of(ADMIN)
    }

    /// Returns a user's client bound to the current tokio runtime.
    pub fn client_of(&self, user: &str) -> Result<Client> {
        kubeconfig::client(&self.url, self.ca_pem(), self.token(user)?)
    }

    fn process(&self, program: &str) -> Result<&Process> {
        self.real()?
            .processes
            .iter()
            .find(|process| process.name() == process_name(&self.name, program))
            .ok_or_else(|| anyhow!("{} runs no {program}", self.name))
    }

    /// Starts the shutdown without waiting, so that the drop is quick.
    pub fn begin_end(&mut self) {
        if let Host::Real(real) = &mut self.host {
            real.processes.iter_mut().for_each(Process::begin_end);
        }
    }

    fn kubeconfig_file(&self, harness: &Harness, user: &str) -> Result<PathBuf> {
        let name = format!("{}/{}.kubeconfig", self.name, user.replace(':', "-"));
        harness.write(&name, &self.kubeconfig_yaml(user)?)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.begin_end();
    }
}

fn process_name(cluster: &str, program: &str) -> String {
    format!("{cluster}/{program}")
}

fn http_request(path: &str) -> Result<hyper::http::Request<Vec<u8>>> {
    Ok(hyper::http::Request::get(path).body(Vec::new())?)
}
