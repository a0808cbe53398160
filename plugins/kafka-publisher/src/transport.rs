//! Bytes to and from a broker, within a deadline. The protocol above knows nothing else about the network, so TLS is one more
//! implementation, and a test can bring a wire of its own.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Addresses of one name that are tried: past a few, the deadline is spent anyway.
const MAX_ADDRESSES: usize = 8;

/// A socket's time-out of less may be rounded to zero, which means "for ever" to some.
const SHORTEST: Duration = Duration::from_millis(1);

/// An open byte stream. Dropping it closes it.
pub trait Transport {
    /// Sends all of `bytes`. After an error it is not known how many went out.
    ///
    /// # Errors
    /// `TimedOut` once `deadline` has passed; otherwise the connection is lost.
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()>;

    /// Waits for bytes and puts those that have come into `buffer`; 0: the other side has closed.
    ///
    /// # Errors
    /// `TimedOut` if none came until `deadline`, after which it may be called again; otherwise the connection is lost.
    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize>;
}

/// Opens transports.
pub trait Connector {
    /// What it opens.
    type Transport: Transport;

    /// Connects to a broker by the name under which it is known: in the configuration, or in the cluster's metadata.
    ///
    /// # Errors
    /// `PermissionDenied`: the host has not granted it. `TimedOut`: not connected until `deadline`. Anything else: not reached.
    fn connect(&self, host: &str, port: u16, deadline: Instant) -> io::Result<Self::Transport>;
}

/// Connects without encryption, natively. The standard library waits for a name for as long as the system's resolver does, whatever
/// the deadline: inside the sandbox, where there is another way, names are not left to it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PlainConnector;

/// A TCP connection without encryption, by the standard library's sockets, which inside the sandbox are those of `wasi:sockets`.
#[derive(Debug)]
pub struct PlainTransport(TcpStream);

impl Connector for PlainConnector {
    type Transport = PlainTransport;

    fn connect(&self, host: &str, port: u16, deadline: Instant) -> io::Result<PlainTransport> {
        let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs()?.take(MAX_ADDRESSES).collect();
        PlainTransport::connect(&addresses, deadline)
    }
}

impl PlainTransport {
    /// Connects to the first address that answers.
    ///
    /// # Errors
    /// As for [`Connector::connect`].
    pub fn connect(addresses: &[SocketAddr], deadline: Instant) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for (tried, address) in addresses.iter().enumerate() {
            // One that swallows packets must not keep the others from being tried.
            let untried = u32::try_from(addresses.len() - tried).unwrap_or(u32::MAX);
            match TcpStream::connect_timeout(address, (left(deadline)? / untried).max(SHORTEST)) {
                Ok(stream) => {
                    // Requests are written whole, so waiting to fill a segment would only delay them. The sandbox has no such
                    // option (wasi:sockets 0.2), and a connection without it is as good but slower.
                    let _ = stream.set_nodelay(true);
                    return Ok(Self(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Transport for PlainTransport {
    fn send(&mut self, bytes: &[u8], deadline: Instant) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.0.set_write_timeout(Some(left(deadline)?))?;
            match self.0.write(rest) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => rest = rest.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(timed_out(error)),
            }
        }
        Ok(())
    }

    fn receive(&mut self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
        loop {
            self.0.set_read_timeout(Some(left(deadline)?))?;
            match self.0.read(buffer) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                result => return result.map_err(timed_out),
            }
        }
    }
}

impl Drop for PlainTransport {
    fn drop(&mut self) {
        // What the broker has not read yet must not reach it after the batch was given up, as far as that can be had.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// The time until `deadline`.
///
/// # Errors
/// `TimedOut` if there is none.
pub fn left(deadline: Instant) -> io::Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if !left.is_zero() => Ok(left.max(SHORTEST)),
        _ => Err(ErrorKind::TimedOut.into()),
    }
}

/// Unix says `WouldBlock` where a time-out of a socket has passed.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == ErrorKind::WouldBlock { ErrorKind::TimedOut.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    fn pair() -> (PlainTransport, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = PlainConnector.connect("127.0.0.1", port, Instant::now() + Duration::from_secs(5)).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_come_and_go() {
        let (mut client, mut server) = pair();
        client.send(b"hello", Instant::now() + Duration::from_secs(5)).unwrap();
        let mut buffer = [0; 5];
        server.read_exact(&mut buffer).unwrap();
        server.write_all(&buffer).unwrap();
        let mut back = [0; 64];
        assert_eq!(client.receive(&mut back, Instant::now() + Duration::from_secs(5)).unwrap(), 5);
        assert_eq!(&back[..5], b"hello");
        drop(server);
        assert_eq!(client.receive(&mut back, Instant::now() + Duration::from_secs(5)).unwrap(), 0);
    }

    #[test]
    fn deadlines_are_kept_and_nothing_is_lost_by_them() {
        let (mut client, mut server) = pair();
        let mut buffer = [0; 4];
        assert_eq!(client.receive(&mut buffer, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        server.write_all(b"late").unwrap();
        assert_eq!(client.receive(&mut buffer, Instant::now() + Duration::from_secs(5)).unwrap(), 4);
        // Nobody reads: the buffers fill, and the deadline ends it.
        let megabytes = vec![0; 64 << 20];
        assert_eq!(client.send(&megabytes, soon()).unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(client.send(b"x", Instant::now()).unwrap_err().kind(), ErrorKind::TimedOut);
    }

    #[test]
    fn a_refused_connection_is_an_error() {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let error = PlainConnector.connect("127.0.0.1", port, Instant::now() + Duration::from_secs(5)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    }
}
