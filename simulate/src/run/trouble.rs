//! Faults, put in force for a while in the background.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use jiff::{SignedDuration, Timestamp};
use tidewatch_simulator::{
    Fault as Wrong, Hosted, Refusal,
    registry::Trouble,
    script::{Rule, free_namespace, stick_namespace},
};
use tokio::time::sleep;

use super::{Ours, Run, steps::Played};
use crate::{
    agents::Order,
    fleet::Fleet,
    names,
    oracle::Kind,
    scenario::{Channel, Cut, Fault, FaultKind, Partition, Registry, Time, Where, Whose},
};

impl Run {
    /// Does something after a time; `settle` waits for that.
    fn later(&self, time: Duration, undo: impl Future<Output = ()> + Send + 'static) {
        let (background, watch) = (Arc::clone(&self.background), self.drain.watch());
        background.fetch_add(1, Ordering::Relaxed);
        self.drain.spawn("fault", async move {
            tokio::select! {
                () = watch.signaled() => {}
                () = sleep(time) => undo.await,
            }
            background.fetch_sub(1, Ordering::Relaxed);
        });
    }

    pub(super) async fn partition(&self, partition: &Partition, step: usize) -> Result<Played> {
        let Partition { runtimes, group, cut, lasts: Time(lasts) } = *partition;
        let Ours { agents, .. } = self.ours.as_ref().context("the agents are not ours")?;
        let chosen = self.some(step, group, runtimes);
        let rule = (cut == Cut::Centre).then(|| {
            self.fleet.script.add(Rule {
                clusters: Some(Fleet::clusters(&chosen)),
                users: vec![names::RECEIVER_USER.to_owned()],
                ..Rule::always(Wrong::Lost)
            })
        });
        agents.tell(&Order::Gate { runtimes: chosen.clone(), open: false }).await?;
        let (agents, fleet, count) = (Arc::clone(agents), Arc::clone(&self.fleet), chosen.len());
        self.later(lasts, async move {
            if let Some(rule) = rule {
                fleet.script.remove(rule);
            }
            // An error: their process has ended, which is found elsewhere.
            let _ended = agents.tell(&Order::Gate { runtimes: chosen, open: true }).await;
        });
        Ok(Played::note(format!("{count} runtimes")))
    }

    pub(super) fn fault(&self, fault: &Fault, step: usize) -> Result<Played> {
        let Fault { at, runtimes, group, lasts: Time(lasts), .. } = *fault;
        let chosen = self.some(step, group, runtimes);
        let clusters: Vec<Arc<Hosted>> = match at {
            Where::Kcp => vec![Arc::clone(&self.fleet.kcp)],
            Where::Runtimes => chosen
                .iter()
                .filter_map(|runtime| self.fleet.runtimes.get(*runtime))
                .map(Arc::clone)
                .collect(),
        };
        let count = clusters.len();
        let rule = rule(fault, &clusters).map(|rule| self.fleet.script.add(rule));
        begin(fault, &clusters)?;
        let (fault, fleet, oracle) = (*fault, Arc::clone(&self.fleet), Arc::clone(&self.oracle));
        self.later(lasts, async move {
            if let Some(rule) = rule {
                fleet.script.remove(rule);
            }
            end(&fault, &clusters);
            if fault.kind == FaultKind::StuckNamespace {
                // With the namespace goes the user's list; what KCP says counts again.
                for runtime in chosen {
                    oracle.change_world(|world| {
                        if let Some(wish) = world.runtimes.get_mut(runtime) {
                            wish.channel = Channel::Regular;
                            wish.modules.fill(true);
                        }
                    });
                    oracle.follow(runtime, None, Kind::Delete);
                }
            }
        });
        Ok(Played::note(format!("{count} API servers")))
    }

    pub(super) fn bad_registry(&self, registry: Registry) -> Played {
        let Registry { latency: Time(latency), refuse, retry_after, lasts: Time(lasts) } = registry;
        let retry_after = retry_after.map(|Time(wait)| wait.as_secs());
        self.fleet.registry.set_trouble(Trouble { latency, refuse, retry_after });
        let fleet = Arc::clone(&self.fleet);
        self.later(lasts, async move { fleet.registry.set_trouble(Trouble::default()) });
        Played::default()
    }
}

