use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Tick {
    Tick::from_secs(seconds)
}

fn healthy() -> Health {
    Health { configuration: "c1".into(), ..Health::default() }
}

fn fleet(size: usize) -> (Paths, Vec<String>) {
    let kymas: Vec<String> = (0..size).map(|n| format!("k{n}")).collect();
    let mut paths = Paths::new(Settings::default());
    paths.registered(kymas.iter().map(|kyma| (kyma.as_str(), "u")), at(0));
    (paths, kymas)
}

/// Sends a heartbeat and a canary of each runtime.
fn beat(paths: &mut Paths, kymas: &[String], now: Tick) {
    for kyma in kymas {
        paths.received(kyma, Some(healthy()), now);
        paths.canary(kyma, now);
    }
}

fn checks(steps: &[Step]) -> Vec<Check> {
    steps.iter().filter_map(|s| if let Step::Check { check, .. } = s { Some(*check) } else { None }).collect()
}

fn reports(steps: &[Step]) -> Vec<&'static str> {
    let told =
        steps.iter().filter_map(|s| if let Step::Report { report, .. } = s { Some(report) } else { None });
    told.map(|r| r.reason).collect()
}

#[test]
fn a_proven_runtime_is_not_polled() {
    let (mut paths, kymas) = fleet(1);
    assert!(paths.tick(|_| "c1", at(1)).is_empty(), "unknown: neither polled nor spoken of");
    let mut polls = 0;
    for second in 2..7200 {
        if second % 60 == 2 {
            beat(&mut paths, &kymas, at(second));
        }
        let steps = paths.tick(|_| "c1", at(second));
        assert!(second == 2 || reports(&steps).is_empty());
        polls += checks(&steps).iter().filter(|l| **l == Check::Poll).count();
    }
    assert_eq!((paths.state("k0"), polls), (Some(State::Proven), 0));
}

#[test]
fn a_lost_canary_causes_a_poll_within_90_seconds() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(10));
    paths.tick(|_| "c1", at(10));
    // Second 70's canary is lost.
    paths.received("k0", Some(healthy()), at(70));
    let noticed = (71..200).find(|&second| {
        let steps = paths.tick(|_| "c1", at(second));
        checks(&steps) == [Check::Poll] && reports(&steps) == ["NoCanary"]
    });
    assert!(noticed.is_some_and(|second| second <= 70 + 90), "{noticed:?}");
    let again = (noticed.unwrap() + 1..1000).find(|&s| !paths.tick(|_| "c1", at(s)).is_empty()).unwrap();
    assert!((100..140).contains(&(again - noticed.unwrap())), "then every two minutes: {again}");
    beat(&mut paths, &kymas, at(1000));
    assert_eq!(reports(&paths.tick(|_| "c1", at(1000))), ["Proven"]);
}

#[test]
fn a_runtime_without_an_agent_is_polled_after_the_grace() {
    let (mut paths, _) = fleet(1);
    let first = (1..1000).find(|&s| !paths.tick(|_| "c1", at(s)).is_empty()).unwrap();
    assert_eq!((first, paths.state("k0")), (181, Some(State::Unproven)));
}

#[test]
fn a_blind_watch_makes_a_path_with_canaries_unproven() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let blind = Health { configuration: "c1".into(), blind: vec!["pods".into()], ..Health::default() };
    paths.received("k0", Some(blind), at(2));
    paths.canary("k0", at(2));
    let steps = paths.tick(|_| "c1", at(2));
    assert_eq!((reports(&steps), checks(&steps)), (vec!["BlindWatch"], vec![Check::Poll]));
}

#[test]
fn a_new_configuration_has_a_grace() {
    let (mut paths, kymas) = fleet(1);
    let mut reasons = Vec::new();
    for second in 1..400 {
        if second % 60 == 1 {
            beat(&mut paths, &kymas, at(second));
        }
        let expected = if second < 100 { "c1" } else { "c2" };
        reasons.extend(reports(&paths.tick(|_| expected, at(second))).into_iter().map(|r| (second, r)));
    }
    assert_eq!(reasons, [(1, "Proven"), (281, "OldConfiguration")]);
}

