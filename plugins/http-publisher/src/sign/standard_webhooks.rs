//! Standard Webhooks (<https://github.com/standard-webhooks/standard-webhooks>, specification 1.0): `v1` is HMAC-SHA256, `v1a`
//! is Ed25519; while secrets are rotated there is one signature of each.

use super::keys::Key;
use crate::header;
use http::{HeaderName, HeaderValue};

/// The three headers for a body that is sent at `timestamp`, in Unix seconds.
///
/// # Errors
/// The id cannot stand in a header.
pub fn headers(keys: &[Key], id: &str, timestamp: u64, body: &[u8]) -> Result<Vec<(HeaderName, HeaderValue)>, String> {
    let id_value = header::value(id.as_bytes()).map_err(|error| format!("`webhook-id`: {error}"))?;
    // Signed as it arrives, without blanks around it.
    let timestamp = timestamp.to_string();
    let parts: [&[u8]; 5] = [id_value.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    let signatures: Vec<String> = keys
        .iter()
        .map(|key| {
            let version = if matches!(key, Key::Ed25519(_)) { "v1a" } else { "v1" };
            format!("{version},{}", key.sign(&parts))
        })
        .collect();
    let value = |text: &str| header::value(text.as_bytes()).map_err(str::to_owned);
    let (timestamp, signatures) = (value(&timestamp)?, value(&signatures.join(" "))?);
    Ok(vec![
        (HeaderName::from_static("webhook-id"), id_value),
        (HeaderName::from_static("webhook-timestamp"), timestamp),
        (HeaderName::from_static("webhook-signature"), signatures),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use ed25519_dalek::{Signature, SigningKey};

    fn signature(keys: &[Key], id: &str, body: &[u8]) -> String {
        headers(keys, id, 1_614_265_330, body).unwrap()[2].1.to_str().unwrap().to_owned()
    }

    /// The example that the reference libraries test with.
    #[test]
    fn published_example() {
        let key = Key::for_standard_webhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let headers = headers(&[key], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#).unwrap();
        let texts: Vec<_> = headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        assert_eq!(
            texts,
            [
                "webhook-id: msg_p5jXN8AQM9LWM0D4loKWxJek",
                "webhook-timestamp: 1614265330",
                "webhook-signature: v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            ]
        );
    }

    #[test]
    fn rotation_signs_with_each() {
        let seed = [9; 32];
        let texts = ["whsec_AAAA", "whsec_BBBB", &format!("whsk_{}", STANDARD.encode(seed))].map(Key::for_standard_webhooks);
        let keys: Vec<Key> = texts.into_iter().map(Result::unwrap).collect();
        let all = signature(&keys, "a", b"body");
        let single: Vec<String> = keys.iter().map(|key| signature(std::slice::from_ref(key), "a", b"body")).collect();
        assert_eq!(all, single.join(" "));
        let ed25519 = STANDARD.decode(single[2].strip_prefix("v1a,").unwrap()).unwrap();
        let public = SigningKey::from_bytes(&seed).verifying_key();
        assert!(public.verify_strict(b"a.1614265330.body", &Signature::from_slice(&ed25519).unwrap()).is_ok());
    }

    #[test]
    fn every_byte_counts() {
        let keys = [Key::for_standard_webhooks("whsec_AAAA").unwrap()];
        assert_ne!(signature(&keys, "a", b"{\"a\":1}"), signature(&keys, "a", b"{\"a\": 1}"));
        assert_ne!(signature(&keys, "a", b"\xff"), signature(&keys, "a", "\u{FFFD}".as_bytes()));
        assert!(headers(&keys, "a\nb", 0, b"").is_err());
    }
}
