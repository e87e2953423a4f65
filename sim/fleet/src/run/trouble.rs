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
    OwnProcesses, Run,
    in_force::{InForce, Ticket},
    steps::Played,
};
use crate::{
    agents::Order,
    fleet::Fleet,
    names,
    oracle::Kind,
    scenario::{Caller, Calls, Channel, Cut, Fault, FaultKind, FaultTarget, Partition, Registry, Time},
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
        let OwnProcesses { agents, .. } =
            self.processes.as_ref().context("the agents are external processes")?;
        let chosen = self.some(step, group, runtimes);
        let rule = (cut == Cut::Centre).then(|| {
            self.fleet.script.add(Rule {
                clusters: Some(Fleet::clusters(&chosen)),
                users: vec![names::RECEIVER_USER.to_owned()],
                ..Rule::always(Wrong::Lost)
            })
        });
        agents.send(&Order::Gate { runtimes: chosen.clone(), open: false }).await?;
        let (agents, fleet, count) = (Arc::clone(agents), Arc::clone(&self.fleet), chosen.len());
        self.later(lasts, async move {
            if let Some(rule) = rule {
                fleet.script.remove(rule);
            }
            let _ended = agents.send(&Order::Gate { runtimes: chosen, open: true }).await;
        });
        Ok(Played::note(format!("{count} runtimes")))
    }

    pub(super) fn fault(&self, fault: &Fault, step: usize) -> Result<Played> {
        let Fault { at, runtimes, group, lasts: Time(lasts), .. } = *fault;
        let chosen = self.some(step, group, runtimes);
        let clusters: Vec<Arc<Hosted>> = match at {
            FaultTarget::Kcp => vec![Arc::clone(&self.fleet.kcp)],
            FaultTarget::Runtimes => chosen
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
        let Time(lasts) = registry.lasts;
        let ticket = self.registry.begin((), registry_trouble(&registry));
        let (fleet, states) = (Arc::clone(&self.fleet), Arc::clone(&self.registry));
        states.now(&(), |now| fleet.registry.set_trouble(now.unwrap_or_default()));
        self.later(lasts, async move {
            states.end(&(), ticket, |left| fleet.registry.set_trouble(left.unwrap_or_default()));
        });
        Played::default()
    }
}

/// Faults of the receiver's requests. A step that pushes a version must not fail by the fault of another.
fn registry_trouble(registry: &Registry) -> Trouble {
    let Registry { latency: Time(latency), refuse, retry_after, .. } = *registry;
    let retry_after = retry_after.map(|Time(wait)| wait.as_secs());
    Trouble { latency, refuse, retry_after, user_agent: Some(tidewatch_oci::USER_AGENT) }
}

fn rule(fault: &Fault, clusters: &[Arc<Hosted>]) -> Option<Rule> {
    let Fault { kind, caller, calls, share, time: Time(time), .. } = *fault;
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
    let users = match caller {
        Caller::All => Vec::new(),
        Caller::Receiver => vec![names::RECEIVER_USER.to_owned()],
        Caller::Agents => vec![names::AGENT_USER.to_owned()],
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
pub(super) enum Property {
    Clock,
    Readiness,
    Namespace,
}

/// Faulty properties by API server; the value is a clock's skew.
pub(super) type States = InForce<(Property, String), SignedDuration>;
pub(super) type RegistryStates = InForce<(), Trouble>;

type Begun = Vec<(Property, Ticket, Arc<Hosted>)>;

fn begin(fault: &Fault, clusters: Vec<Arc<Hosted>>, states: &States) -> Result<Begun> {
    let Fault { kind, time: Time(time), .. } = *fault;
    let skew = SignedDuration::try_from(time).unwrap_or_default();
    let (property, value) = match kind {
        FaultKind::ClockAhead => (Property::Clock, skew),
        FaultKind::ClockBehind => (Property::Clock, -skew),
        FaultKind::NeverReady => (Property::Readiness, SignedDuration::ZERO),
        FaultKind::StuckNamespace => (Property::Namespace, SignedDuration::ZERO),
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
        let key = (property, cluster.name().to_owned());
        let stuck = property == Property::Namespace && states.now(&key, |now| now.is_some());
        let ticket = states.begin(key.clone(), value);
        if !stuck {
            states.now(&key, |now| put(&cluster, property, now))?;
        }
        begun.push((property, ticket, cluster));
    }
    Ok(begun)
}

fn end(begun: Begun, states: &States) {
    for (property, ticket, cluster) in begun {
        let key = (property, cluster.name().to_owned());
        // The namespace may be gone, or terminating for another step.
        let _gone = states.end(&key, ticket, |left| put(&cluster, property, left));
    }
}

fn put(cluster: &Hosted, property: Property, wrong: Option<SignedDuration>) -> Result<()> {
    match property {
        Property::Clock => cluster.set_skew(wrong.unwrap_or(SignedDuration::ZERO)),
        Property::Readiness => cluster.with(|cluster| cluster.withhold_readiness(wrong.is_some())),
        Property::Namespace => {
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
    use tidewatch_drain::Drain;
    use tidewatch_fake_apiserver::registry::Registry as FakeRegistry;
    use tidewatch_oci::{ModulePackage, RegistryConfig};

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

    #[tokio::test]
    async fn a_fault_of_the_registry_spares_pushes() {
        let drain = Drain::new();
        let registry = FakeRegistry::start(&drain).await.unwrap();
        let text = "name: x\nsteps:\n- registry: {refuse: 503, for: 1m}\n";
        let Step::Registry(fault) = Scenario::parse("x", text).unwrap().steps[0] else {
            panic!("no registry")
        };
        registry.set_trouble(registry_trouble(&fault));
        let package = ModulePackage {
            component_name: "example.org/module/tide".to_owned(),
            version: "1.0.0".to_owned(),
            raw_manifest: "apiVersion: v1\nkind: Namespace\nmetadata: {name: tide}\n".to_owned(),
            default_cr: None,
            images: Vec::new(),
            sources: Vec::new(),
        };
        let client = tidewatch_oci::Registry::new(RegistryConfig::default()).unwrap();
        tidewatch_oci::push(&client, &registry.host(), &package).await.unwrap();
        assert_eq!(registry.refused(), 0);
        let read = client.component_descriptor(&registry.host(), "example.org/module/tide", "1.0.0").await;
        assert_eq!((read.unwrap_err().metric_label(), registry.refused()), ("status", 1));
    }
}
