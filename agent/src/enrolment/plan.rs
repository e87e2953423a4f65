//! Decides when an agent needs a certificate. Pure.

use jiff::{SignedDuration, Timestamp};
use std::time::Duration;
use tidewatch_certs::{Validity, is_issued_for, validity};

use crate::send::Identity;

/// Longest wait before the next check, so that a new CA or a changed clock is noticed.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// The next step of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Request a certificate.
    Request,
    /// The certificate is good; check again after this time.
    Wait(Duration),
}

/// The wanted certificate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted<'a> {
    /// Runtime id, its common name.
    pub(super) runtime: &'a str,
    /// CAs of the receiver (PEM). The receiver trusts no others for its agents.
    pub(super) bundle: &'a [u8],
}

/// Decides the next step. `spread` from 0 to 1 differs per agent.
///
/// A certificate of another CA or runtime is replaced: the runtime has come from another control plane, or the CA is new.
///
/// A certificate is renewed when two thirds of its lifetime have passed, or up to a tenth of the lifetime earlier: agents
/// that were enrolled together must not come back together.
pub(super) fn next(identity: Option<&Identity>, wanted: Wanted<'_>, now: Timestamp, spread: f64) -> Step {
    let identity = identity.filter(|identity| is_wanted(identity, wanted));
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
pub(super) fn is_usable(identity: &Identity, wanted: Wanted<'_>, now: Timestamp) -> bool {
    is_wanted(identity, wanted)
        && validity(&identity.cert)
            .is_ok_and(|validity| (validity.not_before..validity.not_after).contains(&now))
}

/// Whether the identity is of the runtime, and of a CA of the receiver.
pub(super) fn is_wanted(identity: &Identity, Wanted { runtime, bundle }: Wanted<'_>) -> bool {
    is_issued_for(&identity.cert, runtime, bundle).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidewatch_certs::{Ca, ClientRequest};

    use super::*;

    const DAY: SignedDuration = SignedDuration::from_hours(24);

    fn start() -> Timestamp {
        "2026-11-21T10:00:00Z".parse().unwrap()
    }

    fn new_ca() -> Ca {
        Ca::create("test", DAY * 365, start()).unwrap()
    }

    fn identity(ca: &Ca, lifetime: SignedDuration) -> Identity {
        let request = ClientRequest {
            runtime_id: "r1".into(),
            dns_names: vec![],
            organizations: vec![],
            validity: lifetime,
        };
        let issued = ca.issue_client(&request, start()).unwrap();
        Identity { cert: issued.cert_pem.into(), key: issued.key_pem.as_str().into() }
    }

    fn wanted(ca: &Ca) -> Wanted<'_> {
        Wanted { runtime: "r1", bundle: ca.cert_pem().as_bytes() }
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_lifetime() {
        let ca = new_ca();
        let identity = identity(&ca, DAY * 9);
        let next = |days: i32, spread| next(Some(&identity), wanted(&ca), start() + DAY * days, spread);
        assert_eq!(next(0, 0.0), Step::Wait(MAX_WAIT));
        assert_eq!(next(5, 0.0), Step::Wait(MAX_WAIT));
        assert_eq!(next(6, 0.0), Step::Request);
        assert_eq!(next(5, 0.9), Step::Wait(MAX_WAIT), "5.19 days");
        assert_eq!(next(6, 1.0), Step::Request, "5.1 days");
        assert_eq!(next(20, 0.0), Step::Request, "expired");
        assert!(is_usable(&identity, wanted(&ca), start()));
        assert!(!is_usable(&identity, wanted(&ca), start() + DAY * 9));
    }

    #[test]
    fn the_wait_ends_when_the_renewal_is_due() {
        let ca = new_ca();
        // 33 minutes with the backdating for slow clocks: due after 22.
        let identity = identity(&ca, SignedDuration::from_mins(30));
        let almost = start() + SignedDuration::from_mins(19) - SignedDuration::from_secs(10);
        assert_eq!(next(Some(&identity), wanted(&ca), almost, 0.0), Step::Wait(Duration::from_secs(10)));
    }

    #[test]
    fn a_missing_unreadable_or_foreign_certificate_is_replaced() {
        let (ca, other) = (new_ca(), new_ca());
        let foreign = identity(&other, DAY * 9);
        let of_another_runtime = Wanted { runtime: "r2", ..wanted(&other) };
        let broken = Identity { cert: b"no PEM".to_vec(), key: Vec::new() };
        for (identity, wanted) in [
            (None, wanted(&ca)),
            (Some(&broken), wanted(&ca)),
            (Some(&foreign), wanted(&ca)),
            (Some(&foreign), of_another_runtime),
        ] {
            assert_eq!(next(identity, wanted, start(), 0.5), Step::Request, "{wanted:?}");
            assert!(identity.is_none_or(|identity| !is_usable(identity, wanted, start())));
        }
        assert!(is_usable(&foreign, wanted(&other), start()));
    }
}
