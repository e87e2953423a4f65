//! Memory per cluster, in a process of its own.

#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of a test")]

mod realistic;

use std::{fs, sync::Arc, time::Duration};

use jiff::Timestamp;
use realistic::fill;
use tidewatch_fake_apiserver::{Cluster, Options, Outcome, Query, Request, Target, User, Verb, shared};
use tokio::time::Instant;

const CLUSTERS: u64 = 30;
/// Bytes. Required: 10,000 clusters of 100 objects in 4 GiB, which is 4,294.
const MAX_PER_OBJECT: u64 = 2_600;

fn resident() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").unwrap();
    statm.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn cluster(user: &Arc<User>, runtime: u64) -> Cluster {
    let mut cluster = Cluster::new(Options { seed: runtime, ..Options::default() }, Timestamp::now());
    fill(&mut cluster, user, runtime);
    cluster
}

/// One test: parallel ones would distort memory and time.
#[test]
fn clusters_start_fast_and_their_objects_take_little_memory() {
    let user = Arc::new(User::admin("admin"));
    // The first ones pay for schemas and shared text.
    let first: Vec<Cluster> = (0..4).map(|runtime| cluster(&user, runtime)).collect();
    let before = resident();
    let clusters: Vec<Cluster> = (10..10 + CLUSTERS).map(|runtime| cluster(&user, runtime)).collect();
    let grown = resident().saturating_sub(before);
    let objects: usize = clusters.iter().map(Cluster::len).sum();
    let each = grown / objects as u64;
    let texts = shared();
    println!(
        "{CLUSTERS} clusters, {objects} objects: {each} bytes for each, {} KiB for a cluster; {} texts, {} KiB",
        grown / CLUSTERS / 1024,
        texts.texts,
        texts.bytes / 1024
    );
    let size = |cluster: &mut Cluster, plural: &str, group: &str| {
        let target = Target {
            group: group.into(),
            version: "v1".into(),
            resource: plural.into(),
            namespace: "kyma-system".into(),
            ..Target::default()
        };
        let request = Request {
            user: Arc::clone(&user),
            agent: "test".into(),
            verb: Verb::List,
            target,
            query: Query::default(),
        };
        match cluster.apply(&request, Timestamp::now()) {
            Outcome::List(list) => {
                (list.items.len(), list.items.iter().map(|item| item.to_string().len()).sum::<usize>())
            }
            other => panic!("{other:?}"),
        }
    };
    let mut one = cluster(&user, 5);
    for (plural, group) in [("deployments", "apps"), ("configmaps", ""), ("leases", "coordination.k8s.io")] {
        let (many, bytes) = size(&mut one, plural, group);
        println!("{plural}: {} bytes each as JSON", bytes / many);
    }
    assert!(each < MAX_PER_OBJECT, "{each} bytes for each object");
    drop((first, clusters));

    let began = Instant::now();
    let clusters: Vec<Cluster> = (0..1000)
        .map(|seed| Cluster::new(Options { seed, ..Options::default() }, Timestamp::now()))
        .collect();
    let took = began.elapsed();
    println!("{} clusters in {took:?}", clusters.len());
    assert!(took < Duration::from_secs(5), "{took:?}");
}
