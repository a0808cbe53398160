//! Messages in and out of one connection.
//!
//! Sending and receiving go on at once: a list of statements is written in one go, and the server may answer the first of them
//! while the last is still on its way. Whoever only wrote would wait for a server that waits for its reader.

use super::fault::Fault;
use bytes::BytesMut;
use postgres_protocol::message::backend::{DATA_ROW_TAG, Header, Message};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{poll_read_buf, poll_write_buf};

/// Longest message other than a row, in bytes. The longest real ones are errors that quote a value or a statement.
const LONGEST_MESSAGE: usize = 16 << 20;

/// Room for one read, in bytes.
const READ: usize = 32 << 10;

/// An open byte stream: TCP or a Unix socket, with TLS or without.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for T {}

/// A connection's stream and its buffers.
pub(super) struct Wire {
    stream: Box<dyn Stream>,
    input: BytesMut,
    output: BytesMut,
    unflushed: bool,
    /// Longest row, in bytes.
    longest_row: usize,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The buffers hold parameters and rows.
        out.write_str("Wire")
    }
}

impl Wire {
    pub(super) fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, input: BytesMut::new(), output: BytesMut::new(), unflushed: false, longest_row: LONGEST_MESSAGE }
    }

    /// Sets how long a row may be from now on. A longer one is refused by its header, before it is read.
    pub(super) fn bound_rows(&mut self, bytes: usize) {
        self.longest_row = bytes;
    }

    /// Where messages are written to; they leave with the next [`Wire::receive`].
    pub(super) fn out(&mut self) -> &mut BytesMut {
        &mut self.output
    }

    /// Sends what was written, and waits for the next message.
    ///
    /// # Errors
    /// The connection is lost, or a message is longer than allowed.
    pub(super) async fn receive(&mut self) -> Result<Message, Fault> {
        poll_fn(|context| self.poll_receive(context)).await
    }

    /// Whether nothing has come in since the last answer: neither an end nor a farewell. Asks the socket once, and does not wait.
    pub(super) fn is_quiet(&mut self) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        self.input.is_empty() && self.poll_read(&mut context).is_pending()
    }

    fn poll_receive(&mut self, context: &mut Context<'_>) -> Poll<Result<Message, Fault>> {
        loop {
            if let Some(message) = self.parse()? {
                return Poll::Ready(Ok(message));
            }
            if let Poll::Ready(Err(error)) = self.poll_send(context) {
                // What the server said before it closed the connection tells more than the failed write.
                return match self.poll_read(context) {
                    Poll::Ready(Ok(read)) if read > 0 => continue,
                    _ => Poll::Ready(Err(Fault::broken(&error))),
                };
            }
            match ready!(self.poll_read(context)) {
                Ok(0) => return Poll::Ready(Err(Fault::broken(&io::Error::from(io::ErrorKind::UnexpectedEof)))),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Err(Fault::broken(&error))),
            }
        }
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            if ready!(poll_write_buf(Pin::new(&mut self.stream), context, &mut self.output))? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.unflushed = true;
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(context))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.input.reserve(READ);
        poll_read_buf(Pin::new(&mut self.stream), context, &mut self.input)
    }

    fn parse(&mut self) -> Result<Option<Message>, Fault> {
        let protocol = |error: io::Error| Fault::protocol(&error.to_string());
        if let Some(header) = Header::parse(&self.input).map_err(protocol)? {
            let bytes = usize::try_from(header.len()).unwrap_or(usize::MAX);
            if header.tag() == DATA_ROW_TAG && bytes > self.longest_row {
                return Err(Fault::row_too_long());
            }
            if header.tag() != DATA_ROW_TAG && bytes > LONGEST_MESSAGE {
                return Err(Fault::protocol(&format!("a message of {bytes} bytes")));
            }
        }
        Message::parse(&mut self.input).map_err(protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sql::SqlErrorCode;
    use proptest::prelude::*;
    use tokio::io::AsyncWriteExt;

    /// Receives until something is wrong, and says what.
    fn fault(bytes: &[u8], longest_row: usize) -> Fault {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (near, mut far) = tokio::io::duplex(1 << 16);
            far.write_all(bytes).await.unwrap();
            drop(far);
            let mut wire = Wire::new(Box::new(near));
            wire.bound_rows(longest_row);
            loop {
                if let Err(fault) = wire.receive().await {
                    return fault;
                }
            }
        })
    }

    #[test]
    fn a_row_that_is_too_long_is_refused_by_its_header() {
        let row = b"D\x00\x00\x03\xe9";
        assert_eq!(fault(row, 1000).error.code, SqlErrorCode::TypeMismatch);
        assert_eq!(fault(row, 1001).error.code, SqlErrorCode::Unavailable, "it would have been read");
        assert_eq!(fault(b"T\x7f\xff\xff\xff", usize::MAX).error.code, SqlErrorCode::Other);
    }

    proptest! {
        #[test]
        fn whatever_comes_in_ends_in_a_fault(tag in "[1-3ADEHIKNRSTZcdns]", body in prop::collection::vec(any::<u8>(), 0..60)) {
            let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
            let bytes = [tag.as_bytes(), &length, &body].concat();
            prop_assert!(fault(&bytes, 1000).lost);
        }
    }
}
