//! The kit of the suite: everything around the real `outhaul` binary.
//!
//! - [`places`]: where the binary and the components are
//! - [`process`]: a program with captured output, waited for and signalled
//! - [`host`]: `outhaul run`, ready to be killed, stopped and asked for its metrics
//! - [`rig`]: a folder with a database and a configuration, and the command line on it
//! - [`receiver`]: an HTTP server with a scripted mind and a perfect memory
//! - [`examples`]: the components of the examples
//! - [`https`]: the same behind TLS
//! - [`kafka`]: what is in a topic, read by librdkafka and by Kafka's own consumer
//! - [`outbox`]: the producer's side in SQLite, and what the table says
//! - [`postgres`]: the same in PostgreSQL
//! - [`wire`]: the network between the host and its database, and answers that get lost on it
//! - [`ledger`]: holds what was written against what was received
//! - [`chaos`]: the long runs on one database file
//! - [`registry`]: components and what is none, pushed to an OCI registry
//! - [`fan_out`]: one event for many subscribers, on either database
//! - [`components`]: other versions of the adapters, and candidates that must be refused
//! - [`swaps`]: the long run of swaps between two versions of a publisher
//! - [`docs`]: the documentation, held against the program
//! - [`cluster`]: the long run from PostgreSQL to three brokers, with hosts and brokers killed in turn
//! - [`peers`]: what a user would pick instead, measured beside the host
//!
//! Receivers and processes tell when something has happened, so tests wait for that and not for time to pass. Only what gives no
//! signal, a table or a metric, is asked again and again ([`process::poll`]).

pub mod chaos;
pub mod cluster;
pub mod components;
pub mod docs;
pub mod examples;
pub mod fan_out;
pub mod host;
pub mod https;
pub mod kafka;
pub mod ledger;
pub mod outbox;
pub mod peers;
pub mod places;
pub mod postgres;
pub mod process;
pub mod receiver;
pub mod registry;
pub mod rig;
pub mod swaps;
pub mod wire;
