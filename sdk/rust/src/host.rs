//! What the host offers to every adapter: its log, early outcomes, secrets. Natively there is no host: [`crate::testing`] stands in.

/// The host's log.
pub mod log {
    pub use crate::bindings::publisher::outhaul::adapter::log::Level;

    /// Writes a line. A flood is cut by the host, and the number of lines dropped is logged.
    pub fn write(level: Level, text: &str, fields: &[(String, String)]) {
        #[cfg(target_arch = "wasm32")]
        crate::bindings::publisher::outhaul::adapter::log::write(level, text, fields);
        #[cfg(not(target_arch = "wasm32"))]
        crate::testing::host::write(level, text, fields);
    }
}

/// Outcomes that the host learns before `publish` returns.
pub mod progress {
    use crate::Outcome;

    /// Reports the outcome of message `index` of the batch that is being published. The first report of a message stands; the list
    /// that `publish` returns must have an entry for it all the same.
    pub fn report(index: u32, outcome: &Outcome) {
        #[cfg(target_arch = "wasm32")]
        crate::bindings::publisher::outhaul::adapter::progress::report(index, outcome);
        #[cfg(not(target_arch = "wasm32"))]
        crate::testing::host::report(index, outcome);
    }
}

/// Secrets that the operator has granted.
pub mod secrets {
    /// The value of a secret, read afresh at each call. None: not granted, or not set; the host's log says which, and the line to add.
    #[must_use]
    pub fn get(name: &str) -> Option<String> {
        #[cfg(target_arch = "wasm32")]
        return crate::bindings::publisher::outhaul::adapter::secrets::get(name);
        #[cfg(not(target_arch = "wasm32"))]
        crate::testing::host::secret(name)
    }
}
