//! SCRAM (RFC 5802): both sides prove that they know the password, and neither sends it.

use super::SaslError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use pbkdf2::pbkdf2_hmac;
use sha2::{Digest, Sha256, Sha512};

/// RFC 7677 section 4.
pub(super) const MIN_ITERATIONS: u32 = 4096;
/// Kafka itself stores at most 16384; a hundredfold would keep a lane busy for seconds.
pub(super) const MAX_ITERATIONS: u32 = 200_000;

/// Header of the exchange: no channel binding, no identity to act as. `biws` is its base64.
const GS2_HEADER: &str = "n,,";

/// Which hash function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-512.
    Sha512,
}

impl Hash {
    fn salted_password(self, password: &[u8], salt: &[u8], iterations: u32) -> Vec<u8> {
        match self {
            Self::Sha256 => {
                let mut output = vec![0; 32];
                pbkdf2_hmac::<Sha256>(password, salt, iterations, &mut output);
                output
            }
            Self::Sha512 => {
                let mut output = vec![0; 64];
                pbkdf2_hmac::<Sha512>(password, salt, iterations, &mut output);
                output
            }
        }
    }

    fn mac(self, key: &[u8], text: &[u8]) -> Result<Vec<u8>, SaslError> {
        // HMAC takes keys of any length: the error cannot happen, and would not be a secret.
        match self {
            Self::Sha256 => Hmac::<Sha256>::new_from_slice(key).map(|mac| mac.chain_update(text).finalize().into_bytes().to_vec()),
            Self::Sha512 => Hmac::<Sha512>::new_from_slice(key).map(|mac| mac.chain_update(text).finalize().into_bytes().to_vec()),
        }
        .map_err(|_| SaslError::Malformed)
    }

    fn digest(self, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(text).to_vec(),
            Self::Sha512 => Sha512::digest(text).to_vec(),
        }
    }

    fn verify(self, key: &[u8], text: &[u8], signature: &[u8]) -> bool {
        // In constant time.
        match self {
            Self::Sha256 => Hmac::<Sha256>::new_from_slice(key).is_ok_and(|mac| mac.chain_update(text).verify_slice(signature).is_ok()),
            Self::Sha512 => Hmac::<Sha512>::new_from_slice(key).is_ok_and(|mac| mac.chain_update(text).verify_slice(signature).is_ok()),
        }
    }
}

/// The client's side of one exchange.
pub struct Scram {
    hash: Hash,
    password: String,
    nonce: String,
    first_bare: String,
    /// Key and text of the signature that the broker owes us.
    expected: Option<(Vec<u8>, String)>,
}

impl Scram {
    /// Begins. `nonce` must be fresh randomness; it is sent as base64.
    #[must_use]
    pub fn new(hash: Hash, username: &str, password: &str, nonce: &[u8]) -> Self {
        let nonce = STANDARD.encode(nonce);
        // The two characters that the format needs for itself.
        let name = username.replace('=', "=3D").replace(',', "=2C");
        Self { hash, password: password.to_owned(), first_bare: format!("n={name},r={nonce}"), nonce, expected: None }
    }

    /// The first message.
    #[must_use]
    pub fn first(&self) -> Vec<u8> {
        format!("{GS2_HEADER}{}", self.first_bare).into_bytes()
    }

