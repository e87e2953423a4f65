//! By which Secret each runtime was reached, and what was learned of it: beyond the life of its client.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::clusters::{Mapper, SecretVersion};

/// What this process knows of the cluster that a new client is for.
#[derive(Debug)]
pub(crate) enum Before {
    /// It is the one that was reached before: the last client was merely dropped.
    Known(Arc<Mapper>),
    /// The same Secret, but the last client was discredited: what was prepared there may be gone.
    Doubted,
    /// It may be another cluster.
    Nothing,
}

/// As many entries as there are runtimes.
#[derive(Debug, Default)]
pub(crate) struct Reached(Mutex<HashMap<String, Known>>);

#[derive(Debug)]
struct Known {
    by: SecretVersion,
    /// `None`: in doubt.
    mapper: Option<Arc<Mapper>>,
}

impl Reached {
    /// What is known of the runtime, if it is reached by this Secret now.
    pub(crate) fn before(&self, kyma: &str, secret: &SecretVersion) -> Before {
        match self.0.lock().get(kyma) {
            Some(Known { by, mapper: Some(mapper) }) if by == secret => Before::Known(Arc::clone(mapper)),
            Some(Known { by, mapper: None }) if by == secret => Before::Doubted,
            _ => Before::Nothing,
        }
    }

    /// A client was made, with this mapping.
    pub(crate) fn by(&self, kyma: &str, secret: &SecretVersion, mapper: Arc<Mapper>) {
        self.0.lock().insert(kyma.to_owned(), Known { by: secret.clone(), mapper: Some(mapper) });
    }

    /// The client was discredited.
    pub(crate) fn doubt(&self, kyma: &str) {
        if let Some(known) = self.0.lock().get_mut(kyma) {
            known.mapper = None;
        }
    }

    /// The Kyma is gone.
    pub(crate) fn forget(&self, kyma: &str) {
        self.0.lock().remove(kyma);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_another_secret_makes_another_cluster() {
        let secret = |version: &str| SecretVersion { uid: "u".into(), resource_version: version.into() };
        let reached = Reached::default();
        assert!(matches!(reached.before("a", &secret("1")), Before::Nothing));
        let mapper = Arc::new(Mapper::new());
        reached.by("a", &secret("1"), Arc::clone(&mapper));
        // Its client was dropped, as in a fleet that is larger than the cache of clients.
        let Before::Known(known) = reached.before("a", &secret("1")) else { panic!("it was reached") };
        assert!(Arc::ptr_eq(&known, &mapper));
        assert!(matches!(reached.before("a", &secret("2")), Before::Nothing));
        reached.doubt("a");
        assert!(matches!(reached.before("a", &secret("1")), Before::Doubted));
        reached.forget("a");
        assert!(matches!(reached.before("a", &secret("1")), Before::Nothing) && reached.0.lock().is_empty());
    }
}
