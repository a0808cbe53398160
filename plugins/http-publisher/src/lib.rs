//! Publishes outbox messages as HTTP requests. See the README for the configuration.
//!
//! A message becomes a request ([`request`]: [`endpoint`], [`destination`], [`forward`], [`cloudevents`], [`sign`]); [`schedule`] says
//! which may start, [`publish`] runs them within the call's deadline, [`response`] says what an answer means. All of that is plain Rust
//! and is tested natively; only `component` and `transport` know that this is a WebAssembly component.

pub mod cloudevents;
pub mod config;
pub mod destination;
pub mod endpoint;
pub mod forward;
pub mod header;
pub mod publish;
pub mod request;
pub mod response;
pub mod schedule;
pub mod sign;
#[cfg(test)]
mod testing;

#[cfg(target_arch = "wasm32")]
mod component;
#[cfg(target_arch = "wasm32")]
mod transport;
