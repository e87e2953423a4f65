//! Order of a Kyma's deletion. Steps follow from observed objects and are idempotent, so a deletion resumes after a crash.

/// Remaining objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// KCP's Kyma has the status Deleting.
    pub said: bool,
    /// Manifests not yet being deleted.
    pub manifests: usize,
    /// Manifests being deleted.
    pub manifests_deleting: usize,
    /// In the runtime.
    pub runtime: Runtime,
}

/// Remaining objects in the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// The cluster is gone: no access Secret (contract, section 2.3). Or the deletion is forced and the cluster unreachable.
    Gone,
    /// It exists.
    There(InRuntime),
}

/// Remaining objects in an existing runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InRuntime {
    /// CRD ModuleTemplate.
    pub template_crd: bool,
    /// CRD ModuleReleaseMeta.
    pub release_crd: bool,
    /// Kyma; `Some(true)` with status Deleting.
    pub kyma: Option<bool>,
    /// CRD Kyma.
    pub kyma_crd: bool,
    /// Number of agent configuration objects.
    pub agent: usize,
}

/// Next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write Deleting to KCP's Kyma.
    Say,
    /// Write Deleting to the runtime's Kyma.
    SayInRuntime,
    /// Delete Manifests; each removes its objects.
    DeleteManifests,
    /// Wait for an event.
    AwaitManifests,
    /// Remove from the runtime.
    Remove(Thing),
    /// Release the Kyma.
    DropFinalizer,
}

/// Things removed from a runtime after its modules, in order (contract, section 2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Thing {
    /// CRD ModuleTemplate, with the catalog.
    TemplateCrd,
    /// CRD ModuleReleaseMeta.
    ReleaseCrd,
    /// Kyma.
    Kyma,
    /// CRD Kyma.
    KymaCrd,
    /// Agent configuration and role; last, because earlier steps wait for events.
    AgentConfiguration,
}

/// Returns the next step.
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
    /// Marks a thing as removed.
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
