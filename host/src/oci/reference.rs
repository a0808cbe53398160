//! References: which component, and in which registry. The grammar is that of the OCI distribution specification 1.1 ("Pulling
//! manifests"); the registry is always named, because a default one would decide where code comes from.

use super::Digest;
use std::fmt;

/// How a reference begins where the configuration also takes names of files.
const SCHEME: &str = "oci://";

/// What to write, for errors.
const FORM: &str = "REGISTRY/REPOSITORY@sha256:DIGEST, as in ghcr.io/acme/adapter@sha256:...";

/// `registry/repository`, with a tag, a digest, or both: then the digest counts, and the tag is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host, with the port if it has one, in lower case.
    pub registry: String,
    /// Path in it.
    pub repository: String,
    /// `:tag`.
    pub tag: Option<String>,
    /// `@sha256:...`, of the manifest.
    pub digest: Option<Digest>,
}

impl Reference {
    /// Reads one, with or without `oci://`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| format!("{text:?} is not a reference: {what}; write {FORM}");
        let bare = text.strip_prefix(SCHEME).unwrap_or(text);
        let (name, digest) = match bare.split_once('@') {
            None => (bare, None),
            Some((name, digest)) => (name, Some(Digest::parse(digest).map_err(|error| wrong(&error))?)),
        };
        let (registry, path) = name.split_once('/').ok_or_else(|| wrong("it has no repository"))?;
        let (repository, tag) = match path.split_once(':') {
            None => (path, None),
            Some((repository, tag)) => (repository, Some(tag)),
        };
        let registry = registry_name(registry).map_err(|error| wrong(&error))?;
        if repository.len() > 255 || !repository.split('/').all(is_component) {
            return Err(wrong("a repository has lower-case letters and digits in parts between '/', with '.', '_' and '-' inside"));
        }
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(wrong("a tag has letters, digits, '_', '.' and '-', at most 128"));
        }
        Ok(Self { registry, repository: repository.to_owned(), tag: tag.map(str::to_owned), digest })
    }

    /// The same, known by this digest.
    #[must_use]
    pub fn at(&self, digest: Digest) -> Pinned {
        Pinned { registry: self.registry.clone(), repository: self.repository.clone(), digest }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.registry, self.repository)?;
        self.tag.iter().try_for_each(|tag| write!(out, ":{tag}"))?;
        self.digest.iter().try_for_each(|digest| write!(out, "@{digest}"))
    }
}

/// A reference with a digest: it means the same content for ever, wherever that comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// Host, with the port if it has one, in lower case.
    pub registry: String,
    /// Path in it.
    pub repository: String,
    /// Of the manifest.
    pub digest: Digest,
}

impl Pinned {
    /// What `plugin` of an adapter's configuration refers to; none: it is the name of a file.
    #[must_use]
    pub fn in_plugin(plugin: &str) -> Option<Result<Self, String>> {
        plugin.starts_with(SCHEME).then(|| {
            let reference = Reference::parse(plugin)?;
            let digest = reference.digest.ok_or_else(|| {
                format!(
                    "{plugin:?} has no digest, so that it could be another component tomorrow: `outhaul plugin pull --resolve {reference}` \
                     tells the digest that it has now"
                )
            })?;
            Ok(reference.at(digest))
        })
    }

    /// As it is written in a configuration.
    #[must_use]
    pub fn as_plugin(&self) -> String {
        format!("{SCHEME}{self}")
    }
}

impl fmt::Display for Pinned {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}@{}", self.registry, self.repository, self.digest)
    }
}

/// The name of a registry as it is compared: in lower case.
///
/// # Errors
/// It is none.
pub(crate) fn registry_name(text: &str) -> Result<String, String> {
    let authority = text.parse::<http::uri::Authority>().ok().filter(|authority| !authority.as_str().contains('@'));
    let named = authority.filter(|authority| {
        let host = authority.host();
        let port = authority.as_str().get(host.len()..).unwrap_or_default();
        // A host alone, without a dot, is the first part of a repository in other programs.
        let is_whole = port.is_empty() || authority.port_u16().is_some_and(|port| port > 0);
        is_whole && !host.is_empty() && (host == "localhost" || host.contains(['.', ':']) || !port.is_empty())
    });
    match named {
        Some(authority) => Ok(authority.as_str().to_ascii_lowercase()),
        None => Err(format!("{text:?} is not a registry's name: write a host, as in \"ghcr.io\" or \"localhost:5000\"")),
    }
}

