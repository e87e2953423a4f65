//! Order of a Kyma's deletion. Steps follow from observed objects and are idempotent, so a deletion resumes after a crash.

/// Remaining objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// KCP's Kyma has the status Deleting.
    pub status_written: bool,
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
    /// The cluster is gone: no access Secret. Or the deletion is forced and the cluster unreachable.
    Gone,
    /// It exists.
    Exists(RuntimeObjects),
}

/// Remaining objects in an existing runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuntimeObjects {
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
    WriteStatus,
    /// Write Deleting to the runtime's Kyma.
    WriteRuntimeStatus,
    /// Delete Manifests; each removes its objects.
    DeleteManifests,
    /// Wait for an event.
    AwaitManifests,
    /// Remove from the runtime.
    Remove(RuntimeObject),
    /// Release the Kyma.
    DropFinalizer,
}

/// Things removed from a runtime after its modules, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuntimeObject {
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
pub const fn next(remaining: Remaining) -> Step {
    if !remaining.status_written {
        return Step::WriteStatus;
    }
    let objects = match remaining.runtime {
        Runtime::Exists(objects) => objects,
        Runtime::Gone => {
            RuntimeObjects { template_crd: false, release_crd: false, kyma: None, kyma_crd: false, agent: 0 }
        }
    };
    if let Some(false) = objects.kyma {
        return Step::WriteRuntimeStatus;
    }
    if remaining.manifests > 0 {
        return Step::DeleteManifests;
    }
    if remaining.manifests_deleting > 0 {
        return Step::AwaitManifests;
    }
    match objects {
        RuntimeObjects { template_crd: true, .. } => Step::Remove(RuntimeObject::TemplateCrd),
        RuntimeObjects { release_crd: true, .. } => Step::Remove(RuntimeObject::ReleaseCrd),
        RuntimeObjects { kyma: Some(_), .. } => Step::Remove(RuntimeObject::Kyma),
        RuntimeObjects { kyma_crd: true, .. } => Step::Remove(RuntimeObject::KymaCrd),
        RuntimeObjects { agent: 1.., .. } => Step::Remove(RuntimeObject::AgentConfiguration),
        _ => Step::DropFinalizer,
    }
}

impl RuntimeObjects {
    /// Marks a thing as removed.
    pub const fn without(&mut self, object: RuntimeObject) {
        match object {
            RuntimeObject::TemplateCrd => self.template_crd = false,
            RuntimeObject::ReleaseCrd => self.release_crd = false,
            RuntimeObject::Kyma => self.kyma = None,
            RuntimeObject::KymaCrd => (self.kyma_crd, self.kyma) = (false, None),
            RuntimeObject::AgentConfiguration => self.agent = 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn everything() -> Remaining {
        let present = RuntimeObjects {
            template_crd: true,
            release_crd: true,
            kyma: Some(false),
            kyma_crd: true,
            agent: 3,
        };
        Remaining {
            status_written: false,
            manifests: 2,
            manifests_deleting: 0,
            runtime: Runtime::Exists(present),
        }
    }

    fn after(step: Step, left: &mut Remaining) {
        let present = match &mut left.runtime {
            Runtime::Exists(present) => Some(present),
            Runtime::Gone => None,
        };
        match (step, present) {
            (Step::WriteStatus, _) => left.status_written = true,
            (Step::DeleteManifests, _) => {
                left.manifests_deleting += left.manifests;
                left.manifests = 0;
            }
            (Step::AwaitManifests, _) => left.manifests_deleting = 0,
            (Step::WriteRuntimeStatus, Some(present)) => present.kyma = present.kyma.map(|_| true),
            (Step::Remove(thing), Some(present)) => present.without(thing),
            (Step::WriteRuntimeStatus | Step::Remove(_), None) => panic!("{step:?} without a runtime"),
            (Step::DropFinalizer, _) => {}
        }
    }

    const ORDER: [Step; 10] = [
        Step::WriteStatus,
        Step::WriteRuntimeStatus,
        Step::DeleteManifests,
        Step::AwaitManifests,
        Step::Remove(RuntimeObject::TemplateCrd),
        Step::Remove(RuntimeObject::ReleaseCrd),
        Step::Remove(RuntimeObject::Kyma),
        Step::Remove(RuntimeObject::KymaCrd),
        Step::Remove(RuntimeObject::AgentConfiguration),
        Step::DropFinalizer,
    ];

    fn steps(mut left: Remaining) -> Vec<Step> {
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
    fn deletion_goes_from_the_modules_to_the_finalizer() {
        assert_eq!(steps(everything()), ORDER);
    }

    #[test]
    fn a_crashed_deletion_resumes_at_the_next_step() {
        for done in 0..ORDER.len() {
            let mut left = everything();
            for step in &ORDER[..done] {
                after(*step, &mut left);
            }
            assert_eq!(steps(left), ORDER[done..], "after {done} steps");
        }
    }

    #[test]
    fn a_deleted_runtime_does_not_block_deletion() {
        let left = Remaining { runtime: Runtime::Gone, ..everything() };
        assert_eq!(
            steps(left),
            [Step::WriteStatus, Step::DeleteManifests, Step::AwaitManifests, Step::DropFinalizer]
        );
    }

    fn step() -> impl Strategy<Value = Remaining> {
        let present = (any::<bool>(), any::<bool>(), any::<Option<bool>>(), any::<bool>(), 0..4_usize)
            .prop_map(|(template_crd, release_crd, kyma, kyma_crd, agent)| {
                Runtime::Exists(RuntimeObjects { template_crd, release_crd, kyma, kyma_crd, agent })
            });
        let runtime = prop_oneof![Just(Runtime::Gone), present];
        (any::<bool>(), 0..3_usize, 0..3_usize, runtime).prop_map(
            |(message, manifests, manifests_deleting, runtime)| Remaining {
                status_written: message,
                manifests,
                manifests_deleting,
                runtime,
            },
        )
    }

    proptest! {
        #[test]
        fn every_deletion_moves_forward_to_its_end(left in step()) {
            let steps = steps(left);
            prop_assert_eq!(steps.last(), Some(&Step::DropFinalizer));
            let at = |step: &Step| ORDER.iter().position(|s| s == step);
            prop_assert!(steps.is_sorted_by(|a, b| at(a) < at(b)), "{steps:?}");
        }
    }
}
