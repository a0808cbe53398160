//! Set-up, builds and checks in one place.
fn main() {}
