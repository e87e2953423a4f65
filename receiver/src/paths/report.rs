//! The Kyma condition for its event path.

use super::{Fault, Refusal, State};

/// A condition's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The status.
    pub proven: bool,
    /// The reason.
    pub reason: &'static str,
    /// Cause and consequence.
    pub message: String,
}

/// Named watches, at most.
const NAMED: usize = 5;

impl Report {
    pub(super) fn new(state: State, fault: Option<Fault>, refused: Option<&Refusal>) -> Self {
        let polled = "the runtime is polled until events are proven to arrive";
        if let Some(refusal) = refused.filter(|_| fault.is_some()) {
            return Self { proven: false, reason: "AgentRefused", message: format!("{refusal}; {polled}") };
        }
        if state == State::Unreachable {
            let message =
                "the agent is silent and the API server does not answer (hibernated?); both are awaited";
            return Self { proven: false, reason: "Unreachable", message: message.into() };
        }
        let (reason, cause) = match fault {
            None => {
                let message = "events arrive; the runtime is not polled".into();
                return Self { proven: true, reason: "Proven", message };
            }
            Some(Fault::NeverReceived) => ("NoAgent", "no agent of this runtime was heard".to_owned()),
            Some(Fault::NoCanary) => ("NoCanary", "the agent's canary does not come back".to_owned()),
            Some(Fault::Blind(watches)) => {
                let more = watches.len().saturating_sub(NAMED);
                let names = watches.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                ("BlindWatch", format!("watches without news: {names}{more}"))
            }
            Some(Fault::Configuration) => {
                ("OldConfiguration", "the agent has not applied the present configuration".to_owned())
            }
        };
        Self { proven: false, reason, message: format!("{cause}; {polled}") }
    }
}
