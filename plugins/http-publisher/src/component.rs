//! The component: what the host calls, and what it offers.

use crate::config::Settings;
use crate::publish::{Surroundings, publish};
use crate::transport::WasiTransport;
use outhaul_sdk::{Batch, Failure, Outcome, Publisher, log, progress, secrets};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

/// Names of skipped headers that are logged: once each, and not without end where names are made up.
const MAX_LOGGED_HEADERS: usize = 100;

struct HttpPublisher {
    settings: Settings,
    logged_headers: RefCell<BTreeSet<String>>,
}

impl Publisher for HttpPublisher {
    fn open(config: &str) -> Result<Self, Failure> {
        let settings = Settings::parse(config)?;
        settings.check_secrets(secrets::get)?;
        Ok(Self { settings, logged_headers: RefCell::default() })
    }

    fn publish(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
        let mut transport = WasiTransport::new(self.settings.max_response_bytes, self.settings.concurrency);
        let outcomes = publish(&self.settings, batch, deadline, self, &mut transport);
        transport.finish();
        outcomes
    }
}

impl Surroundings for HttpPublisher {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn secret(&self, name: &str) -> Option<String> {
        secrets::get(name)
    }

    fn report(&self, index: usize, outcome: &Outcome) {
        // An index comes from a batch whose columns are counted in 32 bits.
        if let Ok(index) = u32::try_from(index) {
            progress::report(index, outcome);
        }
    }

    fn skipped_header(&self, name: &str, reason: &str) {
        let mut logged = self.logged_headers.borrow_mut();
        if logged.len() < MAX_LOGGED_HEADERS && logged.insert(name.to_owned()) {
            let fields = [("header".to_owned(), name.to_owned()), ("reason".to_owned(), reason.to_owned())];
            log::write(log::Level::Warn, "a header of a message was left out of its request (said once for each name)", &fields);
        }
    }
}

outhaul_sdk::export_publisher!(HttpPublisher);
outhaul_sdk::manifest!("../manifest.toml");
