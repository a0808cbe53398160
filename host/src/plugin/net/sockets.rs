//! TCP sockets of an adapter, within the grants. UDP and listening are always denied.
//!
//! A guest resolves a name and connects to an address, two steps that WASI does not tie together: so the addresses of granted
//! names are remembered, with the ports of the grants, and looked up at connect.

use crate::plugin::call::Notes;
use crate::plugin::denials::Denials;
use crate::plugin::grants::{Policy, Request};
use crate::plugin::state::State;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p2::SocketError;
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{self, Host, HostResolveAddressStream, ResolveAddressStream};
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddress, Network};
use wasmtime_wasi::p2::{DynPollable, IoError};
use wasmtime_wasi::sockets::{SocketAddrUse, WasiSocketsView};

/// Addresses remembered by one instance: a cluster has tens, and each is looked up again when it was forgotten.
const MAX_ADDRESSES: usize = 4096;

/// Names remembered for one address: the brokers of a cluster behind one address, with a port each.
const MAX_NAMES: usize = 64;

/// The TCP capability of one instance.
#[derive(Clone)]
pub(in crate::plugin) struct Sockets {
    policy: Arc<Policy>,
    denials: Arc<Denials>,
    notes: Notes,
    /// The granted names that each address belongs to, the last that was looked up at the end.
    names: Arc<Mutex<HashMap<IpAddr, Vec<String>>>>,
    /// The names of the look-ups that are open, by stream.
    lookups: Arc<Mutex<HashMap<u32, String>>>,
}

impl Sockets {
    pub(in crate::plugin) fn new(policy: Arc<Policy>, denials: Arc<Denials>, notes: Notes) -> Self {
        Self { policy, denials, notes, names: Arc::default(), lookups: Arc::default() }
    }

    /// Switches on what is granted.
    pub(in crate::plugin) fn configure(&self, builder: &mut WasiCtxBuilder) {
        let granted = self.policy.requested(Request::Tcp) && !self.policy.grants().hosts.is_empty();
        let sockets = self.clone();
        builder.allow_tcp(true).allow_udp(false).allow_ip_name_lookup(granted).socket_addr_check(move |address, purpose| {
            let allowed = sockets.allows(address, purpose);
            Box::pin(std::future::ready(allowed))
        });
    }

    fn allows(&self, address: SocketAddr, purpose: SocketAddrUse) -> bool {
        match purpose {
            // The bind that the system does on its own before a connect.
            SocketAddrUse::TcpBind if address.ip().is_unspecified() && address.port() == 0 => true,
            SocketAddrUse::TcpConnect => self.allows_connect(address),
            _ => {
                self.denials.tell(&self.notes, "listening and UDP are not offered to adapters");
                false
            }
        }
    }

    fn allows_connect(&self, address: SocketAddr) -> bool {
        let (ip, port) = (address.ip().to_canonical(), address.port());
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner).get(&ip).cloned().unwrap_or_default();
        let checked = match names.iter().find(|name| self.policy.check_host(Request::Tcp, name, port).is_ok()) {
            Some(name) => self.policy.check_address(name, ip, port),
            None => {
                let by_address = self.policy.check_host(Request::Tcp, &ip.to_string(), port);
                // The line that grants the name is of more use than the one that grants its address of today.
                by_address.or_else(|denial| names.last().map_or(Err(denial), |name| self.policy.check_host(Request::Tcp, name, port)))
            }
        };
        match checked {
            Ok(()) => true,
            Err(denial) => {
                self.denials.tell(&self.notes, &denial.to_string());
                false
            }
        }
    }

    fn remember(&self, name: &str, address: IpAddr) {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.to_canonical();
        if names.len() >= MAX_ADDRESSES && !names.contains_key(&address) {
            names.clear();
        }
        let names = names.entry(address).or_default();
        names.retain(|known| known != name);
        if names.len() >= MAX_NAMES {
            names.remove(0);
        }
        names.push(name.to_owned());
    }
}

fn address_of(address: IpAddress) -> IpAddr {
    match address {
        IpAddress::Ipv4(octets) => IpAddr::from(<[u8; 4]>::from(octets)),
        IpAddress::Ipv6(segments) => IpAddr::from(<[u16; 8]>::from(segments)),
    }
}

/// Replaces WASI's name look-up, which is all or nothing, by one that checks names.
pub(in crate::plugin) fn add_name_lookup(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    ip_name_lookup::add_to_linker::<State, HasSelf<State>>(linker, |state| state)?;
    linker.allow_shadowing(false);
    Ok(())
}

/// The look-up's errors, converted as WASI's own are.
impl network::Host for State {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        network::Host::convert_error_code(&mut self.sockets(), error)
    }
    fn network_error_code(&mut self, error: Resource<IoError>) -> wasmtime::Result<Option<ErrorCode>> {
        network::Host::network_error_code(&mut self.sockets(), error)
    }
}

