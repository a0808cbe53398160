//! A connection that can be broken in the middle of an answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Bytes of a cut answer that leave: not even a whole status line.
const BEFORE_THE_CUT: usize = 9;

/// Whether a connection's next answer is cut.
#[derive(Debug, Clone, Default)]
pub(super) struct Cut(Arc<AtomicBool>);

impl Cut {
    /// Cuts it.
    pub(super) fn now(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A stream that breaks after the first bytes of an answer that is cut.
#[derive(Debug)]
pub(super) struct Breakable {
    stream: TcpStream,
    cut: Cut,
    left: usize,
}

impl Breakable {
    pub(super) fn new(stream: TcpStream, cut: Cut) -> Self {
        Self { stream, cut, left: BEFORE_THE_CUT }
    }
}

impl AsyncRead for Breakable {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Breakable {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if !this.cut.0.load(Ordering::Acquire) {
            return Pin::new(&mut this.stream).poll_write(context, bytes);
        }
        if this.left == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let first = bytes.get(..this.left).unwrap_or(bytes);
        let written = std::task::ready!(Pin::new(&mut this.stream).poll_write(context, first))?;
        this.left = this.left.saturating_sub(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
