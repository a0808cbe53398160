//! HTTP Message Signatures (RFC 9421), with the body covered by `Content-Digest` (RFC 9530).

use super::keys::Key;
use crate::header;
use crate::request::Request;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{HeaderName, HeaderValue};
use serde::Deserialize;
use sha2::{Digest, Sha256};

const CONTENT_DIGEST: HeaderName = HeaderName::from_static("content-digest");

/// Registered algorithms (RFC 9421 section 6.2.2) that are offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// HMAC with SHA-256: a shared secret.
    #[serde(rename = "hmac-sha256")]
    HmacSha256,
    /// Ed25519: receivers need the public key only.
    Ed25519,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::HmacSha256 => "hmac-sha256",
            Self::Ed25519 => "ed25519",
        }
    }
}

/// What a signature covers (RFC 9421 section 2).
#[derive(Debug, Clone, PartialEq, Eq)]
enum Component {
    Method,
    Scheme,
    Authority,
    Path,
    Query,
    TargetUri,
    RequestTarget,
    Field(HeaderName),
}

impl Component {
    fn parse(text: &str) -> Result<Self, String> {
        Ok(match text {
            "@method" => Self::Method,
            "@scheme" => Self::Scheme,
            "@authority" => Self::Authority,
            "@path" => Self::Path,
            "@query" => Self::Query,
            "@target-uri" => Self::TargetUri,
            "@request-target" => Self::RequestTarget,
            _ if text.starts_with('@') => {
                return Err(format!(
                    "`{text}` is not offered; there are @method, @scheme, @authority, @path, @query, @target-uri and @request-target"
                ));
            }
            _ => {
                let name = header::name(text).map_err(|error| format!("`{text}`: {error}"))?;
                if matches!(name.as_str(), "signature" | "signature-input") {
                    return Err(format!("`{text}` cannot be covered by the signature that it holds"));
                }
                Self::Field(name)
            }
        })
    }

    fn name(&self) -> &str {
        match self {
            Self::Method => "@method",
            Self::Scheme => "@scheme",
            Self::Authority => "@authority",
            Self::Path => "@path",
            Self::Query => "@query",
            Self::TargetUri => "@target-uri",
            Self::RequestTarget => "@request-target",
            Self::Field(name) => name.as_str(),
        }
    }

    /// The value in a request; none: it has no such header.
    fn value(&self, request: &Request<'_>) -> Option<Vec<u8>> {
        let (path, query) = request.target.split_once('?').map_or((request.target.as_str(), None), |(path, query)| (path, Some(query)));
        let text = match self {
            Self::Method => request.method.as_str().to_owned(),
            Self::Scheme => request.scheme().to_owned(),
            Self::Authority => request.authority.to_string(),
            Self::Path => path.to_owned(),
            // A lone question mark where there is no query (section 2.2.7).
            Self::Query => format!("?{}", query.unwrap_or_default()),
            Self::TargetUri => format!("{}://{}{}", request.scheme(), request.authority, request.target),
            Self::RequestTarget => request.target.clone(),
            Self::Field(name) => {
                let values: Vec<&[u8]> =
                    request.headers.iter().filter(|(found, _)| found == name).map(|(_, value)| value.as_bytes().trim_ascii()).collect();
                return if values.is_empty() { None } else { Some(values.join(&b", "[..])) };
            }
        };
        Some(text.into_bytes())
    }
}

/// How to sign, checked.
#[derive(Debug, Clone)]
pub struct Rfc9421 {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// The name of the secret.
    pub secret: String,
    key_id: String,
    label: String,
    components: Vec<Component>,
    /// The list is the operator's: a component that a request does not have is an error, not left out.
    strict: bool,
}

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Its key.
    pub key: &'static str,
    /// What is wrong with it.
    pub what: String,
}

impl Problem {
    fn of(key: &'static str, what: impl Into<String>) -> Self {
        Self { key, what: what.into() }
    }
}

impl Rfc9421 {
    /// Checks the configuration.
    ///
    /// # Errors
    /// The key, and what is wrong with it.
    pub fn new(
        algorithm: Algorithm,
        key_id: String,
        secret: String,
        components: Option<Vec<String>>,
        label: Option<String>,
        idempotency_header: Option<&str>,
    ) -> Result<Self, Problem> {
        if key_id.is_empty() || !key_id.bytes().all(|byte| (0x20..0x7f).contains(&byte)) {
            return Err(Problem::of("key_id", "must be printable ASCII, and not empty"));
        }
        if secret.is_empty() {
            return Err(Problem::of("secret", "must name a secret"));
        }
        let label = label.unwrap_or_else(|| "sig1".into());
        if !is_dictionary_key(&label) {
            let what = "must begin with a lower-case letter, and go on with lower-case letters, digits and `_-.*`";
            return Err(Problem::of("label", what));
        }
        let strict = components.is_some();
        let names = components.unwrap_or_else(|| {
            let fixed = ["@method", "@authority", "@path", "@query", "content-digest", "content-type"];
            fixed.into_iter().chain(idempotency_header).map(str::to_owned).collect()
        });
        let mut parsed: Vec<Component> = Vec::new();
        for name in &names {
            let component = Component::parse(name).map_err(|error| Problem::of("components", error))?;
            if parsed.contains(&component) {
                return Err(Problem::of("components", format!("`{name}` is listed twice")));
            }
            parsed.push(component);
        }
        if parsed.is_empty() {
            return Err(Problem::of("components", "must list at least one component"));
        }
        Ok(Self { algorithm, secret, key_id, label, components: parsed, strict })
    }

