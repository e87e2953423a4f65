//! Measurements on real control planes, each against a named yardstick.
//!
//! The machine is noisy. A figure is compared with a bare program in the same run (in turns) or with a
//! recorded Go figure. A failed measurement becomes an entry without a value.

mod certificates;
mod counting;
mod created;
mod criterion;
mod enable;
mod events;
mod idle;
mod intake;
pub mod load;
mod objects;
mod proc;
mod repair;
mod report;
mod server;
mod stats;
mod upgrade;
mod wire;

use std::{path::PathBuf, pin::Pin, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use k8s_openapi::api::apps::v1::Deployment;
use kube::Api;
use tidewatch_api::{State, names::KCP_NAMESPACE};
use tokio::time::Instant;

pub use report::{Entry, Goal, Report};

use crate::{
    Harness, Lifetime,
    env::Environment,
    fleet,
    harness::target_folder,
    report::{Line, Reporter, Terminal},
    story::{RUNTIMES, World},
};
use intake::{Intake, Load};
use objects::Objects;
use report::{Figure, Spec};

const COMMAND: &str = "make bench";
const SYSTEM: &str = "lighthouse-system";
const DEPLOYMENT: &str = "lighthouse-keeper";

/// Repetitions and durations.
#[derive(Clone, Debug)]
pub struct Size {
    events: usize,
    connections: usize,
    repairs: usize,
    upgrades: usize,
    created: usize,
    idle: Duration,
    requests: Duration,
    load: Load,
    /// Runtimes that enrol.
    enrolled: usize,
    objects: Objects,
}

impl Size {
    /// For publishable figures.
    pub fn full() -> Self {
        Self {
            events: 500,
            connections: 400,
            repairs: 30,
            upgrades: 20,
            created: 10,
            idle: Duration::from_secs(30),
            requests: Duration::from_mins(1),
            load: Load { time: Duration::from_secs(12), idle: Duration::from_mins(1), most: 10_000 },
            enrolled: 1_000,
            // The agent and the bare watch must both list the objects in this time.
            objects: Objects { count: 10_000, window: Duration::from_mins(1), windows: 10 },
        }
    }

    /// For a smoke test.
    pub fn quick() -> Self {
        Self {
            events: 50,
            connections: 40,
            repairs: 3,
            upgrades: 2,
            created: 2,
            idle: Duration::from_secs(3),
            requests: Duration::from_secs(5),
            load: Load { time: Duration::from_secs(2), idle: Duration::from_secs(5), most: 2_000 },
            enrolled: 20,
            objects: Objects { count: 1_000, window: Duration::from_secs(15), windows: 1 },
        }
    }
}

/// A part of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Intake under load; needs no control planes.
    Intake,
    /// Enrolment and a rotation of the CA, simulated; needs no control planes.
    Certificates,
    /// An agent with many objects.
    Objects,
    /// Events through the real receiver's intake.
    Events,
    /// Created Kymas until they are Ready.
    Created,
    /// `created`, and enabled, repaired and upgraded modules.
    Modules,
}

/// Runs all parts or one, prints the table and writes the report.
///
/// Fails only if the environment does not start or the report cannot be written.
pub fn main(size: &Size, only: Option<Part>, out: Option<PathBuf>, terminal: &Terminal) -> Result<()> {
    // Can block on a build of the control planes.
    let harness = match only {
        Some(Part::Intake | Part::Certificates) => None,
        _ => Some(Harness::new(&folder().join("logs"), Lifetime::WithUs)?),
    };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot make a runtime")?;
    runtime.block_on(async {
        tokio::select! {
            result = run(size, only, out, harness, terminal) => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })
}

fn folder() -> PathBuf {
    target_folder().join("bench")
}

/// Separates release figures from debug figures.
fn build() -> &'static str {
    if cfg!(debug_assertions) { "debug build" } else { "release build" }
}

async fn run(
    size: &Size,
    only: Option<Part>,
    out: Option<PathBuf>,
    harness: Option<Harness>,
    terminal: &Terminal,
) -> Result<()> {
    let mut report = Report::new(COMMAND);
    // Runs first: control planes would disturb it.
    if matches!(only, None | Some(Part::Intake)) {
        load(size, &mut report, terminal).await;
    }
    if matches!(only, None | Some(Part::Certificates)) {
        let run = Box::pin(certificates::run(size.enrolled));
        measure(terminal, &mut report, certificates::specs(size.enrolled), run).await;
    }
    if let Some(harness) = harness {
        Box::pin(on_control_planes(size, only, &mut report, harness, terminal)).await?;
    }
    terminal.finish();
    terminal.say(&format!("\n{}", report.table()));
    let file = out.unwrap_or_else(|| folder().join("report.json"));
    report.write(&file)?;
    terminal.say(&format!("\nWritten to {}", file.display()));
    Ok(())
}

async fn load(size: &Size, report: &mut Report, terminal: &Terminal) {
    let load = &size.load;
    terminal.say(&format!("Measuring the intake with up to {} agents ({})", load.most, build()));
    let mut intake = match Intake::start(load).await {
        Ok(intake) => intake,
        Err(error) => {
            terminal.say(&format!("the load generator could not be started: {error:#}"));
            let all = [
                intake::cost_specs(),
                intake::latency_specs(),
                intake::handshake_specs(),
                intake::kept_specs(),
                intake::growth_specs(load),
                intake::idle_specs(load),
            ];
            return report.add(all.concat(), Vec::new());
        }
    };
    measure(terminal, report, intake::cost_specs(), Box::pin(intake::cost(&mut intake))).await;
    measure(terminal, report, intake::latency_specs(), Box::pin(intake::latency(&mut intake))).await;
    measure(terminal, report, intake::handshake_specs(), Box::pin(intake::handshakes(&mut intake))).await;
    measure(terminal, report, intake::kept_specs(), Box::pin(intake::kept(&mut intake))).await;
    measure(terminal, report, intake::growth_specs(load), Box::pin(intake::growth(&mut intake))).await;
    measure(terminal, report, intake::idle_specs(load), Box::pin(intake::idle(&mut intake))).await;
}

