//! The network, as adapters see it: HTTP through a pooled client, TCP through sockets, both within the grants.

pub(super) mod http;
pub(super) mod sockets;
