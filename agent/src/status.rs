use crate::{live::Configuration, observe::condition::Conditions, send::Progress};
use serde_json::{Value, json};
use tidewatch_wire::Epoch;

/// Body of `/status`.
pub(crate) fn page(
    runtime_id: &str,
    epoch: Epoch,
    configuration: &Configuration,
    conditions: &Conditions,
    progress: &Progress,
) -> Value {
    let Progress {
        connected,
        session,
        dirty,
        last_observed,
        last_acknowledged,
        last_error,
        failures,
        repeated,
    } = progress;
    let repeated: Vec<Value> = repeated
        .iter()
        .map(|one| json!({"message": one.message, "count": one.count, "since": one.since}))
        .collect();
    json!({
        "runtimeId": runtime_id,
        "epoch": epoch,
        "receiver": {"connected": connected, "session": session, "lastError": last_error, "failures": failures, "repeated": repeated},
        "dirtyKeys": dirty,
        "lastObservedSeq": last_observed,
        "lastAcknowledgedSeq": last_acknowledged,
        "configuration": configuration.to_json(),
        "watches": conditions.to_json(),
    })
}