impl network::HostNetwork for State {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.sockets(), network)
    }
}

impl Host for State {
    fn resolve_addresses(&mut self, network: Resource<Network>, name: String) -> Result<Resource<ResolveAddressStream>, SocketError> {
        let sockets = self.tcp.clone();
        if let Err(denial) = sockets.policy.check_look_up(Request::Tcp, &name) {
            sockets.denials.tell(&sockets.notes, &denial.to_string());
            return Err(ErrorCode::AccessDenied.into());
        }
        let stream = Host::resolve_addresses(&mut self.sockets(), network, name.clone())?;
        sockets.lookups.lock().unwrap_or_else(PoisonError::into_inner).insert(stream.rep(), name);
        Ok(stream)
    }
}

impl HostResolveAddressStream for State {
    fn resolve_next_address(&mut self, stream: Resource<ResolveAddressStream>) -> Result<Option<IpAddress>, SocketError> {
        let name = self.tcp.lookups.lock().unwrap_or_else(PoisonError::into_inner).get(&stream.rep()).cloned();
        let address = self.sockets().resolve_next_address(stream)?;
        if let (Some(address), Some(name)) = (address, name) {
            self.tcp.remember(&name, address_of(address));
        }
        Ok(address)
    }

    fn subscribe(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<Resource<DynPollable>> {
        self.sockets().subscribe(stream)
    }

    fn drop(&mut self, stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        self.tcp.lookups.lock().unwrap_or_else(PoisonError::into_inner).remove(&stream.rep());
        HostResolveAddressStream::drop(&mut self.sockets(), stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::model::{Grants, HostGrant};
    use crate::plugin::identity::{Identity, Kind};

    fn sockets(hosts: &[(&str, Option<u16>)], networks: &[&str]) -> Sockets {
        let hosts = hosts.iter().map(|(host, port)| HostGrant { host: (*host).into(), port: *port }).collect();
        let networks = networks.iter().map(|network| network.parse().unwrap()).collect();
        let policy = Policy::new("publishers.kafka".into(), Grants { hosts, networks, ..Grants::default() }, vec![Request::Tcp]);
        let denials = Denials::new(Identity { kind: Kind::Publisher, name: "kafka".into(), generation: 1 });
        Sockets::new(Arc::new(policy), Arc::new(denials), Notes::default())
    }

    fn connects(sockets: &Sockets, address: &str) -> bool {
        sockets.allows(address.parse().unwrap(), SocketAddrUse::TcpConnect)
    }

    #[test]
    fn brokers_behind_one_address_are_told_apart_by_their_ports() {
        let sockets = sockets(&[("*.kafka.example.com", Some(9092)), ("proxy.example.com", Some(9093))], &[]);
        for name in ["b1.kafka.example.com", "proxy.example.com", "b2.kafka.example.com"] {
            sockets.remember(name, "93.184.215.14".parse().unwrap());
        }
        assert!(connects(&sockets, "93.184.215.14:9092"));
        assert!(connects(&sockets, "93.184.215.14:9093"));
        assert!(connects(&sockets, "[::ffff:93.184.215.14]:9093"));
        assert!(sockets.notes.text().is_none());
        assert!(!connects(&sockets, "93.184.215.14:9094"));
        let told = sockets.notes.text().unwrap();
        assert!(
            told.starts_with("b2.kafka.example.com:9094 is not granted: set allow_hosts = [") && told.ends_with("under [publishers.kafka]"),
            "{told}"
        );
    }

    #[test]
    fn an_address_that_no_granted_name_had_is_denied_and_a_private_one_needs_its_network() {
        let sockets = sockets(&[("b1.example.com", Some(9092)), ("b2.example.com", Some(9092))], &["10.1.0.0/16"]);
        assert!(!connects(&sockets, "93.184.215.14:9092"));
        sockets.remember("b1.example.com", "10.1.2.3".parse().unwrap());
        sockets.remember("b2.example.com", "10.2.2.3".parse().unwrap());
        assert!(connects(&sockets, "10.1.2.3:9092"));
        assert!(!connects(&sockets, "10.2.2.3:9092"));
        let told = sockets.notes.text().unwrap();
        assert!(told.contains("b2.example.com:9092 is denied: its address 10.2.2.3 is private"), "{told}");
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let sockets = sockets(&[("*.example.com", None)], &[]);
        let address = |number: u32| IpAddr::from(number.to_be_bytes());
        (0..1000).for_each(|number| sockets.remember(&format!("b{number}.example.com"), address(1)));
        (0..10_000).for_each(|number| sockets.remember("b.example.com", address(number)));
        let names = sockets.names.lock().unwrap();
        assert!(names.len() <= MAX_ADDRESSES && names.values().all(|names| names.len() <= MAX_NAMES));
    }
}
