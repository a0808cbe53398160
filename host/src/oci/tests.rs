//! Pulling from registries that are not as they should be, and from those that want a token. How a real one answers is tested in
//! `tests/tests/oci.rs`.

use super::{Digest, Pinned, PullError, Pulled, Reference, Registries, manifest};
use crate::config::parse;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

const COMPONENT: &[u8] = b"\0asm\x0d\0\x01\0";

/// What came in: the line of the request, then its headers in lower case.
type Head = Vec<String>;

/// A server that answers each request with what it is told, and notes what was asked.
struct Server {
    port: u16,
    asked: Arc<Mutex<Vec<Head>>>,
}

impl Server {
    async fn start(answer: impl Fn(&str, &Head, u16) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, asked) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<Head>>>::default());
        let noted = Arc::clone(&asked);
        tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let lines: Head = String::from_utf8(head).unwrap().lines().map(str::to_lowercase).collect();
                let path = lines[0].split(' ').nth(1).unwrap().to_owned();
                noted.lock().unwrap().push(lines.clone());
                // A client that has seen enough hangs up.
                let _ = stream.write_all(&answer(&path, &lines, port)).await;
            }
        });
        Self { port, asked }
    }

    /// A registry with a component under `acme/adapter`; what `other` has an answer for is different there.
    async fn registry(other: impl Fn(&str, &Head, u16) -> Option<Vec<u8>> + Send + 'static) -> Self {
        Self::start(move |path, head, port| {
            other(path, head, port).unwrap_or_else(|| match path.rsplit_once('/') {
                Some(("/v2/acme/adapter/manifests", _)) => answer("200 OK", "", &manifest::tests::of(COMPONENT)),
                Some(("/v2/acme/adapter/blobs", _)) => answer("200 OK", "", COMPONENT),
                _ => answer("404 Not Found", "", b""),
            })
        })
        .await
    }

    fn name(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn config(&self, more: &str) -> String {
        format!("[registries.\"{}\"]\nplain_http = true\n{more}", self.name())
    }

    async fn pull(&self) -> Result<Pulled, PullError> {
        self.pull_with("").await
    }

    async fn pull_with(&self, more: &str) -> Result<Pulled, PullError> {
        let config = parse(&self.config(more), Path::new("o.toml")).unwrap();
        let digest = Digest::of(&manifest::tests::of(COMPONENT));
        let reference = Reference::parse(&format!("{}/acme/adapter:1@{digest}", self.name())).unwrap();
        Registries::of(&config).pull(&reference).await
    }

    /// What was asked for, and with what authorization.
    fn asked(&self) -> Vec<(String, Option<String>)> {
        let asked = self.asked.lock().unwrap();
        let of = |head: &Head| {
            let authorization = head.iter().find_map(|line| line.strip_prefix("authorization: ")).map(str::to_owned);
            (head[0].split(' ').nth(1).unwrap().to_owned(), authorization)
        };
        asked.iter().map(of).collect()
    }
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// The text, and whether trying again may help.
fn told(result: Result<Pulled, PullError>) -> (String, bool) {
    let error = result.unwrap_err();
    (error.to_string(), error.is_transient())
}

const CREDENTIALS: &str = "username = \"me\"\npassword = { secret = \"key\" }\n[secrets.key]\nfile = \"";

/// The settings for a user whose password is in a file of this folder.
fn credentials(folder: &Path) -> String {
    let file = folder.join("password");
    std::fs::write(&file, "pass:word\n").unwrap();
    format!("{CREDENTIALS}{}\"", file.display())
}

#[tokio::test]
async fn a_component_is_pulled_by_its_digest() {
    let server = Server::registry(|_, _, _| None).await;
    let pulled = server.pull().await.unwrap();
    assert_eq!(&pulled.component[..], COMPONENT);
    let digest = Digest::of(&manifest::tests::of(COMPONENT));
    assert_eq!(pulled.pinned, Pinned { registry: server.name(), repository: "acme/adapter".into(), digest });
    let (manifests, blobs) = (format!("/v2/acme/adapter/manifests/{digest}"), format!("/v2/acme/adapter/blobs/{}", Digest::of(COMPONENT)));
    assert_eq!(server.asked(), [(manifests, None), (blobs, None)]);
}

#[tokio::test]
async fn a_token_is_fetched_where_one_is_wanted_and_the_password_goes_nowhere_else() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = Server::start(|_, _, _| answer("200 OK", "", COMPONENT)).await;
    let away = elsewhere.port;
    let server = Server::registry(move |path, head, port| {
        if path.starts_with("/token?") {
            return Some(answer("200 OK", "", br#"{"token":"t0ken","expires_in":60}"#));
        }
        if !head.iter().any(|line| line == "authorization: bearer t0ken") {
            let challenge = format!("www-authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\",service=\"a b\"\r\n");
            return Some(answer("401 Unauthorized", &challenge, b""));
        }
        path.contains("/blobs/").then(|| answer("307 Temporary Redirect", &format!("location: http://127.0.0.1:{away}/blob\r\n"), b""))
    })
    .await;
    assert_eq!(&server.pull_with(&credentials(folder.path())).await.unwrap().component[..], COMPONENT);
    let asked = server.asked();
    assert_eq!(asked[0].1, None, "nothing is told before it is asked for");
    // base64 of me:pass:word, in lower case.
    let basic = Some("basic bwu6cgfzczp3b3jk".to_owned());
    assert_eq!(asked[1], ("/token?service=a%20b&scope=repository%3aacme%2fadapter%3apull".to_owned(), basic));
    assert_eq!(asked[2].1.as_deref(), Some("bearer t0ken"));
    assert_eq!(asked[3].1.as_deref(), Some("bearer t0ken"));
    assert_eq!(elsewhere.asked(), [("/blob".to_owned(), None)]);
    // As anybody.
    server.asked.lock().unwrap().clear();
    server.pull().await.unwrap();
    assert_eq!(server.asked()[1].1, None);
}

#[tokio::test]
async fn a_token_service_must_not_be_anywhere_and_must_have_one() {
    let folder = tempfile::tempdir().unwrap();
    let with_realm = async |realm: &'static str| {
        let server = Server::registry(move |path, _, port| {
            let realm = realm.replace("PORT", &port.to_string());
            let challenge = format!("www-authenticate: Bearer realm=\"{realm}\"\r\n");
            (!path.starts_with("/token")).then(|| answer("401 Unauthorized", &challenge, b""))
        })
        .await;
        told(server.pull_with(&credentials(folder.path())).await).0
    };
    assert!(with_realm("http://192.0.2.1/token").await.contains("sends for a token to 192.0.2.1, which is not https"));
    assert!(with_realm("/token").await.contains("sends for a token to what is no URL: \"/token\""));
    let absent = with_realm("http://127.0.0.1:PORT/token").await;
    assert!(absent.contains("answers 404 Not Found"), "{absent}");
    for answered in [&b"<html>"[..], b"{}", b"{\"token\":\"a\\nb\"}"] {
        let server = Server::registry(move |path, _, port| {
            let challenge = format!("www-authenticate: Bearer realm=\"http://127.0.0.1:{port}/token\"\r\n");
            let is_token = path.starts_with("/token");
            Some(if is_token { answer("200 OK", "", answered) } else { answer("401 Unauthorized", &challenge, b"") })
        })
        .await;
        let (text, again) = told(server.pull().await);
        assert!(text.contains("answers without a token that can be used") && !again, "{text}");
    }
}

#[tokio::test]
async fn other_content_than_the_digest_says_is_refused() {
    let server =
        Server::registry(|path, _, _| path.contains("/manifests/").then(|| answer("200 OK", "", &manifest::tests::of(b"other")))).await;
    let (text, again) = told(server.pull().await);
    assert!(text.contains("sends as the manifest has the digest sha256:") && text.contains("not sha256:") && !again, "{text}");
    let reference = format!("{}/acme/adapter:1@sha256:", server.name());
    assert!(text.starts_with(&reference) && text.contains("cannot be pulled: "), "{text}");
    let other = [&COMPONENT[..7], b"\x01"].concat();
    let server = Server::registry(move |path, _, _| path.contains("/blobs/").then(|| answer("200 OK", "", &other))).await;
    let (text, _) = told(server.pull().await);
    assert!(
        text.contains(&format!("sends as the component has the digest {}", Digest::of(&[&COMPONENT[..7], b"\x01"].concat()))),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_too_large_is_not_read_to_its_end() {
    // Without a length, for as long as the other side likes.
    let endless = |_: &str| [&b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"[..], &vec![b'x'; 4 << 20]].concat();
    let server = Server::registry(move |path, _, _| path.contains("/manifests/").then(|| endless(path))).await;
    let (text, again) = told(server.pull().await);
    assert!(text.contains("manifest is larger than 1048576 bytes") && !again, "{text}");
    let server = Server::registry(move |path, _, _| path.contains("/blobs/").then(|| endless(path))).await;
    assert!(told(server.pull().await).0.contains("component is larger than 8 bytes"));
}

#[tokio::test]
async fn refusals_say_what_to_do_and_outages_can_be_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    for (status, headers, body, text, again) in [
        ("404 Not Found", "", "", "has no such manifest", false),
        ("403 Forbidden", "", "", "refuses access (403 Forbidden): add username and password under [registries.\"127.0.0.1:", false),
        ("401 Unauthorized", "www-authenticate: Basic realm=\"x\"\r\n", "", "add username and password under", false),
        ("401 Unauthorized", "www-authenticate: Negotiate\r\n", "", "asks for a kind of authentication that is neither", false),
        ("401 Unauthorized", "www-authenticate: Bearer service=\"x\"\r\n", "", "asks for a token and says not where from", false),
        ("401 Unauthorized", "", "", "neither Basic nor Bearer", false),
        (
            "400 Bad Request",
            "",
            r#"{"errors":[{"code":"UNSUPPORTED","message":"not\u001b[31m here"}]}"#,
            "400 Bad Request: UNSUPPORTED not",
            false,
        ),
        ("500 Internal Server Error", "", "<html>", "answers 500 Internal Server Error", true),
        ("429 Too Many Requests", "", "", "answers 429 Too Many Requests", true),
        ("302 Found", "location: /v2/acme/adapter/manifests/again\r\n", "", "sends from one place to the next, more than 5 times", false),
        ("302 Found", "", "", "sends to what is no URL", false),
        ("200 OK", "", "short", "sends as the manifest has the digest", false),
    ] {
        let server = Server::start(move |_, _, _| answer(status, headers, body.as_bytes())).await;
        let (told, may_help) = told(server.pull().await);
        assert!(told.contains(text) && may_help == again, "{status}: {told}");
        assert!(!told.contains('\u{1b}'), "{told:?}");
    }
    let basic = "www-authenticate: Basic realm=\"x\"\r\n";
    let server = Server::start(move |_, _, _| answer("401 Unauthorized", basic, b"")).await;
    let (text, _) = told(server.pull_with(&credentials(folder.path())).await);
    assert!(text.contains("are username and password under [registries.\"127.0.0.1:") && !text.contains("word:"), "{text}");
    let absent = "username = \"me\"\npassword = { secret = \"key\" }\n[secrets.key]\nenv = \"OUTHAUL_TEST_NO_SUCH_VARIABLE\"";
    let (text, again) = told(server.pull_with(absent).await);
    assert!(text.contains("password: secret \"key\": the environment variable OUTHAUL_TEST_NO_SUCH") && !again, "{text}");
}

#[tokio::test]
async fn a_registry_that_is_away_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let away = Server { port: free.port(), asked: Arc::default() };
    let (text, again) = told(away.pull().await);
    assert!(text.contains(&format!("cannot be pulled: the registry 127.0.0.1:{} cannot be reached: ", away.port)) && again, "{text}");
    // It hangs up in the middle.
    let cut = |_: &str, _: &Head, _| b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nfive5".to_vec();
    let (text, again) = told(Server::start(cut).await.pull().await);
    assert!(text.contains("broke off: ") && again, "{text}");
}

#[tokio::test(start_paused = true)]
async fn one_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = Server { port: listener.local_addr().unwrap().port(), asked: Arc::default() };
    let (text, again) = told(silent.pull().await);
    assert!(again, "{text}");
}

#[tokio::test]
async fn what_was_pulled_once_needs_no_registry() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::registry(|_, _, _| None).await;
    let config = parse(&server.config(""), &folder.path().join("o.toml")).unwrap();
    let pinned = server.pull().await.unwrap().pinned;
    let registries = Registries::of(&config);
    assert_eq!(registries.stored(&pinned).await.unwrap(), None);
    let pulled = registries.component(&pinned).await.unwrap();
    assert_eq!(pulled.path, folder.path().join(format!("plugins/.oci/sha256-{}.wasm", Digest::of(COMPONENT).hex())));
    server.asked.lock().unwrap().clear();
    assert_eq!(registries.component(&pinned).await.unwrap(), pulled);
    assert_eq!(server.asked(), []);
    // Damaged, it is pulled again.
    std::fs::write(&pulled.path, "x").unwrap();
    assert_eq!(registries.component(&pinned).await.unwrap(), pulled);
    assert_eq!(server.asked().len(), 2);
    assert_eq!(std::fs::read(&pulled.path).unwrap(), COMPONENT);
}
