//! Decides when an agent needs a certificate. Pure.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tidewatch_certs::{Validity, validity};

use crate::send::Identity;

/// Longest wait before the next check, so that a changed clock is noticed.
const MAX_WAIT: Duration = Duration::from_hours(1);

/// The next step of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Request a certificate.
    Request,
    /// The certificate is good; check again after this time.
    Wait(Duration),
}

/// Decides the next step. `spread` from 0 to 1 differs per agent.
///
/// A certificate is renewed when two thirds of its lifetime have passed, or up to a tenth of the lifetime earlier: agents
/// that were enrolled together must not come back together.
pub(super) fn next(identity: Option<&Identity>, now: Timestamp, spread: f64) -> Step {
    let Some(validity) = identity.and_then(|identity| validity(&identity.cert).ok()) else {
        return Step::Request;
    };
    let due = renewal(validity, spread);
    match Duration::try_from(due.duration_since(now)) {
        Ok(left) if !left.is_zero() => Step::Wait(left.min(MAX_WAIT)),
        _ => Step::Request,
    }
}

fn renewal(Validity { not_before, not_after }: Validity, spread: f64) -> Timestamp {
    let lifetime = not_after.duration_since(not_before).as_secs_f64();
    let wait = lifetime * (2.0 / 3.0 - spread.clamp(0.0, 1.0) / 10.0);
    let wait = SignedDuration::try_from_secs_f64(wait).unwrap_or_default();
    not_before.checked_add(wait).unwrap_or(not_after)
}

/// Whether the identity is usable now.
pub(super) fn is_valid(identity: &Identity, now: Timestamp) -> bool {
    validity(&identity.cert).is_ok_and(|validity| (validity.not_before..validity.not_after).contains(&now))
}

#[cfg(test)]
mod tests {
    use tidewatch_certs::{Ca, ClientRequest};

    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn identity(issued: Timestamp, lifetime: SignedDuration) -> Identity {
        let ca = Ca::create("test", DAY * 365, issued).unwrap();
        let request = ClientRequest {
            runtime_id: "r1".into(),
            dns_names: vec![],
            organizations: vec![],
            validity: lifetime,
        };
        let issued = ca.issue_client(&request, issued).unwrap();
        Identity { cert: issued.cert_pem.into(), key: issued.key_pem.as_str().into() }
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_lifetime() {
        let start: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let identity = identity(start, DAY * 9);
        let next = |days: i32, spread| next(Some(&identity), start + DAY * days, spread);
        assert_eq!(next(0, 0.0), Step::Wait(MAX_WAIT));
        assert_eq!(next(5, 0.0), Step::Wait(MAX_WAIT));
        assert_eq!(next(6, 0.0), Step::Request);
        assert_eq!(next(5, 0.9), Step::Wait(MAX_WAIT), "5.19 days");
        assert_eq!(next(6, 1.0), Step::Request, "5.1 days");
        assert_eq!(next(20, 0.0), Step::Request, "expired");
        assert!(is_valid(&identity, start) && !is_valid(&identity, start + DAY * 9));
    }

    #[test]
    fn the_wait_ends_when_the_renewal_is_due() {
        let start: Timestamp = "2026-11-21T10:00:00Z".parse().unwrap();
        let identity = identity(start, SignedDuration::from_mins(25));
        // 30 minutes with the backdating for slow clocks: due after 20.
        assert_eq!(next(Some(&identity), start, 0.0), Step::Wait(Duration::from_mins(15)));
    }

    #[test]
    fn an_agent_without_a_readable_certificate_requests_one() {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(next(None, now, 0.5), Step::Request);
        let broken = Identity { cert: b"no PEM".to_vec(), key: Vec::new() };
        assert_eq!(next(Some(&broken), now, 0.5), Step::Request);
        assert!(!is_valid(&broken, now));
    }
}
