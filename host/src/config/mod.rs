//! The operator's file, read into a checked configuration.

pub mod model;

pub use model::Config;
