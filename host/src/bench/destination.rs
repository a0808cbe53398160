//! A destination of the bench's own: an HTTP server in a child process, so that what it costs is not counted with the relay.
//!
//! It says where it listens on its first line, and ends when its standard input does: with the bench, however that ends.

use super::plan::Answers;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

/// The command of the child.
pub(crate) const COMMAND: &str = "bench-destination";

/// For the child to say where it listens.
const PATIENCE: Duration = Duration::from_secs(10);

/// The child. Ends when dropped.
pub(super) struct Destination {
    address: SocketAddr,
    /// Its standard input is open as long as this lives.
    _child: Child,
}

impl Destination {
    /// Starts it.
    pub(super) async fn start(answers: Answers) -> io::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(COMMAND).arg("--delay").arg(humantime::format_duration(answers.delay).to_string());
        command.arg("--failing").arg(answers.failing.to_string());
        // A signal from the terminal is the bench's: it ends its relay first.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).process_group(0);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no output"))?;
        let mut line = String::new();
        let mut output = BufReader::new(output);
        let read = tokio::time::timeout(PATIENCE, output.read_line(&mut line));
        read.await.map_err(|_| io::Error::other("it does not say where it listens"))??;
        let address = line.trim().parse().map_err(|_| io::Error::other("it does not say where it listens"))?;
        Ok(Self { address, _child: child })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// The child's part: says where it listens, and answers until its standard input ends.
///
/// # Errors
/// It cannot listen.
pub(crate) async fn serve(answers: Answers, say: impl FnOnce(SocketAddr)) -> io::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    say(listener.local_addr()?);
    let parent = tokio::task::spawn_blocking(|| io::copy(&mut io::stdin().lock(), &mut io::sink()));
    let requests = Arc::new(AtomicU64::new(0));
    let mut connections = JoinSet::new();
    let accepting = async {
        loop {
            tokio::select! {
                accepted = listener.accept() => {
                    // A connection that is gone before it was accepted is the other side's affair.
                    if let Ok((stream, _)) = accepted {
                        connections.spawn(connection(stream, answers, Arc::clone(&requests)));
                    }
                }
                Some(_) = connections.join_next() => {}
            }
        }
    };
    tokio::select! {
        // Whatever it ended with.
        _ = parent => Ok(()),
        () = accepting => Ok(()),
    }
}

async fn connection(stream: TcpStream, answers: Answers, requests: Arc<AtomicU64>) {
    // Answers are small: each goes out at once.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request: Request<Incoming>| {
        let requests = Arc::clone(&requests);
        async move {
            let mut body = request.into_body();
            // To its end, or the connection cannot be used again.
            while !body.is_end_stream() && body.frame().await.is_some_and(|frame| frame.is_ok()) {}
            tokio::time::sleep(answers.delay).await;
            let mut response = Response::new(Empty::<Bytes>::new());
            *response.status_mut() = match fails(requests.fetch_add(1, Ordering::Relaxed), answers.failing) {
                true => StatusCode::SERVICE_UNAVAILABLE,
                false => StatusCode::NO_CONTENT,
            };
            Ok::<_, Infallible>(response)
        }
    });
    // How a connection ends is seen by the publisher.
    let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

/// Whether request `number` fails: so many of each hundred, and never many in a row.
fn fails(number: u64, percent: u8) -> bool {
    // 37 has no factor in common with 100: each remainder comes once in a hundred.
    number.wrapping_mul(37) % 100 < u64::from(percent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_of_each_hundred_fail_as_were_asked_for() {
        for percent in [0, 1, 10, 50, 99, 100] {
            let failing = (700..800).filter(|number| fails(*number, percent)).count();
            assert_eq!(failing, usize::from(percent));
        }
        let in_a_row = (0..100).filter(|number| fails(*number, 10) && fails(number + 1, 10)).count();
        assert_eq!(in_a_row, 0);
    }
}
