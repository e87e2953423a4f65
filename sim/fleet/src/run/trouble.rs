//! Faults in the background.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use jiff::{SignedDuration, Timestamp};
use tidewatch_fake_apiserver::{
    Fault as Wrong, Hosted, Refusal,
    registry::Trouble,
    script::{Rule, free_namespace, stick_namespace},
};
use tokio::time::sleep;

use super::{
    Ours, Run,
    in_force::{InForce, Ticket},
    steps::Played,
};
use crate::{
    agents::Order,
    fleet::Fleet,
    names,
    oracle::Kind,
    scenario::{Calls, Channel, Cut, Fault, FaultKind, Partition, Registry, Time, Where, Whose},
};

impl Run {
    /// Runs `undo` later; `settle` waits for it.
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
        let begun = begin(fault, clusters, &self.states)?;
        let (kind, states) = (fault.kind, Arc::clone(&self.states));
        let (fleet, oracle) = (Arc::clone(&self.fleet), Arc::clone(&self.oracle));
        self.later(lasts, async move {
            if let Some(rule) = rule {
                fleet.script.remove(rule);
            }
            end(begun, &states);
            if kind == FaultKind::StuckNamespace {
                // The user's list goes with the namespace; KCP's counts again.
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
        let ticket = self.registry.begin((), Trouble { latency, refuse, retry_after });
        let (fleet, states) = (Arc::clone(&self.fleet), Arc::clone(&self.registry));
        states.now(&(), |now| fleet.registry.set_trouble(now.unwrap_or_default()));
        self.later(lasts, async move {
            states.end(&(), ticket, |left| fleet.registry.set_trouble(left.unwrap_or_default()));
        });
        Played::default()
    }
}

fn rule(fault: &Fault, clusters: &[Arc<Hosted>]) -> Option<Rule> {
    let Fault { kind, whose, calls, share, time: Time(time), .. } = *fault;
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
    let verbs: &[&str] = match calls {
        _ if is_of_watches(kind) => &["watch"],
        Calls::All => &[],
        Calls::Reads => &["get", "list", "watch"],
        Calls::Writes => &["create", "update", "patch", "delete", "deletecollection"],
    };
    let verbs = verbs.iter().map(|verb| (*verb).to_owned()).collect();
    let clusters = Some(Arc::new(clusters.iter().map(|cluster| cluster.name().to_owned()).collect()));
    Some(Rule { clusters, users, verbs, share: share.part(), fault: wrong })
}

const fn is_of_watches(kind: FaultKind) -> bool {
    matches!(kind, FaultKind::HalfOpen | FaultKind::BreakOff | FaultKind::Gone)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    Clock,
    Readiness,
    Namespace,
}

/// Faulty properties by API server; the value is a clock's skew.
pub(super) type States = InForce<(Place, String), SignedDuration>;
pub(super) type RegistryStates = InForce<(), Trouble>;

type Begun = Vec<(Place, Ticket, Arc<Hosted>)>;

fn begin(fault: &Fault, clusters: Vec<Arc<Hosted>>, states: &States) -> Result<Begun> {
    let Fault { kind, time: Time(time), .. } = *fault;
    let skew = SignedDuration::try_from(time).unwrap_or_default();
    let (place, value) = match kind {
        FaultKind::ClockAhead => (Place::Clock, skew),
        FaultKind::ClockBehind => (Place::Clock, -skew),
        FaultKind::NeverReady => (Place::Readiness, SignedDuration::ZERO),
        FaultKind::StuckNamespace => (Place::Namespace, SignedDuration::ZERO),
        _ => {
            if kind == FaultKind::Restart || is_of_watches(kind) {
                // The fault would miss open watches.
                for cluster in &clusters {
                    cluster.interrupt();
                }
            }
            return Ok(Vec::new());
        }
    };
    let mut begun = Vec::new();
    for cluster in clusters {
        let key = (place, cluster.name().to_owned());
        let stuck = place == Place::Namespace && states.now(&key, |now| now.is_some());
        let ticket = states.begin(key.clone(), value);
        if !stuck {
            states.now(&key, |now| put(&cluster, place, now))?;
        }
        begun.push((place, ticket, cluster));
    }
    Ok(begun)
}

fn end(begun: Begun, states: &States) {
    for (place, ticket, cluster) in begun {
        let key = (place, cluster.name().to_owned());
        // The namespace may be gone, or terminating for another step.
        let _gone = states.end(&key, ticket, |left| put(&cluster, place, left));
    }
}

fn put(cluster: &Hosted, place: Place, wrong: Option<SignedDuration>) -> Result<()> {
    match place {
        Place::Clock => cluster.set_skew(wrong.unwrap_or(SignedDuration::ZERO)),
        Place::Readiness => cluster.with(|cluster| cluster.withhold_readiness(wrong.is_some())),
        Place::Namespace => {
            let (namespace, now) = (tidewatch_api::names::RUNTIME_NAMESPACE, Timestamp::now());
            let put = if wrong.is_some() { stick_namespace } else { free_namespace };
            put(cluster, namespace, now)
                .map_err(|refusal| anyhow!(refusal.message))
                .with_context(|| format!("the namespace {namespace} of {}", cluster.name()))?;
        }
    }
    Ok(())
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
        let (wrong, _, verbs, _) = of("kind: lost, calls: writes").unwrap();
        assert_eq!(wrong, Wrong::Lost);
        assert!(
            verbs.iter().any(|verb| verb == "patch") && verbs.iter().all(|verb| verb != "get"),
            "{verbs:?}"
        );
        assert!(of("kind: clockAhead, time: 1h").is_none());
    }
}
