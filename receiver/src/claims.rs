//! Agents' claims about reconciled objects after a restart.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tidewatch_delivery::claims::Claims;
use tidewatch_wire::{SessionId, v3::Request};

use crate::sessions::Sessions;

/// All runtimes' claims in this session. Cheap to clone.
#[derive(Clone)]
pub struct ClaimBook(Arc<Inner>);

struct Inner {
    session: SessionId,
    sessions: Sessions,
    /// Runtime id and claims by Kyma.
    claims: Mutex<HashMap<String, (String, Claims)>>,
}

impl ClaimBook {
    /// Creates an empty book.
    #[must_use]
    pub fn new(session: SessionId, sessions: Sessions) -> Self {
        Self(Arc::new(Inner { session, sessions, claims: Mutex::default() }))
    }

    /// Returns whether the agent must report everything; see [`Claims::take`].
    pub fn must_resync(&self, kyma: &str, runtime: &str, request: &Request<'_>) -> bool {
        let Inner { session, sessions, claims } = &*self.0;
        let mut claims = claims.lock();
        let (of, claims) = claims.entry(kyma.to_owned()).or_default();
        if of != runtime {
            (*of, *claims) = (runtime.to_owned(), Claims::new());
        }
        claims.take(request, *session, |earlier, mark| sessions.knows(earlier, mark))
    }

    /// Records a reconcile; see [`Claims::touched`].
    pub fn touched(&self, kyma: &str) {
        self.0.sessions.worked();
        if let Some((_, claims)) = self.0.claims.lock().get_mut(kyma) {
            claims.touched();
        }
    }

    /// Returns this session's recorded mark.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.0.sessions.mark()
    }

    /// Removes claims of unregistered runtimes.
    pub fn retain(&self, registered: impl Fn(&str) -> bool) {
        self.0.claims.lock().retain(|_, (id, _)| registered(id));
    }
}
