//! The engine's write mode, by Lease and pause.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::Gauge;
use tidewatch_engine::{Engine, gate::Mode};
use tidewatch_telemetry::metrics::{MetricsError, Registry};

/// Sets the engine's mode. Cheap to clone.
#[derive(Clone)]
pub struct Switch(Arc<Inner>);

struct Inner {
    engine: Engine,
    position: Mutex<Position>,
    leader: Gauge,
    paused: Gauge,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    leads: bool,
    /// `None`: unknown, so nothing is written.
    paused: Option<bool>,
}

impl Position {
    const fn mode(self) -> Mode {
        match (self.leads, self.paused) {
            (true, Some(false)) => Mode::Live,
            (true, Some(true)) => Mode::Paused,
            _ => Mode::Standby,
        }
    }
}

impl Switch {
    /// Nothing is written until leadership and pause are known.
    pub fn new(engine: Engine, registry: &Registry) -> Result<Self, MetricsError> {
        engine.set_mode(Mode::Standby);
        Ok(Self(Arc::new(Inner {
            engine,
            position: Mutex::default(),
            leader: registry.gauge("leader", "Whether this receiver holds the Lease, and so works.")?,
            paused: registry.gauge(
                "paused",
                "Whether the engine is paused: it watches, and writes nothing in runtimes.",
            )?,
        })))
    }

    /// Sets leadership.
    pub fn leads(&self, leads: bool) {
        self.0.leader.set(f64::from(u8::from(leads)));
        self.set(|position| position.leads = leads);
    }

    /// Sets the pause.
    pub fn paused(&self, paused: bool) {
        self.0.paused.set(f64::from(u8::from(paused)));
        self.set(|position| position.paused = Some(paused));
    }

    fn set(&self, change: impl FnOnce(&mut Position)) {
        let mut position = self.0.position.lock();
        let before = position.mode();
        change(&mut position);
        let now = position.mode();
        // Under the lock, so the last change wins.
        if before.label() != now.label() {
            self.0.engine.set_mode(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_live_only_leading_and_unpaused() {
        let mode = |leads, paused| Position { leads, paused }.mode().label();
        assert_eq!(mode(true, None), "standby");
        assert_eq!(mode(false, Some(false)), "standby");
        assert_eq!(mode(false, Some(true)), "standby");
        assert_eq!(mode(true, Some(true)), "paused");
        assert_eq!(mode(true, Some(false)), "live");
    }
}
