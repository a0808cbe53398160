//! The storage on a real PostgreSQL 17, natively: the same code as in the component.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests stop at the first surprise; clippy takes functions beside the tests for something else"
)]

mod suite;

const MAJOR: outhaul_services::Major = outhaul_services::Major::V17;
