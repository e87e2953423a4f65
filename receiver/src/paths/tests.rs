use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(seconds: u64) -> Tick {
    Tick::from_secs(seconds)
}

fn healthy() -> Health {
    Health { configuration: "c1".into(), blind: Vec::new() }
}

fn fleet(size: usize) -> (Paths, Vec<String>) {
    let kymas: Vec<String> = (0..size).map(|n| format!("k{n}")).collect();
    let mut paths = Paths::new(Settings::default());
    paths.registered(kymas.iter().map(String::as_str), at(0));
    (paths, kymas)
}

/// A heartbeat with its canary for everybody, once a minute.
fn beat(paths: &mut Paths, kymas: &[String], now: Tick) {
    for kyma in kymas {
        paths.heard(kyma, Some(healthy()), now);
        paths.canary(kyma, now);
    }
}

fn looks(steps: &[Step]) -> Vec<Look> {
    steps.iter().filter_map(|s| if let Step::Look { look, .. } = s { Some(*look) } else { None }).collect()
}

fn told(steps: &[Step]) -> Vec<&'static str> {
    let told =
        steps.iter().filter_map(|s| if let Step::Tell { report, .. } = s { Some(report) } else { None });
    told.map(|r| r.reason).collect()
}

#[test]
fn a_runtime_that_proves_itself_is_not_polled() {
    let (mut paths, kymas) = fleet(1);
    assert!(paths.tick(|_| "c1", at(1)).is_empty(), "unknown: neither polled nor spoken of");
    let mut polls = 0;
    for second in 2..7200 {
        if second % 60 == 2 {
            beat(&mut paths, &kymas, at(second));
        }
        let steps = paths.tick(|_| "c1", at(second));
        assert!(second == 2 || told(&steps).is_empty());
        polls += looks(&steps).iter().filter(|l| **l == Look::Poll).count();
    }
    assert_eq!((paths.state("k0"), polls), (Some(State::Proven), 0));
}

#[test]
fn a_lost_canary_is_noticed_and_the_runtime_polled_within_90_seconds() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(10));
    paths.tick(|_| "c1", at(10));
    // The canary of second 70 is swallowed, though its agent is heard.
    paths.heard("k0", Some(healthy()), at(70));
    let noticed = (71..200).find(|&second| {
        let steps = paths.tick(|_| "c1", at(second));
        looks(&steps) == [Look::Poll] && told(&steps) == ["NoCanary"]
    });
    assert!(noticed.is_some_and(|second| second <= 70 + 90), "{noticed:?}");
    let again = (noticed.unwrap() + 1..1000).find(|&s| !paths.tick(|_| "c1", at(s)).is_empty()).unwrap();
    assert!((100..140).contains(&(again - noticed.unwrap())), "then every two minutes: {again}");
    beat(&mut paths, &kymas, at(1000));
    assert_eq!(told(&paths.tick(|_| "c1", at(1000))), ["Proven"]);
}

#[test]
fn a_runtime_without_an_agent_is_polled_after_the_grace() {
    let (mut paths, _) = fleet(1);
    let first = (1..1000).find(|&s| !paths.tick(|_| "c1", at(s)).is_empty()).unwrap();
    assert_eq!((first, paths.state("k0")), (181, Some(State::Unproven)));
}

#[test]
fn one_blind_watch_does_not_hide_behind_a_good_canary() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let blind = Health { configuration: "c1".into(), blind: vec!["pods".into()] };
    paths.heard("k0", Some(blind), at(2));
    paths.canary("k0", at(2));
    let steps = paths.tick(|_| "c1", at(2));
    assert_eq!((told(&steps), looks(&steps)), (vec!["BlindWatch"], vec![Look::Poll]));
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
        reasons.extend(told(&paths.tick(|_| expected, at(second))).into_iter().map(|r| (second, r)));
    }
    assert_eq!(reasons, [(1, "Proven"), (281, "OldConfiguration")]);
}

