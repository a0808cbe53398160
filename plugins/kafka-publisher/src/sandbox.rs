//! Connections from inside the sandbox: plain ones by the standard library, TLS by the host, which knows whom to trust and keeps
//! the key of the client certificate (`tls_ca_file`, `tls_cert_file` and `tls_key_file` beside `config`).

use crate::transport::{Connector, PlainTransport, Transport};
use outhaul_sdk::net;
use outhaul_sdk::tls::TlsStream;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

/// Connects in one of the two ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SandboxConnector {
    /// `tls`: whether the brokers' listeners expect TLS.
    pub(crate) tls: bool,
}

/// A connection of one of the two kinds.
#[derive(Debug)]
pub(crate) enum SandboxTransport {
    Plain(PlainTransport),
    Tls(TlsStream),
}

impl Connector for SandboxConnector {
    type Transport = SandboxTransport;

    fn connect(&self, host: &str, port: u16, deadline: Instant) -> io::Result<SandboxTransport> {
        if self.tls {
            TlsStream::connect(host, port, deadline).map(SandboxTransport::Tls)
        } else {
            let addresses: Vec<SocketAddr> =
                net::resolve(host, deadline)?.into_iter().map(|address| SocketAddr::new(address, port)).collect();
            PlainTransport::connect(&addresses, deadline).map(SandboxTransport::Plain)
        }
    }
}

impl Transport for SandboxTransport {
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        match self {
            Self::Plain(transport) => transport.send(bytes, deadline),
            Self::Tls(stream) => {
                stream.set_deadline(deadline);
                stream.write_all(bytes)?;
                // Without it the last record may stay in the host until the next one is written.
                stream.flush()
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        match self {
            Self::Plain(transport) => transport.receive(buffer, deadline),
            Self::Tls(stream) => {
                stream.set_deadline(deadline);
                stream.read(buffer)
            }
        }
    }
}
