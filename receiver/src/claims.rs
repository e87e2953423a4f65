//! What the agents may claim to have been reconciled before they were started anew.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tidewatch_delivery::claims::Claims;
use tidewatch_wire::{SessionId, v3::Request};

use crate::sessions::Sessions;

/// The claims of all runtimes in one session. Cheap to clone; as large as the number of registered Kymas.
#[derive(Clone)]
pub struct ClaimBook(Arc<Inner>);

struct Inner {
    session: SessionId,
    sessions: Sessions,
    /// By Kyma: its runtime's id, and what that runtime's agent may claim.
    claims: Mutex<HashMap<String, (String, Claims)>>,
}

impl ClaimBook {
    /// Nobody has declared anything in this session.
    #[must_use]
    pub fn new(session: SessionId, sessions: Sessions) -> Self {
        Self(Arc::new(Inner { session, sessions, claims: Mutex::default() }))
    }

    /// Whether the agent must report everything again; see [`Claims::take`].
    pub fn must_resync(&self, kyma: &str, runtime: &str, request: &Request<'_>) -> bool {
        let Inner { session, sessions, claims } = &*self.0;
        let mut claims = claims.lock();
        let (of, claims) = claims.entry(kyma.to_owned()).or_default();
        if of != runtime {
            (*of, *claims) = (runtime.to_owned(), Claims::new());
        }
        claims.take(request, *session, |earlier, mark| sessions.knows(earlier, mark))
    }

    /// A reconcile has worked on the runtime of a Kyma; see [`Claims::touched`].
    pub fn touched(&self, kyma: &str) {
        self.0.sessions.worked();
        if let Some((_, claims)) = self.0.claims.lock().get_mut(kyma) {
            claims.touched();
        }
    }

    /// How far the control plane remembers this session.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.0.sessions.mark()
    }

    /// Forgets runtimes that are not registered any more.
    pub fn retain(&self, registered: impl Fn(&str) -> bool) {
        self.0.claims.lock().retain(|_, (id, _)| registered(id));
    }
}
