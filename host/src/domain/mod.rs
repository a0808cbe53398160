//! The words of the field, and the arithmetic that goes with them. Pure: no I/O, no clock, no randomness of its own.

pub mod backoff;
pub mod batch;
pub mod column;
pub mod failure;
pub mod outcome;
pub mod text;

pub use backoff::Backoff;
pub use batch::{Batch, BatchFault, Destinations, Message, NewMessage};
pub use column::{Column, ColumnFault};
pub use failure::{Failure, FailureCode};
pub use outcome::{Outcome, Settlement, Verdict};
