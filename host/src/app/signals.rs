//! Signals: the first SIGTERM or SIGINT asks for a graceful end, the second ends at once; SIGHUP looks for work now, and for what has
//! changed in the configuration and the components.

use crate::relay::Shutdown;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::Notify;

/// The handlers, installed: from here on no signal ends the process by itself.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// The operating system refuses.
    pub(super) fn install() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Acts on signals until the forced end. SIGHUP notifies `hangup`, all of them; `grace` is how long the graceful end may take, however it was asked for.
    pub(super) async fn watch(mut self, shutdown: Shutdown, hangup: Vec<Arc<Notify>>, grace: Duration) {
        loop {
            tokio::select! {
                () = shutdown.graceful.cancelled() => break,
                _ = self.terminate.recv() => asked("SIGTERM", &shutdown),
                _ = self.interrupt.recv() => asked("SIGINT", &shutdown),
                _ = self.hangup.recv() => hangup.iter().for_each(|each| each.notify_one()),
            }
        }
        let deadline = tokio::time::sleep(grace);
        tokio::select! {
            () = deadline => tracing::warn!(grace = %humantime::format_duration(grace), "shutdown_grace is over: ending at once, leases run out by themselves"),
            _ = self.terminate.recv() => tracing::warn!("second signal: ending at once, leases run out by themselves"),
            _ = self.interrupt.recv() => tracing::warn!("second signal: ending at once, leases run out by themselves"),
        }
        shutdown.forced.cancel();
    }
}

fn asked(signal: &str, shutdown: &Shutdown) {
    // First: an idle process is gone before the next line.
    tracing::info!(signal, "finishing what is in flight; a second signal ends at once");
    shutdown.graceful.cancel();
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal as Raise, getpid, kill_process};

    /// Longest wait for what must come at once.
    const SOON: Duration = Duration::from_secs(10);

    // One test: signals reach every handler of the process.
    #[tokio::test]
    async fn hangup_wakes_the_first_signal_is_graceful_and_the_second_is_not() {
        let (shutdown, wake) = (Shutdown::default(), Arc::new(Notify::new()));
        let signals = Signals::install().unwrap();
        let watching = tokio::spawn(signals.watch(shutdown.clone(), vec![Arc::clone(&wake)], Duration::from_secs(3600)));
        kill_process(getpid(), Raise::HUP).unwrap();
        tokio::time::timeout(SOON, wake.notified()).await.expect("SIGHUP woke nobody");
        assert!(!shutdown.graceful.is_cancelled());
        kill_process(getpid(), Raise::TERM).unwrap();
        tokio::time::timeout(SOON, shutdown.graceful.cancelled()).await.expect("SIGTERM was not heard");
        assert!(!shutdown.forced.is_cancelled());
        kill_process(getpid(), Raise::INT).unwrap();
        tokio::time::timeout(SOON, shutdown.forced.cancelled()).await.expect("the second signal was not heard");
        watching.await.unwrap();
    }

    #[tokio::test]
    async fn the_grace_ends() {
        let shutdown = Shutdown::default();
        shutdown.graceful.cancel();
        let signals = Signals::install().unwrap();
        tokio::time::timeout(SOON, signals.watch(shutdown.clone(), Vec::new(), Duration::ZERO)).await.expect("it never ends");
        assert!(shutdown.forced.is_cancelled());
    }
}
