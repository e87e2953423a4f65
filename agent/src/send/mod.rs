//! Sends changes: one task owns the dirty set and the connection.
//!
//! A batch and an acknowledgement poll are separate HTTP/2 streams. A poll starts only without a batch in flight: the
//! receiver would request that batch again. It restarts after each batch, as it names the awaited numbers.

mod alert;
pub mod connect;
mod control;
mod error;
mod link;
mod material;
mod pieces;
pub mod proxy;
mod sender;
mod source;
mod spread;
mod transport;
pub mod v2;

pub use connect::{Connector, Target};
pub use control::Control;
pub use error::SendError;
pub use sender::{Progress, Sender, Settings};
pub use source::{Identity, Source};
pub use spread::{Spread, Window};
pub use transport::{Channel, Fate, Transport};

#[cfg(test)]
mod tests;