#[test]
fn a_runtime_that_sleeps_is_asked_rarely_and_looked_at_when_it_wakes() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let mut polls = 0;
    for second in (2..=86_400).step_by(5) {
        let steps = paths.tick(|_| "c1", at(second));
        polls += looks(&steps).len();
        if !steps.is_empty() {
            paths.reachable("k0", false);
        }
    }
    assert_eq!(paths.state("k0"), Some(State::Unreachable));
    assert!((22..=29).contains(&polls), "{polls} polls a day");
    paths.heard("k0", Some(healthy()), at(90_000));
    assert_eq!(looks(&paths.tick(|_| "c1", at(90_000))), [Look::Poll], "it is back: look at once");
    paths.canary("k0", at(90_001));
    assert_eq!(told(&paths.tick(|_| "c1", at(90_001))), ["Proven"]);
}

#[test]
fn an_ill_path_is_no_stampede() {
    let (mut paths, kymas) = fleet(1000);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    // Nobody is heard any more.
    let mut most = 0;
    let mut all = 0;
    for second in 2..1500 {
        let polls = looks(&paths.tick(|_| "c1", at(second))).len();
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
fn a_few_unproven_runtimes_are_polled_though_they_are_a_large_share() {
    let (mut paths, kymas) = fleet(2);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let polled = (2..100).any(|s| looks(&paths.tick(|_| "c1", at(s))).len() == 2);
    assert!(polled && !paths.ill());
}

#[test]
fn the_safety_resync_is_spread() {
    let (mut paths, kymas) = fleet(500);
    let (mut most, mut all) = (0, 0);
    for minute in 0..(13 * 60) {
        let now = at(minute * 60 + 1);
        beat(&mut paths, &kymas, now);
        let resyncs = looks(&paths.tick(|_| "c1", now)).len();
        most = most.max(resyncs);
        all += resyncs;
    }
    assert!((500..1100).contains(&all) && most < 20, "{all} in all, {most} in one minute");
}

#[test]
fn a_runtime_that_is_gone_is_forgotten() {
    let (mut paths, kymas) = fleet(2);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    paths.registered(["k1", "k2"].into_iter(), at(2));
    assert_eq!((paths.state("k0"), paths.state("k1")), (None, Some(State::Proven)));
    assert_eq!(paths.state("k2"), Some(State::Unknown));
    assert_eq!(paths.worst(10, at(3) + SECOND).len(), 2);
}

#[test]
fn what_is_never_to_be_polled_is_never_polled() {
    let mut paths = Paths::new(Settings { poll_unreachable: Duration::ZERO, ..Settings::default() });
    paths.registered(["k0"].into_iter(), at(0));
    paths.reachable("k0", false);
    let polls = (1..7200).flat_map(|second| looks(&paths.tick(|_| "c1", at(second)))).count();
    // The first is made before it is known that nobody answers.
    assert_eq!((paths.state("k0"), polls <= 1), (Some(State::Unreachable), true), "{polls}");
}

#[test]
fn the_worst_come_first() {
    let (mut paths, kymas) = fleet(4);
    beat(&mut paths, &kymas[..2], at(100));
    beat(&mut paths, &kymas[2..3], at(130));
    paths.heard("k3", Some(healthy()), at(130));
    beat(&mut paths, &kymas[1..2], at(150));
    // k0 is late, k3 has never proven itself, and the grace is over.
    paths.tick(|_| "c1", at(185));
    let worst = paths.worst(3, at(185));
    let worst: Vec<_> =
        worst.iter().map(|(kyma, state, age)| (&**kyma, *state, age.map(|a| a.as_secs()))).collect();
    assert_eq!(
        worst,
        [("k3", State::Unproven, None), ("k0", State::Unproven, Some(85)), ("k2", State::Proven, Some(55))]
    );
}

#[test]
fn a_runtime_that_is_heard_before_it_is_listed_is_proven_all_the_same() {
    let mut paths = Paths::new(Settings::default());
    paths.heard("k0", Some(healthy()), at(1));
    paths.canary("k0", at(1));
    paths.registered(["k0"].into_iter(), at(2));
    assert_eq!(told(&paths.tick(|_| "c1", at(2))), ["Proven"]);
}

fn configured(steps: &[Step]) -> usize {
    steps.iter().filter(|step| matches!(step, Step::Configure { .. })).count()
}

#[test]
fn a_configuration_that_is_changed_by_hand_is_written_again_at_once() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    assert_eq!(configured(&paths.tick(|_| "c1", at(1))), 0);
    let other = || Some(Health { configuration: "by hand".into(), blind: Vec::new() });
    let mut written = Vec::new();
    for second in 2..400 {
        if second % 60 == 2 {
            paths.heard("k0", other(), at(second));
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
fn a_roll_out_is_not_taken_for_a_change_by_hand() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    paths.tick(|_| "c2", at(2));
    // It is a heartbeat behind.
    paths.heard("k0", Some(healthy()), at(3));
    assert_eq!(configured(&paths.tick(|_| "c2", at(3))), 0);
    paths.heard("k0", Some(Health { configuration: "c2".into(), blind: Vec::new() }), at(63));
    assert!((63..600).all(|second| configured(&paths.tick(|_| "c2", at(second))) == 0));
    // One that never arrives is written again all the same.
    paths.tick(|_| "c3", at(600));
    let written: Vec<_> =
        (601..800).filter(|second| configured(&paths.tick(|_| "c3", at(*second))) > 0).collect();
    assert_eq!(written, [675]);
}

#[test]
fn one_that_is_changed_before_the_next_look_is_written_again_at_that_look() {
    let (mut paths, kymas) = fleet(1);
    beat(&mut paths, &kymas, at(1));
    paths.tick(|_| "c1", at(1));
    let works_by =
        |configuration: &str| Some(Health { configuration: configuration.into(), ..Health::default() });
    // The agent has the new configuration before the receiver has looked at what it expects.
    paths.heard("k0", works_by("c2"), at(2));
    paths.heard("k0", works_by("by hand"), at(2));
    assert_eq!(configured(&paths.tick(|_| "c2", at(3))), 1);
    assert_eq!(configured(&paths.tick(|_| "c2", at(4))), 0, "once");
    // One that has not had it yet gets the time to.
    paths.heard("k0", works_by("c2"), at(5));
    paths.tick(|_| "c2", at(5));
    assert_eq!(configured(&paths.tick(|_| "c3", at(6))), 0);
}

#[test]
fn each_runtime_has_a_configuration_of_its_own_to_work_by() {
    let (mut paths, kymas) = fleet(2);
    let expected = |kyma: &str| if kyma == "k0" { "c1" } else { "" };
    let mut told_of = Vec::new();
    for second in 1..400 {
        if second % 60 == 1 {
            for (kyma, configuration) in kymas.iter().zip(["c0", "any"]) {
                let health = Health { configuration: configuration.into(), blind: Vec::new() };
                paths.heard(kyma, Some(health), at(second));
                paths.canary(kyma, at(second));
            }
        }
        for step in paths.tick(expected, at(second)) {
            if let Step::Tell { kyma, report } = step {
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
    assert_eq!(told(&paths.tick(|_| "c1", at(1))), ["Proven"]);
    let lists = || Some(Health { configuration: "c2".into(), blind: vec!["engine.pods.spec".into()] });
    let mut reasons = Vec::new();
    for second in 2..400 {
        if second % 60 == 2 {
            paths.heard("k0", lists(), at(second));
            paths.canary("k0", at(second));
        }
        let steps = paths.tick(|_| "c2", at(second));
        reasons.extend(told(&steps).into_iter().map(|reason| (second, reason)));
    }
    assert_eq!(reasons, [(183, "BlindWatch")], "one that never does is told");
    // Without another configuration a blind watch is one at once.
    beat(&mut paths, &kymas, at(400));
    paths.heard("k0", Some(Health { configuration: "c1".into(), ..Health::default() }), at(700));
    paths.canary("k0", at(700));
    assert_eq!(told(&paths.tick(|_| "c1", at(700))), ["Proven"]);
    beat(&mut paths, &kymas, at(1000));
    paths.heard("k0", Some(Health { configuration: "c1".into(), blind: vec!["kyma".into()] }), at(1000));
    assert_eq!(told(&paths.tick(|_| "c1", at(1000))), ["BlindWatch"]);
}
