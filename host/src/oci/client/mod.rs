//! The pulling half of the OCI distribution protocol: manifests and blobs by GET, a token where a registry asks for one. All of it is
//! bounded in bytes and time, and nothing is sent in the clear unless the configuration says so.

mod token;

use super::error::Fault;
use super::manifest::{self, Layer};
use crate::config::model::Registry;
use crate::domain::text::clean;
use crate::secrets::Secrets;
use crate::tls::{self, faults};
use base64::Engine as _;
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::legacy::{Client as HyperClient, Error as HyperError};
use hyper_util::rt::TokioExecutor;
use rustls::ClientConfig;
use serde::Deserialize;
use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use url::Url;

/// How long a connection may take to be made.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a registry may take to begin an answer, and to go on with it.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest head of an answer, in bytes.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// What is read of an answer that says what is wrong, in bytes.
const MAX_COMPLAINT_BYTES: usize = 8 << 10;

/// What is told of it, in characters.
const MAX_COMPLAINT_CHARACTERS: usize = 300;

/// Registries keep blobs elsewhere and send there: once, as a rule.
const MAX_REDIRECTS: usize = 5;

const AGENT: &str = concat!("outhaul/", env!("CARGO_PKG_VERSION"));

/// A registry, for one pull.
pub(super) struct Client<'a> {
    http: HyperClient<HttpsConnector<HttpConnector>, Empty<Bytes>>,
    registry: &'a str,
    repository: &'a str,
    settings: &'a Registry,
    /// The table with its settings.
    section: String,
    /// User name and password, as they are sent to whoever asks on the registry's behalf.
    basic: Option<HeaderValue>,
    /// What the registry wants to see.
    authorization: Option<HeaderValue>,
}

