//! Verifies signed provenance of image files.
//!
//! Digests come from the same Zuul web server as the file's URL; a signature is made with a key that this server does
//! not have. The signed content is an in-toto statement with the digest of the file and its project, pipeline, job and
//! branch, in a DSSE envelope, bare or in a Sigstore bundle as written by `cosign attest-blob --key`.

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm,
};
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::digest::{Digests, to_hex};

const STATEMENT_TYPE: &str = "application/vnd.in-toto+json";
/// DER prefixes of the supported public keys.
const P256_PREFIX: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
    0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
const ED25519_PREFIX: &[u8] = &[
    0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00,
];

/// A trusted public key.
pub struct PublicKey {
    algorithm: &'static dyn VerificationAlgorithm,
    key: Vec<u8>,
    id: Box<str>,
}

impl std::fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PublicKey({})", self.id)
    }
}

/// The provenance that a statement must have.
#[derive(Debug, Clone, Copy)]
pub struct Claims<'c> {
    pub project: &'c str,
    pub job: &'c str,
    /// Any if empty.
    pub pipelines: &'c [String],
    /// Any if empty.
    pub branches: &'c [String],
    /// The values that Zuul reports for the build, which the statement must match.
    pub pipeline: Option<&'c str>,
    pub branch: Option<&'c str>,
}

/// An error verifying a signature.
#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    #[error("invalid public key: use a PEM file with an ECDSA P-256 or an Ed25519 key")]
    InvalidKey,
    #[error("the signature is neither a DSSE envelope nor a bundle with one")]
    Envelope(#[source] serde_json::Error),
    #[error(
        "the bundle signs only the bytes, not project, pipeline, job and branch: sign a statement (`cosign attest-blob`)"
    )]
    UnsignedClaims,
    #[error("the signature was not made with the configured key")]
    WrongKey,
    #[error("the signed content is not an in-toto statement")]
    Statement,
    #[error("the signed statement does not contain the digest of this file")]
    WrongDigest,
    #[error("the signed statement has {what} {found:?} instead of {wanted:?}")]
    WrongOrigin {
        what: &'static str,
        found: String,
        wanted: String,
    },
}