/// Whether only this machine can be behind a registry's name.
#[must_use]
pub(crate) fn is_loopback(registry: &str) -> bool {
    let host = registry.parse::<http::uri::Authority>().map(|authority| authority.host().to_owned()).unwrap_or_default();
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(&host);
    bare == "localhost" || bare.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// `[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*`
fn is_component(text: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let ends_in_words = bytes.first().copied().is_some_and(is_word) && bytes.last().copied().is_some_and(is_word);
    let known = bytes.iter().all(|byte| is_word(*byte) || matches!(byte, b'.' | b'_' | b'-'));
    let mut between = text.split(|character: char| character.is_ascii_alphanumeric()).filter(|separator| !separator.is_empty());
    ends_in_words && known && between.all(|separator| matches!(separator, "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-'))
}

fn is_tag(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    !text.is_empty() && text.len() <= 128 && !text.starts_with(['.', '-']) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DIGITS: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn references_are_taken_apart() {
        let full = format!("oci://GHCR.io/acme/a__b-c.d/x:1.0_rc@sha256:{DIGITS}");
        let reference = Reference::parse(&full).unwrap();
        assert_eq!((reference.registry.as_str(), reference.repository.as_str()), ("ghcr.io", "acme/a__b-c.d/x"));
        assert_eq!((reference.tag.as_deref(), reference.digest), (Some("1.0_rc"), Some(Digest::of(b""))));
        let pinned = Pinned::in_plugin(&full).unwrap().unwrap();
        assert_eq!(pinned.as_plugin(), format!("oci://ghcr.io/acme/a__b-c.d/x@sha256:{DIGITS}"));
        for text in ["localhost/a", "localhost:5000/a", "[::1]:5000/a", "127.0.0.1:1/a/b", "build:5000/a", "example.com/a:b"] {
            assert_eq!(Reference::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_none_is_told() {
        for (text, told) in [
            ("", "it has no repository"),
            ("adapter", "it has no repository"),
            ("acme/adapter", "is not a registry's name"),
            ("user:secret@ghcr.io/a", "is not a digest"),
            ("ghcr.io:0/a", "is not a registry's name"),
            ("ghcr.io:port/a", "is not a registry's name"),
            ("ghcr.io/", "a repository has"),
            ("ghcr.io/A", "a repository has"),
            ("ghcr.io/a//b", "a repository has"),
            ("ghcr.io/../b", "a repository has"),
            ("ghcr.io/a..b", "a repository has"),
            ("ghcr.io/a?b", "a repository has"),
            ("ghcr.io/a:", "a tag has"),
            ("ghcr.io/a:.b", "a tag has"),
            ("ghcr.io/a@sha512:00", "is not a digest"),
            ("https://ghcr.io/a", "is not a registry's name"),
        ] {
            let error = Reference::parse(text).unwrap_err();
            assert!(error.contains(told) && error.contains("write REGISTRY/REPOSITORY@sha256"), "{text}: {error}");
        }
    }

    #[test]
    fn in_a_configuration_the_digest_is_wanted() {
        assert_eq!(Pinned::in_plugin("http-publisher"), None);
        let error = Pinned::in_plugin("oci://ghcr.io/acme/adapter:1").unwrap().unwrap_err();
        assert!(error.contains("has no digest") && error.contains("outhaul plugin pull --resolve ghcr.io/acme/adapter:1"), "{error}");
    }

    #[test]
    fn this_machine_is_known() {
        assert!(["localhost", "localhost:5000", "127.0.0.1:1", "[::1]:5000"].into_iter().all(is_loopback));
        assert!(!["ghcr.io", "localhost.example.com", "10.0.0.1:5000", "[fd00::1]:1"].into_iter().any(is_loopback));
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "[a-z.:0-9]{1,12}/[a-z/._-]{1,12}(:[a-zA-Z.-]{1,5})?") {
            if let Ok(reference) = Reference::parse(&text) {
                prop_assert_eq!(reference.to_string(), text);
            }
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Reference::parse(&text);
            let _ = registry_name(&text);
        }
    }
}