    /// The answer to the broker's first message: the proof that we know the password.
    ///
    /// # Errors
    /// The broker's message is malformed, not for us, or asks too little or too much.
    pub fn proof(&mut self, server_first: &[u8]) -> Result<Vec<u8>, SaslError> {
        let server_first = std::str::from_utf8(server_first).map_err(|_| SaslError::Malformed)?;
        if let Some(error) = server_first.strip_prefix("e=") {
            return Err(SaslError::Refused(error.to_owned()));
        }
        let mut fields = server_first.split(',');
        let mut field = |name: &str| fields.next().and_then(|field| field.strip_prefix(name)).ok_or(SaslError::Malformed);
        let nonce = field("r=")?;
        let salt = STANDARD.decode(field("s=")?).map_err(|_| SaslError::Malformed)?;
        let iterations: u32 = field("i=")?.parse().map_err(|_| SaslError::Malformed)?;
        if !nonce.starts_with(&self.nonce) || nonce.len() == self.nonce.len() {
            return Err(SaslError::Nonce);
        }
        if !(MIN_ITERATIONS..=MAX_ITERATIONS).contains(&iterations) {
            return Err(SaslError::Iterations(iterations));
        }
        let salted = self.hash.salted_password(self.password.as_bytes(), &salt, iterations);
        let client_key = self.hash.mac(&salted, b"Client Key")?;
        let without_proof = format!("c={},r={nonce}", STANDARD.encode(GS2_HEADER));
        let text = format!("{},{server_first},{without_proof}", self.first_bare);
        let signature = self.hash.mac(&self.hash.digest(&client_key), text.as_bytes())?;
        let proof: Vec<u8> = client_key.iter().zip(&signature).map(|(key, mask)| key ^ mask).collect();
        self.expected = Some((self.hash.mac(&salted, b"Server Key")?, text));
        Ok(format!("{without_proof},p={}", STANDARD.encode(proof)).into_bytes())
    }

    /// Checks the broker's last message: the proof that it knows the password as well.
    ///
    /// # Errors
    /// It refused, or it could not prove it.
    pub fn verify(&self, server_final: &[u8]) -> Result<(), SaslError> {
        let text = std::str::from_utf8(server_final).map_err(|_| SaslError::Malformed)?;
        if let Some(error) = text.strip_prefix("e=") {
            return Err(SaslError::Refused(error.to_owned()));
        }
        let signature = text.strip_prefix("v=").and_then(|rest| rest.split(',').next()).ok_or(SaslError::Malformed)?;
        let signature = STANDARD.decode(signature).map_err(|_| SaslError::Malformed)?;
        match &self.expected {
            Some((key, text)) if self.hash.verify(key, text.as_bytes(), &signature) => Ok(()),
            _ => Err(SaslError::Signature),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7677 section 3, with its nonce put in as it stands there.
    fn example() -> Scram {
        let mut scram = Scram::new(Hash::Sha256, "user", "pencil", b"");
        scram.nonce = "rOprNGfwEbeRWgbNEkqO".into();
        scram.first_bare = format!("n=user,r={}", scram.nonce);
        scram
    }

    const SERVER_FIRST: &[u8] = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096";

    #[test]
    fn the_example_of_the_rfc() {
        let mut scram = example();
        assert_eq!(scram.first(), b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
        let proof = scram.proof(SERVER_FIRST).unwrap();
        let expected = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        assert_eq!(String::from_utf8(proof).unwrap(), expected);
        assert_eq!(scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Ok(()));
        assert_eq!(scram.verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5="), Err(SaslError::Malformed));
        assert_eq!(scram.verify(b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Err(SaslError::Signature));
        assert_eq!(scram.verify(b"e=invalid-proof"), Err(SaslError::Refused("invalid-proof".into())));
    }

    #[test]
    fn a_false_broker_is_not_believed() {
        assert_eq!(example().verify(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="), Err(SaslError::Signature));
        for (text, error) in [
            (&b"r=other,s=AAAA,i=4096"[..], SaslError::Nonce),
            (b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096", SaslError::Nonce),
            (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=1", SaslError::Iterations(1)),
            (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=999999999", SaslError::Iterations(999_999_999)),
            (b"r=rOprNGfwEbeRWgbNEkqOx,s=?,i=4096", SaslError::Malformed),
            (b"", SaslError::Malformed),
            (b"\xff", SaslError::Malformed),
            (b"e=unknown-user", SaslError::Refused("unknown-user".into())),
        ] {
            assert_eq!(example().proof(text).unwrap_err(), error, "{text:?}");
        }
    }

    #[test]
    fn names_are_escaped() {
        assert!(Scram::new(Hash::Sha512, "a=b,c", "", b"x").first().starts_with(b"n,,n=a=3Db=2Cc,r="));
    }
}
