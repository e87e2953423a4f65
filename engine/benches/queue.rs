//! What the queue costs per key, with the keys of a large fleet. The yardstick is a plain `VecDeque` that
//! takes and gives the same keys in the same run: no classes, no fairness, no merging. The ratio is the
//! price of those.

use std::{collections::VecDeque, hint::black_box, time::Duration};

use criterion::{Criterion, Throughput};
use tidewatch_engine::{
    WorkKey,
    queue::{Class, Ended, Push, Queue, Tick},
};

const RUNTIMES: usize = 5_000;
const KEYS: usize = 10_000;
const NOW: Tick = Duration::ZERO;

type FleetQueue = Queue<WorkKey, u64, ()>;

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    through(&mut criterion);
    again(&mut criterion);
    // As many as the engine's workers can fill, and as many as there are.
    for full in [16, RUNTIMES - 1] {
        saturated(&mut criterion, full);
    }
    criterion.final_summary();
}

/// Names a group; figures of a debug build must not pass for those of a release build.
fn named(name: &str) -> String {
    if cfg!(debug_assertions) { format!("{name} (debug build)") } else { name.to_owned() }
}

/// A Kyma and a Manifest of every runtime.
fn keys() -> Vec<WorkKey> {
    let manifests = (0..KEYS - RUNTIMES)
        .map(|n| WorkKey::Manifest { kyma: kyma(n), name: format!("{}-lighthouse", kyma(n)) });
    (0..RUNTIMES).map(|n| WorkKey::Kyma { kyma: kyma(n) }).chain(manifests).collect()
}

fn kyma(n: usize) -> String {
    format!("kyma-{:08x}", n % RUNTIMES)
}

fn event() -> Push<u64, ()> {
    Push { class: Class::UserEdit, trigger: Some(1), guards: Vec::new() }
}

/// Every key is pushed, then every key is worked on.
fn through(criterion: &mut Criterion) {
    let keys = keys();
    let mut group = criterion.benchmark_group(named("queue, 10000 keys of 5000 runtimes through it"));
    group.throughput(Throughput::Elements(KEYS as u64));
    group.bench_function("ours", |bencher| {
        bencher.iter(|| {
            let mut queue = FleetQueue::new(4);
            for key in &keys {
                queue.push(key.clone(), event(), NOW);
            }
            let mut worked = 0_usize;
            while let Some(work) = queue.pop(NOW) {
                queue.end(&work.key, Ended::Done, NOW);
                worked += 1;
            }
            assert_eq!(worked, KEYS);
        });
    });
    group.bench_function("yardstick VecDeque push and pop of the same keys", |bencher| {
        bencher.iter(|| {
            let mut queue = VecDeque::new();
            for key in &keys {
                queue.push_back(key.clone());
            }
            while let Some(key) = queue.pop_front() {
                black_box(key);
            }
        });
    });
    group.finish();
}

/// One more event about a key that waits already: besides others of its runtime, and alone.
fn again(criterion: &mut Criterion) {
    let keys = keys();
    for (case, keys) in [("2 keys a runtime", &keys[..]), ("1 key a runtime", &keys[..RUNTIMES])] {
        // A stride that is coprime to the number of keys visits them all, far apart.
        let visits = || (0..keys.len()).map(|n| &keys[n * 7 % keys.len()]).cycle();
        let mut group = criterion.benchmark_group(named(&format!("queue, push again, {case}")));
        group.bench_function("ours", |bencher| {
            let mut queue = FleetQueue::new(4);
            for key in keys {
                queue.push(key.clone(), event(), NOW);
            }
            let mut visits = visits();
            bencher.iter(|| {
                if let Some(key) = visits.next() {
                    queue.push(key.clone(), event(), NOW);
                }
            });
            assert_eq!(queue.ready().map(|(_, count)| count).sum::<usize>(), keys.len());
        });
        group.bench_function("yardstick VecDeque push and pop of the same key", |bencher| {
            let mut queue: VecDeque<WorkKey> = keys.iter().cloned().collect();
            let mut visits = visits();
            bencher.iter(|| {
                queue.extend(visits.next().cloned());
                queue.pop_front()
            });
        });
        group.finish();
    }
}

/// Some runtimes have as much in work as they may, and more that waits; one is free.
fn saturated(criterion: &mut Criterion, full: usize) {
    let keys = keys();
    let (kymas, manifests) = keys.split_at(RUNTIMES);
    let (in_work, waiting) = (&kymas[..full], &manifests[..=full]);
    let mut group =
        criterion.benchmark_group(named(&format!("queue, pop + end + push past {full} full runtimes")));
    group.bench_function("ours", |bencher| {
        let mut queue = FleetQueue::new(1);
        for key in in_work {
            queue.push(key.clone(), event(), NOW);
        }
        while queue.pop(NOW).is_some() {}
        assert_eq!(queue.working(), full);
        for key in waiting {
            queue.push(key.clone(), event(), NOW);
        }
        bencher.iter(|| {
            let work = queue.pop(NOW);
            assert!(work.is_some(), "one runtime is free");
            if let Some(work) = work {
                queue.end(&work.key, Ended::Done, NOW);
                queue.push(work.key, event(), NOW);
            }
        });
    });
    group.bench_function("yardstick VecDeque push and pop of the same keys", |bencher| {
        let mut queue: VecDeque<WorkKey> = waiting.iter().cloned().collect();
        bencher.iter(|| {
            let key = queue.pop_front();
            queue.extend(key.clone());
            key
        });
    });
    group.finish();
}
