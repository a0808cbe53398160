//! The network between the host and its database, and what it can do to an answer: a TCP proxy in front of PostgreSQL. Connections must
//! be without TLS, so that it can read along.

use crate::process::poll;
use anyhow::{Context, Result};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// How the server ends a commit that went well.
const COMMITTED: &[u8] = b"COMMIT\0";

/// What becomes of the answer to a commit, and of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Nothing comes back any more, and the connection stays open.
    Silence,
    /// The connection is closed.
    Cut,
}

/// The commit that is waited for: the next one after a client has sent this.
#[derive(Debug, Clone)]
struct Trap {
    sent: Vec<u8>,
    loss: Loss,
}

#[derive(Debug, Default)]
struct Shared {
    trap: Mutex<Option<Trap>>,
    over: AtomicBool,
}

impl Shared {
    /// Takes the trap if it is for a client that has sent this.
    fn spring(&self, sent: &[u8]) -> Option<Loss> {
        let mut trap = self.trap.lock().unwrap_or_else(PoisonError::into_inner);
        trap.take_if(|trap| contains(sent, &trap.sent)).map(|trap| trap.loss)
    }
}

/// The proxy, on a free port of 127.0.0.1. Takes no more connections once it is dropped.
pub struct Wire {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Starts it in front of a port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be had.
    pub fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no port for the proxy")?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let sharing = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if sharing.over.load(Ordering::SeqCst) {
                    break;
                }
                // A server that is not there is a connection that is closed.
                if let (Ok(client), Ok(server)) = (client, TcpStream::connect((Ipv4Addr::LOCALHOST, port))) {
                    carry(client, server, &sharing);
                }
            }
        });
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// The URL of a database, through the proxy.
    #[must_use]
    pub fn url(&self, url: &str, port: u16) -> String {
        format!("{}?sslmode=disable", url.replace(&format!(":{port}/"), &format!(":{}/", self.address.port())))
    }

    /// Loses the answer to one commit: the next one of a connection on which, from now on, these bytes are sent. Empty: any bytes.
    pub fn lose_the_commit_after(&self, sent: &[u8], loss: Loss) {
        *self.shared.trap.lock().unwrap_or_else(PoisonError::into_inner) = Some(Trap { sent: sent.to_vec(), loss });
    }

    /// Waits until these bytes were sent.
    ///
    /// # Errors
    /// If they are not, in [`crate::process::PATIENCE`].
    pub fn wait_until_sprung(&self) -> Result<()> {
        poll("a commit whose answer gets lost", || Ok(self.shared.trap.lock().unwrap_or_else(PoisonError::into_inner).is_none()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::SeqCst);
        // Wakes the thread up.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Carries one connection, both ways, until a side closes it.
fn carry(client: TcpStream, server: TcpStream, shared: &Arc<Shared>) {
    let loss = Arc::<Mutex<Option<Loss>>>::default();
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (Ok(client_too), Ok(server_too)) = (client.try_clone(), server.try_clone()) else { return };
    let (shared, doomed) = (Arc::clone(shared), Arc::clone(&loss));
    std::thread::spawn(move || {
        let watch = |seen: &[u8]| {
            if let Some(loss) = shared.spring(seen) {
                *doomed.lock().unwrap_or_else(PoisonError::into_inner) = Some(loss);
            }
            true
        };
        copy(client, server, watch);
    });
    std::thread::spawn(move || {
        let mut silent = false;
        let closing = client_too.try_clone();
        let watch = |seen: &[u8]| {
            let loss = *loss.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(loss), true) = (loss, contains(seen, COMMITTED)) {
                silent = true;
                if let (Loss::Cut, Ok(client)) = (loss, &closing) {
                    let _ = client.shutdown(Shutdown::Both);
                }
            }
            !silent
        };
        copy(server_too, client_too, watch);
    });
}

/// Copies until the end, and ends the other side too. `watch` sees what came last, with a little of what came before it, and says whether
/// it is handed on.
fn copy(mut from: TcpStream, mut to: TcpStream, mut watch: impl FnMut(&[u8]) -> bool) {
    const OVERLAP: usize = 64;
    let (mut buffer, mut seen) = (vec![0; 64 << 10], Vec::new());
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        seen.extend_from_slice(&buffer[..count]);
        if watch(&seen) && to.write_all(&buffer[..count]).is_err() {
            break;
        }
        seen.drain(..seen.len().saturating_sub(OVERLAP));
    }
    for stream in [&from, &to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window == part)
}
