//! Calls an adapter natively, as the host would: no sandbox, and the debugger of your choice.
//!
//! ```ignore
//! let mut bench = PublisherBench::<MyPublisher>::open(r#"{"url":"http://h.example/"}"#)?;
//! let published = bench.publish(&[NewMessage { id: "1", topic: "orders", ..NewMessage::default() }], Duration::from_secs(10))?;
//! assert_eq!(published.outcomes, [Outcome::Delivered]);
//! ```
//!
//! What a call returns is held against the contract of `wit/`; where it is broken, the call is an error that says how. What
//! an adapter says to the host (its log, early outcomes) is kept, and its secrets are those of [`set_secret`]; all of it belongs to
//! the thread, so tests do not disturb each other. `outhaul plugin test` holds the finished component against the whole contract.
//!
//! Storages run on `Sqlite` (feature `sqlite`), a database that does what `interface sql` says.

pub(crate) mod host;
mod publisher;
mod router;
#[cfg(feature = "sqlite")]
mod sqlite;
mod storage;

pub use host::{Line, set_secret, take_log};
pub use publisher::{Published, PublisherBench, PublisherFault};
pub use router::{RouterBench, RouterFault};
#[cfg(feature = "sqlite")]
pub use sqlite::{OpenTransaction, Sqlite, last_statement};
pub use storage::{StorageBench, StorageFault, claim_request, dead, ids, retry, settlement};
