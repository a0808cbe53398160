//! TLS over TCP: a connection whose handshake the host does, with the authorities and the client certificate that the operator has
//! configured for the adapter (`tls_ca_file`, `tls_cert_file`, `tls_key_file`). Plain TCP is `std::net::TcpStream`.
//!
//! `std` has no TLS on this target, and its sockets cannot be handed over to the host's, so this works on `wasi:sockets` and `wasi:tls`
//! itself. The manifest must request "tcp", and the operator must grant the host with its port.

#[allow(missing_docs, unsafe_code, unreachable_pub, clippy::all, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        path: "wit/tls",
        world: "imports",
        features: ["tls"],
        with: {
            "wasi:io/error@0.2.12": wasip2::io::error,
            "wasi:io/poll@0.2.12": wasip2::io::poll,
            "wasi:io/streams@0.2.12": wasip2::io::streams,
        },
        generate_all,
    });
}
mod tcp;

use crate::wait::{stream_error, text, wait};
use bindings::wasi::tls::types::{ClientConnection, ClientHandshake};
use std::io::{self, Read, Write};
use std::time::Instant;
use wasip2::io::poll::Pollable;
use wasip2::io::streams::{InputStream, OutputStream, StreamError};
use wasip2::sockets::tcp::TcpSocket;

/// Most bytes that are taken from the host at once.
const READ_BYTES: usize = 64 << 10;

/// A connection. Reading and writing wait, but not past the deadline: then they end with [`io::ErrorKind::TimedOut`].
///
/// Its fields are declared in the order in which they must be dropped: a WASI resource goes before the one that it was made from.
pub struct TlsStream {
    readable: Pollable,
    writable: Pollable,
    input: InputStream,
    output: OutputStream,
    connection: ClientConnection,
    _socket: TcpSocket,
    deadline: Instant,
}

impl TlsStream {
    /// Resolves the name, connects and shakes hands, all of it before the deadline.
    ///
    /// # Errors
    /// [`io::ErrorKind::PermissionDenied`] where the operator has not granted the host, [`io::ErrorKind::InvalidData`] where the
    /// handshake failed, with what to do about it; others as [`std::net::TcpStream::connect`] gives them.
    pub fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<Self> {
        Self::connect_as(host, host, port, deadline)
    }

    /// The same for a server that is reached by another name (or address) than its certificate has: `server` must be granted as well.
    ///
    /// # Errors
    /// As for [`TlsStream::connect`].
    pub fn connect_as(server: &str, host: &str, port: u16, deadline: Instant) -> io::Result<Self> {
        let connected = tcp::connect(host, port, deadline)?;
        let future = ClientHandshake::finish(ClientHandshake::new(server, connected.input, connected.output));
        let ready = future.subscribe();
        let result = loop {
            match future.get() {
                Some(result) => break result,
                None => wait(&ready, deadline)?,
            }
        };
        drop(ready);
        let (connection, input, output) = match result {
            Ok(Ok(streams)) => streams,
            Ok(Err(error)) => return Err(io::Error::new(io::ErrorKind::InvalidData, text(&error))),
            Err(()) => return Err(io::Error::other("the host gave the connection away twice")),
        };
        let (readable, writable) = (input.subscribe(), output.subscribe());
        Ok(Self { readable, writable, input, output, connection, _socket: connected.socket, deadline })
    }

    /// Until when reading and writing may wait from now on.
    pub fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Says that nothing more will be sent, and leaves it to the host to tell the other side.
    pub fn close(&mut self) {
        self.connection.close_output();
    }
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("TlsStream")
    }
}

impl Read for TlsStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let most = u64::try_from(buffer.len().min(READ_BYTES)).unwrap_or(u64::MAX);
        loop {
            match self.input.read(most) {
                Ok(bytes) if bytes.is_empty() => wait(&self.readable, self.deadline)?,
                Ok(bytes) => {
                    let room = buffer.get_mut(..bytes.len()).ok_or_else(|| io::Error::other("the host gave more than it was asked for"))?;
                    room.copy_from_slice(&bytes);
                    return Ok(bytes.len());
                }
                Err(StreamError::Closed) => return Ok(0),
                Err(StreamError::LastOperationFailed(error)) => return Err(stream_error(&error)),
            }
        }
    }
}

impl TlsStream {
    /// How many bytes the host takes now; waits until that is not zero, which is also when what was written before has gone out.
    fn room(&mut self) -> io::Result<usize> {
        loop {
            match self.output.check_write() {
                Ok(0) => wait(&self.writable, self.deadline)?,
                Ok(room) => return Ok(usize::try_from(room).unwrap_or(usize::MAX)),
                Err(error) => return Err(broken(error)),
            }
        }
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.room()?.min(bytes.len());
        self.output.write(bytes.get(..room).unwrap_or(bytes)).map_err(broken)?;
        Ok(room)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush().map_err(broken)?;
        self.room().map(|_| ())
    }
}

fn broken(error: StreamError) -> io::Error {
    match error {
        StreamError::Closed => io::ErrorKind::BrokenPipe.into(),
        StreamError::LastOperationFailed(error) => stream_error(&error),
    }
}
