//! Execution of steps.

use std::{collections::BTreeSet, ops::Range, sync::atomic::Ordering, time::Duration};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use tidewatch_fake_apiserver::{PatchKind, Verb};
use tokio::time::{Instant, sleep, sleep_until};

use super::{OwnProcesses, POLL, Run, pick};
use crate::{
    agents::Order,
    fleet::runtime_kyma,
    metrics::Page,
    modules,
    oracle::{Kind, Oracle, World},
    receiver::Receiver,
    report::Rotation,
    scenario::{
        self, Agents, Bump, Change, ChangeKind, Channel, Enrol, FaultTarget, Group, How, Others, Rate,
        Rotate, Share, Step, Time, Within,
    },
};

const PATHS: &str = "tidewatch_receiver_runtimes";
const QUEUED: [&str; 2] = ["tidewatch_receiver_queue_ready", "tidewatch_receiver_queue_working"];

/// Shortest rest: time for two reports of the agents.
const QUIET: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(super) struct Played {
    pub(super) note: String,
    /// Skip the remaining steps.
    pub(super) over: bool,
    /// Time of the awaited state, before its confirmation.
    pub(super) ended: Option<Instant>,
    pub(super) rotation: Option<Rotation>,
}

impl Played {
    pub(super) fn note(note: String) -> Self {
        Self { note, ..Self::default() }
    }
}

struct Rested {
    unrest: Option<String>,
    since: Instant,
}

impl From<Rested> for Played {
    fn from(Rested { unrest, since }: Rested) -> Self {
        Self { note: unrest.unwrap_or_default(), ended: Some(since), ..Self::default() }
    }
}

impl Run {
    pub(super) async fn step(&self, step: &Step, index: usize) -> Result<Played> {
        match step {
            Step::Ready(Within { within }) => {
                let rested = self.rest(*within).await?;
                Ok(Played { over: rested.unrest.is_some(), ..rested.into() })
            }
            Step::Settle(Within { within }) => Ok(self.rest(*within).await?.into()),
            Step::Wait(Time(time)) => {
                sleep(*time).await;
                Ok(Played::default())
            }
            Step::Enrol(Enrol { runtimes, rate }) => {
                let from = self.oracle.world(|world| world.registered().len());
                let upto = runtimes.of(self.settings.runtimes);
                self.enrol(from..upto, Some(*rate), Kind::Enrol).await?;
                Ok(Played::default())
            }
            Step::Change(change) => self.change(change, index).await,
            Step::Bump(bump) => self.bump(bump).await,
            Step::Proven(Within { within }) => self.proven(*within).await,
            Step::Idle(Within { within }) => self.idle(*within).await,
            Step::Rotate(Rotate { within, meanwhile }) => {
                self.rotate_under_load(*within, *meanwhile, index).await
            }
            Step::Receiver(scenario::Receiver { how, down: Time(down), meanwhile }) => {
                let OwnProcesses { receiver, .. } =
                    self.processes.as_ref().context("the receiver is an external process")?;
                receiver.end(*how).await?;
                let until = Instant::now() + *down;
                let played = match meanwhile {
                    Some(change) => self.change(change, index).await?,
                    None => Played::default(),
                };
                sleep_until(until).await;
                receiver.start().await?;
                Ok(played)
            }
            Step::Agents(Agents { how, runtimes, group }) => {
                let OwnProcesses { agents, .. } =
                    self.processes.as_ref().context("the agents are external processes")?;
                let runtimes = self.some(index, *group, *runtimes);
                agents.send(&Order::Restart { runtimes, kill: *how == How::Kill }).await?;
                Ok(Played::default())
            }
            Step::Partition(partition) => self.partition(partition, index).await,
            Step::Fault(fault) => self.fault(fault, index),
            Step::Registry(registry) => Ok(self.bad_registry(*registry)),
        }
    }

    pub(super) fn some(&self, step: usize, group: Option<Group>, share: Share) -> Vec<usize> {
        let registered = self.oracle.world(World::registered);
        let words = group.map_or_else(|| format!("step {step}"), |Group(group)| format!("group {group}"));
        pick::some(self.settings.seed, &words, &registered, share.of(self.settings.runtimes))
    }