    /// The headers to add to a request: `Content-Digest` if it is covered, `Signature-Input` and `Signature`. `created` is in Unix
    /// seconds.
    ///
    /// # Errors
    /// The request lacks a component.
    pub fn headers(&self, key: &Key, request: &mut Request<'_>, created: u64) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
        if self.components.contains(&Component::Field(CONTENT_DIGEST)) {
            request.headers.push((CONTENT_DIGEST, legal(&content_digest(&request.body))?));
        }
        let parameters = format!(";created={created};keyid=\"{}\";alg=\"{}\"", quote(&self.key_id), self.algorithm.name());
        let (base, input) = signature_base(&self.components, self.strict, &parameters, request)?;
        let signature = key.sign(&[&base]);
        Ok(vec![
            (HeaderName::from_static("signature-input"), legal(&format!("{}={input}", self.label))?),
            (HeaderName::from_static("signature"), legal(&format!("{}=:{signature}:", self.label))?),
        ])
    }
}

/// `Content-Digest` (RFC 9530 section 2) of the bytes as they are sent.
#[must_use]
pub fn content_digest(body: &[u8]) -> String {
    format!("sha-256=:{}:", STANDARD.encode(Sha256::digest(body)))
}

/// The signature base (RFC 9421 section 2.5), and the value of the signature's input.
fn signature_base(components: &[Component], strict: bool, parameters: &str, request: &Request<'_>) -> Result<(Vec<u8>, String), String> {
    let (mut base, mut names) = (Vec::new(), Vec::new());
    for component in components {
        let Some(value) = component.value(request) else {
            if strict {
                return Err(format!("its `components` list `{}`, a header that the request does not have", component.name()));
            }
            continue;
        };
        let name = format!("\"{}\"", component.name());
        base.extend_from_slice(name.as_bytes());
        base.extend_from_slice(b": ");
        base.extend_from_slice(&value);
        base.push(b'\n');
        names.push(name);
    }
    let input = format!("({}){parameters}", names.join(" "));
    base.extend_from_slice(format!("\"@signature-params\": {input}").as_bytes());
    Ok((base, input))
}

/// A key of a structured dictionary (RFC 8941 section 3.1.2).
fn is_dictionary_key(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'*')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(&byte))
}

/// The inside of a structured string (RFC 8941 section 3.3.3).
fn quote(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"")
}

