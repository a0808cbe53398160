//! Outhaul.
fn main() {}