    fn bumped(&self) -> usize {
        let bumps = self.settings.scenario.steps.iter().map(|step| match step {
            Step::Bump(bump) => bump.modules,
            _ => 0,
        });
        bumps.max().unwrap_or_default()
    }

    fn hit(&self) -> BTreeSet<usize> {
        let steps = self.settings.scenario.steps.iter().enumerate();
        steps
            .filter_map(|(step, action)| match action {
                Step::Fault(fault) if fault.at == FaultTarget::Runtimes => {
                    Some((step, fault.group, fault.runtimes))
                }
                Step::Partition(partition) => Some((step, partition.group, partition.runtimes)),
                _ => None,
            })
            .flat_map(|(step, group, share)| self.some(step, group, share))
            .collect()
    }

    /// Waits for lasting rest.
    ///
    /// After a repair, the event may be in flight while the Kyma is still Ready. Its reconcile makes the Kyma
    /// wait for the Deployment.
    async fn rest(&self, Time(within): Time) -> Result<Rested> {
        let until = Instant::now() + within;
        let mut quiet: Option<(Instant, u64)> = None;
        loop {
            let checked = Instant::now();
            let reports = self.reports();
            let unrest = match self.background.load(Ordering::Relaxed) {
                0 => self.unrest().await?,
                _ => Some("a fault is still in force".to_owned()),
            };
            match unrest {
                None => {
                    let (since, first) = *quiet.get_or_insert((checked, reports));
                    // The next report may be an older one.
                    let is_reported = self.processes.is_none() || reports >= first + 2;
                    if is_reported && since.elapsed() >= QUIET {
                        return Ok(Rested { unrest: None, since });
                    }
                }
                Some(unrest) => {
                    quiet = None;
                    let now = Instant::now();
                    if now >= until {
                        return Ok(Rested { unrest: Some(unrest), since: now });
                    }
                }
            }
            // Checks take at most a tenth of the time.
            sleep(POLL.max(checked.elapsed() * 10)).await;
        }
    }

    fn reports(&self) -> u64 {
        self.processes.as_ref().map_or(0, |processes| processes.agents.state().reports)
    }

    async fn proven(&self, within: Time) -> Result<Played> {
        let registered = self.oracle.world(|world| world.registered().len());
        self.wait_for_metrics(within, |page| {
            let proven = page.map_or(0.0, |page| page.sum(PATHS, &[("state", "proven")]));
            #[expect(clippy::cast_precision_loss, reason = "a count of runtimes is far below 2^52")]
            let all = proven >= registered as f64;
            (!all).then(|| format!("{proven} of {registered} runtimes are proven"))
        })
        .await
    }

    async fn rotate_under_load(
        &self,
        within: Time,
        meanwhile: Option<Change>,
        step: usize,
    ) -> Result<Played> {
        let OwnProcesses { receiver, agents } =
            self.processes.as_ref().context("the receiver is an external process")?;
        let before = agents.state().failures;
        let change = async {
            match meanwhile {
                Some(change) => self.change(&change, step).await,
                None => Ok(Played::default()),
            }
        };
        let (rotation, played) = tokio::try_join!(self.rotate(receiver, within), change)?;
        let failures = agents.state().failures - before;
        Ok(Played { rotation: Some(Rotation { failures, ..rotation }), ..played })
    }

    /// Rotates the CA, until its replaced one is gone.
    async fn rotate(&self, receiver: &Receiver, Time(within): Time) -> Result<Rotation> {
        let started = Instant::now();
        let before = receiver.certificates().await?["ca"]["since"].take();
        self.fleet.request_rotation()?;
        let mut trusted = None;
        while started.elapsed() < within {
            let ca = receiver.certificates().await?["ca"].take();
            let seconds = started.elapsed().as_secs_f64();
            if ca["step"] == "retiring" {
                trusted.get_or_insert(seconds);
            }
            if ca["step"] == "stable" && ca["since"] != before {
                let trusted_seconds = trusted.context("the replaced CA was not retired")?;
                return Ok(Rotation { trusted_seconds, seconds, failures: 0 });
            }
            sleep(POLL * 5).await;
        }
        bail!("the CA was not rotated within {within:?}")
    }

