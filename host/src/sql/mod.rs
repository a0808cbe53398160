//! The `sql` capability: databases by name, for adapters that hold nothing but SQL.

mod error;
mod types;

pub use error::{SqlError, SqlErrorCode};
pub use types::{Access, Bounds, ColumnType, Dialect, Rows, Statement, Value, Values};
