//! The order in which a Kyma goes. Each step is found from what is there, and can be repeated, so a crash at any of them is
//! resumed.

/// What is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Whether the Kyma in KCP says that it is being deleted.
    pub said: bool,
    /// Manifests in KCP that are not being deleted yet.
    pub manifests: usize,
    /// Manifests in KCP that are.
    pub manifests_deleting: usize,
    /// What is left in the runtime.
    pub runtime: Runtime,
}

/// What is left in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Nothing that counts: the cluster itself is gone, since its access Secret does not exist (contract, section 2.3); or it
    /// cannot be reached, and the deletion is forced.
    Gone,
    /// It is there.
    There(InRuntime),
}

/// What is left in a runtime that is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InRuntime {
    /// The CRD of every ModuleTemplate.
    pub template_crd: bool,
    /// The CRD of every ModuleReleaseMeta.
    pub release_crd: bool,
    /// Its Kyma; `Some(true)` if it says that it is being deleted.
    pub kyma: Option<bool>,
    /// The CRD of every Kyma.
    pub kyma_crd: bool,
    /// How many objects of the agent's configuration exist.
    pub agent: usize,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Say in KCP's Kyma that it is being deleted.
    Say,
    /// Say so in the runtime's.
    SayInRuntime,
    /// Delete the Manifests; each removes its objects from the runtime.
    DeleteManifests,
    /// Their end is an event.
    AwaitManifests,
    /// Remove something from the runtime.
    Remove(Thing),
    /// Let the Kyma go.
    DropFinalizer,
}

/// What is removed from a runtime when the modules are gone, in this order (contract, section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// The CRD of every ModuleTemplate, and the catalog with it.
    TemplateCrd,
    /// The CRD of every ModuleReleaseMeta.
    ReleaseCrd,
    /// The runtime's Kyma.
    Kyma,
    /// The CRD of every Kyma.
    KymaCrd,
    /// The agent's configuration and role. Last, since all before may wait for events.
    AgentConfiguration,
}

/// The next step.
#[must_use]
pub const fn next(left: Left) -> Step {
    if !left.said {
        return Step::Say;
    }
    let there = match left.runtime {
        Runtime::There(there) => there,
        Runtime::Gone => {
            InRuntime { template_crd: false, release_crd: false, kyma: None, kyma_crd: false, agent: 0 }
        }
    };
    if let Some(false) = there.kyma {
        return Step::SayInRuntime;
    }
    if left.manifests > 0 {
        return Step::DeleteManifests;
    }
    if left.manifests_deleting > 0 {
        return Step::AwaitManifests;
    }
    match there {
        InRuntime { template_crd: true, .. } => Step::Remove(Thing::TemplateCrd),
        InRuntime { release_crd: true, .. } => Step::Remove(Thing::ReleaseCrd),
        InRuntime { kyma: Some(_), .. } => Step::Remove(Thing::Kyma),
        InRuntime { kyma_crd: true, .. } => Step::Remove(Thing::KymaCrd),
        InRuntime { agent: 1.., .. } => Step::Remove(Thing::AgentConfiguration),
        _ => Step::DropFinalizer,
    }
}

impl InRuntime {
    /// What is left when something has been removed.
    pub const fn without(&mut self, thing: Thing) {
        match thing {
            Thing::TemplateCrd => self.template_crd = false,
            Thing::ReleaseCrd => self.release_crd = false,
            Thing::Kyma => self.kyma = None,
            Thing::KymaCrd => (self.kyma_crd, self.kyma) = (false, None),
            Thing::AgentConfiguration => self.agent = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn everything() -> Left {
        let there =
            InRuntime { template_crd: true, release_crd: true, kyma: Some(false), kyma_crd: true, agent: 3 };
        Left { said: false, manifests: 2, manifests_deleting: 0, runtime: Runtime::There(there) }
    }

    /// What is left when a step has had its effect.
    fn after(step: Step, left: &mut Left) {
        let there = match &mut left.runtime {
            Runtime::There(there) => Some(there),
            Runtime::Gone => None,
        };
        match (step, there) {
            (Step::Say, _) => left.said = true,
            (Step::DeleteManifests, _) => {
                left.manifests_deleting += left.manifests;
                left.manifests = 0;
            }
            (Step::AwaitManifests, _) => left.manifests_deleting = 0,
            (Step::SayInRuntime, Some(there)) => there.kyma = there.kyma.map(|_| true),
            (Step::Remove(thing), Some(there)) => there.without(thing),
            (Step::SayInRuntime | Step::Remove(_), None) => panic!("{step:?} without a runtime"),
            (Step::DropFinalizer, _) => {}
        }
    }

    const ORDER: [Step; 10] = [
        Step::Say,
        Step::SayInRuntime,
        Step::DeleteManifests,
        Step::AwaitManifests,
        Step::Remove(Thing::TemplateCrd),
        Step::Remove(Thing::ReleaseCrd),
        Step::Remove(Thing::Kyma),
        Step::Remove(Thing::KymaCrd),
        Step::Remove(Thing::AgentConfiguration),
        Step::DropFinalizer,
    ];

    fn steps(mut left: Left) -> Vec<Step> {
        let mut steps = Vec::new();
        for _ in 0..20 {
            let step = next(left);
            steps.push(step);
            if step == Step::DropFinalizer {
                break;
            }
            after(step, &mut left);
        }
        steps
    }

    #[test]
    fn goes_from_the_modules_to_the_finalizer() {
        assert_eq!(steps(everything()), ORDER);
    }

    #[test]
    fn a_crash_after_any_step_goes_on_with_the_next() {
        for done in 0..ORDER.len() {
            let mut left = everything();
            for step in &ORDER[..done] {
                after(*step, &mut left);
            }
            assert_eq!(steps(left), ORDER[done..], "after {done} steps");
        }
    }

    #[test]
    fn a_runtime_that_is_gone_holds_nothing_up() {
        let left = Left { runtime: Runtime::Gone, ..everything() };
        assert_eq!(
            steps(left),
            [Step::Say, Step::DeleteManifests, Step::AwaitManifests, Step::DropFinalizer]
        );
    }

    fn step() -> impl Strategy<Value = Left> {
        let there = (any::<bool>(), any::<bool>(), any::<Option<bool>>(), any::<bool>(), 0..4_usize)
            .prop_map(|(template_crd, release_crd, kyma, kyma_crd, agent)| {
                Runtime::There(InRuntime { template_crd, release_crd, kyma, kyma_crd, agent })
            });
        let runtime = prop_oneof![Just(Runtime::Gone), there];
        (any::<bool>(), 0..3_usize, 0..3_usize, runtime).prop_map(
            |(said, manifests, manifests_deleting, runtime)| Left {
                said,
                manifests,
                manifests_deleting,
                runtime,
            },
        )
    }

    proptest! {
        #[test]
        fn whatever_is_left_a_deletion_goes_forward_to_its_end(left in step()) {
            let steps = steps(left);
            prop_assert_eq!(steps.last(), Some(&Step::DropFinalizer));
            let at = |step: &Step| ORDER.iter().position(|s| s == step);
            prop_assert!(steps.is_sorted_by(|a, b| at(a) < at(b)), "{steps:?}");
        }
    }
}