#[test]
fn unreachable_runtimes_are_polled_rarely_and_on_return() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let mut polls = 0;
    for second in (2..=86_400).step_by(5) {
        let steps = paths.tick(|_| "c1", at(second));
        polls += checks(&steps).len();
        if !steps.is_empty() {
            paths.reachable("k0", false);
        }
    }
    assert_eq!(paths.state("k0"), Some(State::Unreachable));
    assert!((22..=29).contains(&polls), "{polls} polls a day");
    paths.received("k0", Some(healthy()), at(90_000));
    assert_eq!(checks(&paths.tick(|_| "c1", at(90_000))), [Check::Poll], "it is back: look at once");
    paths.canary("k0", at(90_001));
    assert_eq!(reports(&paths.tick(|_| "c1", at(90_001))), ["Proven"]);
}

#[test]
fn many_unproven_runtimes_are_polled_at_a_stretched_pace() {
    let (mut paths, kymas) = fleet(1000);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let mut most = 0;
    let mut all = 0;
    for second in 2..1500 {
        let polls = checks(&paths.tick(|_| "c1", at(second))).len();
        most = most.max(polls);
        all += polls;
    }
    assert!(paths.ill());
    assert!(most < 20, "{most} polls in one second");
    assert!((1000..2500).contains(&all), "{all} polls in 25 minutes: about one each in twenty");
    beat(&mut paths, &kymas, at(1500));
    paths.tick(|_| "c1", at(1500));
    assert!(!paths.ill());
}

#[test]
fn a_small_fleet_is_polled_without_stretching() {
    let (mut paths, kymas) = fleet(2);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let polled = (2..100).any(|s| checks(&paths.tick(|_| "c1", at(s))).len() == 2);
    assert!(polled && !paths.ill());
}

#[test]
fn the_safety_resync_is_spread() {
    let (mut paths, kymas) = fleet(500);
    let (mut most, mut all) = (0, 0);
    for minute in 0..(13 * 60) {
        let now = at(minute * 60 + 1);
        beat(&mut paths, &kymas, now);
        let resyncs = checks(&paths.tick(|_| "c1", now)).len();
        most = most.max(resyncs);
        all += resyncs;
    }
    assert!((500..1100).contains(&all) && most < 20, "{all} in all, {most} in one minute");
}

#[test]
fn a_kyma_that_is_created_again_is_proven_anew() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    assert_eq!(reports(&paths.tick(|_| "c1", at(1))), ["Proven"]);
    paths.registered([("k0", "u2")].into_iter(), at(2));
    paths.tick(|_| "c1", at(2));
    assert_eq!(paths.state("k0"), Some(State::Unknown), "its agent is another one");
    beat(&mut paths, &kymas, at(3));
    assert_eq!(reports(&paths.tick(|_| "c1", at(3))), ["Proven"], "the new Kyma gets the condition");
}

#[test]
fn an_installation_is_proven_by_a_canary_of_its_own_agent() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    assert!(!paths.proves("k0", "i2"));
    let renewed = Health { installation: "i2".into(), ..healthy() };
    paths.received("k0", Some(renewed), at(30));
    paths.tick(|_| "c1", at(30));
    assert!(!paths.proves("k0", "i2"), "the last canary was the old agent's");
    paths.canary("k0", at(31));
    assert!(paths.proves("k0", "i2") && !paths.proves("k0", "i1"));
}

#[test]
fn an_unregistered_runtime_is_forgotten() {
    let (mut paths, kymas) = fleet(2);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    paths.registered([("k1", "u"), ("k2", "u")].into_iter(), at(2));
    assert_eq!((paths.state("k0"), paths.state("k1")), (None, Some(State::Proven)));
    assert_eq!(paths.state("k2"), Some(State::Unknown));
    assert_eq!(paths.worst(10, at(3) + SECOND).len(), 2);
}

