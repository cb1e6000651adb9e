//! Host keys from a secret, which the SSH server of the pod must show.
//!
//! Keys that are scanned over a network prove nothing. With a secret they are known before, and a pod that shows other
//! keys is refused.

use k8s_openapi::api::core::v1::Secret;
use nodeyard_config::SshAccess;
use nodeyard_driver::{Error, ErrorClass};
use serde_json::{Value, json};

use super::{ClusterLink, KubernetesDriver};
use crate::body::ssh::HostKeys;
use crate::names;

impl KubernetesDriver {
    /// Returns None if the label names no secret.
    pub(super) async fn host_keys(
        &self,
        link: &ClusterLink,
        ssh: &SshAccess,
        namespace: &str,
        pod: &str,
    ) -> Result<Option<HostKeys>, Error> {
        let Some(named) = &ssh.host_key_secret else {
            return Ok(None);
        };
        let (from, name) = named.split_once('/').unwrap_or((namespace, named));
        let path = format!("/api/v1/namespaces/{from}/secrets/{name}");
        let found = link.api.get::<Secret>("read host keys", &path).await?;
        let found = found.ok_or_else(|| {
            Error::permanent(format!(
                "secret {name} with host keys does not exist in namespace {from}"
            ))
        })?;
        let data = found.data.unwrap_or_default();
        let is_key = |file: &str| {
            file.starts_with("ssh_host_") && file.trim_end_matches(".pub").ends_with("_key")
        };
        let files: Vec<String> = data.keys().filter(|file| is_key(file)).cloned().collect();
        if !files.iter().any(|file| file.ends_with("_key")) {
            let text = format!(
                "secret {name} in namespace {from} has no key such as `ssh_host_ed25519_key`"
            );
            return Err(Error::permanent(text));
        }
        let public = data
            .iter()
            .filter(|(file, _)| is_key(file) && file.ends_with(".pub"));
        let public = public.filter_map(|(_, text)| plain_key(&String::from_utf8_lossy(&text.0)));
        let copied = from != namespace;
        let secret = if copied {
            names::host_keys(pod)
        } else {
            name.to_owned()
        };
        Ok(Some(HostKeys {
            public: public.collect(),
            copy: copied.then(|| copy(&secret, &data)),
            secret,
            files,
        }))
    }
}

fn copy(name: &str, data: &impl serde::Serialize) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name},
        "type": "Opaque",
        "data": data,
    })
}

/// Removes the comment of a public key.
fn plain_key(line: &str) -> Option<String> {
    let mut words = line.split_whitespace();
    Some(format!("{} {}", words.next()?, words.next()?))
}

/// Returns those keys of a server that are in the secret. An image may create others, which prove nothing.
pub(super) fn verified<'k>(
    pod: &str,
    known: &HostKeys,
    shown: impl Iterator<Item = &'k str>,
) -> Result<Vec<Box<str>>, Error> {
    // A secret without public keys cannot be compared.
    let silent = known.public.is_empty();
    let verified = shown.filter(|key| silent || known.public.iter().any(|known| known == key));
    let verified: Vec<Box<str>> = verified.map(Into::into).collect();
    if verified.is_empty() {
        let text = format!(
            "the SSH server of pod {pod} shows no host key of secret {}; let it use those in /etc/ssh",
            known.secret
        );
        return Err(Error::new(ErrorClass::Failed, text));
    }
    Ok(verified)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_keys_are_handed_out() {
        let known = |public: &[&str]| HostKeys {
            secret: "keys".to_owned(),
            files: Vec::new(),
            public: public.iter().map(ToString::to_string).collect(),
            copy: None,
        };
        let shown = || ["ssh-ed25519 A", "ssh-rsa B"].into_iter();
        let keys = verified("p", &known(&["ssh-ed25519 A", "ssh-dss C"]), shown()).unwrap();
        assert_eq!(keys, ["ssh-ed25519 A".into()]);
        let error = verified("p", &known(&["ssh-ed25519 C"]), shown()).unwrap_err();
        assert_eq!(error.class(), ErrorClass::Failed);
        assert_eq!(verified("p", &known(&[]), shown()).unwrap().len(), 2);
    }

    #[test]
    fn comments_are_no_part_of_a_key() {
        assert_eq!(
            plain_key("ssh-rsa AAAA me@host\n").as_deref(),
            Some("ssh-rsa AAAA")
        );
        assert_eq!(plain_key("ssh-rsa"), None);
        assert_eq!(plain_key(""), None);
    }
}
