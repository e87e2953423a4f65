//! Change → applied: a module is enabled for the first time.

use anyhow::Result;
use kube::Api;
use serde_json::json;
use tidewatch_api::{
    Kyma, State,
    names::{RUNTIME_KYMA_NAME, RUNTIME_NAMESPACE},
};
use tokio::time::Instant;

use super::{Bench, Figure, Goal, Spec};
use crate::{fleet, story::set_modules};

/// The Go manager's figure in seconds.
const GO_READY: f64 = 23.9;

pub(super) fn specs() -> Vec<Spec> {
    vec![Spec {
        name: "change -> applied: module enabled in the runtime -> Ready there, once".into(),
        unit: "s",
        goal: Goal::AtMost(GO_READY),
        yardstick:
            "recorded: Go manager, Kyma CR with one module created -> Ready, 23.9 s on two cores (305 s for \
                    a module enabled in the runtime when its watcher's event is lost)"
                .into(),
    }]
}

pub(super) async fn run(bench: &Bench<'_>) -> Result<Vec<Figure>> {
    let runtime = bench.env.runtime1.client()?;
    let started = Instant::now();
    set_modules(&runtime, &json!([{"name": "lighthouse"}])).await?;
    let kymas: Api<Kyma> = Api::namespaced(runtime, RUNTIME_NAMESPACE);
    fleet::kyma_where(kymas, RUNTIME_KYMA_NAME, "the module to be Ready", |k| {
        k.module_status("lighthouse").is_some_and(|m| m.state == State::Ready)
    })
    .await?;
    let took = Instant::now().duration_since(started);
    bench.calm().await?;
    Ok(vec![Figure { value: took.as_secs_f64(), against: Some(GO_READY) }])
}
