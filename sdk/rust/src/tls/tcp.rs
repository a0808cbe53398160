//! A TCP connection by name: what `std::net` does, but with a deadline, and with streams that can be given to the host's TLS.

use crate::net::{error, resolve};
use crate::wait::wait;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Instant;
use wasip2::io::streams::{InputStream, OutputStream};
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::network::{ErrorCode, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress, Ipv6SocketAddress, Network};
use wasip2::sockets::tcp::TcpSocket;
use wasip2::sockets::tcp_create_socket::create_tcp_socket;

/// A connection. Its streams must be dropped, or given away, before the socket.
pub(super) struct Connected {
    pub(super) input: InputStream,
    pub(super) output: OutputStream,
    pub(super) socket: TcpSocket,
}

/// Connects to the first address that answers. Each gets its share of the time that is left, so that one which swallows packets
/// does not keep the others from being tried.
pub(super) fn connect(host: &str, port: u16, deadline: Instant) -> io::Result<Connected> {
    let network = instance_network();
    let addresses = resolve(host, deadline)?;
    let mut failed = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        let now = Instant::now();
        let waiting = u32::try_from(addresses.len() - index).unwrap_or(u32::MAX);
        let share = now + deadline.saturating_duration_since(now) / waiting;
        match connect_to(&network, SocketAddr::new(*address, port), share) {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

fn connect_to(network: &Network, address: SocketAddr, deadline: Instant) -> io::Result<Connected> {
    let family = if address.is_ipv4() { IpAddressFamily::Ipv4 } else { IpAddressFamily::Ipv6 };
    let socket = create_tcp_socket(family).map_err(error)?;
    socket.start_connect(network, wasi(address)).map_err(error)?;
    let ready = socket.subscribe();
    loop {
        match socket.finish_connect() {
            Ok((input, output)) => {
                drop(ready);
                return Ok(Connected { input, output, socket });
            }
            Err(ErrorCode::WouldBlock) => wait(&ready, deadline)?,
            Err(code) => return Err(error(code)),
        }
    }
}

fn wasi(address: SocketAddr) -> IpSocketAddress {
    match address {
        SocketAddr::V4(address) => {
            let [a, b, c, d] = address.ip().octets();
            IpSocketAddress::Ipv4(Ipv4SocketAddress { port: address.port(), address: (a, b, c, d) })
        }
        SocketAddr::V6(address) => {
            let [a, b, c, d, e, f, g, h] = address.ip().segments();
            IpSocketAddress::Ipv6(Ipv6SocketAddress {
                port: address.port(),
                flow_info: address.flowinfo(),
                address: (a, b, c, d, e, f, g, h),
                scope_id: address.scope_id(),
            })
        }
    }
}
