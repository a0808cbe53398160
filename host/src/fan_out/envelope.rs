//! The envelope of a delivery: where it goes, how to authenticate there and what is sent, sealed with AES-256-GCM. The routing columns
//! beside it are its associated data ([`super::binding`]).
//!
//! `0x01`, a nonce of 12 random bytes, the ciphertext with its tag. Inside, every part has its length in front of it (32 bits, big-endian).

use super::binding::Binding;
use super::keys::SealingKey;
use aes_gcm::aead::{Aead, Payload};
use zeroize::{Zeroize, Zeroizing};

/// Largest envelope, in bytes.
pub const MAX_BYTES: usize = 1 << 20;

/// The first byte.
const FORM: u8 = 1;
const NONCE: usize = 12;
const TAG: usize = 16;

/// What is sealed. No `Debug`: URL and authentication are not for logs, and are wiped when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Contents {
    /// Absolute URL of the endpoint.
    pub url: String,
    /// How to authenticate, as a JSON object.
    pub authentication: Option<String>,
    /// Headers of the event, in order.
    pub headers: Vec<(String, Vec<u8>)>,
    /// None: a tombstone.
    pub payload: Option<Vec<u8>>,
    /// When the event was created, in Unix milliseconds; 0: unknown.
    pub created_at: u64,
}

impl Drop for Contents {
    fn drop(&mut self) {
        self.url.zeroize();
        self.authentication.zeroize();
    }
}

/// It would be larger than [`MAX_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sealed, it has {0} bytes, and an envelope may have {MAX_BYTES}")]
pub struct TooLarge(pub usize);

/// It does not open: another key, a changed byte, a changed column, or another form. Which of these it is cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the envelope does not authenticate: it, or a column beside it, is not what was sealed")]
pub struct DoesNotOpen;

/// Seals with a fresh nonce.
///
/// # Errors
/// The envelope would be too large.
pub fn seal(key: &SealingKey, binding: &Binding, contents: &Contents) -> Result<Vec<u8>, TooLarge> {
    let plain = encode(contents);
    let bytes = plain.len().saturating_add(1 + NONCE + TAG);
    let nonce: [u8; NONCE] = rand::random();
    let aad = binding.associated_data();
    let sealed = if bytes > MAX_BYTES { None } else { key.cipher().encrypt(&nonce.into(), Payload { msg: &plain, aad: &aad }).ok() };
    let sealed = sealed.ok_or(TooLarge(bytes))?;
    let mut envelope = Vec::with_capacity(bytes);
    envelope.push(FORM);
    envelope.extend_from_slice(&nonce);
    envelope.extend_from_slice(&sealed);
    Ok(envelope)
}

/// Opens what [`seal`] made, if nothing of it and nothing of the binding was changed.
///
/// # Errors
/// It does not open.
pub fn open(key: &SealingKey, binding: &Binding, envelope: &[u8]) -> Result<Contents, DoesNotOpen> {
    if envelope.len() > MAX_BYTES {
        return Err(DoesNotOpen);
    }
    let (form, rest) = envelope.split_first().ok_or(DoesNotOpen)?;
    let (nonce, sealed) = rest.split_first_chunk::<NONCE>().ok_or(DoesNotOpen)?;
    if *form != FORM {
        return Err(DoesNotOpen);
    }
    let aad = binding.associated_data();
    let plain = key.cipher().decrypt(&(*nonce).into(), Payload { msg: sealed, aad: &aad }).map_err(|_| DoesNotOpen)?;
    decode(&Zeroizing::new(plain)).ok_or(DoesNotOpen)
}

fn encode(contents: &Contents) -> Zeroizing<Vec<u8>> {
    let Contents { url, authentication, headers, payload, created_at } = contents;
    let headers_bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 8).sum();
    let parts = url.len() + authentication.as_ref().map_or(0, String::len) + payload.as_ref().map_or(0, Vec::len);
    // Room for all of it: a buffer that grows leaves copies behind that nobody wipes.
    let mut out = Zeroizing::new(Vec::with_capacity(parts + headers_bytes + 64));
    out.extend_from_slice(&created_at.to_be_bytes());
    put(&mut out, url.as_bytes());
    put_option(&mut out, authentication.as_deref().map(str::as_bytes));
    out.extend_from_slice(&u32::try_from(headers.len()).unwrap_or(u32::MAX).to_be_bytes());
    for (name, value) in headers {
        put(&mut out, name.as_bytes());
        put(&mut out, value);
    }
    put_option(&mut out, payload.as_deref());
    out
}

/// What does not fit into 32 bits is far over the limit, and refused for that.
fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn put_option(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    out.push(u8::from(bytes.is_some()));
    if let Some(bytes) = bytes {
        put(out, bytes);
    }
}

