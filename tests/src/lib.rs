//! The kit of the suite: everything around the real `outhaul` binary.
//!
//! - [`places`]: where the binary and the components are
//! - [`process`]: a program with captured output, waited for and signalled
//! - [`host`]: `outhaul run`, ready to be killed, stopped and asked for its metrics
//! - [`rig`]: a folder with a database and a configuration, and the command line on it
//! - [`receiver`]: an HTTP server with a scripted mind and a perfect memory
//! - [`https`]: the same behind TLS
//! - [`outbox`]: the producer's side, and what the table says
//! - [`ledger`]: holds what was written against what was received
//! - [`chaos`]: the long runs
//!
//! Receivers and processes tell when something has happened, so tests wait for that and not for time to pass. Only what gives no
//! signal, a table or a metric, is asked again and again ([`process::poll`]).

pub mod chaos;
pub mod host;
pub mod https;
pub mod ledger;
pub mod outbox;
pub mod places;
pub mod process;
pub mod receiver;
pub mod rig;
