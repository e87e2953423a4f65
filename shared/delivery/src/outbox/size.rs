use tidewatch_wire::limits;

/// Fewest ranges in a request.
const MIN_RANGES: usize = 16;

/// Request limits, below the contract's for a proxy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    pub(super) events: usize,
    pub(super) ranges: usize,
}

impl Default for Size {
    fn default() -> Self {
        Self { events: limits::V3_EVENTS, ranges: limits::SEQ_RANGES }
    }
}

impl Size {
    /// Grows slowly, because each probe costs a failure.
    pub(super) fn grow(&mut self, events: usize) {
        if events >= self.events {
            self.events = (events + 1).min(limits::V3_EVENTS);
        }
        self.ranges = (self.ranges + 1).min(limits::SEQ_RANGES);
    }

    pub(super) fn halve(&mut self, events: usize, ranges: usize) {
        if events > 0 {
            self.events = (events / 2).max(1);
        }
        self.ranges = (self.ranges.min(ranges) / 2).max(MIN_RANGES);
    }
}
