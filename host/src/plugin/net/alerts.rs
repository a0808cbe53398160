//! What TLS said last on a connection that broke. A server of TLS 1.3 that refuses a client says so after the handshake, when a request may
//! be on its way, and the HTTP client then knows only that the connection is gone; so what was read from it is kept here for a moment.

use crate::tls::faults;
use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;
use tower_service::Service;

/// Destinations of which a fault is kept: more than break at the same moment; past it the oldest goes.
const KEPT: usize = 64;

/// The last fault of TLS of each destination (host and port).
#[derive(Debug, Clone, Default)]
pub(super) struct Alerts(Arc<Mutex<HashMap<String, (Instant, rustls::Error)>>>);

impl Alerts {
    fn keep(&self, target: &str, error: &rustls::Error) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= KEPT && !kept.contains_key(target) {
            let oldest = kept.iter().min_by_key(|(_, (at, _))| *at).map(|(target, _)| target.clone());
            oldest.map(|target| kept.remove(&target));
        }
        kept.insert(target.to_owned(), (Instant::now(), error.clone()));
    }

    /// The fault of this destination, if it came after `start`.
    pub(super) fn take(&self, target: &str, start: Instant) -> Option<rustls::Error> {
        let (at, error) = self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(target)?;
        (at >= start).then_some(error)
    }
}

/// Makes connections with `inner`, and watches what is read from them.
#[derive(Debug, Clone)]
pub(super) struct Watching<C> {
    pub(super) inner: C,
    pub(super) alerts: Alerts,
    /// A destination as [`Alerts::take`] is asked for it.
    pub(super) name: fn(&Uri) -> String,
}

impl<C: Service<Uri>> Service<Uri> for Watching<C>
where
    C::Future: Send + 'static,
{
    type Response = Watched<C::Response>;
    type Error = C::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (alerts, target) = (self.alerts.clone(), (self.name)(&uri));
        let connecting = self.inner.call(uri);
        Box::pin(async move { Ok(Watched { stream: connecting.await?, alerts, target }) })
    }
}

/// A connection whose faults of TLS are kept.
#[derive(Debug)]
pub(super) struct Watched<S> {
    stream: S,
    alerts: Alerts,
    target: String,
}

impl<S: Unpin> Watched<S> {
    fn pinned(&mut self) -> Pin<&mut S> {
        Pin::new(&mut self.stream)
    }

    fn watch<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|error| {
            if let Some(error) = faults::inside(error) {
                self.alerts.keep(&self.target, error);
            }
        })
    }
}

impl<S: Read + Unpin> Read for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        let read = ready!(self.pinned().poll_read(context, into));
        Poll::Ready(self.watch(read))
    }
}

impl<S: Write + Unpin> Write for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.pinned().poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.pinned().poll_write_vectored(context, bytes)
    }
}

impl<S: Connection> Connection for Watched<S> {
    fn connected(&self) -> Connected {
        self.stream.connected()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_counts_once_and_only_for_what_was_asked_before_it() {
        let (alerts, before) = (Alerts::default(), Instant::now());
        let refused = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        alerts.keep("a:443", &refused);
        assert_eq!(alerts.take("b:443", before), None);
        assert_eq!(alerts.take("a:443", before), Some(refused.clone()));
        assert_eq!(alerts.take("a:443", before), None);
        alerts.keep("a:443", &refused);
        assert_eq!(alerts.take("a:443", Instant::now() + std::time::Duration::from_secs(1)), None);
    }

    #[test]
    fn the_oldest_goes_first() {
        let (alerts, before) = (Alerts::default(), Instant::now());
        let refused = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRequired);
        for number in 0..=KEPT {
            alerts.keep(&number.to_string(), &refused);
        }
        assert_eq!(alerts.take("0", before), None);
        assert!(alerts.take("1", before).is_some() && alerts.take(&KEPT.to_string(), before).is_some());
    }
}