#[test]
fn a_zero_poll_interval_disables_polling() {
    let mut paths = Paths::new(Settings { poll_unreachable: Duration::ZERO, ..Settings::default() });
    paths.registered([("k0", "u")].into_iter(), at(0));
    paths.reachable("k0", false);
    let polls = (1..7200).flat_map(|second| checks(&paths.tick(|_| "c1", at(second)))).count();
    // The first poll finds out.
    assert_eq!((paths.state("k0"), polls <= 1), (Some(State::Unreachable), true), "{polls}");
}

#[test]
fn the_worst_runtimes_are_listed_first() {
    let (mut paths, kymas) = fleet(4);
    beat(&mut paths, &kymas[..2], at(100));
    beat(&mut paths, &kymas[2..3], at(130));
    paths.received("k3", Some(healthy()), at(130));
    beat(&mut paths, &kymas[1..2], at(150));
    // k0 is late; k3's grace is over.
    paths.tick(|_| "c1", at(185));
    let worst = paths.worst(3, at(185));
    let worst: Vec<_> =
        worst.iter().map(|w| (w.kyma.as_str(), w.state, w.canary.map(|age| age.as_secs()))).collect();
    assert_eq!(
        worst,
        [("k3", State::Unproven, None), ("k0", State::Unproven, Some(85)), ("k2", State::Proven, Some(55))]
    );
}

#[test]
fn a_canary_before_registration_still_proves_the_runtime() {
    let mut paths = Paths::new(Settings::default());
    paths.received("k0", Some(healthy()), at(1));
    paths.canary("k0", at(1));
    paths.registered([("k0", "u")].into_iter(), at(2));
    assert_eq!(reports(&paths.tick(|_| "c1", at(2))), ["Proven"]);
}

fn configured(steps: &[Step]) -> usize {
    steps.iter().filter(|step| matches!(step, Step::Configure { .. })).count()
}

#[test]
fn a_manually_changed_configuration_is_rewritten_at_once() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    assert_eq!(configured(&paths.tick(|_| "c1", at(1))), 0);
    let other = || Some(Health { configuration: "by hand".into(), ..Health::default() });
    let mut written = Vec::new();
    for second in 2..400 {
        if second % 60 == 2 {
            paths.received("k0", other(), at(second));
            paths.canary("k0", at(second));
        }
        if configured(&paths.tick(|_| "c1", at(second))) > 0 {
            written.push(second);
        }
    }
    assert_eq!(written, [2, 182, 362], "at once, then once in each grace");
    beat(&mut paths, &kymas, at(401));
    assert!((401..1000).all(|second| configured(&paths.tick(|_| "c1", at(second))) == 0));
}

#[test]
fn a_configuration_rollout_is_not_a_manual_change() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    paths.tick(|_| "c2", at(2));
    // The agent lags by one heartbeat.
    paths.received("k0", Some(healthy()), at(3));
    assert_eq!(configured(&paths.tick(|_| "c2", at(3))), 0);
    paths.received("k0", Some(Health { configuration: "c2".into(), ..Health::default() }), at(63));
    assert!((63..600).all(|second| configured(&paths.tick(|_| "c2", at(second))) == 0));
    paths.tick(|_| "c3", at(600));
    let written: Vec<_> =
        (601..800).filter(|second| configured(&paths.tick(|_| "c3", at(*second))) > 0).collect();
    assert_eq!(written, [675]);
}

#[test]
fn manual_changes_between_ticks_are_rewritten_next() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let works_by =
        |configuration: &str| Some(Health { configuration: configuration.into(), ..Health::default() });
    // The agent is faster than the tick.
    paths.received("k0", works_by("c2"), at(2));
    paths.received("k0", works_by("by hand"), at(2));
    assert_eq!(configured(&paths.tick(|_| "c2", at(3))), 1);
    assert_eq!(configured(&paths.tick(|_| "c2", at(4))), 0, "once");
    // Others get their grace.
    paths.received("k0", works_by("c2"), at(5));
    paths.tick(|_| "c2", at(5));
    assert_eq!(configured(&paths.tick(|_| "c3", at(6))), 0);
}

