//! `wasi:tls`: TLS over the streams of a guest's own sockets. The guest says which server it means, and the host does the rest: it
//! checks the server's certificate, shows the client's, and keeps the keys.
//!
//! Where the bytes go was decided when the socket connected. The name is checked as well, against the same grants: it is what the
//! certificate is compared with, so a guest that could choose it freely could have any server's certificate accepted, and could have
//! the client certificate shown to one that nobody granted.

use super::Tls;
use super::transport::Transport;
use crate::plugin::call::{CurrentGate, Ended, Notes};
use crate::plugin::grants::Request;
use crate::tls::faults;
use rustls::pki_types::ServerName;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as Inner;
use wasmtime_wasi_tls::{Error, TlsProvider, TlsStream, TlsTransport};

/// How long a handshake may take, within the call's own time: two round trips and some arithmetic.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// What makes the TLS streams of one instance.
pub(super) struct Provider {
    tls: Tls,
    current: CurrentGate,
    notes: Notes,
}

impl Provider {
    pub(super) fn new(tls: Tls, current: CurrentGate, notes: Notes) -> Self {
        Self { tls, current, notes }
    }
}

impl TlsProvider for Provider {
    fn connect(
        &self,
        server: String,
        transport: Box<dyn TlsTransport>,
    ) -> Pin<Box<dyn Future<Output = Result<Box<dyn TlsStream>, Error>> + Send>> {
        let (tls, current, notes) = (self.tls.clone(), self.current.clone(), self.notes.clone());
        Box::pin(async move {
            if let Err(denial) = tls.policy().check_server(Request::Tcp, &server) {
                let text = denial.to_string();
                tls.denials().tell(&notes, &text);
                return Err(Error::msg(text));
            }
            let name = ServerName::try_from(server.clone()).map_err(|error| Error::msg(format!("not the name of a server: {error}")))?;
            let gate = current.get();
            let handshake = TlsConnector::from(Arc::clone(tls.config())).connect(name, Transport::new(transport, current));
            // A little before the call's own end, so that the guest hears of it and can say which server it was.
            let limit = HANDSHAKE_TIMEOUT.min(gate.guest_left());
            match gate.run(tokio::time::timeout(limit, handshake)).await {
                Ok(Ok(Ok(stream))) => Ok(Box::new(Stream { inner: stream, tls, notes, server }) as Box<dyn TlsStream>),
                Ok(Ok(Err(error))) => Err(Error::msg(match faults::inside(&error) {
                    Some(fault) => tls.tell(&notes, &server, fault),
                    None if hung_up(error.kind()) => tls.tell_text(&notes, &server, faults::HUNG_UP),
                    None => format!("TLS with {server} failed: {error}"),
                })),
                Ok(Err(_)) => Err(Error::msg(format!("TLS with {server} failed: no answer to the handshake in {limit:.1?}"))),
                Err(ended @ (Ended::Deadline | Ended::Cancelled | Ended::Lease)) => {
                    Err(Error::msg(format!("TLS with {server} was given up: {ended}")))
                }
            }
        })
    }
}

/// Whether the error means that the other side has gone, rather than that something here does not work.
fn hung_up(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof, WriteZero};
    matches!(kind, BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof | WriteZero)
}

/// A connection after its handshake. In TLS 1.3 a server looks at the client's certificate when the client is done already: that it
/// refuses it comes with the first bytes that are read (RFC 8446, section 4.4.2.4).
struct Stream {
    inner: Inner<Transport>,
    tls: Tls,
    notes: Notes,
    server: String,
}

impl TlsStream for Stream {}

impl Stream {
    fn told(&self, error: io::Error) -> io::Error {
        match faults::inside(&error) {
            Some(fault) => io::Error::new(error.kind(), self.tls.tell(&self.notes, &self.server, fault)),
            // An end that anybody on the way may have made (RFC 8446, section 6.1): not an end of the data that can be relied on.
            None if error.kind() == io::ErrorKind::UnexpectedEof => {
                io::Error::new(error.kind(), format!("{} closed the connection without saying so", self.server))
            }
            None => error,
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(context, buffer).map_err(|error| self.told(error))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes).map_err(|error| self.told(error))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context).map_err(|error| self.told(error))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context).map_err(|error| self.told(error))
    }
}
