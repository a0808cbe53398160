//! Who the client is: its certificate and key, read again when the files have changed. Certificates that live for days are renewed by
//! programs, and a host that runs for months must not be restarted for each.

use super::{CERT_FILE, KEY_FILE, unusable};
use crate::config::model::ClientCertificate;
use crate::plugin::PluginError;
use crate::tls::{certificates, private_key};
use rustls::SignatureScheme;
use rustls::client::ResolvesClientCert;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// How long the files are taken to be as they were. Looking costs two system calls, on a thread that runs handshakes.
const RECHECK: Duration = Duration::from_secs(5);

/// What tells one content of the two files from another: an editor writes in place, other programs exchange the file.
type Stamp = [(Option<SystemTime>, u64, u64); 2];

/// A certificate with its key, and the files that they come from.
#[derive(Debug)]
pub(super) struct Identity {
    files: ClientCertificate,
    provider: Arc<CryptoProvider>,
    recheck: Duration,
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    key: Arc<CertifiedKey>,
    stamp: Stamp,
    looked: Instant,
}

impl Identity {
    pub(super) fn load(files: &ClientCertificate, provider: Arc<CryptoProvider>) -> Result<Self, PluginError> {
        // Looked at before the content is: what changes in between is read again.
        let stamp = stamp(files).map_err(|(key, file, error)| unusable(key, file, error.to_string()))?;
        let current = Current { key: Arc::new(read(files, &provider)?), stamp, looked: Instant::now() };
        if std::fs::metadata(&files.key).is_ok_and(|file| file.mode() & 0o004 != 0) {
            tracing::warn!("{KEY_FILE} = {:?} can be read by every user of this machine: `chmod o-r` it", files.key);
        }
        Ok(Self { files: files.clone(), provider, recheck: RECHECK, current: Mutex::new(current) })
    }

    fn key(&self) -> Arc<CertifiedKey> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if current.looked.elapsed() >= self.recheck {
            current.looked = Instant::now();
            self.renew(&mut current);
        }
        Arc::clone(&current.key)
    }

    /// Takes in what has changed. While it cannot be used (the key is not written yet, say), what was there before serves on.
    fn renew(&self, current: &mut Current) {
        let stamp = match stamp(&self.files) {
            Ok(stamp) if stamp == current.stamp => return,
            Ok(stamp) => stamp,
            // Files that are being exchanged; once they are there, they are looked at.
            Err((key, file, error)) => return tracing::debug!("{key} = {file:?}: {error}"),
        };
        current.stamp = stamp;
        match read(&self.files, &self.provider) {
            Ok(key) => {
                current.key = Arc::new(key);
                tracing::info!("{CERT_FILE} = {:?} has changed and is used from now on", self.files.certificate);
            }
            Err(error) => tracing::warn!("the client certificate has changed, and the one before is used on: {error}"),
        }
    }
}

impl ResolvesClientCert for Identity {
    fn resolve(&self, _root_hint_subjects: &[&[u8]], _sigschemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        // The server may not know the authority; then it says so, which is of more use than to show nothing.
        Some(self.key())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

fn stamp(files: &ClientCertificate) -> Result<Stamp, (&'static str, &Path, io::Error)> {
    let of = |key, file| {
        let found = std::fs::metadata(file).map_err(|error| (key, file, error))?;
        Ok((found.modified().ok(), found.len(), found.ino()))
    };
    Ok([of(CERT_FILE, files.certificate.as_path())?, of(KEY_FILE, files.key.as_path())?])
}

fn read(files: &ClientCertificate, provider: &CryptoProvider) -> Result<CertifiedKey, PluginError> {
    let chain = certificates(&files.certificate).map_err(|reason| unusable(CERT_FILE, &files.certificate, reason))?;
    let key = private_key(&files.key).map_err(|reason| unusable(KEY_FILE, &files.key, reason))?;
    // The certificate is what it is; of the two, it is the key that does not fit.
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            unusable(KEY_FILE, &files.key, format!("it is not the key of the certificate in {}", files.certificate.display()))
        }
        rustls::Error::InvalidCertificate(_) => unusable(CERT_FILE, &files.certificate, error.to_string()),
        _ => unusable(KEY_FILE, &files.key, error.to_string()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertifiedKey as Made, KeyPair};
    use std::path::PathBuf;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn write(&self, name: &str, content: &str) -> PathBuf {
            let file = self.0.path().join(name);
            std::fs::write(&file, content).unwrap();
            file
        }

        fn load(&self, certificate: &Path, key: &Path) -> Result<Identity, String> {
            let files = ClientCertificate { certificate: certificate.to_owned(), key: key.to_owned() };
            let loaded = Identity::load(&files, Arc::new(rustls::crypto::ring::default_provider()));
            let here = self.0.path().display().to_string();
            loaded
                .map(|identity| Identity { recheck: Duration::ZERO, ..identity })
                .map_err(|error| error.to_string().replace(&here, "HERE"))
        }
    }

    fn made(name: &str) -> Made<KeyPair> {
        rcgen::generate_simple_self_signed([name.to_owned()]).unwrap()
    }

    #[test]
    fn both_files_must_be_there_and_fit() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let (one, other) = (made("one"), made("other"));
        let certificate = folder.write("client.pem", &one.cert.pem());
        let key = folder.write("client.key", &one.signing_key.serialize_pem());
        assert_eq!(folder.load(&certificate, &key).unwrap().key().cert, [one.cert.der().clone()]);
        let missing = folder.0.path().join("missing");
        let encrypted = folder.write("encrypted", "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
        let foreign = folder.write("foreign.key", &other.signing_key.serialize_pem());
        for (certificate, key, text) in [
            (
                &certificate,
                &foreign,
                "tls_key_file = \"HERE/foreign.key\" cannot be used: it is not the key of the certificate in HERE/client.pem",
            ),
            (&certificate, &missing, "tls_key_file = \"HERE/missing\" cannot be used: "),
            (
                &certificate,
                &encrypted,
                "tls_key_file = \"HERE/encrypted\" cannot be used: it has no private key in PEM form that is not encrypted",
            ),
            (&missing, &key, "tls_cert_file = \"HERE/missing\" cannot be used: "),
            (&key, &key, "tls_cert_file = \"HERE/client.key\" cannot be used: it has no certificate in PEM form"),
        ] {
            let told = folder.load(certificate, key).unwrap_err();
            assert!(told.starts_with(text), "{told}");
        }
    }

    #[test]
    fn a_renewed_certificate_is_used_as_soon_as_its_key_is_there() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let (old, new) = (made("old"), made("new"));
        let certificate = folder.write("client.pem", &old.cert.pem());
        let key = folder.write("client.key", &old.signing_key.serialize_pem());
        let identity = folder.load(&certificate, &key).unwrap();
        let shown = |made: &Made<KeyPair>| identity.key().cert == [made.cert.der().clone()];
        assert!(shown(&old));
        // By another file in its place, as programs do it: the length may be the same, and so may the time.
        let put = |name: &str, content: &str| std::fs::rename(folder.write("new", content), folder.0.path().join(name)).unwrap();
        put("client.pem", &new.cert.pem());
        assert!(shown(&old), "half of the pair is of no use");
        std::fs::remove_file(&key).unwrap();
        assert!(shown(&old));
        put("client.key", &new.signing_key.serialize_pem());
        assert!(shown(&new));
        put("client.pem", "nonsense");
        assert!(shown(&new));
    }
}
