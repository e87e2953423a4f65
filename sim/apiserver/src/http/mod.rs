//! HTTPS servers of clusters.

mod accept;
mod answer;
mod body;
mod discovery;
mod error;
mod handle;
mod hosted;
mod openapi;
mod repeated;
mod representation;
mod route;
mod server;
mod stream;
mod table;
mod tls;
mod totals;

pub use error::StartError;
pub use hosted::{Hosted, Token};
pub use server::{Server, ServerOptions};
