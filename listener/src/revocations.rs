//! Runtimes whose certificates are revoked.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;

/// Runtime ids that are refused although their certificates are valid. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Revocations(Arc<watch::Sender<BTreeSet<String>>>);

impl Revocations {
    /// Replaces all revoked runtime ids. Connections of new ones are closed.
    pub fn replace(&self, revoked: BTreeSet<String>) {
        self.0.send_replace(revoked);
    }

    /// Whether a runtime id is revoked.
    #[must_use]
    pub fn contains(&self, id: &str) -> bool {
        self.0.borrow().contains(id)
    }

    /// Waits until a runtime id is revoked.
    pub(crate) async fn include(&self, id: &str) {
        let mut revoked = self.0.subscribe();
        if revoked.wait_for(|revoked| revoked.contains(id)).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_wait_ends_when_its_runtime_is_revoked() {
        let revocations = Revocations::default();
        let mut wait = Box::pin(revocations.include("r1"));
        assert!((&mut wait).now_or_never().is_none());
        revocations.replace(BTreeSet::from(["r2".to_owned()]));
        assert!((&mut wait).now_or_never().is_none());
        revocations.replace(BTreeSet::from(["r1".to_owned(), "r2".to_owned()]));
        wait.await;
        assert!(revocations.contains("r1"));
        revocations.replace(BTreeSet::new());
        assert!(!revocations.contains("r1"));
    }
}
