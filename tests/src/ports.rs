//! Free TCP ports.

use std::{collections::BTreeSet, net::TcpListener};

use anyhow::{Context, Result};
use parking_lot::Mutex;

/// Every port handed out by this process; at most 65,535 entries.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
/// The system rarely offers one twice in a row; this many times means something is wrong.
const TRIES: usize = 100;

/// A port on 127.0.0.1 that was free just now and that this process gives to nobody else.
/// Another process can still take it before it is bound.
pub fn free() -> Result<u16> {
    for _ in 0..TRIES {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot bind a port on 127.0.0.1")?;
        let port = listener.local_addr().context("a bound socket has no address")?.port();
        if TAKEN.lock().insert(port) {
            return Ok(port);
        }
    }
    anyhow::bail!("the system offered only ports that are in use by this process already")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_never_get_the_same_port() {
        let threads: Vec<_> = (0..8)
            .map(|_| std::thread::spawn(|| (0..50).map(|_| free().unwrap()).collect::<Vec<_>>()))
            .collect();
        let ports: Vec<u16> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), ports.len());
    }
}
