//! Free TCP ports.

use std::{collections::BTreeSet, net::TcpListener, ops::Range, process};

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// Below the ephemeral range, so a port stays free while its program is down.
const PORTS: Range<u16> = 16_000..32_000;
/// Ports allocated by this process; bounded by their range.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Returns a free port on 127.0.0.1, unique in this process. Another test process can still take it before
/// the bind; each starts at another offset.
pub fn free() -> Result<u16> {
    let count = usize::from(PORTS.end - PORTS.start);
    // Separates processes with adjacent ids.
    let begin = (process::id() as usize).wrapping_mul(397) % count;
    let mut taken = TAKEN.lock();
    let free = (PORTS.cycle().skip(begin).take(count))
        .find(|port| !taken.contains(port) && TcpListener::bind(("127.0.0.1", *port)).is_ok());
    match free {
        Some(port) => {
            taken.insert(port);
            Ok(port)
        }
        None => bail!("of the ports {} to {} on 127.0.0.1 none is free", PORTS.start, PORTS.end),
    }
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
