//! The routers that the host has built in: subscribers that stand in the configuration ([`list`]), or in a table ([`table`]).
//! Routers that are components are behind the same port in [`crate::plugin`].
//!
//! What an answer holds is checked by whoever asked, wherever it comes from. A failure says which subscriber it is about, and never
//! a URL or a credential.

mod list;
mod resolve;
mod table;

pub(crate) use list::ListRouter;
pub(crate) use resolve::has_type;
pub(crate) use table::TableRouter;
