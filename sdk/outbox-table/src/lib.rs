//! What the SQL storages of outhaul share, free of any one dialect and of the sandbox.
//!
//! - [`config`]: how a table is laid out, read from the operator's file and checked.
//! - [`ident`]: names from outside, quoted part by part.
//! - [`template`]: statement text built once, filled at each call.
//! - [`search`], [`choose`], [`window`]: which rows a claim takes, and how far it looks for them.
//! - [`ids`], [`decode`], [`headers`]: rows into a batch.
//! - [`settle`]: verdicts into statements.
//! - [`insert`], [`page`]: what the command line needs.
//! - [`fan_out`]: deliveries, which are claimed and settled like an outbox, and what is beside them.
//!
//! Of the SDK: [`database`], the `sql` capability as a trait, so that a storage also runs natively; [`failure`], what is written into
//! `last_error`, and which failure a database error is.

pub mod choose;
pub mod config;
pub mod decode;
pub mod fan_out;
pub mod headers;
pub mod ident;
pub mod ids;
pub mod insert;
pub mod page;
pub mod random;
pub mod search;
pub mod settle;
pub mod template;
pub mod window;

pub use outhaul_sdk::database;
pub use outhaul_sdk::database::failure;