/// The rule of a fault, if it is one of requests.
fn rule(fault: &Fault, clusters: &[Arc<Hosted>]) -> Option<Rule> {
    let Fault { kind, whose, share, time: Time(time), .. } = *fault;
    let wrong = match kind {
        FaultKind::Latency => Wrong::Latency(time),
        FaultKind::TooManyRequests => Wrong::Refuse(Refusal::too_many_requests(time.as_secs().max(1))),
        FaultKind::Unavailable => Wrong::Refuse(Refusal::failing(503)),
        FaultKind::Internal => Wrong::Refuse(Refusal::failing(500)),
        FaultKind::Hang => Wrong::Hang,
        FaultKind::Lost => Wrong::Lost,
        FaultKind::Drop | FaultKind::Restart => Wrong::Drop,
        FaultKind::HalfOpen => Wrong::Silent(time),
        FaultKind::BreakOff => Wrong::BreakOff(time),
        FaultKind::Gone => Wrong::Expire(time),
        FaultKind::Unauthorized => Wrong::Unauthorized,
        FaultKind::ClockAhead
        | FaultKind::ClockBehind
        | FaultKind::StuckNamespace
        | FaultKind::NeverReady => return None,
    };
    let users = match whose {
        Whose::All => Vec::new(),
        Whose::Receiver => vec![names::RECEIVER_USER.to_owned()],
        Whose::Agents => vec![names::AGENT_USER.to_owned()],
    };
    let verbs = if is_of_watches(kind) { vec!["watch".to_owned()] } else { Vec::new() };
    let clusters = Some(Arc::new(clusters.iter().map(|cluster| cluster.name().to_owned()).collect()));
    Some(Rule { clusters, users, verbs, share: share.part(), fault: wrong })
}

const fn is_of_watches(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::HalfOpen | FaultKind::BreakOff | FaultKind::Gone)
}

fn begin(fault: &Fault, clusters: &[Arc<Hosted>]) -> Result<()> {
    let Fault { kind, time: Time(time), .. } = *fault;
    let skew = SignedDuration::try_from(time).unwrap_or_default();
    for cluster in clusters {
        match kind {
            FaultKind::ClockAhead => cluster.set_skew(skew),
            FaultKind::ClockBehind => cluster.set_skew(-skew),
            FaultKind::NeverReady => cluster.with(|cluster| cluster.withhold_readiness(true)),
            FaultKind::StuckNamespace => {
                let namespace = tidewatch_api::names::RUNTIME_NAMESPACE;
                stick_namespace(cluster, namespace, Timestamp::now())
                    .map_err(|refusal| anyhow!(refusal.message))
                    .with_context(|| format!("the namespace {namespace} of {}", cluster.name()))?;
            }
            // Watches that are open would not be hit: they begin anew.
            _ if kind == FaultKind::Restart || is_of_watches(kind) => cluster.interrupt(),
            _ => {}
        }
    }
    Ok(())
}

fn end(fault: &Fault, clusters: &[Arc<Hosted>]) {
    for cluster in clusters {
        match fault.kind {
            FaultKind::ClockAhead | FaultKind::ClockBehind => cluster.set_skew(SignedDuration::ZERO),
            FaultKind::NeverReady => cluster.with(|cluster| cluster.withhold_readiness(false)),
            FaultKind::StuckNamespace => {
                // It may be gone: somebody has deleted what held it.
                let _gone =
                    free_namespace(cluster, tidewatch_api::names::RUNTIME_NAMESPACE, Timestamp::now());
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Scenario, Step};

    fn fault(text: &str) -> Fault {
        let text = format!("name: x\nsteps:\n- fault: {{{text}, for: 1s}}\n");
        match Scenario::parse("x", &text).unwrap().steps[0] {
            Step::Fault(fault) => fault,
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn faults_become_rules() {
        let of =
            |text: &str| rule(&fault(text), &[]).map(|rule| (rule.fault, rule.users, rule.verbs, rule.share));
        let (wrong, users, verbs, _) = of("kind: halfOpen, whose: agents, time: 2s").unwrap();
        assert_eq!(wrong, Wrong::Silent(Duration::from_secs(2)));
        assert_eq!((users, verbs), (vec![names::AGENT_USER.to_owned()], vec!["watch".to_owned()]));
        let (wrong, users, verbs, share) = of("kind: tooManyRequests, share: 25%, time: 3s").unwrap();
        assert!(matches!(wrong, Wrong::Refuse(refusal) if refusal.retry_after() == Some(3)));
        assert!(users.is_empty() && verbs.is_empty() && (share - 0.25).abs() < 1e-9);
        assert!(of("kind: clockAhead, time: 1h").is_none());
    }
}
