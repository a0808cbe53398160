//! The storage on real SQLite files, natively: the same code as in the component.

mod own_table;
mod support;
