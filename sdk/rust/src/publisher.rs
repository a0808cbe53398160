//! The publisher side: a trait, and the slot that holds the one opened instance of a component.

use crate::{Batch, Failure, Outcome};
use std::time::Duration;

/// A publisher adapter.
pub trait Publisher: Sized {
    /// Reads the configuration (the adapter's TOML table, as JSON). Does not connect.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    fn open(config: &str) -> Result<Self, Failure>;

    /// Sends a batch within `deadline`: as many outcomes as messages, in their order.
    fn publish(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome>;
}

/// Holds the opened instance.
#[derive(Debug)]
pub struct PublisherSlot<P>(std::cell::RefCell<Option<P>>);

impl<P: Publisher> PublisherSlot<P> {
    /// An empty slot.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::cell::RefCell::new(None))
    }

    /// Opens.
    ///
    /// # Errors
    /// Those of the adapter.
    pub fn open(&self, config: &str) -> Result<(), Failure> {
        let opened = P::open(config)?;
        *self.0.borrow_mut() = Some(opened);
        Ok(())
    }

    /// Publishes.
    pub fn publish(&self, batch: &Batch, deadline_ms: u64) -> Vec<Outcome> {
        match self.0.borrow_mut().as_mut() {
            Some(publisher) => publisher.publish(batch, Duration::from_millis(deadline_ms)),
            None => {
                let failure = Failure::invalid_configuration("publish was called before open");
                batch.messages().map(|_| Outcome::Retry(failure.clone())).collect()
            }
        }
    }
}

impl<P: Publisher> Default for PublisherSlot<P> {
    fn default() -> Self {
        Self::new()
    }
}

/// Exports a [`Publisher`] from the component. Once a crate. Natively it is nothing: there the adapter is a plain type.
#[macro_export]
macro_rules! export_publisher {
    ($publisher:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            thread_local! {
                static SLOT: $crate::macros::PublisherSlot<$publisher> = const { $crate::macros::PublisherSlot::new() };
            }
            struct Exported;
            impl $crate::bindings::publisher::exports::outhaul::adapter::publisher::Guest for Exported {
                fn open(config: ::std::string::String) -> ::core::result::Result<(), $crate::Failure> {
                    SLOT.with(|slot| slot.open(&config))
                }
                fn publish(batch: $crate::Batch, deadline_ms: u64) -> ::std::vec::Vec<$crate::Outcome> {
                    SLOT.with(|slot| slot.publish(&batch, deadline_ms))
                }
            }
    $crate::bindings::publisher::export_publisher_world!(Exported with_types_in $crate::bindings::publisher);
        };
    };
}
