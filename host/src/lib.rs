//! Outhaul: a relay host for the transactional outbox.
//!
//! A tour, in the order in which a message meets the code: [`domain`] holds the words (message, outcome, failure, back-off),
//! [`ports`] the two traits that the pipeline knows (storage and publisher), [`relay`] the pipeline itself, [`fan_out`] what makes one
//! event many deliveries. [`plugin`] implements
//! the ports with WebAssembly components, [`oci`] fetches those from registries, [`sql`] gives those components databases, [`config`]
//! reads the operator's file, [`admin`] shows what is going on, [`scaffold`] begins new adapters, [`cli`] puts it all together.
//! `ARCHITECTURE.md` beside this crate says why.

pub mod admin;
pub mod app;
mod atomic;
pub mod bench;
pub mod cli;
pub mod config;
mod conformance;
pub mod domain;
pub mod fan_out;
mod jsonl;
pub mod logging;
pub mod metrics;
pub mod oci;
pub mod plugin;
pub mod ports;
pub mod relay;
mod router;
pub mod scaffold;
mod secrets;
pub mod sql;
mod tls;
