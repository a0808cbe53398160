//! The network, as adapters see it: HTTP through a pooled client, TCP through sockets, TLS over either, all within the grants.

mod alerts;
pub(super) mod http;
pub(super) mod requests;
pub(super) mod sockets;
pub(super) mod streams;
pub(super) mod tls;
