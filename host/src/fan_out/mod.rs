//! Fan-out: one event, a delivery for each of its subscribers, each with its own lease, attempts and end.
//!
//! ```text
//!   events ---claim---> Expander --asks--> router          deliveries ---claim---> Deliverer --asks--> router
//!                          | seals                                                    | opens
//!                          +--expand--> storage (deliveries in, event done)           +--> publisher --> endpoint
//! ```
//! Both halves run in a pipeline of their own ([`crate::relay`]) over one storage. What is stored of a delivery is an [`envelope`] and the
//! routing columns that it is bound to ([`binding`]); nobody but the host can open it ([`keys`]).

mod answers;
mod asking;
pub mod binding;
mod code;
mod deliverer;
mod delivery_storage;
pub mod envelope;
mod event_storage;
mod expander;
pub mod given;
mod halves;
pub mod keys;
mod lengths;
mod paces;
mod tally;
#[cfg(test)]
mod tests;

pub use binding::Binding;
pub use code::Code;
pub use deliverer::Deliverer;
pub use delivery_storage::DeliveryStorage;
pub use event_storage::EventStorage;
pub use expander::Expander;
pub use halves::{of_deliveries, of_events};
pub use paces::Paces;
