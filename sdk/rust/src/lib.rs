//! Write outhaul adapters in Rust: an adapter is a struct, a trait and one macro.
//!
//! ```ignore
//! struct Printer;
//! impl outhaul_sdk::Publisher for Printer {
//!     fn open(_config: &str) -> Result<Self, outhaul_sdk::Failure> { Ok(Self) }
//!     fn publish(&mut self, batch: &outhaul_sdk::Batch, _deadline: std::time::Duration) -> Vec<outhaul_sdk::Outcome> {
//!         batch.messages().map(|_message| outhaul_sdk::Outcome::Delivered).collect()
//!     }
//! }
//! outhaul_sdk::export_publisher!(Printer);
//! outhaul_sdk::manifest!("../manifest.toml"); // its name, its version, and what it asks to be granted
//! ```
//!
//! A storage is the trait `Storage` and `export_storage!(T)`, or, for the least that works, `MinimalStorage` and
//! `export_storage!(T: minimal)`.
//!
//! An adapter reaches what the operator grants with what Rust has for it: TCP with `std::net` (names with `outhaul_sdk::net::resolve`,
//! which keeps a deadline), HTTP with the crate `wasip2`. What a stream still holds when it is dropped is not sent. TLS over
//! TCP, which `std` does not have, is `outhaul_sdk::tls::TlsStream` (on the WebAssembly target only): the host does the handshake and
//! keeps the keys.
//!
//! The types are those of `wit/`; they are plain data and work natively too. So an adapter is tested without a sandbox:
//! `outhaul_sdk::testing` (natively only) opens it, calls it as the host does, and says where it breaks the contract.

mod batch;
#[allow(missing_docs, unsafe_code, unreachable_pub, clippy::all, reason = "generated")]
pub mod bindings;
mod config;
pub mod database;
mod export;
mod failure;
mod fan_out;
mod host;
mod key_order;
mod manifest;
#[cfg(target_arch = "wasm32")]
pub mod net;
pub mod pattern;
mod publisher;
mod router;
mod storage;
pub mod template;
#[cfg(not(target_arch = "wasm32"))]
pub mod testing;
#[cfg(target_arch = "wasm32")]
pub mod tls;
#[cfg(target_arch = "wasm32")]
mod wait;

pub use batch::{Destination, Message, NewMessage};
pub use bindings::publisher::outhaul::adapter::outbox;
pub use bindings::storage::outhaul::adapter::sql;
pub use config::{Size, parse_config, parse_duration};
pub use fan_out::{
    Delivery, DeliveryCounts, DeliveryFilter, DeliveryPage, DeliverySettlement, DeliveryState, DeliveryVerdict, Events, Expansion,
    FanOutStorage, Reemitted, SealedPage, StatusChange, Subject,
};
pub use host::{log, progress, secrets};
pub use key_order::run_in_key_order;
pub use outbox::{Batch, Column, Destinations, Failure, FailureCode, Outcome};
pub use publisher::Publisher;
pub use router::{Inquiry, Router, Subscription};
pub use storage::{
    ClaimRequest, Claimed, Counts, Description, Filter, MinimalStorage, NotificationSource, Page, Refusal, Retry, Row, RowState,
    Settlement, Storage, Turn, Verdict, WakeSource,
};

#[doc(hidden)]
pub mod macros {
    //! What the export macros expand to.
    pub use crate::publisher::PublisherSlot;
    pub use crate::router::RouterSlot;
    pub use crate::storage::StorageSlot;
}
