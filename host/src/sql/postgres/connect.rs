//! Opening a session: address, TLS, authentication, and a look at who answers.
//!
//! Order and messages: "Message Flow, Start-up" in the protocol's documentation. The name is resolved each time, so that it may follow
//! the primary after a failover.

use super::fault::{Fault, Reach};
use super::session::Session;
use super::settings::{Settings, Target};
use super::tls;
use super::wire::{Stream, Wire};
use crate::config::model::{Endpoint, TlsMode};
use crate::sql::SqlErrorCode;
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::Message;
use postgres_protocol::message::frontend;
use std::io;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// After so long without traffic the kernel asks the other side whether it is still there, every [`KEEPALIVE_EVERY`], and gives up after
/// [`KEEPALIVE_TRIES`]: a listener on a cut line notices within a minute, where Linux by itself takes two hours.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(30);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(10);
const KEEPALIVE_TRIES: u32 = 3;

/// Who answers, and whether it takes writes. One row.
const WHO: &str = "SELECT pg_catalog.pg_backend_pid(), pg_catalog.current_setting('transaction_read_only')";

/// Opens a session, by `deadline` or within `connect_timeout`, whichever is sooner.
///
/// # Errors
/// `unavailable`, with the address and what to do.
pub(super) async fn open(settings: &Settings, deadline: Instant) -> Result<Session, Fault> {
    let limit = settings.connect_timeout();
    let until = Instant::now().checked_add(limit).map_or(deadline, |until| until.min(deadline));
    let target = settings.target().await?;
    let opening = tokio::time::timeout_at(until.into(), establish(settings, &target)).await;
    let result = opening.unwrap_or_else(|_| {
        Err(Fault::lost(
            SqlErrorCode::Unavailable,
            format!(
                "no connection within {}: the server or the network hangs, or connect_timeout is too short",
                humantime::format_duration(limit)
            ),
        ))
    });
    // Whatever fails here has nothing to say about sessions that are open.
    result.map_err(|fault| Fault { reach: Reach::Call, ..fault }.at(&format!("{}: ", target.endpoint)))
}

async fn establish(settings: &Settings, target: &Target) -> Result<Session, Fault> {
    let (stream, protected) = secure(settings, target, connect(&target.endpoint).await?).await?;
    let mut wire = Wire::new(stream);
    let parameters = [
        ("user", target.user.as_str()),
        ("database", target.database.as_str()),
        ("client_encoding", "UTF8"),
        ("DateStyle", "ISO, MDY"),
        ("TimeZone", "UTC"),
        ("application_name", "outhaul"),
    ];
    frontend::startup_message(parameters, wire.out())
        .map_err(|error| unavailable(format!("the start-up message cannot be sent: {error}")))?;
    authenticate(&mut wire, target, protected).await?;
    let process = ready(&mut wire).await?;

    let mut session = Session::new(wire);
    let row = session.ask(WHO).await?;
    let [Some(backend), Some(read_only)] = row.as_slice() else { return Err(Fault::protocol("no answer to a question about the session")) };
    session.read_only = read_only == "on";
    // A pooler makes up the process that it greets with: clients share its processes.
    if backend.parse() != Ok(process) {
        settings.found_pooler();
    }
    session.pooled = settings.pooled.load(std::sync::atomic::Ordering::Relaxed);
    Ok(session)
}

fn unavailable(detail: String) -> Fault {
    Fault::lost(SqlErrorCode::Unavailable, detail)
}

async fn connect(endpoint: &Endpoint) -> Result<Box<dyn Stream>, Fault> {
    match endpoint {
        Endpoint::Unix(path) => {
            let stream = UnixStream::connect(path).await;
            Ok(Box::new(
                stream.map_err(|error| unavailable(format!("cannot connect: {error}; check the url and whether the server runs")))?,
            ))
        }
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await;
            let stream =
                stream.map_err(|error| unavailable(format!("cannot connect: {error}; check the url and whether the server runs")))?;
            tune(&stream).map_err(|error| unavailable(format!("the connection cannot be set up: {error}")))?;
            Ok(Box::new(stream))
        }
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    use rustix::net::sockopt;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    #[cfg(target_os = "linux")]
    {
        // What was sent and is not confirmed for as long ends the connection as well.
        let unconfirmed = KEEPALIVE_AFTER + KEEPALIVE_EVERY * KEEPALIVE_TRIES;
        sockopt::set_tcp_user_timeout(stream, u32::try_from(unconfirmed.as_millis()).unwrap_or(u32::MAX))?;
    }
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?;
    Ok(())
}