    async fn idle(&self, within: Time) -> Result<Played> {
        self.wait_for_metrics(within, |page| {
            let Some(page) = page else { return Some("the receiver does not answer".to_owned()) };
            let keys: f64 = QUEUED.iter().map(|metric| page.sum(metric, &[])).sum();
            (keys > 0.0).then(|| format!("{keys} keys wait or are reconciled"))
        })
        .await
    }

    /// Waits until `missing_state` is `None`; notes its text after the limit.
    async fn wait_for_metrics(
        &self,
        Time(within): Time,
        missing_state: impl Fn(Option<&Page>) -> Option<String>,
    ) -> Result<Played> {
        let OwnProcesses { receiver, .. } =
            self.processes.as_ref().context("the receiver is an external process")?;
        let until = Instant::now() + within;
        loop {
            match missing_state(receiver.metrics().await.as_ref()) {
                None => return Ok(Played::default()),
                Some(missing) if Instant::now() >= until => return Ok(Played::note(missing)),
                Some(_) => sleep(POLL * 5).await,
            }
        }
    }

    pub(super) async fn enrol(&self, runtimes: Range<usize>, rate: Option<Rate>, kind: Kind) -> Result<()> {
        let started = Instant::now();
        let mut together = Vec::new();
        for (count, runtime) in runtimes.enumerate() {
            pace(started, count, rate).await;
            self.oracle.change_world(|world| {
                if let Some(wish) = world.runtimes.get_mut(runtime) {
                    wish.registered = true;
                }
            });
            self.fleet.register(runtime)?;
            self.oracle.follow(runtime, None, kind);
            tokio::task::yield_now().await;
            together.push(runtime);
            if rate.is_some() || together.len() >= 100 {
                self.start_agents(std::mem::take(&mut together)).await?;
            }
        }
        self.start_agents(together).await
    }

    /// Starts agents, except those that the engine installs.
    async fn start_agents(&self, runtimes: Vec<usize>) -> Result<()> {
        match &self.processes {
            Some(OwnProcesses { agents, .. }) if !self.settings.scenario.enrolment => {
                agents.send(&Order::Start { runtimes }).await
            }
            _ => Ok(()),
        }
    }

    async fn change(&self, change: &Change, step: usize) -> Result<Played> {
        let mut chosen = self.some(step, change.group, change.runtimes);
        if change.others.is_some() {
            let hit = self.hit();
            chosen.retain(|runtime| !hit.contains(runtime));
        }
        let kind = match change.others {
            None => change.action.into(),
            Some(Others::Without) => Kind::Without,
            Some(Others::Beside) => Kind::Beside,
        };
        let (started, all) = (Instant::now(), chosen.len());
        let mut skipped = 0;
        for (count, runtime) in chosen.into_iter().enumerate() {
            pace(started, count, change.rate).await;
            let done = match change.action {
                ChangeKind::Drift | ChangeKind::Delete => self.disturb(change.action, kind, runtime, step)?,
                ChangeKind::Toggle | ChangeKind::Channel => self.edit(change.action, kind, runtime, step)?,
            };
            skipped += usize::from(!done);
            tokio::task::yield_now().await;
        }
        self.skipped.fetch_add(skipped, Ordering::Relaxed);
        let fewer = match change.runtimes {
            Share::Count(wanted) if wanted > all => format!(" of {wanted}: there are no more runtimes"),
            _ => String::new(),
        };
        Ok(Played::note(format!("{} changes{fewer}", all - skipped)))
    }