/// Disables the receiver's limits: one runtime sends thousands of events per second.
fn unlimited() -> Vec<String> {
    [
        "--requests-per-second=1000000",
        "--v2-events-per-second=1000000",
        // One connection more would close the oldest. The agent also holds some.
        "--max-connections-per-identity=1000",
    ]
    .map(str::to_owned)
    .to_vec()
}

async fn on_control_planes(
    size: &Size,
    only: Option<Part>,
    report: &mut Report,
    harness: Harness,
    terminal: &Terminal,
) -> Result<()> {
    let started = Instant::now();
    terminal.say(&format!("Measuring on real control planes ({})", build()));
    terminal.working("starting etcd, a registry and three control planes");
    let env = Environment::start(harness).await?;
    let what = "control planes ready".to_owned();
    terminal.done(Line { what, took: Instant::now().duration_since(started), seq: None });
    if matches!(only, None | Some(Part::Objects)) {
        // Runs before the runtime has an agent: two agents would see each other's canary.
        let run = Box::pin(objects::run(&env, size.objects, terminal));
        measure(terminal, report, objects::specs(size.objects), run).await;
    }
    if only == Some(Part::Objects) {
        return Ok(());
    }
    let world = World::start_with(&env, terminal, unlimited()).await?;
    let bench = Bench { env: &env, world: &world, size, terminal };

    if only.is_none() {
        report.extend(criterion::entries(terminal));
    }
    if only == Some(Part::Created) {
        bench.measure(report, created::specs(size), Box::pin(created::run(&bench))).await;
        return Ok(());
    }
    bench.measure(report, enable::specs(), Box::pin(enable::run(&bench))).await;
    let before = events::so_far(&bench).await;
    if matches!(only, None | Some(Part::Modules)) {
        bench.measure(report, repair::specs(size), Box::pin(repair::run(&bench))).await;
        bench.measure(report, upgrade::specs(size), Box::pin(upgrade::run(&bench))).await;
    }
    if only.is_none() {
        // The agent has sent the events of repairs and upgrades.
        bench.measure(report, events::agent_specs(), Box::pin(events::of_agent(&bench, before))).await;
        // Runs before the load: an allocator can keep the load's memory.
        bench.measure(report, idle::specs(size), Box::pin(idle::run(&bench))).await;
        bench.measure(report, idle::request_specs(size), Box::pin(idle::requests(&bench))).await;
    }
    if only != Some(Part::Modules) {
        bench.measure(report, events::specs(size), Box::pin(events::run(&bench))).await;
        bench.measure(report, events::load_specs(), Box::pin(events::load(&bench))).await;
    }
    if matches!(only, None | Some(Part::Modules)) {
        // Runs last: earlier measurements need a second runtime without a module.
        bench.measure(report, created::specs(size), Box::pin(created::run(&bench))).await;
    }
    Ok(())
}

/// Boxed because the future is large.
type Measurement<'a> = Pin<Box<dyn Future<Output = Result<Vec<Figure>>> + 'a>>;

/// Timeout of one measurement.
const LIMIT: Duration = Duration::from_mins(15);

async fn measure(terminal: &Terminal, report: &mut Report, specs: Vec<Spec>, measurement: Measurement<'_>) {
    let name = specs.first().map(|s| s.name.clone()).unwrap_or_default();
    terminal.working(&format!("measuring {name}"));
    let started = Instant::now();
    let result = match tokio::time::timeout(LIMIT, measurement).await {
        Ok(result) => result,
        Err(_) => Err(anyhow!("it took longer than {LIMIT:?}")),
    };
    let took = Instant::now().duration_since(started);
    match result {
        Ok(figures) => {
            terminal.done(Line { what: format!("measured {name}"), took, seq: None });
            report.add(specs, figures);
        }
        Err(error) => {
            terminal.say(&format!("{name} could not be measured: {error:#}"));
            report.add(specs, Vec::new());
        }
    }
}

struct Bench<'a> {
    env: &'a Environment,
    world: &'a World,
    size: &'a Size,
    terminal: &'a Terminal,
}

impl Bench<'_> {
    async fn measure(&self, report: &mut Report, specs: Vec<Spec>, measurement: Measurement<'_>) {
        measure(self.terminal, report, specs, measurement).await;
    }

    /// Waits until all is Ready, idle and acknowledged, so one measurement does not affect the next.
    async fn calm(&self) -> Result<()> {
        let kcp = self.env.kcp.client()?;
        fleet::kyma_in_state(&kcp, KCP_NAMESPACE, RUNTIMES[0].0, State::Ready).await?;
        for agent in &self.world.agents {
            agent.connected().await?;
        }
        fleet::settled(&self.world.receiver).await
    }

    fn deployments(&self, namespace: &str) -> Result<Api<Deployment>> {
        Ok(Api::namespaced(self.env.runtime1.client()?, namespace))
    }
}
