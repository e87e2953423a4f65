//! The order in which a Kyma goes. Every step can be repeated, so a crash at any of them is resumed.

/// What is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
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
    /// The cluster itself is gone: its access Secret does not exist (contract, section 2.3).
    Gone,
    /// It is there.
    There {
        /// Whether its Kyma exists.
        kyma: bool,
        /// How many of our CRDs exist.
        crds: usize,
        /// How many objects of the agent's configuration exist.
        agent: usize,
    },
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Delete the Manifests; each removes its objects from the runtime.
    DeleteManifests,
    /// Their end is an event.
    AwaitManifests,
    /// Delete the runtime's Kyma.
    DeleteRuntimeKyma,
    /// Delete our CRDs from the runtime.
    DeleteRuntimeCrds,
    /// Delete the agent's configuration and role. Last, since all before may wait for events.
    DeleteAgentConfiguration,
    /// Let the Kyma go.
    DropFinalizer,
}

/// The next step.
#[must_use]
pub const fn next(left: Left) -> Step {
    if left.manifests > 0 {
        return Step::DeleteManifests;
    }
    if left.manifests_deleting > 0 {
        return Step::AwaitManifests;
    }
    match left.runtime {
        Runtime::There { kyma: true, .. } => Step::DeleteRuntimeKyma,
        Runtime::There { crds: 1.., .. } => Step::DeleteRuntimeCrds,
        Runtime::There { agent: 1.., .. } => Step::DeleteAgentConfiguration,
        _ => Step::DropFinalizer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goes_from_the_modules_to_the_finalizer() {
        let there = |kyma, crds, agent| Runtime::There { kyma, crds, agent };
        let mut left = Left { manifests: 2, manifests_deleting: 0, runtime: there(true, 3, 2) };
        let mut steps = Vec::new();
        loop {
            let step = next(left);
            steps.push(step);
            match step {
                Step::DeleteManifests => (left.manifests, left.manifests_deleting) = (0, left.manifests),
                Step::AwaitManifests => left.manifests_deleting = 0,
                Step::DeleteRuntimeKyma => left.runtime = there(false, 3, 2),
                Step::DeleteRuntimeCrds => left.runtime = there(false, 0, 2),
                Step::DeleteAgentConfiguration => left.runtime = there(false, 0, 0),
                Step::DropFinalizer => break,
            }
        }
        assert_eq!(
            steps,
            [
                Step::DeleteManifests,
                Step::AwaitManifests,
                Step::DeleteRuntimeKyma,
                Step::DeleteRuntimeCrds,
                Step::DeleteAgentConfiguration,
                Step::DropFinalizer
            ]
        );
    }

    #[test]
    fn a_runtime_that_is_gone_holds_nothing_up() {
        let left = Left { manifests: 0, manifests_deleting: 0, runtime: Runtime::Gone };
        assert_eq!(next(left), Step::DropFinalizer);
    }
}
