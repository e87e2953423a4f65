//! An executed plan leaves no work.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

/// Enough for a transfer and the old Manifest's deletion.
const ROUNDS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    Mandatory(Option<&'static str>),
    Rename(&'static str),
    Beta(bool),
    AllowDowngrade(bool),
    /// Optional, listed or not; `None`: mandatory.
    Choose(Option<bool>),
    Edit(usize),
    /// Not gone at once.
    Delete,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let versions = vec![None, Some("1.9.0"), Some("2.0.0"), Some("2.1.0"), Some("7.0.0")];
    let step = prop_oneof![
        4 => select(versions).prop_map(Step::Mandatory),
        1 => select(vec!["guard", "watchman"]).prop_map(Step::Rename),
        1 => any::<bool>().prop_map(Step::Beta),
        1 => any::<bool>().prop_map(Step::AllowDowngrade),
        1 => select(vec![None, Some(true), Some(false)]).prop_map(Step::Choose),
        2 => (0_usize..5).prop_map(Step::Edit),
        1 => Just(Step::Delete),
    ];
    vec(step, 1..12)
}

struct World {
    catalog: FakeCatalog,
    version: Option<&'static str>,
    chosen: Option<bool>,
    manifests: Vec<Manifest>,
}

impl World {
    fn plan(&mut self) -> MandatoryPlan {
        let mut spec =
            json!({"mandatory": self.version.map(|version| json!({"version": version})), "channels": null});
        if self.chosen.is_some() || self.version.is_none() {
            spec = json!({"mandatory": null, "channels": [{"channel": "regular", "version": "2.0.0"}]});
        }
        release(&mut self.catalog, &json!({"spec": spec}));
        let requested: &[&str] = if self.chosen == Some(true) { &["guard"] } else { &[] };
        run_for(&kyma(&json!({})), &self.catalog, &self.manifests, requested)
    }

    /// Earlier deletions complete.
    fn execute(&mut self, plan: &Plan) {
        self.manifests.retain(|m| m.metadata.deletion_timestamp.is_none());
        for applied in &plan.apply {
            self.manifests.retain(|m| m.metadata.name != applied.metadata.name);
            self.manifests.push(applied.clone());
        }
        for manifest in &mut self.manifests {
            if plan.delete.contains(&manifest.name_any()) {
                manifest.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Mandatory(version) => self.version = *version,
            Step::Rename(component) => {
                let name = format!("tidewatch.dev/module/{component}");
                release(&mut self.catalog, &json!({"spec": {"ocmComponentName": name}}));
            }
            Step::Beta(beta) => release(&mut self.catalog, &json!({"spec": {"beta": beta}})),
            Step::AllowDowngrade(allow) => {
                release(&mut self.catalog, &json!({"spec": {"allowDowngrade": allow}}));
            }
            Step::Choose(how) => self.chosen = *how,
            Step::Edit(how) => {
                let Some(manifest) = self.manifests.first_mut() else { return };
                match how {
                    0 => drop(manifest.labels_mut().remove(labels::MANDATORY_MODULE)),
                    1 => {
                        manifest.spec.custom_resource_policy = tidewatch_api::CustomResourcePolicy::Ignore;
                        manifest.spec.resource = None;
                    }
                    2 => drop(
                        manifest.annotations_mut().insert(annotations::TEMPLATE_UID.into(), "other".into()),
                    ),
                    3 => manifest.spec.version = "1.0.0".into(),
                    _ => drop(
                        manifest
                            .annotations_mut()
                            .insert(annotations::SYNC_OCI_REF.into(), "sha256:2.0.0".into()),
                    ),
                }
            }
            Step::Delete => {
                if let Some(manifest) = self.manifests.first_mut() {
                    manifest.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn an_executed_mandatory_plan_settles(steps in steps()) {
        let mut world = World { catalog: catalog(), version: Some("2.0.0"), chosen: None, manifests: Vec::new() };
        for step in steps {
            world.step(&step);
            let mut made = world.plan();
            for _ in 0..ROUNDS {
                world.execute(&made.plan);
                made = world.plan();
            }
            prop_assert!(
                made.plan.apply.is_empty() && made.plan.delete.is_empty(),
                "{:?} {:?} after {:?}", made.plan.apply, made.plan.delete, step
            );
            // No duplicates.
            let present = world.manifests.iter().filter(|m| m.is_mandatory() && m.metadata.deletion_timestamp.is_none());
            prop_assert!(present.count() <= 1, "{:?}", step);
        }
    }
}
