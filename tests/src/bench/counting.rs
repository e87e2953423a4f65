//! A TCP relay that counts TLS records to the receiver.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::Instant,
};

/// Limit on kept records. An idle agent sends a few per minute.
const MOST: usize = 100_000;
/// Length of a TLS record header: type, version and length.
const HEAD: usize = 5;
const LOOK: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// To the receiver.
    pub(super) up: bool,
    /// Includes the header.
    pub(super) bytes: usize,
}

/// Counts TLS records in both directions, without IP and TCP headers. Dropping it cuts the connection.
pub(super) struct Wire {
    pub(super) port: u16,
    seen: Arc<Mutex<Vec<Record>>>,
    _accepting: JoinSet<()>,
}

impl Wire {
    pub(super) async fn start(to: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("no port for the counting proxy")?;
        let port = listener.local_addr()?.port();
        let seen = Arc::default();
        let counted = Arc::clone(&seen);
        let mut accepting = JoinSet::new();
        accepting.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let counted = Arc::clone(&counted);
                while connections.try_join_next().is_some() {}
                connections.spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", to)).await else { return };
                    let _ = (near.set_nodelay(true), far.set_nodelay(true));
                    let ((near_read, near_write), (far_read, far_write)) =
                        (near.into_split(), far.into_split());
                    tokio::select! {
                        () = pass(near_read, far_write, true, &counted) => {}
                        () = pass(far_read, near_write, false, &counted) => {}
                    }
                });
            }
        });
        Ok(Self { port, seen, _accepting: accepting })
    }

    /// Returns the records since the last call.
    pub(super) fn take(&self) -> Vec<Record> {
        std::mem::take(&mut self.seen.lock())
    }

    /// Waits for one record, then for this much silence.
    pub(super) async fn quiet(&self, time: Duration) {
        let mut last = None;
        self.take();
        while last.is_none_or(|at: Instant| at.elapsed() < time) {
            tokio::time::sleep(LOOK).await;
            if !self.take().is_empty() {
                last = Some(Instant::now());
            }
        }
    }
}

async fn pass(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    up: bool,
    seen: &Mutex<Vec<Record>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    let mut records = Records::default();
    while let Ok(n @ 1..) = from.read(&mut buffer).await {
        records.pass(&buffer[..n], |bytes| {
            let mut seen = seen.lock();
            if seen.len() < MOST {
                seen.push(Record { up, bytes });
            }
        });
        if to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

#[derive(Default)]
struct Records {
    head: Vec<u8>,
    /// Bytes of the current record that are still to come.
    left: usize,
}

impl Records {
    fn pass(&mut self, mut bytes: &[u8], mut record: impl FnMut(usize)) {
        while !bytes.is_empty() {
            let (now, later) = if self.head.len() < HEAD {
                let (now, later) = bytes.split_at(bytes.len().min(HEAD - self.head.len()));
                self.head.extend_from_slice(now);
                if let [_, _, _, high, low] = self.head[..] {
                    self.left = usize::from(u16::from_be_bytes([high, low]));
                }
                (0, later)
            } else {
                let (now, later) = bytes.split_at(bytes.len().min(self.left));
                (now.len(), later)
            };
            self.left -= now;
            bytes = later;
            if let [_, _, _, high, low] = self.head[..]
                && self.left == 0
            {
                record(HEAD + usize::from(u16::from_be_bytes([high, low])));
                self.head.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_records_across_any_chunks() {
        let stream = [&[22, 3, 1, 0, 2, 1, 1][..], &[23, 3, 3, 0, 0], &[23, 3, 3, 1, 0], &[0; 256]].concat();
        for cut in [1, 3, 7, 100, stream.len()] {
            let (mut records, mut found) = (Records::default(), Vec::new());
            stream.chunks(cut).for_each(|chunk| records.pass(chunk, |bytes| found.push(bytes)));
            assert_eq!(found, [7, 5, 261], "cut in pieces of {cut}");
        }
    }
}
