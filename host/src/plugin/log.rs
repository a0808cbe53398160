//! What adapters write (log import, stdout, stderr) comes out in the host's log: with the adapter's name and generation, cleaned,
//! cut, and no faster than a bucket of tokens allows.

use super::bindings::log::Level;
use super::identity::Identity;
use crate::domain::text;
use crate::metrics::{AdapterLabels, Metrics};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wasmtime_wasi::async_trait;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamResult};

/// Lines that an adapter may write at once.
const BURST: f64 = 200.0;

/// Lines a second that it may write for long: more than anybody reads, and nothing for the host.
const LINES_PER_SECOND: f64 = 50.0;

/// How often the number of dropped lines is told.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Fields of one line that are kept.
const MAX_FIELDS: usize = 32;

/// Longest line of stdout or stderr, in bytes; what is longer is broken in pieces.
const MAX_LINE: usize = 4096;

/// Lines of stderr that are attached to a failure: a panic has two or three, a language runtime's stack trace more.
const TAIL_LINES: usize = 6;

/// Bytes of each of them.
const TAIL_LINE_BYTES: usize = 400;

/// Bytes that a guest may write to stdout or stderr at once.
const WRITE_PERMIT: usize = 64 << 10;

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    filled: Instant,
    dropped: u64,
    reported: Instant,
}

impl Bucket {
    fn new(now: Instant) -> Self {
        Self { tokens: BURST, filled: now, dropped: 0, reported: now }
    }

    /// Whether one more line may be written.
    fn take(&mut self, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + elapsed * LINES_PER_SECOND).min(BURST);
        self.filled = now;
        if self.tokens < 1.0 {
            self.dropped += 1;
            return false;
        }
        self.tokens -= 1.0;
        true
    }

    /// How many lines were dropped since the last report, if it is time to say so.
    fn due(&mut self, now: Instant) -> Option<u64> {
        if self.dropped == 0 || now.saturating_duration_since(self.reported) < REPORT_EVERY {
            return None;
        }
        self.reported = now;
        Some(std::mem::take(&mut self.dropped))
    }
}

/// The log of one adapter, shared by its instances.
#[derive(Debug)]
pub(super) struct AdapterLog {
    identity: Identity,
    bucket: Mutex<Bucket>,
    metrics: Metrics,
}

impl AdapterLog {
    pub(super) fn new(identity: Identity, metrics: Metrics) -> Self {
        Self { identity, bucket: Mutex::new(Bucket::new(Instant::now())), metrics }
    }

    /// Writes a line, or drops it.
    pub(super) fn write(&self, level: Level, line: &str, fields: &[(String, String)]) {
        let written = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
        if written {
            let mut line = line.to_owned();
            for (name, value) in fields.iter().take(MAX_FIELDS) {
                line.push_str(&format!(" {name}={value}"));
            }
            let line = text::clean(&line);
            let (adapter, generation) = (&self.identity.name, self.identity.generation);
            match level {
                Level::Trace => tracing::trace!(adapter, generation, "{line}"),
                Level::Debug => tracing::debug!(adapter, generation, "{line}"),
                Level::Info => tracing::info!(adapter, generation, "{line}"),
                Level::Warn => tracing::warn!(adapter, generation, "{line}"),
                Level::Error => tracing::error!(adapter, generation, "{line}"),
            }
        } else {
            let labels = AdapterLabels { adapter: self.identity.name.clone() };
            self.metrics.adapter_log_lines_dropped.get_or_create(&labels).inc();
        }
        self.report_dropped();
    }

    /// Says how many lines were dropped, at most once a second. Also called at the end of each call, so that the end of a flood
    /// does not go untold.
    pub(super) fn report_dropped(&self) {
        let due = self.bucket.lock().unwrap_or_else(PoisonError::into_inner).due(Instant::now());
        if let Some(dropped) = due {
            tracing::warn!(
                adapter = self.identity.name,
                generation = self.identity.generation,
                "dropped {dropped} log lines: too many at once"
            );
        }
    }
}