fn decode(plain: &[u8]) -> Option<Contents> {
    let mut reader = Reader(plain);
    let created_at = u64::from_be_bytes(reader.array()?);
    let url = reader.text()?;
    let authentication = if reader.flag()? { Some(reader.text()?) } else { None };
    let mut headers = Vec::new();
    for _ in 0..reader.number()? {
        headers.push((reader.text()?, reader.bytes()?.to_vec()));
    }
    let payload = if reader.flag()? { Some(reader.bytes()?.to_vec()) } else { None };
    reader.0.is_empty().then_some(Contents { url, authentication, headers, payload, created_at })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn number(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    fn flag(&mut self) -> Option<bool> {
        match self.array::<1>()? {
            [0] => Some(false),
            [1] => Some(true),
            _ => None,
        }
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        std::str::from_utf8(self.bytes()?).ok().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::super::binding::tests::binding;
    use super::*;
    use proptest::prelude::*;

    fn key(byte: u8) -> SealingKey {
        SealingKey::of([byte; 32])
    }

    fn contents() -> Contents {
        Contents {
            url: "https://crm.example/in?x=1".into(),
            authentication: Some("{\"type\":\"bearer\",\"token\":\"t\"}".into()),
            headers: vec![("a".into(), b"1".to_vec()), ("a".into(), b"\xff".to_vec())],
            payload: Some(b"{}".to_vec()),
            created_at: 1_767_225_600_000,
        }
    }

    fn opens(key: &SealingKey, binding: &Binding, envelope: &[u8]) -> bool {
        open(key, binding, envelope).is_ok()
    }

    proptest! {
        #[test]
        fn what_is_sealed_comes_back(url in ".{0,40}", authentication in prop::option::of(".{0,40}"), created_at in any::<u64>(),
                                     headers in prop::collection::vec((".{0,8}", prop::collection::vec(any::<u8>(), 0..9)), 0..5),
                                     payload in prop::option::of(prop::collection::vec(any::<u8>(), 0..40))) {
            let contents = Contents { url, authentication, headers, payload, created_at };
            let envelope = seal(&key(1), &binding(), &contents).unwrap();
            prop_assert!(open(&key(1), &binding(), &envelope).is_ok_and(|back| back == contents));
        }

        #[test]
        fn wild_plaintext_is_refused_or_read_back_to_the_last_byte(plain in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Some(contents) = decode(&plain) {
                prop_assert_eq!(&*encode(&contents), &plain);
            }
        }
    }

    #[test]
    fn every_column_of_the_binding_holds_the_envelope() {
        let (key, binding) = (key(1), binding());
        let envelope = seal(&key, &binding, &contents()).unwrap();
        assert!(opens(&key, &binding, &envelope));
        let changes: [fn(&mut Binding); 22] = [
            |one| one.account_id.push('x'),
            |one| one.delivery_id.push('x'),
            |one| one.subscriber_id.push('x'),
            |one| one.principal_id.clear(),
            |one| one.notification_id.push('x'),
            |one| one.notification_type.push('x'),
            |one| one.emission_generation += 1,
            |one| one.idempotency_key.push('x'),
            |one| one.destination_sha256.push('x'),
            |one| one.subscription_fingerprint.push('x'),
            |one| one.signing_scope_id = None,
            |one| one.signing_scope_id = Some("other".into()),
            |one| one.cause_kind = "reemit".into(),
            |one| one.cause_id.push('x'),
            |one| one.cause_generation += 1,
            |one| one.consumer_namespace.push('x'),
            |one| one.auth_mode = "none".into(),
            |one| one.body_sha256.push('x'),
            |one| one.envelope_version += 1,
            |one| one.key_version.push('x'),
            |one| one.order_key = None,
            |one| one.order_key = Some("other".into()),
        ];
        for (index, change) in changes.into_iter().enumerate() {
            let mut changed = binding.clone();
            change(&mut changed);
            assert_ne!(changed, binding);
            assert!(!opens(&key, &changed, &envelope), "change {index}");
        }
    }

    #[test]
    fn every_byte_of_the_envelope_holds_and_so_does_its_length() {
        let (key, binding) = (key(1), binding());
        let envelope = seal(&key, &binding, &contents()).unwrap();
        for index in 0..envelope.len() {
            for bit in [1, 0x80] {
                let mut changed = envelope.clone();
                changed[index] ^= bit;
                assert!(!opens(&key, &binding, &changed), "byte {index}");
            }
            assert!(!opens(&key, &binding, &envelope[..index]), "cut at {index}");
        }
        assert!(!opens(&key, &binding, &[envelope.clone(), vec![0]].concat()));
        assert!(!opens(&self::key(2), &binding, &envelope));
    }

    #[test]
    fn a_nonce_is_used_once() {
        let nonces: std::collections::HashSet<Vec<u8>> =
            (0..100).map(|_| seal(&key(1), &binding(), &contents()).unwrap()[1..13].to_vec()).collect();
        assert_eq!(nonces.len(), 100);
    }

    #[test]
    fn a_mebibyte_is_the_limit_to_the_byte() {
        let with = |payload: usize| {
            let contents =
                Contents { url: String::new(), authentication: None, headers: Vec::new(), payload: Some(vec![0; payload]), created_at: 0 };
            seal(&key(1), &binding(), &contents)
        };
        // created-at, URL, two flags, count of headers, length of the payload.
        let around = 8 + 4 + 1 + 4 + 1 + 4 + 1 + NONCE + TAG;
        let envelope = with(MAX_BYTES - around).unwrap();
        assert_eq!(envelope.len(), MAX_BYTES);
        assert!(opens(&key(1), &binding(), &envelope));
        assert_eq!(with(MAX_BYTES - around + 1), Err(TooLarge(MAX_BYTES + 1)));
    }

    #[test]
    fn nothing_of_the_plaintext_is_in_the_envelope() {
        let envelope = seal(&key(1), &binding(), &contents()).unwrap();
        for part in [&b"https"[..], b"bearer", b"crm"] {
            assert!(!envelope.windows(part.len()).any(|window| window == part));
        }
    }
}
