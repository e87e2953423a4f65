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
    saturated(&mut criterion);
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
    Push { class: Class::UserEdit, cause: Some(1), guards: Vec::new() }
}

/// Every key is pushed, then every key is worked on.
fn through(criterion: &mut Criterion) {
    let keys = keys();
    let mut group =
        criterion.benchmark_group(named("queue, push + pop + end of 10000 keys of 5000 runtimes"));
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

/// One more event about a key that waits already, in a full queue.
fn again(criterion: &mut Criterion) {
    let keys = keys();
    let mut group = criterion.benchmark_group(named("queue, push of a key that is queued among 10000"));
    group.bench_function("ours", |bencher| {
        let mut queue = FleetQueue::new(4);
        for key in &keys {
            queue.push(key.clone(), event(), NOW);
        }
        // A stride that is coprime to the number of keys visits them all.
        let mut next = (0..KEYS).map(|n| &keys[n * 7 % KEYS]).cycle();
        bencher.iter(|| queue.push(next.next().cloned().unwrap_or_else(|| keys[0].clone()), event(), NOW));
        assert_eq!(queue.ready().map(|(_, count)| count).sum::<usize>(), KEYS);
    });
    group.bench_function("yardstick VecDeque push and pop of the same key", |bencher| {
        let mut queue: VecDeque<WorkKey> = keys.iter().cloned().collect();
        let mut next = (0..KEYS).map(|n| &keys[n * 7 % KEYS]).cycle();
        bencher.iter(|| {
            queue.push_back(next.next().cloned().unwrap_or_else(|| keys[0].clone()));
            queue.pop_front()
        });
    });
    group.finish();
}

/// All runtimes but one have as much in work as they may, and more that waits.
fn saturated(criterion: &mut Criterion) {
    let keys = keys();
    let (kymas, manifests) = keys.split_at(RUNTIMES);
    let mut group =
        criterion.benchmark_group(named("queue, pop + end + push beside 4999 saturated runtimes"));
    group.bench_function("ours", |bencher| {
        let mut queue = FleetQueue::new(1);
        for key in kymas.iter().take(RUNTIMES - 1) {
            queue.push(key.clone(), event(), NOW);
        }
        while queue.pop(NOW).is_some() {}
        assert_eq!(queue.working(), RUNTIMES - 1);
        for key in manifests {
            queue.push(key.clone(), event(), NOW);
        }
        bencher.iter(|| {
            let work = queue.pop(NOW);
            if let Some(work) = &work {
                queue.end(&work.key, Ended::Done, NOW);
                queue.push(work.key.clone(), event(), NOW);
            }
            assert!(work.is_some(), "one runtime is free");
        });
    });
    group.bench_function("yardstick VecDeque push and pop of the same keys", |bencher| {
        let mut queue: VecDeque<WorkKey> = manifests.iter().cloned().collect();
        bencher.iter(|| {
            let key = queue.pop_front();
            queue.extend(key.clone());
            key
        });
    });
    group.finish();
}
