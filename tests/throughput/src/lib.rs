//! What the programs of this crate share: the host's own databases, for adapters that run as plain Rust.
//!
//! - [`database`]: the host's `sql` capability behind the trait of storage code
//! - [`convert`]: the host's words and the guest's

pub mod convert;
pub mod database;
