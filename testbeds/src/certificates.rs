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
        fs::create_dir_all(directory)?;
        let (ca, issuer) = authority(directory, "ca")?;
        let (foreign_ca, foreign_issuer) = authority(directory, "foreign-ca")?;
        Ok(Self {
            ca,
            server: identity(directory, "server", &["localhost", "127.0.0.1"], &issuer)?,
            misnamed_server: identity(directory, "misnamed", &["elsewhere.example"], &issuer)?,
            client: identity(directory, "client", &["client"], &issuer)?,
            foreign_ca,
            foreign_client: identity(directory, "foreign-client", &["client"], &foreign_issuer)?,
        })
    }
}

pub(crate) fn authority(
    directory: &Path,
    name: &str,
) -> Result<(PathBuf, Issuer<'static, KeyPair>)> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.distinguished_name.push(DnType::CommonName, name);
    let key = KeyPair::generate()?;
    let path = directory.join(format!("{name}.pem"));
    fs::write(&path, params.self_signed(&key)?.pem())?;
    Ok((path, Issuer::new(params, key)))
}

fn identity(
    directory: &Path,
    name: &str,
    valid_for: &[&str],
    issuer: &Issuer<'_, KeyPair>,
) -> Result<Identity> {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    signed(directory, name, subject, valid_for, issuer)
}

/// For programs that read more than a name out of a certificate.
pub(crate) fn signed(
    directory: &Path,
    name: &str,
    subject: DistinguishedName,
    valid_for: &[&str],
    issuer: &Issuer<'_, KeyPair>,
) -> Result<Identity> {
    let valid_for: Vec<String> = valid_for.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(valid_for)?;
    params.distinguished_name = subject;
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let cert_pem = params.signed_by(&key, issuer)?.pem();
    let key_pem = key.serialize_pem();
    let identity = Identity {
        cert: directory.join(format!("{name}.crt.pem")),
        key: directory.join(format!("{name}.key.pem")),
        both: directory.join(format!("{name}.pem")),
    };
    fs::write(&identity.cert, &cert_pem)?;
    fs::write(&identity.key, &key_pem)?;
    fs::write(&identity.both, format!("{cert_pem}{key_pem}"))?;
    Ok(identity)
}
