//! The receiver's half of a resume: whether a starting agent may rely on its stored digest.
//!
//! # Why a confirmed claim is safe
//! A digest holds each object's last reconciled contribution. A runtime restored from a backup has an old digest that
//! agrees with equally old objects. Only the receiver knows of newer events.
//!
//! The serial of a digest is the last number observed when its content was taken. A claim `(epoch, serial)` *holds*
//! while two conditions are true: it was declared in this session, and all later events are of its epoch, up to the
//! serial. Consider a restored object that agrees with the digest. Its last number is at most the serial, so it was
//! observed before the content was taken.
//!
//! - Acknowledged by then: the digest holds the last reconciled state, and the object is in it.
//! - Otherwise the digest holds an earlier contribution, but was stored after the newer state was observed. The backup
//!   has that state or a later one. Contributions never return, so the object differs and is reported.
//!
//! A reconcile may create an object that is gone before any agent lists it. So a reconcile ends a claim
//! ([`Claims::touched`]) until heartbeats declare it **twice**. The first may have been in flight during the reconcile.
//! The agent may then die before it reports the object, and the object may be deleted before the next list. The second
//! was made after the first arrived, a heartbeat later, when the watches had reported the changes.
//!
//! The first declaration of a digest holds immediately, since an agent declares it on shutdown. A reconcile for an
//! event cannot overlap it: the agent declares nothing while the event is dirty, and the event raises the required
//! serial. A reconcile for KCP can. A loss also needs the agent's death before its watch sees the object, and a
//! deletion before the next list. The safety resync repairs that. Two declarations would cost a full report for every
//! agent restarted soon after a change.
//!
//! Other claims are refused, which costs a full resync and loses nothing:
//! - after a receiver restart, which loses all claims;
//! - after KCP is restored from a backup: the receiver has restarted, and does not know a running agent's session or
//!   mark;
//! - with two agents: an event of a superseded epoch ends the claim;
//! - if the serial was never declared, or was overtaken.

use std::collections::VecDeque;

use tidewatch_wire::{
    Epoch, SessionId,
    v3::{self, Request},
};

/// Superseded epochs to remember.
const PAST: usize = 8;

/// Claims of one runtime.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// Newest epoch, its highest number, and whether its resume was refused.
    current: Option<(Epoch, u64, bool)>,
    past: VecDeque<Epoch>,
    /// The claim that holds: epoch and serial.
    holds: Option<(Epoch, u64)>,
    /// The claim ended by a reconcile, and whether it was declared since.
    doubted: Option<(Epoch, u64, bool)>,
}

