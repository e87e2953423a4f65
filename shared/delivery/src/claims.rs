//! The receiver's half of a resume: whether an agent that has just started may rely on the digest it found.
//!
//! # Why a confirmed claim is safe
//! A stored digest says: *of each object, this contribution was reconciled last*. What makes it wrong is a
//! reconcile of something newer whose trace is not in it: a runtime that was restored from a backup, with the
//! agent's own ConfigMap, finds an old digest beside equally old objects, and the two agree with each other.
//! Comparing can never show that; only the receiver knows that it was told more since.
//!
//! The serial of a digest is the last number of its epoch that was observed when its content was taken. A claim
//! `(epoch, serial)` is confirmed only while it *holds*: the agent has declared it in this session, and since then
//! no event was told but numbers of that epoch up to the serial. Take any object of a confirmed claim whose
//! restored state agrees with the digest. Its last number told is at most the serial, so it was observed before
//! the digest's content was taken. If that number was let go by then, the digest holds the contribution observed
//! at it, which is the state reconciled last, and agreeing with it means being in that state. If it was not, the
//! digest holds an earlier contribution; but the digest was written after the newer state was observed, so a
//! backup that has the digest has that newer state or a later one, whose contribution is another: contributions
//! never return. It does not agree, and is reported.
//!
//! A reconcile of its own accord may also create an object that is gone again before any agent has seen it, which
//! no list and no digest can show. So a reconcile ends a claim too ([`Claims::touched`]), until the agent's
//! heartbeats declare the same digest again, **twice**. The first of them may have been under way while the reconcile
//! worked, and say nothing of what it did: with that alone, an agent that dies before it tells of the new object, and
//! an object that goes before the next agent lists, would be a loss. An agent has one such request at a time, so the
//! second was made after the first had arrived, a heartbeat later, and by then its watches have told what the reconcile
//! did.
//!
//! A digest that was not declared before holds at once, since an agent declares it when it ends. It cannot have been
//! under way while a reconcile worked that an event has caused: that event is dirty until the reconcile is over, nothing is
//! declared while anything is dirty, and telling of it raises the number that a digest has to cover. It can while one
//! works that KCP has caused. The loss would take all at once: that digest's only first declaration under way in just
//! those seconds, an agent that dies before its watch brings the object, and somebody who deletes that object before the
//! next start has listed; the safety resync mends it. To have it declared twice would cost every agent that is
//! restarted soon after a change a full report.
//!
//! Everything else is refused, which costs a full resync and loses nothing: a receiver that has restarted (it has
//! no claims), a KCP restored from a backup (its receiver has restarted, and for an agent that is still running
//! it does not know the session the agent speaks of, or not as far as its mark), two agents at once (an event of a superseded epoch ends
//! the claim), a serial that was stored but never declared, or declared and then overtaken.

use std::collections::VecDeque;

use tidewatch_wire::{
    Epoch, SessionId,
    v3::{self, Request},
};

/// Superseded epochs that are remembered.
const PAST: usize = 8;

/// What one runtime may claim.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// The newest epoch, the highest number it has told, and whether its own resume was refused.
    current: Option<(Epoch, u64, bool)>,
    past: VecDeque<Epoch>,
    /// What holds: a digest of this epoch, up to this number.
    holds: Option<(Epoch, u64)>,
    /// What held until a reconcile ended it, and whether it was declared since.
    doubted: Option<(Epoch, u64, bool)>,
}

impl Claims {
    /// Nothing was declared.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a request in, in the order of arrival. Returns whether the agent must report everything again.
    /// `session` is this receiver's; `known` says whether an earlier one belongs to this control plane's past, up to
    /// a mark.
    pub fn take(
        &mut self,
        request: &Request<'_>,
        session: SessionId,
        known: impl Fn(SessionId, u64) -> bool,
    ) -> bool {
        let stranger = request.session.is_some_and(|s| s != session && !known(s, request.mark));
        // The canary says nothing about the runtime.
        let about = request.events.iter().filter(|event| event.watch != v3::CANARY);
        let told = about.map(|event| event.seq.0).max();
        if self.past.contains(&request.epoch) {
            if told.is_some() {
                self.holds = None;
            }
            return stranger;
        }
        if self.current.is_none_or(|(epoch, ..)| epoch != request.epoch) {
            // What it was declared to is this process, which was told how far that session went.
            self.begin(request, |s| s == session || known(s, 0));
        }
        let Some((epoch, highest, refused)) = &mut self.current else { return stranger };
        *highest = (*highest).max(told.unwrap_or(0));
        match self.holds {
            Some((held, serial)) if told.is_some() && (held != *epoch || *highest > serial) => {
                self.holds = None;
            }
            _ => {}
        }
        if let Some(serial) = request.digest
            && serial >= *highest
        {
            match &mut self.doubted {
                Some((e, s, again @ false)) if (*e, *s) == (*epoch, serial) => *again = true,
                _ => (self.holds, self.doubted) = (Some((*epoch, serial)), None),
            }
        }
        stranger || (request.resume.is_some() && *refused)
    }

