//! What the storages share of fan-out: names of tables and columns, which code a failure is, the deliveries' table described like an
//! outbox, taking turns, what must not or may happen
//! again, and rows into what the calls return.

mod again;
mod code;
mod rows;
mod table;
mod turns;

pub use again::{given_out_again, only_quarantined};
pub use code::{LEASE_EXPIRED, code_of, deliveries_reasons, detail, integrity, undecodable};
pub use rows::{Counted, Listed, Logged, delivery_values};
pub use table::{Kind, ROUTING, Routing, Tables, deliveries, headers};
pub use turns::{Listing, MOST_TENANTS, Turns, share};
