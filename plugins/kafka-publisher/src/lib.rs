//! Publishes outbox messages to Apache Kafka. See the README for the configuration.
//!
//! A call ([`producer`]) is worked off in rounds ([`round`]): messages become record batches ([`topic`], [`partition`], [`forward`],
//! [`record`], [`compression`], put together by [`mod@pack`]), which go to the leaders of their partitions ([`exchange`]), whom the
//! cluster tells ([`cluster`], [`metadata`], [`limits`]). [`connection`] speaks the protocol ([`wire`], [`counts`], [`sasl`]) over a [`transport`]; [`errors`]
//! says what each of Kafka's error codes means; [`ledger`] keeps what became of each message. All of it is plain Rust and runs
//! natively as well; only `component` and its connections, `sandbox`, know that this is a WebAssembly component.

pub mod address;
pub mod cluster;
pub mod compression;
pub mod config;
pub mod connection;
pub mod counts;
pub mod errors;
pub mod exchange;
pub mod forward;
pub mod ledger;
pub mod limits;
pub mod metadata;
pub mod pack;
pub mod partition;
pub mod producer;
pub mod record;
pub mod round;
pub mod sasl;
pub mod topic;
pub mod transport;
pub mod wire;

#[cfg(target_arch = "wasm32")]
mod component;
#[cfg(target_arch = "wasm32")]
mod sandbox;
