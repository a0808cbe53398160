//! What is below TLS: the guest's socket, read to its end before it is called broken, and written to only during calls.
//!
//! The host writes in a task of its own, which goes on when the guest has been stopped. So each write looks at the call first: bytes
//! of a message whose lease is over do not leave, not even after the whole process has slept in between.
//!
//! A server that refuses a connection says why, in an alert, and hangs up. Whether the client hears of the alert first or finds that it
//! cannot write any more is chance, and only the alert is of use. So what cannot be written is dropped, within bounds, and reading
//! tells what happened: the alert, or the end.

use crate::plugin::call::CurrentGate;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use wasmtime_wasi_tls::TlsTransport;

/// Most bytes that are dropped: a client's half of a handshake with a long chain of certificates, and a first request. One who only
/// writes and never reads learns of the end after so many.
const MAX_DROPPED: usize = 64 << 10;

pub(super) struct Transport {
    socket: Box<dyn TlsTransport>,
    current: CurrentGate,
    /// Bytes were held back: what comes after them would make no sense to the other side.
    cut: bool,
    dropped: usize,
}

impl Transport {
    pub(super) fn new(socket: Box<dyn TlsTransport>, current: CurrentGate) -> Self {
        Self { socket, current, cut: false, dropped: 0 }
    }

    /// Whether bytes may leave.
    fn check(&mut self) -> io::Result<()> {
        let checked = self.current.check();
        self.cut |= checked.is_err();
        match checked {
            Ok(()) if self.cut => Err(io::Error::new(io::ErrorKind::ConnectionAborted, "bytes of an earlier call were held back")),
            checked => checked.map_err(|ended| io::Error::new(io::ErrorKind::ConnectionAborted, ended)),
        }
    }

    /// What to say of an attempt to write or flush so many bytes.
    fn settle<T>(&mut self, result: io::Result<T>, bytes: usize, done: T) -> io::Result<T> {
        if result.is_err() && self.dropped < MAX_DROPPED {
            // A flush counts as well, so that there is an end to it.
            self.dropped = self.dropped.saturating_add(bytes.max(1));
            return Ok(done);
        }
        result
    }
}

impl AsyncRead for Transport {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(context, buffer)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check()?;
        let written = ready!(Pin::new(&mut self.socket).poll_write(context, bytes));
        // A closed stream of WASI takes nothing, and says so without an error.
        let written =
            written.and_then(|count| if count == 0 && !bytes.is_empty() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) });
        Poll::Ready(self.settle(written, bytes.len(), bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.socket).poll_flush(context));
        Poll::Ready(self.settle(flushed, 0, ()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::call::Gate;
    use crate::ports::LeaseEnd;
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_util::sync::CancellationToken;

    fn within(limit: Duration) -> (CurrentGate, CancellationToken) {
        let (current, cancel) = (CurrentGate::shut(), CancellationToken::new());
        current.set(Gate::new(limit, cancel.clone()));
        (current, cancel)
    }

    #[tokio::test]
    async fn last_words_are_heard_and_writing_ends_after_a_while() {
        let (socket, mut server) = tokio::io::duplex(64);
        server.write_all(b"why").await.unwrap();
        drop(server);
        let mut transport = Transport::new(Box::new(socket), within(Duration::from_secs(60)).0);
        transport.write_all(b"hello").await.unwrap();
        transport.flush().await.unwrap();
        let mut words = String::new();
        transport.read_to_string(&mut words).await.unwrap();
        assert_eq!(words, "why");
        let error = transport.write_all(&vec![0; 2 * MAX_DROPPED]).await.and(transport.write_all(b"more").await).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn nothing_leaves_after_its_call_and_nothing_follows_what_was_held_back() {
        let (socket, mut server) = tokio::io::duplex(64);
        let (current, cancel) = within(Duration::from_secs(60));
        let mut transport = Transport::new(Box::new(socket), current.clone());
        transport.write_all(b"in time").await.unwrap();
        cancel.cancel();
        assert_eq!(transport.write_all(b"late").await.unwrap_err().to_string(), "it was given up");
        let lease = Arc::new(LeaseEnd::new(tokio::time::Instant::now()));
        current.set(Gate::new(Duration::from_secs(60), CancellationToken::new()).under(lease));
        assert_eq!(transport.write_all(b"late").await.unwrap_err().to_string(), "the lease of its messages was over");
        current.set(Gate::new(Duration::from_secs(60), CancellationToken::new()));
        assert!(transport.write_all(b"next").await.unwrap_err().to_string().contains("held back"));
        drop(transport);
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "in time");
    }

    #[tokio::test]
    async fn a_connection_outlives_its_call_if_nothing_was_under_way() {
        let (socket, mut server) = tokio::io::duplex(64);
        let (current, _cancel) = within(Duration::from_secs(60));
        let mut transport = Transport::new(Box::new(socket), current.clone());
        transport.write_all(b"one ").await.unwrap();
        current.set(Gate::shut());
        current.set(Gate::new(Duration::from_secs(60), CancellationToken::new()));
        transport.write_all(b"two").await.unwrap();
        drop(transport);
        let mut received = String::new();
        server.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "one two");
    }
}
