//! Running version during upgrades.

use proptest::{collection::vec, prelude::*, sample::select, test_runner::Config};
use tidewatch_api::{
    object::{Gvk, ObjectRef},
    readiness::{CrState, Readiness},
};

use super::*;
use crate::{
    kyma::is_up_to_date,
    manifest_status::{Progress, manifest_status, with_cr_state},
};

const WAITS: &str = "Deployment lighthouse/keeper: not all of 1 replicas are available";

struct World {
    kyma: Kyma,
    wanted: KymaSpec,
    catalog: FakeCatalog,
    manifest: Option<Manifest>,
}

impl World {
    fn new() -> Self {
        let mut catalog = catalog();
        let mut release = catalog.releases["lighthouse"].as_ref().clone();
        release.spec.allow_downgrade = Some(true);
        catalog.releases.insert("lighthouse".into(), Arc::new(release));
        Self { kyma: kyma(), wanted: wanted(&["lighthouse"]), catalog, manifest: None }
    }

    fn reconcile(&mut self) -> Plan {
        let manifests = Vec::from_iter(self.manifest.clone());
        let plan = plan_of(&self.kyma, &self.wanted, &self.catalog, &manifests, &sources());
        self.kyma.status = Some(plan.status.clone());
        for mut applied in plan.apply.iter().cloned() {
            let old = self.manifest.take();
            let before = old.as_ref().and_then(|old| old.metadata.generation).unwrap_or(0);
            let changes = old.as_ref().is_none_or(|old| old.spec != applied.spec);
            applied.metadata.generation = Some(before + i64::from(changes));
            applied.status = old.and_then(|old| old.status);
            self.manifest = Some(applied);
        }
        plan
    }

    fn value(&mut self) -> String {
        let first = self.reconcile();
        let second = self.reconcile();
        assert_eq!((second.apply, &second.status), (vec![], &first.status), "the plan is done");
        let module = first.status.modules.into_iter().next().unwrap();
        assert!(module.state != State::Ready || module.message.is_empty(), "{module:?}");
        module.message.clone()
    }

    fn ask(&mut self, version: &str) -> &mut Self {
        self.wanted.modules[0].version = Some(version.into());
        self
    }

    fn find(&mut self, progress: &Progress, cr: State) -> &mut Self {
        if let Some(manifest) = &mut self.manifest {
            let now = Timestamp::UNIX_EPOCH;
            let id =
                ObjectRef { gvk: Gvk::of("x.dev/v1", "Beacon"), namespace: "n".into(), name: "b".into() };
            let reported = (id, CrState { state: cr, message: "too dark".into() });
            let status = manifest_status(manifest, progress, &[], None, now);
            manifest.status = Some(with_cr_state(status, manifest, Some(&reported), now));
        }
        self
    }
}

fn ready() -> Progress {
    Progress::Applied(Readiness::Ready)
}

fn waits() -> Progress {
    Progress::Applied(Readiness::Processing(WAITS.into()))
}

#[test]
fn an_upgrade_reports_both_running_and_wanted_version() {
    let mut world = World::new();
    assert_eq!(world.ask("1.0.0").value(), "", "a first installation");
    assert_eq!(world.find(&waits(), State::Empty).value(), WAITS);
    assert_eq!(world.find(&ready(), State::Empty).value(), "");
    assert!(world.manifest.as_ref().unwrap().annotations().get(annotations::RUNNING_VERSION).is_none());
    assert_eq!(world.ask("1.1.0").value(), "upgrade in progress: 1.0.0 runs, 1.1.0 is wanted");
    let both = format!("upgrade in progress: 1.0.0 runs, 1.1.0 is wanted; {WAITS}");
    assert_eq!(world.find(&waits(), State::Empty).value(), both);
    let plan = world.reconcile();
    let manifest = world.manifest.as_ref().unwrap();
    insta::assert_yaml_snapshot!(
        "upgrade_in_progress",
        json!({"annotations": manifest.annotations(), "status": runtime_status(&plan.status)})
    );
    assert_eq!(world.find(&ready(), State::Empty).value(), "");
    // Later failures are no upgrade.
    assert_eq!(world.find(&waits(), State::Empty).value(), WAITS);
    assert_eq!(world.ask("1.0.0").value(), "downgrade in progress: 1.1.0 runs, 1.0.0 is wanted");
}

