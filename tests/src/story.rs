//! `tidewatch-demo` with processes on real control planes.

use anyhow::{Context, Result};
use tidewatch_api::names::KCP_NAMESPACE;
use tidewatch_demo::story::{self, Cast, Runtime, Stage};
pub use tidewatch_demo::story::{RUNTIMES, set_modules};

use crate::{
    ControlPlane,
    cluster::ADMIN,
    env::Environment,
    fleet::{self, Agent, Member, Receiver},
    report::Reporter,
};

/// Receiver and agents.
pub struct World {
    told: story::World,
    /// The receiver.
    pub receiver: Receiver,
    /// One agent per runtime.
    pub agents: Vec<Agent>,
}

struct Processes<'a> {
    env: &'a Environment,
    arguments: Vec<String>,
    receiver: Option<Receiver>,
    agents: Vec<Agent>,
}

impl World {
    /// Fills KCP and the registry, registers both runtimes, starts receiver and agents.
    pub async fn start(env: &Environment, reporter: &dyn Reporter) -> Result<Self> {
        Self::start_with(env, reporter, Vec::new()).await
    }

    /// Starts with further receiver arguments.
    pub async fn start_with(
        env: &Environment,
        reporter: &dyn Reporter,
        arguments: Vec<String>,
    ) -> Result<Self> {
        let runtime = |cluster: &ControlPlane| {
            anyhow::Ok(Runtime { client: cluster.client()?, kubeconfig: cluster.kubeconfig_yaml(ADMIN)? })
        };
        let stage = Stage {
            kcp: env.kcp.client()?,
            runtimes: [runtime(&env.runtime1)?, runtime(&env.runtime2)?],
            registry: env.registry.of(KCP_NAMESPACE),
        };
        let mut cast = Processes { env, arguments, receiver: None, agents: Vec::new() };
        let told = story::World::start(stage, &mut cast, reporter).await?;
        let receiver = cast.receiver.context("there is no receiver")?;
        Ok(Self { told, receiver, agents: cast.agents })
    }

    /// Enables, breaks and removes the module in runtime 1. Runtime 2 must stay unaffected.
    pub async fn run(&self, reporter: &dyn Reporter) -> Result<()> {
        self.told.run(reporter).await
    }
}

impl Cast for Processes<'_> {
    async fn receiver(&mut self) -> Result<String> {
        let env = self.env;
        let (modules, arguments) = (env.registry.of(KCP_NAMESPACE), self.arguments.clone());
        fleet::admit_receiver(&env.kcp.client()?, KCP_NAMESPACE).await?;
        let receiver =
            Receiver::start_with(&env.harness, &env.kcp, KCP_NAMESPACE, &modules, arguments).await?;
        let admin = receiver.admin.clone();
        self.receiver = Some(receiver);
        Ok(admin)
    }

    async fn agent(&mut self, runtime: usize) -> Result<String> {
        let receiver = self.receiver.as_ref().context("there is no receiver")?;
        let cluster = *[&self.env.runtime1, &self.env.runtime2].get(runtime).context("no such runtime")?;
        let (kyma, id) = *RUNTIMES.get(runtime).context("no such runtime")?;
        let agent = Agent::start(&self.env.harness, receiver, &Member { cluster, kyma, id }).await?;
        let admin = agent.admin.clone();
        self.agents.push(agent);
        Ok(admin)
    }
}
