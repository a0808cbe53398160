//! When a configuration that was refused is tried again, without its file changing: where something that it depends on was mended in
//! place, and, for what may pass, after a while.

use super::adapters::next_wait;
use super::around::Around;
use crate::config::Config;
use crate::plugin::STILL;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A configuration that was refused.
pub(super) struct SecondTry {
    /// What was refused.
    pub(super) config: Arc<Config>,
    pub(super) reason: String,
    /// What it met.
    around: Around,
    /// What there is instead, and since when: it may still be being written.
    seen: Option<(Around, Instant)>,
    /// For what may pass.
    again: Option<Instant>,
    /// How long is waited for that.
    pub(super) wait: Duration,
}

/// When to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// To be looked at again so soon.
    In(Duration),
    /// When something changes.
    Open,
}

impl SecondTry {
    /// Of what was refused now, for a reason that may pass or not. `waited`: before this try; none: it was the first.
    pub(super) fn new(config: Arc<Config>, around: Around, reason: String, may_pass: bool, waited: Option<Duration>) -> Self {
        let wait = next_wait(waited);
        let again = may_pass.then(|| Instant::now() + wait);
        Self { config, reason, around, seen: None, again, wait }
    }

    /// After a try that has found no configuration to try: the file was being replaced.
    pub(super) fn put_off(self) -> Self {
        let again = self.again.map(|_| Instant::now() + self.wait);
        Self { seen: None, again, ..self }
    }

    /// Whether things are as they were then: a try is for what may pass.
    pub(super) fn has_met(&self, around: &Around) -> bool {
        self.around == *around
    }

    /// With things as they are now.
    pub(super) fn due(&mut self, around: Around) -> Due {
        let now = Instant::now();
        if self.has_met(&around) {
            self.seen = None;
            return self.again.map_or(Due::Open, |again| due_in(again.saturating_duration_since(now)));
        }
        let since = match self.seen.take() {
            Some((seen, since)) if seen == around => since,
            _ => now,
        };
        self.seen = Some((around, since));
        due_in(STILL.saturating_sub(now.saturating_duration_since(since)))
    }
}

fn due_in(left: Duration) -> Due {
    if left.is_zero() { Due::Now } else { Due::In(left) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    const CONFIG: &str = "secrets.key.file = 'key'\npublishers.p = { plugin = 'x', allow_secrets = ['key'] }";

    #[tokio::test(start_paused = true)]
    async fn what_is_mended_is_tried_once_it_stands_still_and_what_may_pass_after_a_while() {
        let folder = tempfile::tempdir().unwrap();
        let config = Arc::new(parse(CONFIG, &folder.path().join("outhaul.toml")).unwrap());
        let missing = Around::of_all(&config).await;
        let refused = |may_pass, waited| SecondTry::new(Arc::clone(&config), missing.clone(), "why".to_owned(), may_pass, waited);

        let mut lasting = refused(false, None);
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(lasting.due(missing.clone()), Due::Open);
        std::fs::write(folder.path().join("key"), "half").unwrap();
        let half = Around::of_all(&config).await;
        assert_eq!(lasting.due(half.clone()), Due::In(STILL));
        tokio::time::advance(STILL - Duration::from_millis(1)).await;
        assert_eq!(lasting.due(half), Due::In(Duration::from_millis(1)));
        std::fs::write(folder.path().join("key"), "the whole").unwrap();
        let whole = Around::of_all(&config).await;
        assert_eq!(lasting.due(whole.clone()), Due::In(STILL), "it was written to in between");
        tokio::time::advance(STILL).await;
        assert_eq!(lasting.due(whole), Due::Now);

        let mut passing = refused(true, None);
        assert_eq!((passing.due(missing.clone()), passing.wait), (Due::In(Duration::from_secs(5)), Duration::from_secs(5)));
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!(passing.due(missing.clone()), Due::Now);
        let mut passing = passing.put_off();
        assert_eq!(passing.due(missing.clone()), Due::In(Duration::from_secs(5)));
        let again = |passing: &SecondTry| refused(true, Some(passing.wait)).wait;
        assert_eq!(again(&passing), Duration::from_secs(10));
        assert_eq!(refused(true, Some(Duration::from_secs(300))).wait, Duration::from_secs(300));
    }
}