impl<'a> Client<'a> {
    /// Reads what its settings name. Connects to nothing yet.
    pub(super) async fn open(registry: &'a str, repository: &'a str, settings: &'a Registry, secrets: &Secrets) -> Result<Self, Fault> {
        let section = format!("registries.{registry:?}");
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        let tls = client_config(settings, &section)?;
        let builder = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls);
        let builder = if settings.plain_http { builder.https_or_http() } else { builder.https_only() };
        let connector = builder.enable_http1().wrap_connector(connector);
        let http = HyperClient::builder(TokioExecutor::new()).http1_max_buf_size(MAX_HEAD_BYTES).build(connector);
        let basic = match &settings.credentials {
            None => None,
            Some(credentials) => {
                let password = secrets.read(&credentials.password).await;
                let password = password.map_err(|fault| Fault::Secret { section: section.clone(), fault })?;
                let pair = base64::engine::general_purpose::STANDARD.encode(format!("{}:{password}", credentials.username));
                // Base64 is fit for a header.
                secret_header(&format!("Basic {pair}"))
            }
        };
        Ok(Self { http, registry, repository, settings, section, basic, authorization: None })
    }

    /// Who answers, for errors.
    pub(super) fn server(&self) -> String {
        self.registry.to_owned()
    }

    /// A manifest by its tag or digest.
    pub(super) async fn manifest(&mut self, tag_or_digest: &str) -> Result<Vec<u8>, Fault> {
        self.get("manifest", &format!("manifests/{tag_or_digest}"), manifest::ACCEPT, manifest::MAX_BYTES).await
    }

    /// The bytes of a layer; not checked against its digest yet.
    pub(super) async fn blob(&mut self, layer: &Layer) -> Result<Vec<u8>, Fault> {
        self.get("component", &format!("blobs/{}", layer.digest), "*/*", layer.bytes).await
    }

    /// Fetches what is at a path of the repository, with a token if it is asked for, from wherever the registry sends.
    async fn get(&mut self, what: &'static str, path: &str, accept: &'static str, limit: usize) -> Result<Vec<u8>, Fault> {
        let scheme = if self.settings.plain_http { "http" } else { "https" };
        let home = format!("{scheme}://{}/v2/{}/{path}", host(self.registry), self.repository);
        let home: Uri = home.parse().map_err(|error| self.odd(self.registry, format!("has no URL: {error}")))?;
        let (mut url, mut redirects, mut asked) = (home.clone(), 0, false);
        loop {
            // What is meant for the registry is not told to where it sends.
            let authorization = self.authorization.as_ref().filter(|_| same_origin(&url, &home));
            let response = self.send(&url, accept, authorization).await?;
            let server = authority(&url);
            match response.status() {
                StatusCode::OK => return read(response.into_body(), limit, what, &server).await,
                StatusCode::UNAUTHORIZED if !asked && same_origin(&url, &home) => {
                    asked = true;
                    self.authorize(response.headers(), &server).await?;
                }
                status if status.is_redirection() => {
                    redirects += 1;
                    if redirects > MAX_REDIRECTS {
                        return Err(self.odd(&server, format!("sends from one place to the next, more than {MAX_REDIRECTS} times")));
                    }
                    url = self.redirected(&url, response.headers())?;
                }
                StatusCode::NOT_FOUND => return Err(Fault::Absent { server, what }),
                status => return Err(self.refused(status, response, server).await),
            }
        }
    }

    async fn send(&self, url: &Uri, accept: &'static str, authorization: Option<&HeaderValue>) -> Result<Response<Incoming>, Fault> {
        let server = authority(url);
        let mut request = Request::get(url).header(ACCEPT, accept).header(USER_AGENT, AGENT);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(|error| self.odd(&server, format!("cannot be asked: {error}")))?;
        match tokio::time::timeout(IDLE_TIMEOUT, self.http.request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.failed(&error, server)),
            Err(_) => Err(Fault::TimedOut { server, limit: IDLE_TIMEOUT }),
        }
    }

    fn failed(&self, error: &HyperError, server: String) -> Fault {
        let mut reason = String::new();
        let mut next: Option<&(dyn StdError + 'static)> = Some(error);
        while let Some(cause) = next {
            if let Some(error) = cause.downcast_ref::<std::io::Error>()
                && let Some(error) = faults::inside(error)
            {
                let files = self.settings.tls_client.as_ref().map(|files| files.certificate.as_path());
                let known = faults::Known { section: &self.section, ca_file: self.settings.tls_ca_file.as_deref(), cert_file: files };
                let mut text = faults::text(error, &known);
                if matches!(error, rustls::Error::InvalidMessage(_)) {
                    text.push_str(&format!(" If it is meant to be without: plain_http = true under [{}]", self.section));
                }
                return Fault::Tls { server, text };
            }
            reason = cause.to_string();
            next = cause.source();
        }
        if error.is_connect() { Fault::Unreachable { registry: server, reason } } else { Fault::Interrupted { server, reason } }
    }

    /// Where an answer sends to.
    fn redirected(&self, from: &Uri, headers: &HeaderMap) -> Result<Uri, Fault> {
        let server = authority(from);
        let location = headers.get(LOCATION).and_then(|location| location.to_str().ok()).unwrap_or_default();
        match resolved(from, location) {
            Some(to) if to.scheme_str() == Some("https") || self.settings.plain_http => Ok(to),
            Some(to) => Err(self.odd(&server, format!("sends to {}, which is not https", authority(&to)))),
            None => Err(self.odd(&server, format!("sends to what is no URL: {:?}", clean(location)))),
        }
    }

    /// What an answer that is none says.
    async fn refused(&self, status: StatusCode, response: Response<Incoming>, server: String) -> Fault {
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return Fault::Refused { server, status, advice: self.advice() };
        }
        // Without its text, the status has to do.
        let content = read(response.into_body(), MAX_COMPLAINT_BYTES, "the answer", &server).await.unwrap_or_default();
        let said = complaint(&content).map_or_else(String::new, |said| format!(": {said}"));
        Fault::Answer { server, status, said }
    }

    fn advice(&self) -> String {
        if self.basic.is_some() {
            format!("are username and password under [{}] right, and may they pull {}?", self.section, self.repository)
        } else {
            format!("add username and password under [{}], or see whether {} is there for everybody", self.section, self.repository)
        }
    }

    fn odd(&self, server: &str, what: impl Into<String>) -> Fault {
        Fault::Protocol { server: server.to_owned(), what: what.into() }
    }
}

