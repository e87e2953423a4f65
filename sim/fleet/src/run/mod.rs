//! A run: start, scenario, comparison.

mod in_force;
mod live;
mod pick;
mod steps;
mod trouble;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, bail};
use tidewatch_demo::files::write_private;
use tidewatch_drain::Drain;
use tokio::time::{Instant, interval};

use self::live::Live;
use crate::{
    agents::{Agents, Setup},
    fleet::{Fleet, kcp_kyma},
    kubelet::Kubelets,
    modules::Size,
    oracle::{Kind, Oracle, World},
    progress::Progress,
    receiver::{self, Receiver},
    report::{Beside, Lag, Report, RunSetup, StepReport},
    scenario::{Scenario, Step},
    usage,
};

const SAMPLE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(50);
const GRACE: Duration = Duration::from_secs(5);

/// Settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Runtimes.
    pub runtimes: usize,
    /// Modules of each.
    pub size: Size,
    /// Seed.
    pub seed: u64,
    /// Scenario.
    pub scenario: Scenario,
    /// For logs and certificates.
    pub folder: PathBuf,
    /// Receiver; `None`: another controller is measured.
    pub receiver: Option<receiver::Settings>,
}

struct OwnProcesses {
    receiver: Arc<Receiver>,
    agents: Arc<Agents>,
}

/// A started run.
pub struct Run {
    settings: Settings,
    fleet: Arc<Fleet>,
    oracle: Arc<Oracle>,
    processes: Option<OwnProcesses>,
    live: Arc<Live>,
    progress: Arc<Progress>,
    /// Number of active faults.
    background: Arc<AtomicUsize>,
    states: Arc<trouble::States>,
    registry: Arc<trouble::RegistryStates>,
    skipped: AtomicUsize,
    /// API servers (`servers`) end last.
    drain: Drain,
    servers: Drain,
}

impl Run {
    /// Starts everything.
    pub async fn start(settings: Settings, progress: Arc<Progress>) -> Result<Self> {
        let Settings { runtimes, size, seed, ref folder, .. } = settings;
        let installed = settings.scenario.enrolment;
        usage::allow_files(runtimes)?;
        let (drain, servers) = (Drain::new(), Drain::new());
        progress.message(&format!(
            "starting KCP, {runtimes} runtimes and a registry with {} modules",
            size.modules
        ));
        let fleet = Arc::new(Fleet::start(runtimes, size, seed, &servers).await?);
        let oracle = Oracle::new(Arc::clone(&fleet), drain.clone());
        let mut processes = None;
        if let Some(settings) = &settings.receiver {
            progress.message("starting the receiver and the agents' process");
            processes = Some(OwnProcesses::start(folder, &fleet, settings, installed, &drain).await?);
        }
        if let (Some(OwnProcesses { agents, .. }), true) = (&processes, installed) {
            let (fleet, oracle, agents) = (Arc::clone(&fleet), Arc::clone(&oracle), Arc::clone(agents));
            let (kubelets, watch) =
                (Kubelets { fleet, oracle, agents, folder: folder.clone() }, drain.watch());
            drain.spawn("kubelets", async move {
                tokio::select! {
                    () = watch.signaled() => {}
                    Err(error) = kubelets.run() => {
                        tracing::error!(error = format!("{error:#}"), "agents cannot be started");
                    }
                }
            });
        }
        let live = Arc::new(Live::new(
            Arc::clone(&fleet),
            Arc::clone(&oracle),
            processes
                .as_ref()
                .map(|processes| (Arc::clone(&processes.receiver), Arc::clone(&processes.agents))),
        ));
        let (background, skipped) = (Arc::default(), AtomicUsize::new(0));
        let (states, registry) = (Arc::default(), Arc::default());
        let run = Self {
            settings,
            fleet,
            oracle,
            processes,
            live,
            progress,
            background,
            states,
            registry,
            skipped,
            drain,
            servers,
        };
        let (live, progress, watch) = (Arc::clone(&run.live), Arc::clone(&run.progress), run.drain.watch());
        run.drain.spawn("counters", async move {
            let mut tick = interval(SAMPLE);
            loop {
                tokio::select! {
                    () = watch.signaled() => return,
                    _ = tick.tick() => {
                        live.sample().await;
                        progress.show(&live.step(), &live.counters());
                    }
                }
            }
        });
        Ok(run)
    }

    /// The simulated clusters.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Registers initial runtimes.
    pub async fn register(&self) -> Result<()> {
        let count = self.settings.scenario.start.of(self.settings.runtimes);
        self.progress.message(&format!("registering {count} runtimes"));
        self.live.begin("until ready").await;
        self.enrol(0..count, None, Kind::FirstInstall).await
    }