    /// A reconcile has worked on the runtime.
    pub fn touched(&mut self) {
        if let Some((epoch, serial)) = self.holds.take() {
            self.doubted = Some((epoch, serial, false));
        } else if let Some((.., again)) = &mut self.doubted {
            *again = false;
        }
    }

    /// The first request of a new epoch. What holds goes on to hold if that epoch starts from it: as long as
    /// it tells nothing and stores nothing, a further start finds the same digest.
    fn begin(&mut self, request: &Request<'_>, known: impl Fn(SessionId) -> bool) {
        if let Some((old, ..)) = self.current {
            self.past.truncate(PAST - 1);
            self.past.push_front(old);
        }
        let confirmed = request
            .resume
            .is_some_and(|claim| known(claim.session) && self.holds == Some((claim.epoch, claim.serial)));
        if !confirmed {
            self.holds = None;
        }
        self.current = Some((request.epoch, 0, !confirmed));
    }
}

#[cfg(test)]
mod tests {
    use tidewatch_wire::{
        Seq,
        v3::{Change, Event, Resume},
    };

    use super::*;

    const NOW: SessionId = SessionId::from_bits(100);
    const EARLIER: SessionId = SessionId::from_bits(99);
    const STRANGE: SessionId = SessionId::from_bits(1);

