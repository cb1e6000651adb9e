//! A certificate authority for one test, and what it has signed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

/// Files in PEM format; the keys are PKCS#8, which is what ZooKeeper can read.
#[derive(Debug, Clone)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Both in one file, as servers want it.
    pub both: PathBuf,
}

#[derive(Debug, Clone)]
pub struct Certificates {
    pub ca: PathBuf,
    /// For `localhost` and 127.0.0.1.
    pub server: Identity,
    /// For a name that nobody connects to.
    pub misnamed_server: Identity,
    pub client: Identity,
    /// An authority that no server trusts, and a client of it.
    pub foreign_ca: PathBuf,
    pub foreign_client: Identity,
}

impl Certificates {
    pub fn create(directory: &Path) -> Result<Self> {
        let authority = Authority::create(directory, "ca")?;
        let foreign = Authority::create(directory, "foreign-ca")?;
        Ok(Self {
            server: authority.sign("server", &["localhost", "127.0.0.1"])?,
            misnamed_server: authority.sign("misnamed", &["elsewhere.example"])?,
            client: authority.sign("client", &["client"])?,
            foreign_client: foreign.sign("foreign-client", &["client"])?,
            ca: authority.ca,
            foreign_ca: foreign.ca,
        })
    }
}

/// Signs certificates, and keeps them in a directory.
#[derive(Debug)]
pub struct Authority {
    pub ca: PathBuf,
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub fn create(directory: &Path, name: &str) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate()?;
        let ca = directory.join(format!("{name}.pem"));
        fs::write(&ca, params.self_signed(&key)?.pem())?;
        Ok(Self {
            ca,
            directory: directory.to_owned(),
            issuer: Issuer::new(params, key),
        })
    }

    /// A certificate whose Common Name is `name`, for a server or a client.
    pub fn sign(&self, name: &str, valid_for: &[&str]) -> Result<Identity> {
        let mut subject = DistinguishedName::new();
        subject.push(DnType::CommonName, name);
        self.sign_subject(name, subject, valid_for)
    }

    /// For programs that read more than a name out of a certificate; `name` is that of its files.
    pub(crate) fn sign_subject(
        &self,
        name: &str,
        subject: DistinguishedName,
        valid_for: &[&str],
    ) -> Result<Identity> {
        let valid_for: Vec<String> = valid_for.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(valid_for)?;
        params.distinguished_name = subject;
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let key = KeyPair::generate()?;
        let cert_pem = params.signed_by(&key, &self.issuer)?.pem();
        let key_pem = key.serialize_pem();
        let identity = Identity {
            cert: self.directory.join(format!("{name}.crt.pem")),
            key: self.directory.join(format!("{name}.key.pem")),
            both: self.directory.join(format!("{name}.pem")),
        };
        fs::write(&identity.cert, &cert_pem)?;
        fs::write(&identity.key, &key_pem)?;
        fs::write(&identity.both, format!("{cert_pem}{key_pem}"))?;
        Ok(identity)
    }
}