impl PublicKey {
    pub fn from_pem(text: &[u8]) -> Result<Self, SignatureError> {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(text)
            .map_err(|_| SignatureError::InvalidKey)?;
        let algorithms: [(&[u8], &'static dyn VerificationAlgorithm); 2] = [
            (P256_PREFIX, &ECDSA_P256_SHA256_ASN1),
            (ED25519_PREFIX, &ED25519),
        ];
        let known = algorithms.into_iter().find_map(|(head, algorithm)| {
            let key = der.as_ref().strip_prefix(head)?;
            Some((algorithm, key.to_vec()))
        });
        let (algorithm, key) = known.ok_or(SignatureError::InvalidKey)?;
        let id = to_hex(&Sha256::digest(der.as_ref()));
        Ok(Self { algorithm, key, id })
    }

    /// Returns the SHA-256 of the key.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Verifies the signature of a file with one of these digests.
    pub fn verify(
        &self,
        signature: &[u8],
        forms: &[&Digests],
        claims: &Claims<'_>,
    ) -> Result<(), SignatureError> {
        let file: SignatureFile =
            serde_json::from_slice(signature).map_err(SignatureError::Envelope)?;
        let envelope = match file {
            SignatureFile::Bundle { dsse_envelope } => dsse_envelope,
            SignatureFile::Envelope(envelope) => envelope,
            SignatureFile::UnsignedClaims { .. } => return Err(SignatureError::UnsignedClaims),
        };
        let payload = decode(&envelope.payload).ok_or(SignatureError::Statement)?;
        let signed = pre_authentication_encoding(&envelope.payload_type, &payload);
        let key = UnparsedPublicKey::new(self.algorithm, &self.key);
        let mut signatures = envelope.signatures.iter();
        let is_valid = signatures.any(|signature| {
            decode(&signature.sig).is_some_and(|bytes| key.verify(&signed, &bytes).is_ok())
        });
        if !is_valid {
            return Err(SignatureError::WrongKey);
        }
        if envelope.payload_type != STATEMENT_TYPE {
            return Err(SignatureError::Statement);
        }
        let statement: Statement =
            serde_json::from_slice(&payload).map_err(|_| SignatureError::Statement)?;
        statement.check(forms, claims)
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SignatureFile {
    Bundle {
        #[serde(rename = "dsseEnvelope")]
        dsse_envelope: Envelope,
    },
    Envelope(Envelope),
    UnsignedClaims {
        #[serde(rename = "messageSignature")]
        _signature: Value,
    },
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope {
    payload_type: String,
    payload: String,
    signatures: Vec<Signature>,
}

#[derive(Deserialize)]
struct Signature {
    sig: String,
}

#[derive(Deserialize)]
struct Statement {
    #[serde(rename = "_type")]
    kind: String,
    subject: Vec<StatementSubject>,
    #[serde(default, deserialize_with = "unwrap_cosign_predicate")]
    predicate: Value,
}

/// Unwraps the predicate of cosign's type `custom`, which is JSON in a string.
fn unwrap_cosign_predicate<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Value, D::Error> {
    let predicate = Value::deserialize(deserializer)?;
    let text = predicate.get("Data").and_then(Value::as_str);
    let inside = text.and_then(|text| serde_json::from_str(text).ok());
    Ok(inside.unwrap_or(predicate))
}

#[derive(Deserialize)]
struct StatementSubject {
    digest: std::collections::BTreeMap<String, String>,
}

impl Statement {
    fn check(&self, forms: &[&Digests], claims: &Claims<'_>) -> Result<(), SignatureError> {
        if !self.kind.starts_with("https://in-toto.io/Statement/") {
            return Err(SignatureError::Statement);
        }
        let is_one = |digest: &String| {
            let mut forms = forms.iter().filter_map(|form| form.sha256.as_deref());
            forms.any(|form| form.eq_ignore_ascii_case(digest))
        };
        let mut digests = self.subject.iter().filter_map(|s| s.digest.get("sha256"));
        if !digests.any(is_one) {
            return Err(SignatureError::WrongDigest);
        }
        let check_equal = |what: &'static str, wanted: &str| {
            let found = self.origin(what);
            if found == wanted {
                return Ok(());
            }
            Err(SignatureError::WrongOrigin {
                what,
                found: found.to_owned(),
                wanted: wanted.to_owned(),
            })
        };
        let check_allowed = |what: &'static str, wanted: &[String], zuul: Option<&str>| {
            let found = self.origin(what);
            if let Some(zuul) = zuul {
                check_equal(what, zuul)?;
            }
            if wanted.is_empty() || wanted.iter().any(|wanted| wanted == found) {
                return Ok(());
            }
            Err(SignatureError::WrongOrigin {
                what,
                found: found.to_owned(),
                wanted: wanted.join(", "),
            })
        };
        check_equal("project", claims.project)?;
        check_equal("job", claims.job)?;
        check_allowed("pipeline", claims.pipelines, claims.pipeline)?;
        check_allowed("branch", claims.branches, claims.branch)
    }

    /// Returns a value of the predicate, or of its SLSA build parameters.
    fn origin(&self, what: &str) -> &str {
        let plain = self.predicate.get(what);
        let slsa = || {
            let definition = self.predicate.get("buildDefinition")?;
            definition.get("externalParameters")?.get(what)
        };
        plain
            .or_else(slsa)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// Returns the DSSE pre-authentication encoding, which is the signed data.
fn pre_authentication_encoding(kind: &str, payload: &[u8]) -> Vec<u8> {
    let mut signed = format!("DSSEv1 {} {kind} {} ", kind.len(), payload.len()).into_bytes();
    signed.extend_from_slice(payload);
    signed
}

fn decode(text: &str) -> Option<Vec<u8>> {
    let standard = BASE64_STANDARD.decode(text);
    standard.or_else(|_| BASE64_URL_SAFE.decode(text)).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
    };
    use serde_json::json;

    use super::*;

    fn pem(head: &[u8], key: &[u8]) -> String {
        let der = [head, key].concat();
        let text = BASE64_STANDARD.encode(der);
        format!("-----BEGIN PUBLIC KEY-----\n{text}\n-----END PUBLIC KEY-----\n")
    }

    fn p256() -> (EcdsaKeyPair, PublicKey) {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_ASN1_SIGNING).unwrap();
        let public =
            PublicKey::from_pem(pem(P256_PREFIX, pair.public_key().as_ref()).as_bytes()).unwrap();
        (pair, public)
    }

    fn statement() -> Value {
        json!({
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "disk.raw", "digest": {"sha256": "ab".repeat(32)}}],
            "predicateType": "https://example.com/zuul-build",
            "predicate": {"project": "p", "pipeline": "post", "job": "j", "branch": "main"},
        })
    }

    fn envelope(pair: &EcdsaKeyPair, kind: &str, statement: &Value) -> Value {
        let payload = statement.to_string().into_bytes();
        let signed = pre_authentication_encoding(kind, &payload);
        let sig = pair.sign(&SystemRandom::new(), &signed).unwrap();
        json!({
            "payloadType": kind,
            "payload": BASE64_STANDARD.encode(&payload),
            "signatures": [{"sig": BASE64_STANDARD.encode(sig.as_ref())}],
        })
    }