    /// Plays the scenario and compares.
    pub async fn play(&self) -> Result<Report> {
        let (mut steps, mut part, mut rotation) = (Vec::new(), 0, None);
        let is_ready = |step: &&Step| matches!(step, Step::Ready(_));
        let parts = self.settings.scenario.steps.iter().filter(is_ready).count();
        for step in &self.settings.scenario.steps {
            let (text, started) = (step.words(), Instant::now());
            self.progress.message(&text);
            self.live.enter(&text);
            let broken = self.live.broken();
            let played = tokio::select! {
                played = Box::pin(self.step(step, steps.len())) => played,
                broken = broken => Err(anyhow::anyhow!(broken)),
            }?;
            let note = played.note;
            rotation = played.rotation.or(rotation);
            let seconds = (played.ended.unwrap_or_else(Instant::now) - started).as_secs_f64();
            steps.push(StepReport { step: text, seconds, note });
            if played.over {
                break;
            }
            if matches!(step, Step::Ready(_)) {
                part += 1;
                let name = if parts > 1 { format!("part {part}") } else { "scenario".to_owned() };
                self.live.begin(&name).await;
            }
        }
        self.live.enter("comparing");
        self.progress.message("comparing every object with its desired state");
        let phases = self.live.end().await;
        let verdict = self.oracle.judge().await?;
        let lags: BTreeMap<Kind, Lag> =
            self.oracle.lags().into_iter().map(|(kind, s)| (kind, Lag::of(kind.words(), s))).collect();
        let beside = lags.get(&Kind::Without).zip(lags.get(&Kind::Beside));
        let beside = beside.map(|(without, beside)| Beside::of(without, beside, self.settings.scenario.goal));
        let Scenario { name, about, .. } = &self.settings.scenario;
        Ok(Report {
            setup: RunSetup {
                scenario: name.clone(),
                about: about.clone(),
                seed: self.settings.seed,
                runtimes: self.settings.runtimes,
                modules: self.settings.size.modules,
                objects: self.settings.size.objects,
                cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
                load: usage::load(),
                receiver_flags: self
                    .processes
                    .as_ref()
                    .map(|processes| processes.receiver.flags())
                    .unwrap_or_default(),
                optimized: !cfg!(debug_assertions),
            },
            steps,
            lags: lags.into_values().collect(),
            beside,
            rotation,
            registry_refused: self.fleet.registry.refused(),
            phases,
            agents: self.live.agents().unwrap_or_default(),
            simulator_peak_mib: usage::Usage::of(std::process::id()).unwrap_or_default().peak,
            skipped: self.skipped.load(Ordering::Relaxed),
            unfinished: self.oracle.pending(),
            verdict,
        })
    }

    /// Ends everything.
    pub async fn end(self) {
        let _aborted = self.drain.shutdown(GRACE).await;
        drop(self.processes);
        drop(self.live);
        let _aborted = self.servers.shutdown(GRACE).await;
    }

    async fn unrest(&self) -> Result<Option<String>> {
        let pending = self.oracle.pending();
        if pending > 0 {
            return Ok(Some(format!("{pending} changes are not done")));
        }
        let registered = self.oracle.world(World::registered);
        if let Some(OwnProcesses { agents, .. }) = &self.processes {
            let state = agents.state();
            if let Some(error) = state.error {
                bail!(error);
            }
            if state.ready < registered.len() {
                let (ready, all, dirty) = (state.ready, registered.len(), state.dirty);
                return Ok(Some(format!(
                    "{ready} of {all} agents are at rest ({dirty} keys are not acknowledged)"
                )));
            }
        }
        let mut not_ready = 0;
        for runtime in registered {
            let kyma = self.fleet.get(&self.fleet.kcp, &kcp_kyma(runtime))?;
            not_ready += usize::from(kyma.is_none_or(|kyma| kyma["status"]["state"] != "Ready"));
            tokio::task::yield_now().await;
        }
        Ok((not_ready > 0).then(|| format!("{not_ready} Kymas in KCP are not Ready")))
    }
}

impl OwnProcesses {
    async fn start(
        folder: &Path,
        fleet: &Fleet,
        settings: &receiver::Settings,
        installed: bool,
        drain: &Drain,
    ) -> Result<Self> {
        let receiver = Receiver::prepare(folder, fleet, settings, installed)?;
        if !installed {
            fleet.admit_agents()?;
        }
        receiver.start().await?;
        let ca = fleet.event_ca().await?;
        let ca_file = folder.join("receiver/ca.crt");
        write_private(&ca_file, ca.cert_pem())?;
        let api = fleet.server.url("");
        let setup = Setup {
            receiver: receiver.url.clone(),
            event_ca: ca.cert_pem().to_owned(),
            event_ca_key: ca.key_pem().as_str().to_owned(),
            event_ca_file: ca_file,
            api: api.trim_end_matches('/').to_owned(),
            api_ca: fleet.server.ca_pem().to_owned(),
            secret: fleet.secret.clone(),
            check_every: settings.agents_check,
            connection_age: settings.agents_connection_age,
            installed,
        };
        let program = std::env::current_exe().context("the path of this program is not known")?;
        let agents = Agents::start(folder, &program, &setup, drain).await?;
        Ok(Self { receiver: Arc::new(receiver), agents: Arc::new(agents) })
    }
}
