//! What a registry wants to see before it answers: the user's name and password, or a token that they get from a service (RFC 7235, and
//! the distribution project's "Token Authentication Specification").

use super::{Client, authority, read, secret_header};
use crate::domain::text::clean;
use crate::oci::error::Fault;
use crate::oci::reference::is_loopback;
use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderValue, StatusCode, Uri};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

/// Largest answer of a token service, in bytes: tokens list what they allow, and take a few KiB.
const MAX_TOKEN_BYTES: usize = 256 << 10;

impl Client<'_> {
    /// Does what a registry asks for before it answers: RFC 7235, and the token scheme of the distribution project.
    pub(super) async fn authorize(&mut self, headers: &HeaderMap, server: &str) -> Result<(), Fault> {
        let mut knows_basic = false;
        for value in headers.get_all(WWW_AUTHENTICATE) {
            let challenges = value.to_str().ok().and_then(|text| http_auth::parse_challenges(text).ok()).unwrap_or_default();
            for challenge in challenges {
                if challenge.scheme.eq_ignore_ascii_case("bearer") {
                    let parameter = |name: &str| {
                        let found = challenge.params.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
                        found.map(|(_, value)| value.to_unescaped())
                    };
                    let realm = parameter("realm").ok_or_else(|| self.odd(server, "asks for a token and says not where from"))?;
                    let scope = parameter("scope").unwrap_or_else(|| format!("repository:{}:pull", self.repository));
                    let url = self.token_url(&realm, parameter("service").as_deref(), &scope, server)?;
                    self.authorization = Some(self.token(&url).await?);
                    return Ok(());
                }
                knows_basic |= challenge.scheme.eq_ignore_ascii_case("basic");
            }
        }
        match (&self.basic, knows_basic) {
            (Some(basic), true) => self.authorization = Some(basic.clone()),
            (None, true) => {
                let status = StatusCode::UNAUTHORIZED;
                return Err(Fault::Refused { server: server.to_owned(), status, advice: self.advice() });
            }
            (_, false) => return Err(self.odd(server, "asks for a kind of authentication that is neither Basic nor Bearer")),
        }
        Ok(())
    }

    /// Where a token is had. The password is sent there, so it must not be in the clear.
    fn token_url(&self, realm: &str, service: Option<&str>, scope: &str, server: &str) -> Result<Uri, Fault> {
        let mut text = realm.to_owned();
        let mut separator = if realm.contains('?') { '&' } else { '?' };
        for (name, value) in [("service", service), ("scope", Some(scope))] {
            if let Some(value) = value {
                text.push_str(&format!("{separator}{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
                separator = '&';
            }
        }
        let url: Option<Uri> = text.parse().ok().filter(|url: &Uri| url.authority().is_some());
        let url = url.ok_or_else(|| self.odd(server, format!("sends for a token to what is no URL: {:?}", clean(realm))))?;
        let in_the_clear = self.settings.plain_http && (self.basic.is_none() || is_loopback(&authority(&url)));
        if url.scheme_str() != Some("https") && !in_the_clear {
            return Err(self.odd(server, format!("sends for a token to {}, which is not https", authority(&url))));
        }
        Ok(url)
    }

    async fn token(&self, url: &Uri) -> Result<HeaderValue, Fault> {
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let response = self.send(url, "application/json", self.basic.as_ref()).await?;
        let server = authority(url);
        if response.status() != StatusCode::OK {
            return Err(self.refused(response.status(), response, server).await);
        }
        let content = read(response.into_body(), MAX_TOKEN_BYTES, "the token", &server).await?;
        let token = serde_json::from_slice(&content).ok().and_then(|answer: Answer| answer.token.or(answer.access_token));
        let header = token.and_then(|token| secret_header(&format!("Bearer {token}")));
        header.ok_or_else(|| self.odd(&server, "answers without a token that can be used"))
    }
}
