//! What the engine remembers of a runtime with ten modules, in bytes: what it grows by with the fleet.

#![cfg(target_os = "linux")]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the figure, if somebody asks; what fails fails the test"
)]

mod fleet;

use std::sync::Arc;

use fleet::{MODULES, OBJECTS, kyma, manifest};
use jiff::Timestamp;
use tidewatch_api::{
    inventory::inventory,
    object::{Gvk, ObjectRef},
};
use tidewatch_engine::{
    OutcomeKind, Trigger, WorkKey,
    history::{ReconcileHistory, Record},
    index::{KcpState, SecretRef, owners::Speaker},
    spans::EventSpan,
};

/// Enough for what is allocated in large pieces not to count.
const RUNTIMES: usize = 1_000;
/// The limit; connections, clients and the queue come on top.
const BOUND: usize = 140 * 1024;

/// Resident memory of this process, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn record(key: &WorkKey) -> Record {
    Record {
        key: key.to_string(),
        triggers: vec![Trigger::Event {
            epoch: "62d0fbc0-f57f-4010-a31f-46c15855e2ab".into(),
            seq: 7,
            watch: "engine.deployments.apps.status".into(),
            object: ObjectRef {
                gvk: Gvk::of("apps/v1", "Deployment"),
                namespace: "kyma-system".into(),
                name: "module-1-controller-manager-0".into(),
            },
            span: EventSpan::default(),
        }],
        trigger_count: 1,
        class: "user_edit",
        outcome: OutcomeKind::Done,
        state: None,
        is_found: false,
        has_read: true,
        message: String::new(),
        finished_at: Timestamp::UNIX_EPOCH,
        queued_seconds: 0.0,
        work_seconds: 0.0,
        stages: Vec::new(),
        next_try_seconds: None,
        next_try_for: None,
    }
}

#[test]
fn a_runtime_with_ten_modules_takes_little_memory() {
    let (mut state, history) = (KcpState::default(), ReconcileHistory::default());
    let add = |state: &mut KcpState, number: usize| {
        let name = format!("kyma-{number:05}-8f6c1b2d");
        state.apply_kyma(kyma(&name));
        let secret =
            SecretRef { name: format!("kubeconfig-{name}"), uid: name.clone(), resource_version: "1".into() };
        state.apply_secret(&name, &format!("kubeconfig-{name}"), Some(secret));
        for n in 0..MODULES {
            let manifest = manifest(&name, n);
            let objects = inventory(&manifest.status.as_ref().unwrap().synced);
            let manifest_name = manifest.metadata.name.clone().unwrap();
            state.apply_manifest(manifest);
            state.owners.claim(Speaker::Reconcile, &name, &manifest_name, &objects);
        }
        let key = WorkKey::Kyma { kyma: name };
        (0..40).for_each(|_| history.add(&key, record(&key)));
    };
    // What all runtimes share, and the allocator's own.
    (0..20).for_each(|number| add(&mut state, number));
    let before = resident();
    (20..20 + RUNTIMES).for_each(|number| add(&mut state, number));
    let each = (resident() - before) / RUNTIMES;
    println!("{each} bytes for each runtime");
    assert!(
        each <= BOUND,
        "{each} bytes for each runtime with {MODULES} modules of {OBJECTS} objects; at most {BOUND}"
    );
    // It is all there to the end.
    assert_eq!(state.manifests.of("kyma-00500-8f6c1b2d").count(), MODULES);
    drop(Arc::new((state, history)));
}
