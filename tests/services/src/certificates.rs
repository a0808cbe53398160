//! A certification authority for one run, with good and bad certificates.

use crate::ground::Account;
use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The name in the client certificate: the user that PostgreSQL and Kafka take its holder for.
pub const CLIENT: &str = "certified";

/// The names that the server's certificates are for.
const SERVER_NAMES: [&str; 2] = ["localhost", "127.0.0.1"];

/// A folder of PEM files.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Certificates {
    folder: PathBuf,
}

impl Certificates {
    /// Makes everything; keys of servers are given to the account.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn create(folder: PathBuf, account: Option<Account>) -> Result<Self> {
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let certificates = Self { folder };
        let (authority, other) = (authority("outhaul tests")?, authority("somebody else")?);
        certificates.write("ca.pem", &authority.pem())?;
        certificates.write("other-ca.pem", &other.pem())?;
        let mut server = CertificateParams::new(SERVER_NAMES.map(String::from))?;
        server.distinguished_name.push(DnType::CommonName, "localhost");
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        certificates.issue("server", &server, &authority)?;
        let mut expired = server.clone();
        (expired.not_before, expired.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 12, 31));
        certificates.issue("expired", &expired, &authority)?;
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, CLIENT);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        certificates.issue("client", &client, &authority)?;
        certificates.issue("other-client", &client, &other)?;
        if let Some(account) = account {
            for name in ["server.key", "expired.key"] {
                account.own(&certificates.file(name))?;
            }
        }
        Ok(certificates)
    }

    /// The authority that has signed the others.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.file("ca.pem")
    }

    /// One that has signed nothing here.
    #[must_use]
    pub fn other_ca(&self) -> PathBuf {
        self.file("other-ca.pem")
    }

    /// The server's certificate, for `localhost` and 127.0.0.1.
    #[must_use]
    pub fn server_certificate(&self) -> PathBuf {
        self.file("server.pem")
    }

    /// Its key.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.file("server.key")
    }

    /// A server's certificate of the past.
    #[must_use]
    pub fn expired_certificate(&self) -> PathBuf {
        self.file("expired.pem")
    }

    /// Its key.
    #[must_use]
    pub fn expired_key(&self) -> PathBuf {
        self.file("expired.key")
    }

    /// The certificate of the client [`CLIENT`].
    #[must_use]
    pub fn client_certificate(&self) -> PathBuf {
        self.file("client.pem")
    }

    /// Its key.
    #[must_use]
    pub fn client_key(&self) -> PathBuf {
        self.file("client.key")
    }

    /// A certificate of the same client by an authority that no server trusts.
    #[must_use]
    pub fn other_client_certificate(&self) -> PathBuf {
        self.file("other-client.pem")
    }

    /// Its key.
    #[must_use]
    pub fn other_client_key(&self) -> PathBuf {
        self.file("other-client.key")
    }

    /// Key and certificate in one file, as Kafka wants them: `server` or `expired`.
    pub(crate) fn key_store(&self, name: &str) -> PathBuf {
        self.file(&format!("{name}-store.pem"))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn write(&self, name: &str, text: &str) -> Result<()> {
        let file = self.file(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        // PostgreSQL refuses a key that others can read.
        let mode = if Path::new(name).extension().is_some_and(|extension| extension == "key") { 0o600 } else { 0o644 };
        Ok(fs::set_permissions(&file, fs::Permissions::from_mode(mode))?)
    }

    fn issue(&self, name: &str, params: &CertificateParams, authority: &Authority) -> Result<()> {
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, authority)?.pem();
        let key = key.serialize_pem();
        self.write(&format!("{name}.pem"), &certificate)?;
        self.write(&format!("{name}.key"), &key)?;
        self.write(&format!("{name}-store.pem"), &format!("{key}{certificate}"))
    }
}

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Result<Authority> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}
