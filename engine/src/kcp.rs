//! What the engine knows of KCP: watched objects, the indexes over them, and which change asks for which
//! reconcile.

mod feed;
pub mod owners;
pub mod state;

pub use feed::Feeds;
pub(crate) use feed::SET_RIGHT;
pub use state::{KcpState, PathReport, RuntimeLookup, SecretRef};