    fn digests() -> Digests {
        Digests {
            md5: None,
            sha256: Some("AB".repeat(32).into()),
        }
    }

    fn verify(key: &PublicKey, signature: &Value) -> Result<(), SignatureError> {
        let claims = Claims {
            project: "p",
            job: "j",
            pipelines: &["post".to_owned()],
            branches: &[],
            pipeline: Some("post"),
            branch: Some("main"),
        };
        key.verify(signature.to_string().as_bytes(), &[&digests()], &claims)
    }

    #[test]
    fn valid_statements_are_accepted() {
        let (pair, public) = p256();
        let good = envelope(&pair, STATEMENT_TYPE, &statement());
        verify(&public, &good).unwrap();
        verify(&public, &json!({"mediaType": "x", "dsseEnvelope": good})).unwrap();
        let mut slsa = statement();
        let parameters = slsa["predicate"].take();
        slsa["predicate"] = json!({"buildDefinition": {"externalParameters": parameters}});
        verify(&public, &envelope(&pair, STATEMENT_TYPE, &slsa)).unwrap();
    }

    /// Test data is created by `tests/cosign/make.sh`.
    #[test]
    fn signatures_of_cosign_are_accepted() {
        let made = |name: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cosign");
            fs::read(path.join(name)).unwrap()
        };
        let public = PublicKey::from_pem(&made("images.pub")).unwrap();
        let digests = Digests {
            md5: None,
            sha256: Some(to_hex(&Sha256::digest(made("disk.raw")))),
        };
        let claims = Claims {
            project: "opendev.org/images",
            job: "build-debian",
            pipelines: &[],
            branches: &[],
            pipeline: Some("post"),
            branch: Some("main"),
        };
        for bundle in ["disk.raw.custom.json", "disk.raw.zuul-build.json"] {
            let bundle = made(bundle);
            public.verify(&bundle, &[&digests], &claims).unwrap();
            let other = Claims {
                job: "build-fedora",
                ..claims
            };
            let refused = public.verify(&bundle, &[&digests], &other);
            assert!(
                matches!(&refused, Err(SignatureError::WrongOrigin { found, .. }) if found == "build-debian"),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn ed25519_keys_are_supported() {
        let pair = Ed25519KeyPair::generate().unwrap();
        let public = pem(ED25519_PREFIX, pair.public_key().as_ref());
        let public = PublicKey::from_pem(public.as_bytes()).unwrap();
        let payload = statement().to_string().into_bytes();
        let sig = pair.sign(&pre_authentication_encoding(STATEMENT_TYPE, &payload));
        let envelope = json!({
            "payloadType": STATEMENT_TYPE,
            "payload": BASE64_STANDARD.encode(&payload),
            "signatures": [{"sig": BASE64_STANDARD.encode(sig.as_ref())}],
        });
        verify(&public, &envelope).unwrap();
    }

    #[test]
    fn other_statements_are_rejected() {
        let (pair, public) = p256();
        let (_, foreign) = p256();
        let good = envelope(&pair, STATEMENT_TYPE, &statement());
        assert!(matches!(
            verify(&foreign, &good),
            Err(SignatureError::WrongKey)
        ));

        let mut tampered = good.clone();
        let mut other = statement();
        other["predicate"]["branch"] = "evil".into();
        tampered["payload"] = BASE64_STANDARD.encode(other.to_string()).into();
        assert!(matches!(
            verify(&public, &tampered),
            Err(SignatureError::WrongKey)
        ));

        for (place, value) in [
            ("project", "q"),
            ("job", "k"),
            ("pipeline", "check"),
            ("branch", "dev"),
        ] {
            let mut other = statement();
            other["predicate"][place] = value.into();
            let refused = verify(&public, &envelope(&pair, STATEMENT_TYPE, &other));
            assert!(
                matches!(&refused, Err(SignatureError::WrongOrigin { what, .. }) if *what == place),
                "{refused:?}"
            );
        }
        let mut other = statement();
        other["subject"][0]["digest"]["sha256"] = "cd".repeat(32).into();
        let refused = verify(&public, &envelope(&pair, STATEMENT_TYPE, &other));
        assert!(matches!(refused, Err(SignatureError::WrongDigest)));
        let refused = verify(&public, &envelope(&pair, "text/plain", &statement()));
        assert!(matches!(refused, Err(SignatureError::Statement)));
        let bare = json!({"messageSignature": {"signature": "x"}});
        assert!(matches!(
            verify(&public, &bare),
            Err(SignatureError::UnsignedClaims)
        ));
        assert!(matches!(
            verify(&public, &json!([1])),
            Err(SignatureError::Envelope(_))
        ));
        assert!(PublicKey::from_pem(b"no key").is_err());
    }
}
