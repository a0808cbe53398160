//! An outbox in PostgreSQL, as a storage adapter of outhaul.
//!
//! [`Outbox`] is the storage, generic over the database, so that the same code runs natively in tests and benchmarks; `component` is
//! the glue to the sandbox. The other parts: `inspect` (what the database says of the table), `layout` (that, checked against the
//! configuration), `ops`, `names` and `time` (SQL that means the same in every database), `statements`, `lock` and `walk` (SQL text),
//! `claim`, `take`, `settle` and `admin` (the calls), `schema` (DDL); `fan_out` (deliveries of events).

mod admin;
mod claim;
#[cfg(target_arch = "wasm32")]
mod component;
mod fan_out;
mod inspect;
mod layout;
mod lock;
mod names;
mod ops;
mod outbox;
mod schema;
mod settle;
mod statements;
mod take;
mod time;
mod walk;

pub use outbox::Outbox;
