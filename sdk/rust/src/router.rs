//! The router side: a trait, and the slot that holds the one opened instance of a component.

use crate::{Batch, Column, Failure};

pub use crate::bindings::router::exports::outhaul::adapter::router::{Inquiry, Subscription};

/// A router adapter: says who subscribes to what. The calls are described in `wit/fan-out.wit`.
///
/// The host asks with [`Router::expand`] once for a batch of events, and with [`Router::current`] before each attempt of a delivery,
/// where it sends only if every field is as it was. So a subscription that has not changed must be answered the same each time.
pub trait Router: Sized {
    /// Reads the configuration (the adapter's TOML table, as JSON). Must not depend on anything else being up.
    ///
    /// # Errors
    /// `invalid-configuration`, naming the key.
    fn open(config: &str) -> Result<Self, Failure>;

    /// The active subscribers of each event's tenant that want it: as many answers as events, in their order, all as of one moment.
    /// `tenants` has one value an event; empty text: there are no tenants.
    fn expand(&mut self, events: &Batch, tenants: &Column) -> Vec<Result<Vec<Subscription>, Failure>>;

    /// Each subscription as it is now; none: it is gone, inactive, or does not want the topic any more. As many answers as inquiries,
    /// in their order.
    fn current(&mut self, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>>;
}

/// Holds the opened instance.
#[derive(Debug)]
pub struct RouterSlot<R>(std::cell::RefCell<Option<R>>);

impl<R: Router> RouterSlot<R> {
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
        let opened = R::open(config)?;
        *self.0.borrow_mut() = Some(opened);
        Ok(())
    }

    /// Expands.
    pub fn expand(&self, events: &Batch, tenants: &Column) -> Vec<Result<Vec<Subscription>, Failure>> {
        match self.0.borrow_mut().as_mut() {
            Some(router) => router.expand(events, tenants),
            None => vec![Err(not_open()); events.len()],
        }
    }

    /// Looks subscriptions up.
    pub fn current(&self, inquiries: &[Inquiry]) -> Vec<Result<Option<Subscription>, Failure>> {
        match self.0.borrow_mut().as_mut() {
            Some(router) => router.current(inquiries),
            None => vec![Err(not_open()); inquiries.len()],
        }
    }
}

fn not_open() -> Failure {
    Failure::invalid_configuration("the router was called before open")
}

impl<R: Router> Default for RouterSlot<R> {
    fn default() -> Self {
        Self::new()
    }
}

/// Exports a [`Router`] from the component. Once a crate. Natively it is nothing: there the adapter is a plain type.
#[macro_export]
macro_rules! export_router {
    ($router:ty) => {
        #[cfg(target_arch = "wasm32")]
        #[allow(unsafe_code)]
        const _: () = {
            use ::core::{option::Option as O, result::Result as R};
            use ::std::{string::String, vec::Vec};
            thread_local! {
                static SLOT: $crate::macros::RouterSlot<$router> = const { $crate::macros::RouterSlot::new() };
            }
            struct Exported;
            impl $crate::bindings::router::exports::outhaul::adapter::router::Guest for Exported {
                fn open(config: String) -> R<(), $crate::Failure> {
                    SLOT.with(|slot| slot.open(&config))
                }
                fn expand(events: $crate::Batch, tenants: $crate::Column) -> Vec<R<Vec<$crate::Subscription>, $crate::Failure>> {
                    SLOT.with(|slot| slot.expand(&events, &tenants))
                }
                fn current(inquiries: Vec<$crate::Inquiry>) -> Vec<R<O<$crate::Subscription>, $crate::Failure>> {
                    SLOT.with(|slot| slot.current(&inquiries))
                }
            }
    $crate::bindings::router::export_router_world!(Exported with_types_in $crate::bindings::router);
        };
    };
}