/// The last lines of an instance's stderr, for the failure of a call.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn push(&self, line: &str) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == TAIL_LINES {
            lines.pop_front();
        }
        let end = line.floor_char_boundary(TAIL_LINE_BYTES);
        lines.push_back(line.get(..end).unwrap_or_default().to_owned());
    }

    /// The lines, which are forgotten.
    pub(super) fn take(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
    }
}

/// A guest's stdout or stderr: whole lines go to the log.
#[derive(Clone)]
pub(super) struct Lines {
    log: Arc<AdapterLog>,
    level: Level,
    /// Of stderr only.
    tail: Option<Tail>,
    pending: Arc<Mutex<Vec<u8>>>,
}

impl Lines {
    pub(super) fn stdout(log: Arc<AdapterLog>) -> Self {
        Self { log, level: Level::Info, tail: None, pending: Arc::default() }
    }

    pub(super) fn stderr(log: Arc<AdapterLog>, tail: Tail) -> Self {
        Self { log, level: Level::Warn, tail: Some(tail), pending: Arc::default() }
    }

    fn push(&self, bytes: &[u8]) {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for piece in piece.chunks(MAX_LINE) {
                pending.extend_from_slice(piece);
                if piece.ends_with(b"\n") || pending.len() >= MAX_LINE {
                    self.emit(&mut pending);
                }
            }
        }
    }

    /// Writes what has no line break yet: nothing more is coming.
    pub(super) fn finish(&self) {
        self.emit(&mut self.pending.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn emit(&self, pending: &mut Vec<u8>) {
        let line = text::clean_bytes(pending.trim_ascii_end());
        pending.clear();
        if line.is_empty() {
            return;
        }
        if let Some(tail) = &self.tail {
            tail.push(&line);
        }
        self.log.write(self.level, &line, &[]);
    }
}

#[async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {}
}

impl OutputStream for Lines {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        self.push(&bytes);
        Ok(())
    }
    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }
    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(WRITE_PERMIT)
    }
}

impl tokio::io::AsyncWrite for Lines {
    fn poll_write(
        self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<std::io::Result<usize>> {
        self.push(bytes);
        std::task::Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: std::pin::Pin<&mut Self>, _context: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: std::pin::Pin<&mut Self>, _context: &mut std::task::Context<'_>) -> std::task::Poll<std::io::Result<()>> {
        std::task::Poll::Ready(Ok(()))
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }
    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity() -> Identity {
        Identity { kind: super::super::identity::Kind::Publisher, name: "webhooks".into(), generation: 1 }
    }

    #[test]
    fn a_flood_is_cut_and_counted() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let written = (0..1000).filter(|_| bucket.take(start)).count();
        assert_eq!((written, bucket.dropped), (200, 800));
        assert_eq!(bucket.due(start), None, "not before a second has passed");
        let later = start + Duration::from_secs(1);
        assert_eq!(bucket.due(later), Some(800));
        assert_eq!(bucket.due(later + Duration::from_secs(5)), None, "told once");
        assert_eq!((0..1000).filter(|_| bucket.take(later)).count(), 50);
    }

    #[test]
    fn dropped_lines_show_in_the_metrics() {
        let metrics = Metrics::new();
        let log = AdapterLog::new(identity(), metrics.clone());
        (0..300).for_each(|_| log.write(Level::Info, "x", &[]));
        let dropped = metrics.adapter_log_lines_dropped.get_or_create(&AdapterLabels { adapter: "webhooks".into() }).get();
        assert!((90..=100).contains(&dropped), "{dropped}");
    }

    #[test]
    fn stderr_keeps_its_last_lines_cleaned_and_bounded() {
        let tail = Tail::default();
        let lines = Lines::stderr(Arc::new(AdapterLog::new(identity(), Metrics::new())), tail.clone());
        lines.push(b"one\ntw");
        lines.push(b"o\n\n\xff\0\n");
        lines.push(&vec![b'x'; 2 * MAX_LINE]);
        lines.push(b"end");
        lines.finish();
        let kept = tail.take();
        assert_eq!(&kept[..3], ["one", "two", "\u{FFFD}\u{FFFD}"]);
        assert!(kept.iter().all(|line| line.len() <= TAIL_LINE_BYTES));
        assert_eq!(kept.len(), TAIL_LINES);
        assert!(tail.take().is_empty());
    }
}
