//! An executed plan leaves no work.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::Config};

use super::*;

/// Enough for a transfer and the old Manifest's deletion.
const ROUNDS: usize = 4;

fn lists() -> impl Strategy<Value = Vec<Module>> {
    let entry = (
        select(vec!["lighthouse", "beacon", "nothing", "guard"]),
        option::of(select(vec!["regular", "fast", "broken", "none", "absent"])),
        option::of(select(vec!["1.0.0", "1.1.0", "7.0.0"])),
        prop::bool::weighted(0.8),
        any::<bool>(),
    );
    vec(entry, 0..4).prop_map(|entries| {
        let module =
            |(name, channel, version, managed, ignore): (&str, Option<&str>, Option<&str>, bool, bool)| {
                Module {
                    name: name.into(),
                    channel: channel.map(str::to_owned),
                    version: version.map(str::to_owned),
                    managed,
                    custom_resource_policy: if ignore {
                        CustomResourcePolicy::Ignore
                    } else {
                        CustomResourcePolicy::CreateAndDelete
                    },
                    ..Module::default()
                }
            };
        let mut modules: Vec<Module> = entries.into_iter().map(module).collect();
        modules.sort_by(|a, b| a.name.cmp(&b.name));
        modules.dedup_by(|a, b| a.name == b.name);
        modules
    })
}

#[derive(Clone, Debug)]
enum Step {
    Ask(Vec<Module>),
    Find(State),
    Orphan(usize),
    /// Not gone at once.
    Delete(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let found = vec![State::Ready, State::Processing, State::Error, State::Warning];
    let step = prop_oneof![
        4 => lists().prop_map(Step::Ask),
        2 => select(found).prop_map(Step::Find),
        1 => (0_usize..3).prop_map(Step::Orphan),
        1 => (0_usize..3).prop_map(Step::Delete),
    ];
    vec(step, 1..10)
}

struct World {
    kyma: Kyma,
    wanted: KymaSpec,
    catalog: FakeCatalog,
    manifests: Vec<Manifest>,
}

impl World {
    fn new() -> Self {
        let mut catalog = catalog();
        let mut release = catalog.releases["lighthouse"].as_ref().clone();
        release.spec.module_name = "beacon".into();
        catalog.releases.insert("beacon".into(), Arc::new(release));
        for version in ["1.0.0", "1.1.0"] {
            let mut template = catalog.templates[&format!("lighthouse-{version}")].as_ref().clone();
            template.metadata.name = Some(format!("beacon-{version}"));
            template.spec.module_name = "beacon".into();
            catalog.put(Arc::new(template));
        }
        Self { kyma: kyma(), wanted: wanted(&[]), catalog, manifests: Vec::new() }
    }

    fn plan(&self) -> Plan {
        plan_of(&self.kyma, &self.wanted, &self.catalog, &self.manifests, &sources())
    }

    fn at(&mut self, name: &str) -> Option<&mut Manifest> {
        self.manifests.iter_mut().find(|m| m.name_any() == name)
    }

    /// Earlier deletions complete.
    fn execute(&mut self, plan: &Plan) {
        self.manifests.retain(|m| m.metadata.deletion_timestamp.is_none());
        self.kyma.status = Some(plan.status.clone());
        for applied in &plan.apply {
            let mut applied = applied.clone();
            match self.at(&applied.name_any()) {
                Some(old) => {
                    let changes = old.spec != applied.spec;
                    applied.metadata.generation = old.metadata.generation.map(|g| g + i64::from(changes));
                    applied.status = old.status.take();
                    *old = applied;
                }
                None => {
                    applied.metadata.generation = Some(1);
                    self.manifests.push(applied);
                }
            }
        }
        self.manifests.retain(|m| !plan.unmanage.iter().any(|(name, _)| *name == m.name_any()));
        for name in &plan.delete {
            if let Some(manifest) = self.at(name) {
                manifest.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Ask(modules) => self.wanted.modules = modules,
            Step::Find(state) => {
                for manifest in &mut self.manifests {
                    manifest.status = installed(state).status;
                }
            }
            Step::Orphan(how) => {
                let Some(mut manifest) = self.manifests.first().cloned() else { return };
                manifest.metadata.name = Some(format!("stray-{how}"));
                match how {
                    0 => manifest.owner_references_mut().iter_mut().for_each(|o| o.uid = "another".into()),
                    1 => manifest.metadata.owner_references = None,
                    _ => {}
                }
                self.manifests.retain(|m| m.name_any() != manifest.name_any());
                self.manifests.push(manifest);
            }
            Step::Delete(selects) => {
                if let Some(manifest) = self.manifests.get_mut(selects) {
                    manifest.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
                }
            }
        }
    }
}

fn is_done(plan: &Plan) -> bool {
    plan.apply.is_empty() && plan.delete.is_empty() && plan.unmanage.is_empty()
}

proptest! {
    #![proptest_config(Config { cases: 512, ..Config::default() })]

    #[test]
    fn an_executed_plan_settles_and_spares_foreign_manifests(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
            let others = |m: &Manifest| m.owner_references().iter().all(|o| o.uid != "kyma-uid");
            let mut plan = world.plan();
            for _ in 0..ROUNDS {
                for name in plan.delete.iter().chain(plan.unmanage.iter().map(|(name, _)| name)) {
                    prop_assert!(!world.at(name).is_some_and(|m| others(m)), "{name} is not this Kyma's");
                }
                world.execute(&plan);
                plan = world.plan();
            }
            // Policy Ignore waits for no version.
            for manifest in world.manifests.iter().filter(|m| !others(m) && m.metadata.deletion_timestamp.is_none()) {
                let entry = world.wanted.modules.iter().find(|e| Some(e.name.as_str()) == manifest.module_name());
                let ignores = |e: &&Module| e.managed && e.custom_resource_policy == CustomResourcePolicy::Ignore;
                if entry.is_some_and(|e| ignores(&e)) && !manifest.name_any().starts_with("stray") {
                    prop_assert_eq!(manifest.spec.custom_resource_policy, CustomResourcePolicy::Ignore);
                }
            }
            prop_assert!(is_done(&plan), "{:?} {:?} {:?}", plan.apply, plan.delete, plan.unmanage);
            world.execute(&plan);
            prop_assert_eq!(&world.plan().status, &plan.status);
        }
    }
}