fn legal(text: &str) -> Result<HeaderValue, String> {
    header::value(text.as_bytes()).map_err(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ed25519_dalek::pkcs8::DecodePublicKey;
    use http::Method;
    use std::borrow::Cow;

    /// `test-request` of RFC 9421, appendix B.2.
    fn test_request() -> Request<'static> {
        let headers = [("date", "Tue, 20 Apr 2021 02:07:55 GMT"), ("content-type", "application/json"), ("content-length", "18")];
        Request {
            method: Method::POST,
            secure: true,
            authority: Cow::Borrowed("example.com"),
            target: "/foo?param=Value&Pet=dog".into(),
            headers: headers.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).to_vec(),
            body: Cow::Borrowed(br#"{"hello": "world"}"#),
        }
    }

    fn base(names: &[&str], parameters: &str) -> (Vec<u8>, String) {
        let components: Vec<Component> = names.iter().map(|name| Component::parse(name).unwrap()).collect();
        signature_base(&components, true, parameters, &test_request()).unwrap()
    }

    #[test]
    fn appendix_b_2_5_hmac() {
        let key = "base64:uzvJfB4u3N0Jy4T7NZ75MDVcr8zSTInedJtkgcu46YW4XByzNJjxBdtjUkdJPBtbmHhIDi6pcl8jsasjlTMtDQ==";
        let key = Key::for_rfc9421(Algorithm::HmacSha256, key).unwrap();
        let (base, input) = base(&["date", "@authority", "content-type"], ";created=1618884473;keyid=\"test-shared-secret\"");
        assert_eq!(input, r#"("date" "@authority" "content-type");created=1618884473;keyid="test-shared-secret""#);
        assert_eq!(key.sign(&[&base]), "pxcQw6G3AjtMBQjwo8XzkZf/bws5LelbaMk5rGIGtE8=");
    }

    #[test]
    fn appendix_b_2_6_ed25519() {
        let pem =
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n";
        let key = Key::for_rfc9421(Algorithm::Ed25519, pem).unwrap();
        let names = ["date", "@method", "@path", "@authority", "content-type", "content-length"];
        let (base, _) = base(&names, ";created=1618884473;keyid=\"test-key-ed25519\"");
        assert_eq!(key.sign(&[&base]), "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==");
    }

    /// RFC 9421 appendix B.2 (sha-256 as in RFC 9530 appendix B.1 for the text with a line break).
    #[test]
    fn digests() {
        assert_eq!(content_digest(b"{\"hello\": \"world\"}"), "sha-256=:X48E9qOokqqrvdts8nOJRJN3OWDUoyWxBf7kbu9DBPE=:");
        assert_eq!(content_digest(b"{\"hello\": \"world\"}\n"), "sha-256=:RK/0qy18MlBSVnWgjwz6lZEWjP/lF5HF9bvEF8FabDg=:");
    }

    fn settings(components: Option<&[&str]>) -> Result<Rfc9421, Problem> {
        let components = components.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
        Rfc9421::new(Algorithm::Ed25519, "k\"1".into(), "s".into(), components, None, Some("idempotency-key"))
    }

    #[test]
    fn a_whole_request_verifies() {
        let pem =
            "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n-----END PRIVATE KEY-----\n";
        let key = Key::for_rfc9421(Algorithm::Ed25519, pem).unwrap();
        let mut request = test_request();
        request.body = Cow::Borrowed(b"");
        let headers = settings(None).unwrap().headers(&key, &mut request, 7).unwrap();
        assert_eq!(
            headers[0].1.to_str().unwrap(),
            r#"sig1=("@method" "@authority" "@path" "@query" "content-digest" "content-type");created=7;keyid="k\"1";alg="ed25519""#
        );
        let signature = headers[1].1.to_str().unwrap().strip_prefix("sig1=:").unwrap().strip_suffix(':').unwrap();
        let expected = "\"@method\": POST\n\"@authority\": example.com\n\"@path\": /foo\n\"@query\": ?param=Value&Pet=dog\n\
            \"content-digest\": sha-256=:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=:\n\"content-type\": application/json\n\
            \"@signature-params\": (\"@method\" \"@authority\" \"@path\" \"@query\" \"content-digest\" \"content-type\");created=7;keyid=\"k\\\"1\";alg=\"ed25519\"";
        let public = "-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=\n-----END PUBLIC KEY-----\n";
        let public = ed25519_dalek::VerifyingKey::from_public_key_pem(public).unwrap();
        let signature = ed25519_dalek::Signature::from_slice(&STANDARD.decode(signature).unwrap()).unwrap();
        assert!(public.verify_strict(expected.as_bytes(), &signature).is_ok());
    }

    #[test]
    fn components_are_taken_as_rfc_9421_says() {
        let mut request = test_request();
        request.target = "/a".into();
        request.secure = false;
        request.headers.push((HeaderName::from_static("x"), HeaderValue::from_static(" a ")));
        request.headers.push((HeaderName::from_static("x"), HeaderValue::from_static("b")));
        let value = |name: &str| Component::parse(name).unwrap().value(&request).map(|bytes| String::from_utf8(bytes).unwrap());
        assert_eq!(value("@query").unwrap(), "?");
        assert_eq!(value("@target-uri").unwrap(), "http://example.com/a");
        assert_eq!(value("@scheme").unwrap(), "http");
        assert_eq!(value("@request-target").unwrap(), "/a");
        assert_eq!(value("X").unwrap(), "a, b");
        assert_eq!(value("y"), None);
    }

    #[test]
    fn listed_components_must_be_there() {
        let key = Key::for_rfc9421(Algorithm::HmacSha256, "x").unwrap();
        let error = settings(Some(&["x-absent"])).unwrap().headers(&key, &mut test_request(), 0).unwrap_err();
        assert!(error.contains("`x-absent`"), "{error}");
    }

    #[test]
    fn bad_settings_are_named() {
        for names in [&["@status"][..], &["@query-param"], &["a b"], &["date", "Date"], &["signature"], &[]] {
            assert_eq!(settings(Some(names)).unwrap_err().key, "components", "{names:?}");
        }
        let new = |key_id: &str, secret: &str, label: &str| {
            Rfc9421::new(Algorithm::Ed25519, key_id.into(), secret.into(), None, Some(label.into()), None).unwrap_err().key
        };
        assert_eq!([new("é", "s", "a"), new("k", "", "a"), new("k", "s", "A")], ["key_id", "secret", "label"]);
    }
}
