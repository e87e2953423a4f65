//! Waits until a registered runtime is proven or Ready.

use std::time::Duration;

use anyhow::bail;
use clap::ValueEnum;
use kube::{Api, Client};
use tidewatch_api::{Kyma, State, names::conditions};
use tidewatch_telemetry::stdio;
use tokio::time::{Instant, sleep};

use super::registration::Registration;
use crate::clusters::{Side, explain};

/// Interval of looks at the Kyma.
const PAUSE: Duration = Duration::from_millis(250);

/// The awaited state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Until {
    /// The runtime's events are proven to arrive.
    Proven,
    /// The Kyma and all its modules are Ready.
    Ready,
}

/// Returns the reason to wait on; `None` at the end of the wait.
fn pending(until: Until, kyma: Option<&Kyma>) -> Option<String> {
    let Some(kyma) = kyma else { return Some("the Kyma, which is gone".to_owned()) };
    let Some(status) = &kyma.status else {
        return Some(
            "the engine to see the Kyma; a receiver must be the leader of this namespace".to_owned(),
        );
    };
    let operation = status.last_operation.as_ref().map(|last| last.operation.as_str()).unwrap_or_default();
    let state = format!("the Kyma is {}: {operation}", status.state);
    match until {
        Until::Ready => (status.state != State::Ready).then_some(state),
        Until::Proven => match status.conditions.iter().find(|one| one.type_ == conditions::RUNTIME_EVENTS) {
            Some(condition) if condition.status == "True" => None,
            Some(condition) => {
                Some(format!("the runtime's events: {}: {}", condition.reason, condition.message))
            }
            None => Some(format!("the first event of the runtime's agent; {state}")),
        },
    }
}

/// Waits, with the reasons on standard error.
pub(super) async fn wait(
    client: &Client,
    registration: &Registration,
    until: Until,
    timeout: Duration,
) -> anyhow::Result<()> {
    let api: Api<Kyma> = Api::namespaced(client.clone(), &registration.namespace);
    let (began, mut last) = (Instant::now(), String::new());
    loop {
        let reason = match api.get_opt(&registration.kyma).await {
            Ok(kyma) => pending(until, kyma.as_ref()),
            Err(error) => Some(explain(Side::Kcp, &error)),
        };
        let Some(reason) = reason else { return Ok(()) };
        if reason != last {
            stdio::note(&format!("waiting for {reason}"));
            last = reason;
        }
        if began.elapsed() >= timeout {
            bail!(
                "timed out after {} s waiting for {last}; the runtime stays registered. Find the cause: tidewatch \
                 doctor --runtime {}",
                timeout.as_secs(),
                registration.kyma
            );
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn each_step_of_a_registration_has_its_own_reason() {
        let condition = |status: &str| {
            json!([{"type": "RuntimeEvents", "status": status, "reason": "NoAgent", "message": "no agent has called",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        let of = |until: Until, status: &Value| {
            let kyma: Kyma = serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap();
            pending(until, Some(&kyma)).unwrap_or_default()
        };
        let processing = json!({"state": "Processing", "lastOperation": {"operation": "installing a"}});
        for (until, status, expected) in [
            (Until::Proven, Value::Null, "must be the leader"),
            (
                Until::Proven,
                processing.clone(),
                "the first event of the runtime's agent; the Kyma is Processing: installing a",
            ),
            (
                Until::Proven,
                json!({"state": "Ready", "conditions": condition("False")}),
                "NoAgent: no agent has called",
            ),
            (Until::Ready, processing, "the Kyma is Processing: installing a"),
        ] {
            let reason = of(until, &status);
            assert!(reason.contains(expected), "{reason}");
        }
        assert_eq!(of(Until::Proven, &json!({"state": "Processing", "conditions": condition("True")})), "");
        assert_eq!(of(Until::Ready, &json!({"state": "Ready"})), "");
        assert!(pending(Until::Ready, None).is_some());
    }
}
