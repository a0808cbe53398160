//! Names of hosts, for connections by `std::net`: `ToSocketAddrs` waits for as long as the resolver takes, which may be longer than a
//! call has.

use crate::wait::wait;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::Instant;
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{ErrorCode, IpAddress};

/// Addresses of one name that are tried: past a few, the deadline is spent anyway.
const MAX_ADDRESSES: usize = 8;

/// The first addresses of a host, before the deadline. Of what is an address already (IPv6 with or without brackets), that one.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`] where the operator has not granted the host, [`ErrorKind::TimedOut`] where the deadline passed,
/// [`ErrorKind::NotFound`] where there is no such name.
pub fn resolve(host: &str, deadline: Instant) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.trim_start_matches('[').trim_end_matches(']').parse() {
        return Ok(vec![address]);
    }
    let found = resolve_addresses(&instance_network(), host).map_err(error)?;
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

/// The host's error as one of `std`.
pub(crate) fn error(code: ErrorCode) -> io::Error {
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