    fn request(epoch: u128) -> Request<'static> {
        Request::new(Epoch::from_bits(epoch))
    }

    fn resume(epoch: u128, of: u128, serial: u64) -> Request<'static> {
        let claim = Resume { session: EARLIER, epoch: Epoch::from_bits(of), serial };
        Request { resume: Some(claim), ..request(epoch) }
    }

    fn digest(epoch: u128, serial: u64) -> Request<'static> {
        Request { digest: Some(serial), ..request(epoch) }
    }

    fn tells(epoch: u128, seq: u64) -> Request<'static> {
        let event = Event {
            seq: Seq(seq),
            watch: "w".into(),
            group: "".into(),
            version: "v1".into(),
            kind: "K".into(),
            namespace: "".into(),
            name: "n".into(),
            uid: "".into(),
            resource_version: "".into(),
            change: Change::Changed,
            listed: false,
            observed_at: jiff::Timestamp::UNIX_EPOCH,
        };
        Request { events: vec![event], ..request(epoch) }
    }

    fn take(claims: &mut Claims, request: &Request<'_>) -> bool {
        claims.take(request, NOW, |s, mark| s == EARLIER && mark <= 3)
    }

    /// Whether a resume is refused after these requests.
    fn refused(before: &[Request<'static>], claim: &Request<'_>) -> bool {
        let mut claims = Claims::new();
        for request in before {
            take(&mut claims, request);
        }
        take(&mut claims, claim)
    }

    #[test]
    fn what_was_declared_last_is_confirmed() {
        assert!(!refused(&[tells(1, 5), digest(1, 5)], &resume(2, 1, 5)));
        assert!(!refused(&[digest(1, 0)], &resume(2, 1, 0)), "an epoch that saw nothing");
        assert!(refused(&[], &resume(2, 1, 5)), "a receiver that has restarted");
        assert!(refused(&[tells(1, 5)], &resume(2, 1, 5)), "stored, but not declared");
        assert!(
            refused(&[digest(1, 5), digest(1, 7)], &resume(2, 1, 5)),
            "an older digest: a restored runtime"
        );
        assert!(refused(&[digest(1, 5)], &resume(2, 1, 7)));
        assert!(refused(&[digest(1, 5)], &resume(3, 2, 5)));
    }

    #[test]
    fn an_event_ends_a_claim_that_does_not_cover_it() {
        assert!(refused(&[digest(1, 5), tells(1, 6)], &resume(2, 1, 5)));
        assert!(
            refused(&[digest(1, 5), tells(1, 6), digest(1, 5)], &resume(2, 1, 5)),
            "said before, heard after"
        );
        assert!(!refused(&[digest(1, 5), tells(1, 5)], &resume(2, 1, 5)), "sent again");
        assert!(!refused(&[digest(1, 5), tells(1, 6), digest(1, 6)], &resume(2, 1, 6)));
    }

    #[test]
    fn an_agent_that_starts_again_and_again_keeps_its_claim() {
        let restarts = [digest(1, 5), resume(2, 1, 5), resume(2, 1, 5), resume(3, 1, 5)];
        assert!(!refused(&restarts, &resume(4, 1, 5)));
        let mut told = restarts.to_vec();
        told.push(tells(3, 1));
        assert!(refused(&told, &resume(4, 1, 5)), "its first change ends it");
        let mut declared = restarts.to_vec();
        declared.push(digest(3, 0));
        assert!(refused(&declared, &resume(4, 1, 5)), "and so does its own digest");
        assert!(!refused(&declared, &resume(4, 3, 0)));
    }

    #[test]
    fn a_reconcile_ends_a_claim_until_it_is_declared_again() {
        let mut claims = Claims::new();
        take(&mut claims, &digest(1, 5));
        claims.touched();
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));
        take(&mut claims, &digest(1, 5));
        take(&mut claims, &digest(1, 5));
        assert!(!take(&mut claims, &resume(2, 1, 5)));
    }

    #[test]
    fn what_was_declared_before_a_reconcile_ended_and_is_heard_after_it_proves_nothing() {
        let mut claims = Claims::new();
        take(&mut claims, &digest(1, 5));
        // Made now, while a reconcile works; it is late.
        let under_way = digest(1, 5);
        claims.touched();
        take(&mut claims, &under_way);
        // The reconcile has made an object. The agent dies before its watch brings it, the object goes, and a new agent
        // finds all as it was.
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));

        // The same in the middle of the two that are needed.
        claims.touched();
        take(&mut claims, &digest(1, 5));
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));
        take(&mut claims, &digest(1, 5));
        assert!(!take(&mut claims.clone(), &resume(2, 1, 5)));

        // What is new was made after it.
        claims.touched();
        take(&mut claims, &tells(1, 6));
        take(&mut claims, &digest(1, 6));
        assert!(!take(&mut claims, &resume(2, 1, 6)));
    }

    #[test]
    fn a_refusal_is_repeated_until_it_is_heard() {
        let mut claims = Claims::new();
        assert!(take(&mut claims, &resume(2, 1, 5)));
        assert!(take(&mut claims, &resume(2, 1, 5)), "the answer was lost");
        assert!(!take(&mut claims, &request(2)));
    }

    #[test]
    fn another_agent_ends_a_claim() {
        let overlap = [digest(1, 5), resume(2, 1, 5), digest(2, 3), tells(1, 6)];
        assert!(refused(&overlap, &resume(3, 2, 3)));
        assert!(
            refused(&[digest(1, 5), request(2)], &resume(3, 1, 5)),
            "one without a digest saw something else"
        );
        let late = [digest(1, 5), resume(2, 1, 5), digest(2, 3), digest(1, 9)];
        assert!(refused(&late, &resume(3, 1, 9)), "a superseded epoch declares nothing");
        assert!(!refused(&late, &resume(3, 2, 3)));
    }

    #[test]
    fn a_session_that_is_not_of_this_past_means_everything_again() {
        let speaks = |session| Request { session: Some(session), ..request(1) };
        assert!(!take(&mut Claims::new(), &speaks(NOW)));
        assert!(!take(&mut Claims::new(), &speaks(EARLIER)));
        assert!(take(&mut Claims::new(), &speaks(STRANGE)));
        let marked = |mark| Request { session: Some(EARLIER), mark, ..request(1) };
        assert!(!take(&mut Claims::new(), &marked(3)));
        assert!(take(&mut Claims::new(), &marked(4)), "this control plane was not told of as much");
        let mut claim = resume(2, 1, 5);
        assert!(!refused(&[digest(1, 5)], &claim));
        if let Some(claim) = &mut claim.resume {
            claim.session = STRANGE;
        }
        assert!(refused(&[digest(1, 5)], &claim));
    }
}
