//! Refused peers in agents' names. Pure.

use std::{fmt, time::Duration};

use jiff::Timestamp;
use tidewatch_engine::queue::Tick;

/// A peer refused for its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The metrics label.
    pub reason: &'static str,
    /// The time.
    pub at: Timestamp,
    /// The certificate's subject.
    pub subject: String,
    /// The issuer.
    pub issuer: String,
    /// Its expiry.
    pub not_after: Timestamp,
    /// Signed by a trusted issuer; else possibly forged.
    pub verified: bool,
}

/// Refusals of one runtime; at most two are kept.
#[derive(Clone, Debug, Default)]
pub struct Refusals(Option<Box<Kept>>);

#[derive(Clone, Debug)]
struct Kept {
    last: Refusal,
    /// Equal ones in a row.
    count: u64,
    /// The condition's refusal and its time. Rarely replaced, as each change is a write.
    reported: (Refusal, Tick),
}

impl Refusal {
    /// Compares all but the time.
    fn is_again(&self, other: &Self) -> bool {
        *self == Self { at: self.at, ..other.clone() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, at, subject, issuer, not_after, verified } = self;
        let (cause, next) = match *reason {
            "san_mismatch" => (
                "the certificate does not carry the domain registered for the runtime",
                "an installed agent requests another one; issue any other anew with the Kyma's skr-domain as alternative name",
            ),
            "issued_before_registration" => (
                "the certificate is older than the registration of the runtime",
                "the agent requests another one by itself",
            ),
            "no_domain" => ("the Kyma has no skr-domain to check the certificate against", "annotate it"),
            "unknown_ca" => (
                "the receiver does not trust the certificate's issuer",
                "issue it by a CA of the receiver's client CAs",
            ),
            "expired" => (
                "the certificate has expired or is not valid yet",
                "renew it, and compare the clocks of agent and receiver",
            ),
            "revoked" => ("an operator has revoked the runtime", "tidewatch certs admit accepts it again"),
            _ => ("the receiver does not accept the certificate", "issue it anew for this runtime's agent"),
        };
        let seconds = |time: &Timestamp| time.round(jiff::Unit::Second).unwrap_or(*time);
        let claimed = if *verified { "" } else { ", as it claims" };
        write!(
            f,
            "the agent was refused ({reason}) at {}: {cause} (subject {subject}, issuer {issuer}, valid until {}{claimed}); {next}",
            seconds(at),
            seconds(not_after),
        )
    }
}

impl Refusals {
    pub(super) fn another(&mut self, refusal: Refusal, now: Tick) {
        match &mut self.0 {
            Some(kept) if kept.last.is_again(&refusal) => {
                (kept.last, kept.count) = (refusal, kept.count.saturating_add(1));
            }
            Some(kept) => (kept.last, kept.count) = (refusal, 1),
            None => {
                let reported = (refusal.clone(), now);
                self.0 = Some(Box::new(Kept { last: refusal, count: 1, reported }));
            }
        }
    }

    /// Returns the condition's refusal; changes at most once per `pause`.
    pub(super) fn reported(&mut self, pause: Duration, now: Tick) -> Option<&Refusal> {
        let kept = self.0.as_mut()?;
        let (reported, since) = &kept.reported;
        if !reported.is_again(&kept.last) && now.saturating_sub(*since) > pause {
            kept.reported = (kept.last.clone(), now);
        }
        Some(&kept.reported.0)
    }

    pub(super) fn is_verified(&self) -> bool {
        self.last().is_some_and(|(refusal, _)| refusal.verified)
    }

    /// Returns the last refusal and its repetitions.
    #[must_use]
    pub fn last(&self) -> Option<(&Refusal, u64)> {
        self.0.as_ref().map(|kept| (&kept.last, kept.count))
    }
}
