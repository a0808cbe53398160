//! Lets the last packet of a message leave at once. sqlx 0.9.0 does not ask for it, and has no option for it
//! (<https://github.com/transact-rs/sqlx/issues/4335>, mended since): a message that TLS cuts into two records, 16 KiB or some hundred ids,
//! then waits some 40 ms until the server acknowledges the first. To go when a release of sqlx has it.
//!
//! sqlx does not hand out its socket, so it is found among those of this process.

use rustix::io::Errno;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};
use std::fs;
use std::io;
use std::net::TcpStream;
use tracing::debug;

/// Sets `TCP_NODELAY` on the connections of this process to a port. Where the system does not allow that, they work as they are.
pub(super) fn send_at_once(port: u16) {
    if let Err(error) = set(port) {
        debug!(port, %error, "TCP_NODELAY is not set: large statements over TLS may take 40 ms longer");
    }
}

fn set(port: u16) -> io::Result<()> {
    let own = pidfd_open(getpid(), PidfdFlags::empty())?;
    for entry in fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let is_socket = fs::read_link(entry.path()).is_ok_and(|target| target.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
        let (true, Some(number)) = (is_socket, number) else { continue };
        // A second descriptor of the same socket: closing it closes nothing.
        let stream = match pidfd_getfd(&own, number, PidfdGetfdFlags::empty()) {
            Ok(descriptor) => TcpStream::from(descriptor),
            Err(Errno::BADF) => continue,
            Err(error) => return Err(error.into()),
        };
        // Sockets that are not of TCP, or not connected, have no such address.
        if stream.peer_addr().is_ok_and(|peer| peer.port() == port) {
            stream.set_nodelay(true)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn connections_to_the_port_send_at_once_and_no_others() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (meant, other) = (listen(), listen());
        let connect = |to: &TcpListener| TcpStream::connect(to.local_addr().unwrap()).unwrap();
        let (a, b, c) = (connect(&meant), connect(&meant), connect(&other));
        set(meant.local_addr().unwrap().port()).unwrap();
        assert_eq!([&a, &b, &c].map(|stream| stream.nodelay().unwrap()), [true, true, false]);
    }
}