    /// Returns false without a Deployment.
    fn disturb(&self, action: ChangeKind, kind: Kind, runtime: usize, step: usize) -> Result<bool> {
        // Comparison uses modules that no step bumps.
        let first = if matches!(kind, Kind::Without | Kind::Beside) { self.bumped() } else { 0 };
        let wanted: Vec<usize> = self.oracle.world(|world| {
            (first..self.settings.size.modules)
                .filter(|module| world.desired(runtime, *module).is_some())
                .collect()
        });
        let Some(module) = pick::one(self.settings.seed, step, runtime, &wanted) else { return Ok(false) };
        let (Some(id), Some(hosted)) = (Oracle::deployment(module), self.fleet.runtimes.get(runtime)) else {
            return Ok(false);
        };
        let verb = match action {
            ChangeKind::Delete => Verb::Delete(Value::Null),
            _ => Verb::Patch(PatchKind::Merge, json!({"spec": {"replicas": 7}})),
        };
        let done = self.fleet.ask(hosted, &id, verb)?;
        if done {
            self.oracle.follow(runtime, Some(module), kind);
        }
        Ok(done)
    }

    /// Returns false without a Kyma.
    fn edit(&self, action: ChangeKind, kind: Kind, runtime: usize, step: usize) -> Result<bool> {
        let all: Vec<usize> = (0..self.settings.size.modules).collect();
        let module = pick::one(self.settings.seed, step, runtime, &all);
        let Some((before, after)) = self.oracle.change_world(|world| {
            let wish = world.runtimes.get_mut(runtime)?;
            let before = wish.clone();
            match action {
                ChangeKind::Channel => wish.channel = wish.channel.other(),
                _ => {
                    let listed = wish.modules.get_mut(module?)?;
                    *listed = !*listed;
                }
            }
            Some((before, wish.clone()))
        }) else {
            return Ok(false);
        };
        let listed: Vec<Value> = after
            .modules
            .iter()
            .enumerate()
            .filter(|(_, listed)| **listed)
            .map(|(module, _)| json!({"name": modules::name(module)}))
            .collect();
        let patch = json!({"spec": {"channel": after.channel.name(), "modules": listed}});
        let Some(hosted) = self.fleet.runtimes.get(runtime) else { return Ok(false) };
        let done = self.fleet.ask(hosted, &runtime_kyma(), Verb::Patch(PatchKind::Merge, patch))?;
        if done {
            self.oracle.follow(runtime, module.filter(|_| action == ChangeKind::Toggle), kind);
        } else {
            self.oracle.change_world(|world| {
                if let Some(wish) = world.runtimes.get_mut(runtime) {
                    *wish = before;
                }
            });
        }
        Ok(done)
    }

    async fn bump(&self, bump: &Bump) -> Result<Played> {
        let mut count = 0;
        for module in 0..bump.modules.min(self.settings.size.modules) {
            let channel = bump.channel.name();
            let number = |channel: Channel| {
                let of = |world: &World| world.versions.get(channel.name())?.get(module).copied();
                self.oracle.world(of).unwrap_or(1)
            };
            let mut next = [Channel::Regular, Channel::Fast].map(|channel| (channel, number(channel)));
            for (of, number) in &mut next {
                if *of == bump.channel {
                    *number = (*number + 1).min(modules::VERSIONS);
                    self.fleet.offer(module, *number).await?;
                }
            }
            let concerned: Vec<usize> = self.oracle.change_world(|world| {
                for (of, number) in next {
                    if let Some(version) =
                        world.versions.get_mut(of.name()).and_then(|all| all.get_mut(module))
                    {
                        *version = number;
                    }
                }
                let on = |runtime: &usize| {
                    world.runtimes.get(*runtime).is_some_and(|wish| wish.channel.name() == channel)
                        && world.desired(*runtime, module).is_some()
                };
                world.registered().into_iter().filter(on).collect()
            });
            self.fleet.release(module, next)?;
            for runtime in concerned {
                self.oracle.follow(runtime, Some(module), Kind::Bump);
                count += 1;
            }
            tokio::task::yield_now().await;
        }
        Ok(Played::note(format!("{count} modules of runtimes")))
    }
}

async fn pace(started: Instant, count: usize, rate: Option<Rate>) {
    if let Some(Rate(rate)) = rate {
        #[expect(clippy::cast_precision_loss, reason = "a count of runtimes is far below 2^52")]
        let due = Duration::from_secs_f64(count as f64 / rate);
        sleep_until(started + due).await;
    }
}
