//! `/runtimes/<id>` on the admin port: what was done for one runtime, and why.

use serde_json::json;
use tidewatch_engine::{Engine, kcp::RuntimeLookup};
use tidewatch_listener::Deliveries;
use tidewatch_telemetry::Reply;

use crate::{path_watch::PathWatch, paths::State};

/// The prefix of the page's path.
pub const PREFIX: &str = "/runtimes/";

/// The page for a path below [`PREFIX`]: by runtime id, or by the name of its Kyma.
#[must_use]
pub fn page(engine: &Engine, deliveries: &Deliveries, paths: &PathWatch, path: &str) -> Option<Reply> {
    let wanted = path.strip_prefix(PREFIX)?;
    let (kyma, id) = {
        let state = engine.state().read();
        if let RuntimeLookup::One { kyma, .. } = state.runtime(wanted) {
            (kyma, Some(wanted.to_owned()))
        } else {
            let kyma = state.kyma(wanted)?;
            (wanted.to_owned(), kyma.runtime_id().map(str::to_owned))
        }
    };
    let held = id.as_deref().map_or(0, |id| deliveries.held_by(id));
    Some(Reply::json(&json!({
        "runtime": id,
        "kyma": kyma,
        "eventsHeld": held,
        "eventPath": paths.inspect(|p, _| p.state(&kyma)).map(State::label),
        "reconciles": engine.history().of(&kyma),
    })))
}
