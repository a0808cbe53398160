//! A TCP connection by name: what `std::net` does, but with a deadline, and with streams that can be given to the host's TLS.

use super::wait::wait;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use wasip2::io::streams::{InputStream, OutputStream};
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress, Ipv6SocketAddress, Network};
use wasip2::sockets::tcp::TcpSocket;
use wasip2::sockets::tcp_create_socket::create_tcp_socket;

/// Addresses of one name that are tried: past a few, the deadline is spent anyway.
const MAX_ADDRESSES: usize = 8;

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
    let addresses = match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => resolve(&network, host, deadline)?,
    };
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

fn resolve(network: &Network, host: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
    let found = resolve_addresses(network, host).map_err(error)?;
    let ready = found.subscribe();
    let mut addresses = Vec::new();
    while addresses.len() < MAX_ADDRESSES {
        match found.resolve_next_address() {
            Ok(Some(IpAddress::Ipv4((a, b, c, d)))) => addresses.push(IpAddr::from([a, b, c, d])),
            Ok(Some(IpAddress::Ipv6((a, b, c, d, e, f, g, h)))) => addresses.push(IpAddr::from([a, b, c, d, e, f, g, h])),
            Ok(None) => break,
            Err(ErrorCode::WouldBlock) => wait(&ready, deadline)?,
            Err(code) => return Err(error(code)),
        }
    }
    Ok(addresses)
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

fn error(code: ErrorCode) -> io::Error {
    let (kind, text) = match code {
        ErrorCode::AccessDenied => (ErrorKind::PermissionDenied, "the host denies it"),
        ErrorCode::NameUnresolvable => (ErrorKind::NotFound, "there is no such name"),
        ErrorCode::TemporaryResolverFailure => (ErrorKind::Other, "the name cannot be resolved at present"),
        ErrorCode::PermanentResolverFailure => (ErrorKind::Other, "the name cannot be resolved"),
        ErrorCode::ConnectionRefused => (ErrorKind::ConnectionRefused, "connection refused"),
        ErrorCode::ConnectionReset => (ErrorKind::ConnectionReset, "connection reset"),
        ErrorCode::ConnectionAborted => (ErrorKind::ConnectionAborted, "connection aborted"),
        ErrorCode::RemoteUnreachable => (ErrorKind::HostUnreachable, "not reachable"),
        ErrorCode::Timeout => (ErrorKind::TimedOut, "not in time"),
        ErrorCode::InvalidArgument => (ErrorKind::InvalidInput, "that is not the name or address of a host"),
        other => return io::Error::other(other.message()),
    };
    io::Error::new(kind, text)
}
