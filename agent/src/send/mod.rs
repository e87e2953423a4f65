//! The way out: one task owns the dirty set and the one connection to the receiver.
//!
//! Batches and the acknowledgement poll are separate streams of the same HTTP/2 connection. At most one of each is
//! open. A poll is opened only when no batch is in flight (the receiver would not know that batch's numbers yet and
//! ask for them again) and is opened anew after each batch, since it names the numbers it waits for.

mod alert;
pub mod connect;
mod control;
mod error;
mod link;
mod material;
mod pieces;
pub mod proxy;
mod sender;
mod spread;
mod transport;
pub mod v2;

pub use connect::{Connector, Target};
pub use control::Control;
pub use error::SendError;
pub use material::Fate;
pub use sender::{Progress, Sender, Settings};
pub use spread::{Spread, Window};
pub use transport::{Channel, Transport};

#[cfg(test)]
mod tests;