/// Asks for TLS, where it is wanted. Says whether the stream is now protected by it.
async fn secure(settings: &Settings, target: &Target, mut stream: Box<dyn Stream>) -> Result<(Box<dyn Stream>, bool), Fault> {
    let host = match &target.endpoint {
        Endpoint::Tcp { host, .. } if target.tls != TlsMode::Disable => host,
        Endpoint::Tcp { .. } => return Ok((stream, false)),
        // Servers have no TLS on Unix sockets.
        Endpoint::Unix(_) if target.tls == TlsMode::Disable || target.tls == TlsMode::Prefer => return Ok((stream, false)),
        Endpoint::Unix(_) => {
            return Err(unavailable(format!("tls = {:?} is not possible on a Unix socket: leave tls out", target.tls.as_str())));
        }
    };
    let broken = |error: io::Error| Fault::broken(&error);
    let mut request = BytesMut::new();
    frontend::ssl_request(&mut request);
    stream.write_all(&request).await.map_err(broken)?;
    // One byte, and not one more: what follows belongs to TLS.
    match stream.read_u8().await.map_err(broken)? {
        b'S' => tls::handshake(&settings.configured, target.tls, host, stream).await.map(|stream| (stream, true)),
        b'N' if target.tls == TlsMode::Prefer => Ok((stream, false)),
        b'N' => Err(unavailable(format!(
            "the server has no TLS, and tls = {:?} asks for it{}: let the server use TLS, or write tls = \"disable\" for a network that nobody can listen in to",
            target.tls.as_str(),
            if settings.configured.tls.is_none() { " (the default for a host that is not this machine)" } else { "" }
        ))),
        _ => Err(Fault::protocol("its answer to the question for TLS is neither S nor N")),
    }
}

async fn authenticate(wire: &mut Wire, target: &Target, protected: bool) -> Result<(), Fault> {
    let password = || {
        target.password.as_ref().map(|password| password.0.as_bytes()).ok_or_else(|| {
            unavailable(format!("the server asks for the password of {:?}: add password = {{ secret = \"NAME\" }}", target.user))
        })
    };
    let malformed = |error: io::Error| Fault::protocol(&error.to_string());
    let mut scram = None;
    loop {
        match wire.receive().await? {
            Message::AuthenticationOk => {
                // A server that skips the end of SCRAM has not shown that it knows the password.
                return if scram.is_none() { Ok(()) } else { Err(Fault::protocol("it ended the authentication too soon")) };
            }
            Message::AuthenticationCleartextPassword if protected || target.endpoint.is_local() => {
                frontend::password_message(password()?, wire.out()).map_err(malformed)?;
            }
            Message::AuthenticationCleartextPassword => {
                return Err(unavailable("the server asks for the password in clear text, over a connection without TLS: use TLS, or scram-sha-256 in pg_hba.conf".to_owned()));
            }
            Message::AuthenticationMd5Password(body) => {
                let hash = md5_hash(target.user.as_bytes(), password()?, body.salt());
                frontend::password_message(hash.as_bytes(), wire.out()).map_err(malformed)?;
            }
            Message::AuthenticationSasl(body) => {
                if !body.mechanisms().any(|mechanism| Ok(mechanism == SCRAM_SHA_256)).map_err(malformed)? {
                    return Err(unavailable("the server offers no SCRAM-SHA-256: allow scram-sha-256 in pg_hba.conf".to_owned()));
                }
                let begun = ScramSha256::new(password()?, ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, begun.message(), wire.out()).map_err(malformed)?;
                scram = Some(begun);
            }
            Message::AuthenticationSaslContinue(body) => {
                let Some(begun) = &mut scram else { return Err(Fault::protocol("it goes on with an authentication that never began")) };
                begun.update(body.data()).map_err(malformed)?;
                frontend::sasl_response(begun.message(), wire.out()).map_err(malformed)?;
            }
            Message::AuthenticationSaslFinal(body) => {
                let Some(mut begun) = scram.take() else { return Err(Fault::protocol("it ends an authentication that never began")) };
                begun.finish(body.data()).map_err(|error| unavailable(format!("the server does not know the password itself: {error}")))?;
            }
            Message::ErrorResponse(body) => return Err(Fault::of(&body)),
            Message::NoticeResponse(_) | Message::ParameterStatus(_) => {}
            _ => {
                return Err(unavailable(
                    "the server asks for a kind of authentication that the host does not have: allow scram-sha-256 in pg_hba.conf"
                        .to_owned(),
                ));
            }
        }
    }
}

/// Waits until the session is ready. Returns the server process that it greets with.
async fn ready(wire: &mut Wire) -> Result<i32, Fault> {
    let mut process = 0;
    loop {
        match wire.receive().await? {
            Message::BackendKeyData(body) => process = body.process_id(),
            Message::NoticeResponse(_) | Message::ParameterStatus(_) => {}
            Message::ErrorResponse(body) => return Err(Fault::of(&body)),
            Message::ReadyForQuery(_) => return Ok(process),
            _ => return Err(Fault::protocol("an unexpected message at the start")),
        }
    }
}
