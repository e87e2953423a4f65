//! Plays a record of a receiver (`tidewatch-receiver --record`): the same engine, with the record in place of KCP, runtimes,
//! registries and the clock.
//!
//! A [`Record`] is a list of lines in the order in which things happened. One conductor walks along it on one thread, in
//! paused time: it lets the time pass up to a line, waits until nothing is left to be computed, and lets the line happen. An
//! input is put in; an answer is given to the call that waits for it; a reconcile begins, looks at what is known of KCP, and ends
//! when it did in the record. So nothing depends on this machine's threads, and two replays of one record are the same.
//!
//! What the code does differently from what was recorded is a [`Divergence`]: a call that the record does not have, or one that
//! is not made any more, another end of a reconcile, a reconcile that nothing has asked for.

mod conduct;
mod read;
mod report;
mod tape;

pub use conduct::{Options, ReplayError, replay};
pub use read::{End, ReadError, Record};
pub use report::{Call, Decision, Divergence, Item, Replayed};