impl Claims {
    /// No claims.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a request in order of arrival. Returns whether the agent must report everything again.
    ///
    /// `session` is this receiver's. `known` returns whether an earlier session is in this control plane's past, up to
    /// a mark.
    pub fn take(
        &mut self,
        request: &Request<'_>,
        session: SessionId,
        known: impl Fn(SessionId, u64) -> bool,
    ) -> bool {
        let unknown_session = request.session.is_some_and(|s| s != session && !known(s, request.mark));
        // The canary is not part of the runtime's state.
        let events = request.events.iter().filter(|event| event.watch != v3::CANARY);
        let reported = events.map(|event| event.seq.0).max();
        if self.past.contains(&request.epoch) {
            if reported.is_some() {
                self.holds = None;
            }
            return unknown_session;
        }
        if self.current.is_none_or(|(epoch, ..)| epoch != request.epoch) {
            // No mark needed: a held claim was declared to this process.
            self.begin(request, |s| s == session || known(s, 0));
        }
        let Some((epoch, highest, refused)) = &mut self.current else { return unknown_session };
        *highest = (*highest).max(reported.unwrap_or(0));
        match self.holds {
            Some((held, serial)) if reported.is_some() && (held != *epoch || *highest > serial) => {
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
        unknown_session || (request.resume.is_some() && *refused)
    }

    /// Records a reconcile of the runtime.
    pub fn touched(&mut self) {
        if let Some((epoch, serial)) = self.holds.take() {
            self.doubted = Some((epoch, serial, false));
        } else if let Some((.., again)) = &mut self.doubted {
            *again = false;
        }
    }

    /// Starts a new epoch. Its resumed claim still holds: until the agent reports or stores, a restart finds the same
    /// digest.
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

    fn reports(epoch: u128, seq: u64) -> Request<'static> {
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

    fn refused(before: &[Request<'static>], claim: &Request<'_>) -> bool {
        let mut claims = Claims::new();
        for request in before {
            take(&mut claims, request);
        }
        take(&mut claims, claim)
    }

    #[test]
    fn only_the_last_declared_digest_is_confirmed() {
        assert!(!refused(&[reports(1, 5), digest(1, 5)], &resume(2, 1, 5)));
        assert!(!refused(&[digest(1, 0)], &resume(2, 1, 0)), "an epoch that saw nothing");
        assert!(refused(&[], &resume(2, 1, 5)), "a receiver that has restarted");
        assert!(refused(&[reports(1, 5)], &resume(2, 1, 5)), "stored, but not declared");
        assert!(
            refused(&[digest(1, 5), digest(1, 7)], &resume(2, 1, 5)),
            "an older digest: a restored runtime"
        );
        assert!(refused(&[digest(1, 5)], &resume(2, 1, 7)));
        assert!(refused(&[digest(1, 5)], &resume(3, 2, 5)));
    }

    #[test]
    fn an_uncovered_event_ends_a_claim() {
        assert!(refused(&[digest(1, 5), reports(1, 6)], &resume(2, 1, 5)));
        assert!(
            refused(&[digest(1, 5), reports(1, 6), digest(1, 5)], &resume(2, 1, 5)),
            "said before, heard after"
        );
        assert!(!refused(&[digest(1, 5), reports(1, 5)], &resume(2, 1, 5)), "sent again");
        assert!(!refused(&[digest(1, 5), reports(1, 6), digest(1, 6)], &resume(2, 1, 6)));
    }

    #[test]
    fn a_repeatedly_restarting_agent_keeps_its_claim() {
        let restarts = [digest(1, 5), resume(2, 1, 5), resume(2, 1, 5), resume(3, 1, 5)];
        assert!(!refused(&restarts, &resume(4, 1, 5)));
        let mut reported = restarts.to_vec();
        reported.push(reports(3, 1));
        assert!(refused(&reported, &resume(4, 1, 5)), "its first change ends it");
        let mut declared = restarts.to_vec();
        declared.push(digest(3, 0));
        assert!(refused(&declared, &resume(4, 1, 5)), "and so does its own digest");
        assert!(!refused(&declared, &resume(4, 3, 0)));
    }

    #[test]
    fn a_reconcile_ends_a_claim_until_a_new_declaration() {
        let mut claims = Claims::new();
        take(&mut claims, &digest(1, 5));
        claims.touched();
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));
        take(&mut claims, &digest(1, 5));
        take(&mut claims, &digest(1, 5));
        assert!(!take(&mut claims, &resume(2, 1, 5)));
    }

    #[test]
    fn declarations_in_flight_during_reconciles_do_not_count() {
        let mut claims = Claims::new();
        take(&mut claims, &digest(1, 5));
        // In flight during a reconcile, and late.
        let in_flight = digest(1, 5);
        claims.touched();
        take(&mut claims, &in_flight);
        // The agent dies before its watch sees a created object, and the object is deleted. A new agent finds no
        // difference.
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));

        // Between the two required declarations.
        claims.touched();
        take(&mut claims, &digest(1, 5));
        assert!(take(&mut claims.clone(), &resume(2, 1, 5)));
        take(&mut claims, &digest(1, 5));
        assert!(!take(&mut claims.clone(), &resume(2, 1, 5)));

        // A new digest.
        claims.touched();
        take(&mut claims, &reports(1, 6));
        take(&mut claims, &digest(1, 6));
        assert!(!take(&mut claims, &resume(2, 1, 6)));
    }

    #[test]
    fn a_refusal_is_repeated_until_received() {
        let mut claims = Claims::new();
        assert!(take(&mut claims, &resume(2, 1, 5)));
        assert!(take(&mut claims, &resume(2, 1, 5)), "the answer was lost");
        assert!(!take(&mut claims, &request(2)));
    }

    #[test]
    fn another_agent_ends_a_claim() {
        let overlap = [digest(1, 5), resume(2, 1, 5), digest(2, 3), reports(1, 6)];
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
    fn an_unknown_session_demands_a_full_report() {
        let speaks = |session| Request { session: Some(session), ..request(1) };
        assert!(!take(&mut Claims::new(), &speaks(NOW)));
        assert!(!take(&mut Claims::new(), &speaks(EARLIER)));
        assert!(take(&mut Claims::new(), &speaks(STRANGE)));
        let marked = |mark| Request { session: Some(EARLIER), mark, ..request(1) };
        assert!(!take(&mut Claims::new(), &marked(3)));
        assert!(take(&mut Claims::new(), &marked(4)), "this control plane knows of less");
        let mut claim = resume(2, 1, 5);
        assert!(!refused(&[digest(1, 5)], &claim));
        if let Some(claim) = &mut claim.resume {
            claim.session = STRANGE;
        }
        assert!(refused(&[digest(1, 5)], &claim));
    }
}