fn client_config(settings: &Registry, section: &str) -> Result<ClientConfig, Fault> {
    let unusable = |key: &'static str, file: &Path, reason: String| {
        let (section, file) = (section.to_owned(), file.to_owned());
        Fault::File { section, key, file, reason }
    };
    let ca_file = settings.tls_ca_file.as_deref();
    let roots = tls::roots(ca_file).map_err(|reason| unusable("tls_ca_file", ca_file.unwrap_or(Path::new("")), reason))?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Fault::Engine)?
        .with_root_certificates(roots);
    let Some(client) = &settings.tls_client else { return Ok(config.with_no_client_auth()) };
    let chain = tls::certificates(&client.certificate).map_err(|reason| unusable("tls_cert_file", &client.certificate, reason))?;
    let key = tls::private_key(&client.key).map_err(|reason| unusable("tls_key_file", &client.key, reason))?;
    config.with_client_auth_cert(chain, key).map_err(|error| unusable("tls_key_file", &client.key, error.to_string()))
}

/// Reads a body to its end; one that is longer than it may be is left.
async fn read(mut body: Incoming, limit: usize, what: &'static str, server: &str) -> Result<Vec<u8>, Fault> {
    let mut content = Vec::new();
    loop {
        let frame = match tokio::time::timeout(IDLE_TIMEOUT, body.frame()).await {
            Ok(None) => return Ok(content),
            Ok(Some(Ok(frame))) => frame,
            Ok(Some(Err(error))) => return Err(Fault::Interrupted { server: server.to_owned(), reason: error.to_string() }),
            Err(_) => return Err(Fault::TimedOut { server: server.to_owned(), limit: IDLE_TIMEOUT }),
        };
        if let Ok(data) = frame.into_data() {
            if content.len().saturating_add(data.len()) > limit {
                return Err(Fault::TooLarge { what, limit: u64::try_from(limit).unwrap_or(u64::MAX) });
            }
            content.extend_from_slice(&data);
        }
    }
}

/// The texts of the errors that a registry tells (OCI distribution specification, "Error codes").
fn complaint(content: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<Told>,
    }
    #[derive(Deserialize)]
    struct Told {
        code: String,
        #[serde(default)]
        message: String,
    }
    let answer: Answer = serde_json::from_slice(content).ok()?;
    let told: Vec<String> = answer.errors.iter().map(|told| format!("{} {}", told.code, told.message)).collect();
    Some(clean(&told.join(", ")).chars().take(MAX_COMPLAINT_CHARACTERS).collect())
}

/// What a `Location` means in the answer to a request for `from` (RFC 3986, section 5.2); none: it is no http or https URL.
fn resolved(from: &Uri, location: &str) -> Option<Uri> {
    if location.is_empty() {
        return None;
    }
    let to = Url::parse(&from.to_string()).ok()?.join(location).ok()?;
    let to: Uri = matches!(to.scheme(), "http" | "https").then(|| to.as_str().parse().ok())??;
    to.authority().is_some().then_some(to)
}

/// A header that is not shown in logs; none: it has characters that a header cannot have.
fn secret_header(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Where a registry answers: Docker Hub is known by another name.
fn host(registry: &str) -> &str {
    if registry == "docker.io" { "registry-1.docker.io" } else { registry }
}

fn authority(url: &Uri) -> String {
    url.authority().map(|authority| clean(authority.as_str())).unwrap_or_default()
}

fn same_origin(one: &Uri, other: &Uri) -> bool {
    one.scheme() == other.scheme() && authority(one).eq_ignore_ascii_case(&authority(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_resolved_against_the_request() {
        let from: Uri = "https://r.example:5000/v2/acme/adapter/blobs/sha256:aa?x=1".parse().unwrap();
        for (location, to) in [
            ("https://cdn.example/b?sig=1", Some("https://cdn.example/b?sig=1")),
            ("http://cdn.example/b", Some("http://cdn.example/b")),
            ("//cdn.example/b", Some("https://cdn.example/b")),
            ("/store/b", Some("https://r.example:5000/store/b")),
            ("sha256:bb", None),
            ("./sha256:bb", Some("https://r.example:5000/v2/acme/adapter/blobs/sha256:bb")),
            ("b", Some("https://r.example:5000/v2/acme/adapter/blobs/b")),
            ("../../b?y=2", Some("https://r.example:5000/v2/acme/b?y=2")),
            ("?y=2", Some("https://r.example:5000/v2/acme/adapter/blobs/sha256:aa?y=2")),
            ("https://cdn.example/b#part", Some("https://cdn.example/b")),
            ("", None),
            ("https://", None),
            ("ftp://cdn.example/b", None),
            ("cdn.example:443", None),
            ("file:///etc/passwd", None),
        ] {
            assert_eq!(resolved(&from, location).map(|to| to.to_string()).as_deref(), to, "{location}");
        }
    }
}