#[test]
fn each_runtime_is_compared_with_its_own_configuration() {
    let (mut paths, kymas) = fleet(2);
    let expected = |kyma: &str| if kyma == "k0" { "c1" } else { "" };
    let mut told_of = Vec::new();
    for second in 1..400 {
        if second % 60 == 1 {
            for (kyma, configuration) in kymas.iter().zip(["c0", "any"]) {
                let health = Health { configuration: configuration.into(), ..Health::default() };
                paths.received(kyma, Some(health), at(second));
                paths.canary(kyma, at(second));
            }
        }
        for step in paths.tick(expected, at(second)) {
            if let Step::Report { kyma, report } = step {
                told_of.push((kyma, report.reason));
            }
        }
    }
    told_of.sort();
    let wanted = [("k0", "OldConfiguration"), ("k0", "Proven"), ("k1", "Proven")];
    assert_eq!(told_of, wanted.map(|(kyma, reason)| (kyma.to_owned(), reason)));
}

#[test]
fn new_watches_of_a_proven_runtime_have_time_to_list() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    assert_eq!(reports(&paths.tick(|_| "c1", at(1))), ["Proven"]);
    let lists = || {
        Some(Health {
            configuration: "c2".into(),
            blind: vec!["engine.pods.spec".into()],
            ..Health::default()
        })
    };
    let mut reasons = Vec::new();
    for second in 2..400 {
        if second % 60 == 2 {
            paths.received("k0", lists(), at(second));
            paths.canary("k0", at(second));
        }
        let steps = paths.tick(|_| "c2", at(second));
        reasons.extend(reports(&steps).into_iter().map(|reason| (second, reason)));
    }
    assert_eq!(reasons, [(183, "BlindWatch")], "one that never does is told");
    // Without a new configuration there is no grace.
    beat(&mut paths, &kymas, at(400));
    paths.received("k0", Some(Health { configuration: "c1".into(), ..Health::default() }), at(700));
    paths.canary("k0", at(700));
    assert_eq!(reports(&paths.tick(|_| "c1", at(700))), ["Proven"]);
    beat(&mut paths, &kymas, at(1000));
    paths.received(
        "k0",
        Some(Health { configuration: "c1".into(), blind: vec!["kyma".into()], ..Health::default() }),
        at(1000),
    );
    assert_eq!(reports(&paths.tick(|_| "c1", at(1000))), ["BlindWatch"]);
}

#[test]
fn a_flapping_configuration_is_rewritten_with_backoff() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let mut written = Vec::new();
    for second in 2..1_802 {
        // Reverted a second after each write.
        let is_right = written.last() == Some(&(second - 1));
        let configuration = if is_right { "c1" } else { "by hand" };
        paths.received(
            "k0",
            Some(Health { configuration: configuration.into(), ..Health::default() }),
            at(second),
        );
        paths.canary("k0", at(second));
        if configured(&paths.tick(|_| "c1", at(second))) > 0 {
            written.push(second);
        }
    }
    assert_eq!(written[0], 2, "the first time at once");
    assert!((5..=30).contains(&written.len()), "{written:?}");
}

fn refusal(reason: &'static str, issuer: &str, verified: bool) -> Refusal {
    Refusal {
        reason,
        at: Timestamp::UNIX_EPOCH,
        subject: "CN=r0".into(),
        issuer: issuer.into(),
        not_after: Timestamp::UNIX_EPOCH,
        verified,
    }
}

fn messages(steps: &[Step]) -> Vec<String> {
    let told =
        steps.iter().filter_map(|s| if let Step::Report { report, .. } = s { Some(report) } else { None });
    told.map(|report| format!("{}: {}", report.reason, report.message)).collect()
}

