//! The fan-outs of a running process, as the admin address finds them: by relay, in whatever generation their storages are now.

use super::adapters::Adapters;
use crate::admin::{Absent, FanOutOf, FanOuts};

impl FanOuts for Adapters {
    fn of(&self, relay: &str) -> Result<FanOutOf, Absent> {
        if !self.runs(relay) {
            return Err(Absent::NoRelay);
        }
        let config = self.config();
        let relay = config.relays.iter().find(|known| known.name == relay).ok_or(Absent::NoRelay)?;
        let fan_out = relay.fan_out.as_ref().ok_or(Absent::NoFanOut)?;
        let admin = self.open_storage(&relay.storage).ok_or(Absent::NotOpen)?;
        Ok(FanOutOf { tenant: fan_out.tenant.clone(), admin })
    }
}
