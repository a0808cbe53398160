//! What is below TLS: the guest's socket, read to its end before it is called broken.
//!
//! A server that refuses a connection says why, in an alert, and hangs up. Whether the client hears of the alert first or finds that it
//! cannot write any more is chance, and only the alert is of use. So what cannot be written is dropped, within bounds, and reading
//! tells what happened: the alert, or the end.

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
    dropped: usize,
}

impl Transport {
    pub(super) fn new(socket: Box<dyn TlsTransport>) -> Self {
        Self { socket, dropped: 0 }
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn last_words_are_heard_and_writing_ends_after_a_while() {
        let (socket, mut server) = tokio::io::duplex(64);
        server.write_all(b"why").await.unwrap();
        drop(server);
        let mut transport = Transport::new(Box::new(socket));
        transport.write_all(b"hello").await.unwrap();
        transport.flush().await.unwrap();
        let mut words = String::new();
        transport.read_to_string(&mut words).await.unwrap();
        assert_eq!(words, "why");
        let error = transport.write_all(&vec![0; 2 * MAX_DROPPED]).await.and(transport.write_all(b"more").await).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
