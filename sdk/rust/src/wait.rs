//! Waiting for a WASI resource until a deadline, and the host's errors as those of `std`.

use std::io;
use std::time::Instant;
use wasip2::clocks::monotonic_clock::subscribe_duration;
use wasip2::io::error::Error;
use wasip2::io::poll::{Pollable, poll};

/// Waits until the pollable is ready.
pub(crate) fn wait(pollable: &Pollable, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    let timer = subscribe_duration(u64::try_from(left.as_nanos()).unwrap_or(u64::MAX));
    // Both may be ready: what was waited for has precedence.
    if poll(&[pollable, &timer]).contains(&0) { Ok(()) } else { Err(io::Error::new(io::ErrorKind::TimedOut, "not in time")) }
}

/// What the host says of an error: its first line, without the host's own backtrace.
pub(crate) fn text(error: &Error) -> String {
    error.to_debug_string().lines().next().unwrap_or_default().to_owned()
}

pub(crate) fn stream_error(error: &Error) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, text(error))
}
