//! Admin page `/runtimes/`: event paths, and one runtime's reconciles.

use std::time::Duration;

use jiff::{Timestamp, Unit};
use serde_json::{Value, json};
use tidewatch_engine::{Engine, index::KymaLookup};
use tidewatch_listener::Deliveries;
use tidewatch_telemetry::Reply;

use crate::{
    path_watch::PathWatch,
    paths::{View, Worst},
};

/// Path prefix.
pub const PREFIX: &str = "/runtimes/";

const WORST: usize = 20;

/// Returns the page of all runtimes, or of one by id or Kyma.
#[must_use]
pub fn page(engine: &Engine, deliveries: &Deliveries, paths: &PathWatch, path: &str) -> Option<Reply> {
    let wanted = path.strip_prefix(PREFIX)?;
    if wanted.is_empty() {
        return Some(all(engine, paths));
    }
    let (kyma, id) = {
        let state = engine.state().read();
        if let KymaLookup::One { kyma, .. } = state.kymas.runtime(wanted) {
            (kyma, Some(wanted.to_owned()))
        } else {
            state.kymas.get(wanted)?;
            (wanted.to_owned(), state.kymas.runtime_id_of(wanted))
        }
    };
    let held = id.as_deref().map_or(0, |id| deliveries.held_by(id));
    let is_skipped = engine.state().read().kymas.get(&kyma).is_some_and(|kyma| kyma.is_skipped());
    let (now, mut page) = (Timestamp::now(), json!({}));
    paths.inspect(|paths, tick| {
        if let Some(view) = paths.view(&kyma, tick) {
            page = header(&view, now);
        }
    });
    let modules = engine.state().read().kymas.module_states(&kyma);
    let modules: Vec<_> = modules.iter().map(|(name, state)| json!({"name": name, "state": state})).collect();
    let rest = json!({
        "runtime": id,
        "kyma": kyma,
        "mode": engine.mode().label(),
        "skipped": is_skipped,
        "eventsHeld": held,
        "modules": modules,
        "reconciles": engine.history().of(&kyma),
    });
    if let (Value::Object(page), Value::Object(rest)) = (&mut page, rest) {
        page.extend(rest);
    }
    Some(Reply::json(&page))
}

fn header(view: &View<'_>, now: Timestamp) -> Value {
    let ago = |age: Option<Duration>| {
        let at = age.and_then(|age| now.checked_sub(age).ok());
        at.map(|at| at.round(Unit::Second).unwrap_or(at))
    };
    let refusal = view.refusals.last().map(|(refusal, count)| {
        json!({
            "reason": refusal.reason,
            "at": refusal.at,
            "count": count,
            "subject": refusal.subject,
            "issuer": refusal.issuer,
            "certificateEnds": refusal.not_after,
            "verified": refusal.verified,
            "message": refusal.to_string(),
        })
    });
    json!({
        "eventPath": view.state.label(),
        "eventPathCause": view.cause,
        "lastCanary": ago(view.canary),
        "agent": {
            "heard": ago(view.received),
            "connectedSince": ago(view.connected),
            "certificateEnds": view.not_after,
            "lastRefusal": refusal,
        },
    })
}

/// Metric labels with names would grow with the fleet.
fn all(engine: &Engine, paths: &PathWatch) -> Reply {
    let (ill, counts, worst) =
        paths.inspect(|paths, now| (paths.ill(), paths.counts(), paths.worst(WORST, now)));
    let counts: serde_json::Map<_, _> =
        counts.into_iter().map(|(state, count)| (state.label().to_owned(), count.into())).collect();
    let state = engine.state().read();
    let worst: Vec<_> = worst
        .into_iter()
        .map(|Worst { kyma, state: path, received, canary }| {
            json!({
                "runtime": state.kymas.runtime_id_of(&kyma),
                "kyma": kyma,
                "eventPath": path.label(),
                "heardSeconds": received.map(|age| age.as_secs()),
                "canarySeconds": canary.map(|age| age.as_secs()),
            })
        })
        .collect();
    Reply::json(&json!({"mode": engine.mode().label(), "runtimes": counts, "pathIll": ill, "worst": worst}))
}
