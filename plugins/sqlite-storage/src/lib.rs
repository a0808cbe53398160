//! An outbox in SQLite, as a storage adapter of outhaul.
//!
//! [`Outbox`] is the storage, generic over the database, so that the same code runs natively in tests and benchmarks; `component` is
//! the glue to the sandbox. The other parts: `inspect` (what the database says of the table), `layout` (that, checked against the
//! configuration), `time`, `statements`, `walk` and `plan` (SQL text and the indexes that it names), `search`, `claim`, `settle` and `admin`
//! (the calls), `schema` (DDL), `fan_out` (deliveries and what is beside them).

mod admin;
mod claim;
#[cfg(all(target_arch = "wasm32", feature = "component"))]
mod component;
mod fan_out;
mod inspect;
mod layout;
mod outbox;
mod plan;
mod schema;
mod search;
mod settle;
mod statements;
mod time;
mod walk;

pub use outbox::Outbox;
