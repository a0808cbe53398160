//! The component: what the host calls, and what it offers.

use crate::{Settings, headers, outcome, post};
use outhaul_sdk::{Batch, Failure, Message, Outcome, Publisher, log, progress, run_in_key_order};
use std::time::Duration;

struct HttpRust(Settings);

impl Publisher for HttpRust {
    fn open(config: &str) -> Result<Self, Failure> {
        let settings = Settings::parse(config)?;
        let fields = [("destination".to_owned(), settings.authority.clone())];
        log::write(log::Level::Info, "http-rust is open", &fields);
        Ok(Self(settings))
    }

    fn publish(&mut self, batch: &Batch, deadline: Duration) -> Vec<Outcome> {
        let report = |index, outcome: &Outcome| {
            // An index comes from a batch whose columns are counted in 32 bits.
            if let Ok(index) = u32::try_from(index) {
                progress::report(index, outcome);
            }
        };
        let outcomes = run_in_key_order(batch, deadline, report, |message, left| self.send(message, left));
        let open = outcomes.iter().filter(|outcome| **outcome != Outcome::Delivered).count();
        if open > 0 {
            log::write(log::Level::Warn, "not all messages were delivered", &[("open".to_owned(), open.to_string())]);
        }
        outcomes
    }
}

impl HttpRust {
    fn send(&self, message: Message<'_>, left: Duration) -> Outcome {
        let timeout = self.0.timeout.min(left);
        match post::post(&self.0, &headers(message), message.payload().unwrap_or_default(), timeout) {
            Ok(answer) => outcome(&self.0, answer.status, answer.retry_after.as_deref()),
            Err(failed) => failed,
        }
    }
}

outhaul_sdk::export_publisher!(HttpRust);
outhaul_sdk::manifest!("../manifest.toml");