#[test]
fn the_running_version_is_recorded_with_spec_changes_only() {
    let mut world = World::new();
    world.ask("1.0.0").reconcile();
    world.find(&ready(), State::Empty).ask("1.1.0").reconcile();
    world.find(&ready(), State::Empty).reconcile();
    let noted = world.manifest.clone().unwrap();
    assert_eq!(noted.annotations()[annotations::RUNNING_VERSION], "1.0.0", "it is left there");
    assert_eq!(world.reconcile().apply, []);
    world.wanted.modules[0].version = None;
    world.wanted.modules[0].channel = Some("fast".into());
    let moved = world.reconcile();
    assert_eq!(moved.apply[0].annotations()[annotations::RUNNING_VERSION], "1.0.0");
    assert!(!is_up_to_date(&noted, &moved.apply[0]) && noted.spec == moved.apply[0].spec);
    assert_eq!(moved.status.modules[0].message, "");
}

#[test]
fn an_unrecorded_running_version_is_not_reported() {
    // It never was Ready.
    let mut world = World::new();
    world.ask("1.0.0").reconcile();
    world.find(&waits(), State::Empty).ask("1.1.0");
    assert_eq!(world.value(), "");
    assert_eq!(world.find(&waits(), State::Empty).value(), WAITS);
    let mut world = World::new();
    world.ask("1.0.0").reconcile();
    world.find(&ready(), State::Empty).ask("1.1.0").reconcile();
    let manifest = world.manifest.as_mut().unwrap();
    manifest.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    assert_eq!(world.value(), PREVIOUS_INSTALLATION);
}

#[test]
fn an_upgrade_decision_names_the_channel() {
    let mut world = World::new();
    world.reconcile();
    world.find(&ready(), State::Empty).wanted.channel = "fast".into();
    let upgrade = world.reconcile();
    assert_eq!(
        (upgrade.decisions[0].kind.label(), upgrade.decisions[0].reason.as_str()),
        ("upgrade", "channel fast")
    );
}

#[derive(Clone, Debug)]
enum Step {
    Ask(&'static str),
    /// Changes only the spec.
    Policy(CustomResourcePolicy),
    Channel(&'static str),
    Find(Progress, State),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let failed = |state| Progress::Failed { state, message: "digest mismatch".into() };
    let found = vec![ready(), ready(), waits(), failed(State::Error), failed(State::Warning)];
    let cr = vec![State::Empty, State::Ready, State::Error, State::Processing];
    let policy = vec![CustomResourcePolicy::Ignore, CustomResourcePolicy::CreateAndDelete];
    let step = prop_oneof![
        2 => select(vec!["1.0.0", "1.1.0"]).prop_map(Step::Ask),
        1 => select(policy).prop_map(Step::Policy),
        1 => select(vec!["regular", "fast"]).prop_map(Step::Channel),
        4 => (select(found), select(cr)).prop_map(|(progress, cr)| Step::Find(progress, cr)),
    ];
    vec(step, 1..24)
}

proptest! {
    #![proptest_config(Config { cases: 256, ..Config::default() })]

    #[test]
    fn the_running_version_is_the_last_ready_one(steps in steps()) {
        let mut world = World::new();
        world.ask("1.0.0").value();
        let (mut ran, mut version) = (None, "1.0.0");
        for step in steps {
            match step {
                Step::Ask(other) => {
                    version = other;
                    world.ask(other);
                }
                Step::Policy(policy) => world.wanted.modules[0].custom_resource_policy = policy,
                Step::Channel(channel) => {
                    // Irrelevant for a pinned version.
                    world.wanted.channel = channel.into();
                }
                Step::Find(progress, cr) => {
                    if progress == ready() {
                        ran = Some(version);
                    }
                    world.find(&progress, cr);
                }
            }
            let reported = world.value();
            let expected = ran.filter(|ran| *ran != version);
            let parts = reported.split(';').next().unwrap_or_default().to_owned();
            match expected {
                Some(ran) => {
                    prop_assert!(parts.ends_with(&format!("grade in progress: {ran} runs, {version} is wanted")), "{reported}");
                }
                None => prop_assert!(!reported.contains(" in progress: "), "{reported}"),
            }
        }
    }
}
