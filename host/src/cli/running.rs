//! Asks the host that runs with the same configuration, by its admin address, which components it runs.

use crate::app::inventory::Document;
use crate::config::Config;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::TcpStream;

/// For all of it: whoever answers is on this machine, as a rule.
const PATIENCE: Duration = Duration::from_secs(2);

/// Largest answer that is read, in bytes: an entry takes half a thousand, a refusal's text a few more.
const MAX_BYTES: usize = 8 << 20;

/// Whether there is a host to ask, and what it says.
pub(super) enum Running {
    /// It answered.
    Says(Box<Document>),
    /// It did not, and why in an operator's words.
    Silent(String),
}

/// Asks.
pub(super) async fn ask(config: &Config) -> Running {
    let Some(admin) = config.admin else {
        return Running::Silent("there is no [admin] section, so that a running host cannot be asked".to_owned());
    };
    if admin.listen.port() == 0 {
        return Running::Silent("admin.listen has port 0, so that a running host cannot be asked".to_owned());
    }
    let address = reachable(admin.listen);
    match tokio::time::timeout(PATIENCE, fetch(address)).await {
        Err(_) => {
            Running::Silent(format!("the host at {address} (admin.listen) did not answer in {}", humantime::format_duration(PATIENCE)))
        }
        Ok(Err(error)) => Running::Silent(format!("no host answers at {address} (admin.listen): {error}")),
        Ok(Ok(document)) if !is_ours(&document, config) => {
            Running::Silent(format!("the host at {address} (admin.listen) runs another configuration: {}", document.config.display()))
        }
        Ok(Ok(document)) => Running::Says(Box::new(document)),
    }
}

/// Where a host that listens on every address is reached.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

async fn fetch(address: SocketAddr) -> anyhow::Result<Document> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio_util::task::AbortOnDropHandle::new(tokio::spawn(connection));
    let request = hyper::Request::get("/plugins").header("host", address.to_string()).body(Empty::<Bytes>::new())?;
    let answer = sender.send_request(request).await?;
    anyhow::ensure!(answer.status().is_success(), "it answered {}; is it an older outhaul, or another program?", answer.status());
    let body = Limited::new(answer.into_body(), MAX_BYTES).collect().await.map_err(|error| anyhow::anyhow!(error))?;
    drop(connection);
    serde_json::from_slice(&body.to_bytes()).map_err(|error| anyhow::anyhow!("its answer is not understood: {error}"))
}

/// Whether a host runs with this file: ports are used for other things too.
fn is_ours(document: &Document, config: &Config) -> bool {
    match (document.config.canonicalize(), config.file.canonicalize()) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// What comes of asking a server that answers this.
    async fn asked(answer: &'static str) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("outhaul.toml");
        let text = format!("[admin]\nlisten = \"{}\"", listener.local_addr().unwrap());
        std::fs::write(&file, &text).unwrap();
        let answer = answer.replace("OURS", file.to_str().unwrap());
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = [0; 1024];
            let _ = stream.read(&mut head).await.unwrap();
            let answer = format!("HTTP/1.1 {answer}");
            stream.write_all(answer.as_bytes()).await.unwrap();
        });
        let running = ask(&parse(&text, &file).unwrap()).await;
        serving.await.unwrap();
        running
    }

    async fn silent(answer: &'static str) -> String {
        match asked(answer).await {
            Running::Silent(why) => why,
            Running::Says(document) => panic!("{document:?}"),
        }
    }

    #[tokio::test]
    async fn only_a_host_with_the_same_configuration_is_believed() {
        let answer = "200 OK\r\n\r\n{\"config\":\"OURS\",\"config_refused\":null,\"plugins\":[]}";
        assert!(matches!(asked(answer).await, Running::Says(_)));
        let why = silent("200 OK\r\n\r\n{\"config\":\"/other.toml\",\"config_refused\":null,\"plugins\":[]}").await;
        assert!(why.contains("runs another configuration: /other.toml"), "{why}");
        let why = silent("200 OK\r\n\r\n<html>").await;
        assert!(why.contains("is not understood"), "{why}");
        let why = silent("404 Not Found\r\ncontent-length: 0\r\n\r\n").await;
        assert!(why.contains("404"), "{why}");
    }

    #[tokio::test]
    async fn where_nobody_can_be_asked_that_is_said() {
        let told = async |text: &str| match ask(&parse(text, "o.toml".as_ref()).unwrap()).await {
            Running::Silent(why) => why,
            Running::Says(document) => panic!("{document:?}"),
        };
        assert!(told("").await.contains("no [admin] section"));
        assert!(told("[admin]\nlisten = \"127.0.0.1:0\"").await.contains("port 0"));
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        assert!(told(&format!("[admin]\nlisten = \"{free}\"")).await.contains("no host answers"));
        assert_eq!(reachable("0.0.0.0:7".parse().unwrap()), "127.0.0.1:7".parse().unwrap());
        assert_eq!(reachable("[::]:7".parse().unwrap()), "[::1]:7".parse().unwrap());
    }
}
