//! Decides whether to take a Lease.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Empty if released.
    pub(super) holder: String,
    pub(super) duration: Duration,
    /// Changes with each renewal.
    pub(super) version: String,
}

/// Maximum validity.
const LONGEST: Duration = Duration::from_mins(10);
/// Minimum validity, so an invalid Lease causes no conflicts.
const SHORTEST: Duration = Duration::from_secs(5);

impl Record {
    pub(super) fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|s| u64::try_from(s).ok()).unwrap_or(0);
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: Duration::from_secs(seconds).clamp(SHORTEST, LONGEST),
            version: lease.metadata.resource_version.clone().unwrap_or_default(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Take,
    /// Read again after at most this time.
    Wait(Duration),
}

/// Decides for the candidate `me` of `host`.
pub(super) fn step(lease: Option<&Record>, host: &str, me: &str, unchanged: Duration) -> Step {
    let Some(lease) = lease else { return Step::Take };
    // A host runs one process at a time.
    let is_of_host = lease.holder.rsplit_once('_').is_some_and(|(of, _)| of == host);
    if lease.holder.is_empty() || lease.holder == me || is_of_host || unchanged >= lease.duration {
        return Step::Take;
    }
    Step::Wait(lease.duration.saturating_sub(unchanged))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn held(holder: &str, seconds: u64, version: u64) -> Record {
        Record { holder: holder.into(), duration: Duration::from_secs(seconds), version: version.to_string() }
    }

    #[test]
    fn a_lease_is_taken_when_free_expired_or_own() {
        let step =
            |lease: Option<&Record>, seconds| step(lease, "pod-a", "pod-a_1", Duration::from_secs(seconds));
        assert_eq!(step(None, 0), Step::Take);
        assert_eq!(step(Some(&held("", 180, 1)), 0), Step::Take, "released");
        assert_eq!(step(Some(&held("pod-a_0", 180, 1)), 0), Step::Take, "an ended process of this host");
        assert_eq!(step(Some(&held("pod-a2_0", 180, 1)), 0), Step::Wait(Duration::from_mins(3)));
        assert_eq!(step(Some(&held("klm-7f_0", 180, 1)), 179), Step::Wait(Duration::from_secs(1)));
        assert_eq!(step(Some(&held("klm-7f_0", 180, 1)), 180), Step::Take);
    }

    #[test]
    fn invalid_lease_durations_are_bounded() {
        let of = |seconds: Option<i32>| {
            let lease: Lease = serde_json::from_value(serde_json::json!({
                "spec": {"holderIdentity": "x", "leaseDurationSeconds": seconds}}))
            .unwrap();
            Record::of(&lease).duration
        };
        assert_eq!((of(None), of(Some(-1)), of(Some(i32::MAX))), (SHORTEST, SHORTEST, LONGEST));
        assert_eq!(Record::of(&Lease::default()).holder, "");
    }

    /// A candidate with its own clock rate.
    #[derive(Clone, Debug)]
    struct Process {
        rate: f64,
        term: Option<f64>,
        seen: Option<(Record, f64)>,
    }

    proptest! {
        /// Clocks are up to a tenth fast or slow; requests may fail.
        #[test]
        fn two_processes_never_hold_the_lease_at_once(
            rates in prop::collection::vec(0.9_f64..1.1, 2..4),
            script in prop::collection::vec((0_usize..4, 0.0_f64..3.0, prop::bool::weighted(0.7)), 1..400),
        ) {
            let duration = Duration::from_secs(*super::super::DURATIONS.start());
            let limit = duration.as_secs_f64() * 2.0 / 3.0;
            let mut lease: Option<Record> = None;
            let mut processes: Vec<Process> =
                rates.into_iter().map(|rate| Process { rate, term: None, seen: None }).collect();
            let (mut time, mut version) = (0.0, 0);
            for (index, pause, works) in script {
                time += pause;
                let index = index % processes.len();
                let id = format!("p{index}_x");
                let process = &mut processes[index];
                let now = time * process.rate;
                if process.term.is_some_and(|at| now - at >= limit) {
                    process.term = None;
                }
                if works {
                    let unchanged = match (&process.seen, &lease) {
                        (Some((before, since)), Some(lease)) if before == lease => now - since,
                        _ => 0.0,
                    };
                    if unchanged == 0.0 {
                        process.seen = lease.clone().map(|l| (l, now));
                    }
                    let own = lease.as_ref().is_some_and(|l| l.holder == id);
                    let takes = process.term.is_none() || own;
                    let decided = step(lease.as_ref(), &format!("p{index}"), &id, Duration::from_secs_f64(unchanged));
                    if takes && decided == Step::Take {
                        version += 1;
                        lease = Some(held(&id, duration.as_secs(), version));
                        process.term = Some(now);
                    } else if !own {
                        process.term = None;
                    }
                }
                let holding = processes.iter().filter(|p| p.term.is_some_and(|at| time * p.rate - at < limit)).count();
                prop_assert!(holding <= 1);
            }
        }
    }
}
