//! Free TCP ports.

use std::{collections::BTreeSet, net::TcpListener, ops::Range, process};

use anyhow::{Result, bail};
use parking_lot::Mutex;

/// Below those that the system gives to whoever asks for any: such a port stays free while the program that has it is down.
const PORTS: Range<u16> = 16_000..32_000;
/// Every port handed out by this process; at most as many as there are.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// A port on 127.0.0.1 that was free just now and that this process gives to nobody else.
/// Another process of tests can still take it before it is bound; each begins somewhere else.
pub fn free() -> Result<u16> {
    let count = usize::from(PORTS.end - PORTS.start);
    // Far enough from one another for processes that were started in a row.
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
