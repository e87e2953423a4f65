//! Cuts an engine's connections at a write.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidewatch_fake_apiserver::{Call, Fault, Faults};

use super::ENGINE;

#[derive(Debug, Default)]
pub(crate) struct Cuts(Mutex<HashMap<String, Cut>>);

#[derive(Debug, Default)]
struct Cut {
    writes: u64,
    /// Remaining writes, and whether the last succeeds.
    next: Option<(u64, bool)>,
    ended: bool,
}

impl Cuts {
    /// Reconnects the engine.
    pub(crate) fn arm(&self, life: &str, next: Option<(u64, bool)>) {
        let mut all = self.0.lock();
        let cut = all.entry(life.to_owned()).or_default();
        (cut.next, cut.ended) = (next, false);
    }

    pub(crate) fn is_cut(&self, life: &str) -> bool {
        self.0.lock().get(life).is_some_and(|cut| cut.ended)
    }

    pub(crate) fn writes(&self, life: &str) -> u64 {
        self.0.lock().get(life).map_or(0, |cut| cut.writes)
    }
}

impl Faults for Cuts {
    fn fault(&self, call: &Call<'_>) -> Fault {
        if call.user != ENGINE {
            return Fault::None;
        }
        let Some((_, life)) = call.cluster.split_once('-') else { return Fault::None };
        let mut all = self.0.lock();
        let cut = all.entry(life.to_owned()).or_default();
        if cut.ended {
            return Fault::Lost;
        }
        if call.method == "GET" {
            return Fault::None;
        }
        cut.writes += 1;
        match &mut cut.next {
            None => Fault::None,
            Some((left, _)) if *left > 1 => {
                *left -= 1;
                Fault::None
            }
            Some((_, done)) => {
                let done = *done;
                cut.ended = true;
                if done { Fault::Hang } else { Fault::Lost }
            }
        }
    }
}
