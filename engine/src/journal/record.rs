//! Writes a record. Whoever notes a line never waits: what cannot be taken is counted, and the record says so.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncWriteExt as _, BufWriter},
    sync::mpsc,
    time::Instant,
};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::line::{Ask, Line, Stamped, Start};

/// Lines that wait to be written.
const WAITING: usize = 16 * 1024;
/// Bytes of them.
const WAITING_BYTES: usize = 64 * 1024 * 1024;
/// Digests of layers that are known to stand in the record; more are told again.
const LAYERS: usize = 4096;

struct Shared {
    lines: mpsc::Sender<String>,
    /// Bytes in `lines`.
    waiting: AtomicUsize,
    /// Lines that could not be taken since the last that could.
    lost: AtomicU64,
    /// Whether anything is still written.
    open: AtomicBool,
    start: Instant,
    works: AtomicU64,
    calls: AtomicU64,
    layers: Mutex<BTreeSet<String>>,
}

/// Takes lines. Cheap to clone.
#[derive(Clone)]
pub struct Recorder(Arc<Shared>);

/// Writes what a [`Recorder`] takes; see [`Writer::run`].
pub struct Writer {
    recorder: Recorder,
    lines: mpsc::Receiver<String>,
    file: fs::File,
    path: PathBuf,
    limit: u64,
    stop: CancellationToken,
}

/// As long as it lives, the record goes on.
pub struct Recording(#[expect(dead_code, reason = "its end is what counts")] DropGuard);

impl Recorder {
    /// Begins a record of at most `limit` bytes, readable for its owner only. A file that is there already is kept as
    /// `<file>.old`. The record goes on until the last value is dropped.
    pub fn create(path: &Path, limit: u64, start: Start) -> io::Result<(Self, Writer, Recording)> {
        if path.is_file() {
            let mut old = path.as_os_str().to_owned();
            old.push(".old");
            fs::rename(path, old)?;
        }
        let file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let (sender, lines) = mpsc::channel(WAITING);
        let recorder = Self(Arc::new(Shared {
            lines: sender,
            waiting: AtomicUsize::new(0),
            lost: AtomicU64::new(0),
            open: AtomicBool::new(true),
            start: Instant::now(),
            works: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            layers: Mutex::default(),
        }));
        recorder.note(Line::Start(Box::new(start)));
        let stop = CancellationToken::new();
        let guard = Recording(stop.clone().drop_guard());
        let writer = Writer { recorder: recorder.clone(), lines, file, path: path.to_owned(), limit, stop };
        Ok((recorder, writer, guard))
    }

    /// Whether the record goes on.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.open.load(Ordering::Relaxed)
    }

    /// Adds a line. It must hold no data of Secrets.
    pub fn note(&self, line: Line) {
        self.note_at(line, Instant::now());
    }

    /// The same, of a moment ago.
    pub(super) fn note_at(&self, line: Line, now: Instant) {
        if !self.is_open() {
            return;
        }
        let lost = self.0.lost.swap(0, Ordering::Relaxed);
        if lost > 0 && !self.send(Line::Gap { lines: lost }, now) {
            self.0.lost.fetch_add(lost, Ordering::Relaxed);
        }
        if !self.send(line, now) {
            self.0.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn send(&self, line: Line, now: Instant) -> bool {
        let at = (now.duration_since(self.0.start).as_secs_f64() * 1_000_000.0).round() / 1000.0;
        let Ok(text) = serde_json::to_string(&Stamped { at, line }) else { return false };
        let size = text.len();
        if self.0.waiting.load(Ordering::Relaxed) + size > WAITING_BYTES {
            return false;
        }
        self.0.waiting.fetch_add(size, Ordering::Relaxed);
        let taken = self.0.lines.try_send(text).is_ok();
        if !taken {
            self.0.waiting.fetch_sub(size, Ordering::Relaxed);
        }
        taken
    }

    /// Whether lines wait to be written.
    #[cfg(test)]
    pub(super) fn waits(&self) -> bool {
        self.0.waiting.load(Ordering::Relaxed) > 0
    }

    /// The number of a new reconcile.
    pub(super) fn next_work(&self) -> u64 {
        self.0.works.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Notes a call, and says its number.
    pub(super) fn ask(&self, ask: Ask) -> u64 {
        let call = self.0.calls.fetch_add(1, Ordering::Relaxed) + 1;
        self.note(Line::Ask(Ask { call, ..ask }));
        call
    }

    /// Whether a layer is still to be told.
    pub(super) fn is_new_layer(&self, digest: &str) -> bool {
        let mut layers = self.0.layers.lock();
        layers.len() >= LAYERS || layers.insert(digest.to_owned())
    }
}

impl Writer {
    /// Writes until the [`Recording`] is dropped, then what is left, and ends. Ends before if the limit is reached or the
    /// file cannot be written; that is logged, and nobody else notices.
    pub async fn run(mut self) {
        let path = self.path.clone();
        match self.write().await {
            Ok(()) => {}
            Err(error) => tracing::error!(
                ?path,
                %error,
                "the record cannot be written and ends here; is there room on the disk?"
            ),
        }
        self.recorder.0.open.store(false, Ordering::Relaxed);
    }

    async fn write(&mut self) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 18, tokio::fs::File::from_std(self.file.try_clone()?));
        let mut written = 0_u64;
        loop {
            let line = match self.lines.try_recv() {
                Ok(line) => line,
                Err(_) => {
                    // Nothing more now: what there is should survive a crash.
                    out.flush().await?;
                    tokio::select! {
                        biased;
                        line = self.lines.recv() => match line {
                            Some(line) => line,
                            None => break,
                        },
                        () = self.stop.cancelled() => break,
                    }
                }
            };
            self.recorder.0.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            // Room for the last line.
            if written + line.len() as u64 + 200 > self.limit {
                self.recorder.0.open.store(false, Ordering::Relaxed);
                tracing::warn!(path = ?self.path, limit = self.limit, "the record is full and ends here; give a higher --record-limit");
                return self.last(&mut out, Line::Full { limit: self.limit }).await;
            }
            written += line.len() as u64 + 1;
            out.write_all(line.as_bytes()).await?;
            out.write_all(b"\n").await?;
        }
        self.last(&mut out, Line::Closed).await
    }

    async fn last(&self, out: &mut BufWriter<tokio::fs::File>, line: Line) -> io::Result<()> {
        let at = self.recorder.0.start.elapsed().as_secs_f64() * 1000.0;
        let text = serde_json::to_string(&Stamped { at: at.round(), line })?;
        out.write_all(text.as_bytes()).await?;
        out.write_all(b"\n").await?;
        out.flush().await
    }
}
