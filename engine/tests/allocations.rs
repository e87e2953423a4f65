//! What a plan allocates: as much in a fleet of ten as in one of two hundred.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "the figures, if somebody asks; what fails fails the test"
)]

mod fleet;

use std::collections::BTreeMap;

use allocation_counter::AllocationInfo;
use fleet::{MODULES, kyma, manifest};
use jiff::Timestamp;
use serde_json::json;
use tidewatch_api::{KymaSpec, Module, SourceType};
use tidewatch_engine::index::KcpState;
use tidewatch_planner::{
    gates::Facts,
    kyma::{ComponentVersion, Input, Source, Sources, plan},
};

const KYMA: &str = "kyma-00003-8f6c1b2d";

/// KCP as it is known, with so many Kymas, and what one of them asks for.
fn world(kymas: usize) -> (KcpState, KymaSpec, Sources) {
    let mut state = KcpState::default();
    for n in 0..MODULES {
        let (module, component) = (format!("module-{n}"), format!("example.dev/module/module-{n}"));
        let release = json!({"metadata": {"name": module}, "spec": {"moduleName": module, "ocmComponentName": component,
            "channels": [{"channel": "regular", "version": "1.2.0"}]}});
        state.apply_release(&module, Some(serde_json::from_value(release).unwrap()));
        let name = format!("{module}-1.2.0");
        let template = json!({"metadata": {"name": name, "namespace": "kcp-system", "generation": 1},
            "spec": {"moduleName": module, "version": "1.2.0", "descriptor": {}}});
        state.apply_template(&name, Some(serde_json::from_value(template).unwrap()));
    }
    let modules = (0..MODULES).map(|n| Module { name: format!("module-{n}"), ..Module::default() }).collect();
    let wanted = KymaSpec { channel: "regular".into(), modules, ..KymaSpec::default() };
    for number in 0..kymas {
        let name = format!("kyma-{number:05}-8f6c1b2d");
        state.apply_kyma(kyma(&name));
        (0..MODULES).for_each(|n| drop(state.apply_manifest(manifest(&name, n))));
        state.record_list(&name, &wanted);
    }
    let source = Source {
        repo: "registry.example.dev/modules".into(),
        layer: format!("sha256:{}", "0a".repeat(32)),
        type_: SourceType::OciDir,
        images: Vec::new(),
        further: BTreeMap::new(),
    };
    let choices = state.choose(KYMA, &wanted, &[]).unwrap();
    let of = |outcome: &Result<_, _>| (ComponentVersion::of(outcome.as_ref().unwrap()), Ok(source.clone()));
    let sources = choices.iter().map(|choice| of(&choice.outcome)).collect();
    (state, wanted, sources)
}

/// From what is known of KCP to the plan, as a reconcile does it.
fn plan_one((state, wanted, sources): &(KcpState, KymaSpec, Sources)) {
    let kyma = state.kymas.get(KYMA).unwrap();
    let choices = state.choose(KYMA, wanted, &[]).unwrap();
    let manifests = state.manifests.list(KYMA);
    assert_eq!(manifests.len(), MODULES);
    let plan = plan(&Input {
        kyma: &kyma,
        wanted,
        modules: &choices,
        sources,
        manifests: &manifests,
        facts: Facts::default(),
        now: Timestamp::UNIX_EPOCH,
    });
    assert_eq!(plan.status.modules.len(), MODULES);
}

#[test]
fn plan_allocations_do_not_depend_on_fleet_size() {
    let of = |kymas: usize| -> AllocationInfo {
        let world = world(kymas);
        plan_one(&world);
        allocation_counter::measure(|| plan_one(&world))
    };
    let (small, large) = (of(10), of(200));
    println!(
        "{} allocations, {} bytes, at most {} at once",
        small.count_total, small.bytes_total, small.bytes_max
    );
    assert!(small.count_total > 0, "nothing was counted");
    assert_eq!((small.count_total, small.bytes_total), (large.count_total, large.bytes_total));
    assert_eq!((small.count_current, large.count_current), (0, 0), "something stays");
}