#[test]
fn a_refused_agent_is_reported_until_accepted() {
    let (mut paths, kymas) = fleet(1);
    paths.refused("k0", refusal("san_mismatch", "CN=factory", true), at(1));
    let first = messages(&paths.tick(|_| "c1", at(2)));
    assert_eq!(
        first,
        [
            "AgentRefused: the agent was refused (san_mismatch) at 1970-01-01T00:00:00Z: the certificate does not carry the \
          domain registered for the runtime (subject CN=r0, issuer CN=factory, valid until 1970-01-01T00:00:00Z); an \
          installed agent requests another one; issue any other anew with the Kyma's skr-domain as alternative name; the runtime is polled until events are proven to arrive"
        ]
    );
    for second in 3..120 {
        paths.refused("k0", refusal("san_mismatch", "CN=factory", true), at(second));
        assert!(messages(&paths.tick(|_| "c1", at(second))).is_empty(), "the same is told once");
    }
    let view = paths.view("k0", at(120)).unwrap();
    assert_eq!(view.refusals.last().map(|(last, count)| (last.reason, count)), Some(("san_mismatch", 118)));
    beat(&mut paths, &kymas, at(121));
    assert_eq!(reports(&paths.tick(|_| "c1", at(121))), ["Proven"]);
}

#[test]
fn unverified_claims_do_not_affect_a_live_agents_path() {
    let (mut paths, kymas) = fleet(2);
    let stranger = || refusal("unknown_ca", "CN=stranger", false);
    for second in 1..600 {
        if second % 60 == 1 {
            // Heartbeats without canaries.
            paths.received("k0", Some(healthy()), at(second));
        }
        paths.refused("k0", stranger(), at(second));
        paths.refused("k1", stranger(), at(second));
        paths.refused("nobody", stranger(), at(second));
        let told = messages(&paths.tick(|_| "c1", at(second)));
        assert!(second > 180 || told.is_empty(), "a claim does not end the grace");
        for message in told {
            assert!(message.starts_with("NoCanary") || message.contains(", as it claims"), "{message}");
        }
    }
    assert_eq!(kymas.len(), 2);
    assert!(paths.view("nobody", at(600)).is_none(), "nothing is kept of who is not registered");
    let count = |kyma: &str| paths.view(kyma, at(600)).unwrap().refusals.last().map(|(_, count)| count);
    assert_eq!((count("k0"), count("k1")), (Some(599), Some(599)));
}

#[test]
fn frequent_refusals_cause_few_status_writes() {
    let (mut paths, _) = fleet(1);
    let mut told = 0;
    for second in 1..3_600 {
        for n in 0..10 {
            let issuer = format!("CN=made up {second} {n}");
            paths.refused("k0", refusal("unknown_ca", &issuer, false), at(second));
        }
        told += messages(&paths.tick(|_| "c1", at(second))).len();
    }
    assert!((2..=20).contains(&told), "{told} in an hour");
}

#[test]
fn a_speaking_agent_is_not_reported_as_silent() {
    let (mut paths, _) = fleet(2);
    paths.received("k0", Some(healthy()), at(5));
    paths.tick(|_| "c1", at(6));
    let (speaks, silent) = (paths.view("k0", at(6)).unwrap(), paths.view("k1", at(6)).unwrap());
    assert_eq!((speaks.state, speaks.connected), (State::Unknown, Some(SECOND)));
    assert!(speaks.cause.contains("its next canary"), "{}", speaks.cause);
    assert!(silent.cause.contains("not been heard") && silent.connected.is_none(), "{}", silent.cause);
    let worst = paths.worst(2, at(6));
    let heard: Vec<_> = worst.iter().map(|worst| (worst.kyma.as_str(), worst.received)).collect();
    assert_eq!(heard, [("k1", None), ("k0", Some(SECOND))], "who is silent is worse off");
}
