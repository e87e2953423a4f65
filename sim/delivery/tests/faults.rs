//! The event path under faults.

use tidewatch_delivery_sim::{Counts, Kind, Mistake, Point, play};

const STEPS: u64 = 100_000;
const FOUND_WITHIN: u64 = 200_000;

#[test]
fn no_change_is_lost_under_random_faults() {
    let one = std::env::var("TIDEWATCH_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut counts = Counts::default();
    for seed in one.unwrap_or(1).. {
        match play(seed, None).unwrap() {
            Ok(report) => counts.add(&report.counts),
            Err(failure) => panic!("{failure}"),
        }
        if counts.steps() >= STEPS || one.is_some() {
            break;
        }
    }
    println!("{counts} lost=0");
    let crashes: Vec<_> = counts.crashes().map(|(point, n)| format!("{}={n}", point.word())).collect();
    println!("crashes: {}", crashes.join(", "));
    println!("claims: {} confirmed, {} refused", counts.confirmed, counts.refused);
    println!("restored control planes: {} agents beyond, {} within", counts.beyond, counts.within);
    println!("came and went unnoticed: {}", counts.unnoticed);
    if one.is_none() {
        assert!(counts.unnoticed < 5, "unobservable objects are rare");
        assert!(counts.confirmed > 100 && counts.refused > 100, "some claims are confirmed, some refused");
        assert!(
            counts.beyond > 100 && counts.within > 100,
            "some agents know more than a restored control plane, some do not"
        );
        assert_eq!(counts.rare(), [""; 0], "each kind is at least one step in a hundred");
        let never: Vec<Point> = counts.crashes().filter(|(_, n)| *n == 0).map(|(point, _)| point).collect();
        assert_eq!(never, [], "processes are killed everywhere");
        assert_eq!(counts.kinds().map(|(_, n)| n).sum::<u64>(), counts.steps());
        assert_eq!(counts.kinds().count(), Kind::ALL.len());
    }
}

#[test]
fn a_seed_reproduces_its_run() {
    let hash = |seed| play(seed, None).unwrap().unwrap().hash;
    let first: Vec<u64> = (1..=5).map(hash).collect();
    let again: Vec<u64> = (1..=5).map(hash).collect();
    assert_eq!(first, again);
    let mut different = first.clone();
    different.dedup();
    assert_eq!(different.len(), first.len());
}

#[test]
fn every_mistake_is_found() {
    let mut missed = Vec::new();
    for mistake in Mistake::ALL {
        let mut steps = 0;
        let found = (1..).map_while(|seed| {
            (steps < FOUND_WITHIN).then(|| {
                let played = play(seed, Some(*mistake)).unwrap();
                steps += played.as_ref().map_or_else(|f| f.counts.steps(), |r| r.counts.steps());
                played.err()
            })
        });
        let Some(failure) = found.flatten().next() else {
            missed.push(mistake);
            continue;
        };
        println!("{mistake:?}: after {steps} steps, seed {}: {}", failure.seed, failure.violation);
        let again = play(failure.seed, Some(*mistake)).unwrap().unwrap_err();
        assert_eq!(
            (again.violation, again.hash),
            (failure.violation, failure.hash),
            "the seed shows it again"
        );
    }
    assert_eq!(missed, [&Mistake::StaleRead; 0], "mistakes that are not found");
}
