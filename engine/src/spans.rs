//! Tracing spans: an event's intake and its wait in the queue, which travel with its trigger, and the reconcile's own.
//!
//! All spans have the level DEBUG, so none is created at the default log level. Fields name objects of one runtime and never have their
//! content. Their number per reconcile is bounded by [`MAX_TRIGGERS`](crate::queue::MAX_TRIGGERS).

use std::{fmt, sync::Arc};

use parking_lot::Mutex;
use tracing::{Span, debug_span, field::Empty, span::Id};

use crate::{
    key::{Guard, OutcomeKind, WorkKey},
    queue::worker::Lease,
    trigger::Trigger,
};

/// The intake span of an event, and the span of its wait in the queue. Empty if no subscriber wants them. Clones share both.
///
/// Equal to any other: two triggers are the same whatever their spans are.
#[derive(Clone, Default)]
pub struct EventSpan(Option<Arc<Spans>>);

struct Spans {
    intake: Span,
    wait: Mutex<Option<Span>>,
}

impl EventSpan {
    /// Takes the current span as the intake's, and begins the wait in the queue.
    #[must_use]
    pub fn current() -> Self {
        let intake = Span::current();
        if intake.is_disabled() {
            return Self::default();
        }
        let wait = Mutex::new(Some(debug_span!(parent: &intake, "queue")));
        Self(Some(Arc::new(Spans { intake, wait })))
    }

    /// Ends the wait. Returns the intake's id.
    fn end_wait(&self) -> Option<Id> {
        let spans = self.0.as_ref()?;
        spans.wait.lock().take();
        spans.intake.id()
    }
}

impl PartialEq for EventSpan {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for EventSpan {}

impl fmt::Debug for EventSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventSpan").finish_non_exhaustive()
    }
}

/// The span of a reconcile. Its parent is the intake of the first event among the triggers; it follows from the intakes of the others.
pub(crate) fn reconcile(
    lease: &Lease<WorkKey, Trigger, Guard>,
    runtime: impl FnOnce() -> Option<String>,
) -> Span {
    let key = lease.key();
    let mut intakes = lease.triggers.iter().filter_map(Trigger::span).filter_map(EventSpan::end_wait);
    let span = debug_span!(
        parent: intakes.next(),
        "reconcile",
        runtime = runtime(),
        kyma = Some(key.kyma()).filter(|kyma| !kyma.is_empty()),
        manifest = key.manifest(),
        %key,
        trigger = lease.triggers.first().map(Trigger::label),
        triggers = lease.trigger_count,
        attempt = lease.attempt,
        queued_ms = u64::try_from(lease.started_at.saturating_sub(lease.queued_at).as_millis()).ok(),
        outcome = Empty,
    );
    for intake in intakes {
        span.follows_from(intake);
    }
    span
}

/// Notes the outcome of a reconcile in its span.
pub(crate) fn ended(span: &Span, outcome: OutcomeKind) {
    span.record("outcome", outcome.label());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_without_a_subscriber_has_no_span() {
        let span = EventSpan::current();
        assert!(span.0.is_none() && span.end_wait().is_none());
    }
}
