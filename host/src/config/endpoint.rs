//! URLs of endpoints that deliveries go to. They may hold credentials: nothing here repeats any of one.

/// Longest URL, in bytes: servers and proxies refuse longer ones.
pub const MAX_BYTES: usize = 8 << 10;

/// What is wrong with the URL of an endpoint; none: nothing. Fits behind "its URL " and "a URL that ".
#[must_use]
pub fn fault(url: &str) -> Option<&'static str> {
    if url.len() > MAX_BYTES {
        return Some("is longer than 8 KiB");
    }
    let Ok(parsed) = url::Url::parse(url) else { return Some("is not an absolute URL: write \"https://host/path\"") };
    if !matches!(parsed.scheme(), "http" | "https") {
        return Some("is neither http nor https: write \"https://host/path\"");
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Some("holds a user or a password: leave them out, and say in the authentication what to show");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_endpoint_is_told_without_a_word_of_it() {
        for (url, expected) in [
            ("https://hooks.example.com/in?a=b", None),
            ("http://127.0.0.1:8080", None),
            ("", Some("not an absolute URL")),
            ("/in", Some("not an absolute URL")),
            ("hooks.example.com/in", Some("not an absolute URL")),
            ("https://", Some("not an absolute URL")),
            ("ftp://hooks.example.com/", Some("neither http nor https")),
            ("mailto:a@b", Some("neither http nor https")),
            ("https://me@hooks.example.com/", Some("a user or a password")),
            ("https://:hunter2@hooks.example.com/", Some("a user or a password")),
        ] {
            let fault = fault(url);
            assert_eq!(fault.is_some(), expected.is_some(), "{url}");
            assert!(fault.unwrap_or_default().contains(expected.unwrap_or_default()), "{url}: {fault:?}");
            assert!(!fault.unwrap_or_default().contains("hunter2"));
        }
        let long = format!("https://h/{}", "a".repeat(MAX_BYTES));
        assert_eq!(fault(&long), Some("is longer than 8 KiB"));
    }
}
