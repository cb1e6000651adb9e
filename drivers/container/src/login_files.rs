//! The files that a login to a container needs: authorized keys of a user, and host keys of sshd.

use std::io;

use bytes::Bytes;
use nodeyard_driver::Error;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, EcdsaCurve, PrivateKey, key};

use crate::archive::{ArchiveBuilder, Ownership};

pub(crate) const HOST_KEY_DIRECTORY: &str = "/etc/ssh";

/// A line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserAccount {
    pub(crate) name: Box<str>,
    uid: u64,
    gid: u64,
    pub(crate) home: Box<str>,
}

impl UserAccount {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let _password = fields.next()?;
        let uid = fields.next()?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let _comment = fields.next()?;
        let home = fields.next()?.trim_end_matches('/');
        let sound = !name.is_empty() && home.starts_with('/') && !home.contains("/../");
        sound.then(|| Self {
            name: name.into(),
            uid,
            gid,
            home: home.into(),
        })
    }

    fn owns(&self, mode: u32) -> Ownership {
        Ownership {
            uid: self.uid,
            gid: self.gid,
            mode,
        }
    }
}

/// Returns the account called `wanted`; without a name that of zuul, or else that of root.
pub(crate) fn find_account(passwd: &[u8], wanted: Option<&str>) -> Option<UserAccount> {
    let passwd = String::from_utf8_lossy(passwd);
    let find = |name: &str| {
        let mut accounts = passwd.lines().filter_map(UserAccount::parse);
        accounts.find(|account| &*account.name == name)
    };
    match wanted {
        Some(name) => find(name),
        None => find("zuul").or_else(|| find("root")),
    }
}

/// Returns whether the files of its directory contain a host key for sshd.
pub(crate) fn has_host_key(files: &[String]) -> bool {
    files
        .iter()
        .any(|name| name.starts_with("ssh_host_") && name.ends_with("_key"))
}

/// The files to copy into a container.
#[derive(Debug, Default)]
pub(crate) struct LoginFiles<'a> {
    /// The account, its keys, and whether its home has to be created.
    pub(crate) authorized: Option<(&'a UserAccount, &'a [Box<str>], bool)>,
    pub(crate) new_host_keys: bool,
}

impl LoginFiles<'_> {
    /// Returns an archive of `/`, or None if there is nothing to copy.
    pub(crate) fn pack(&self) -> Result<Option<Bytes>, Error> {
        if self.authorized.is_none() && !self.new_host_keys {
            return Ok(None);
        }
        let pack = || -> io::Result<Bytes> {
            let mut archive = ArchiveBuilder::new();
            if let Some((account, keys, make_home)) = self.authorized {
                if make_home {
                    archive.directory(&account.home, account.owns(0o755))?;
                }
                let directory = format!("{}/.ssh", account.home);
                archive.directory(&directory, account.owns(0o700))?;
                let content: String = keys.iter().map(|key| format!("{key}\n")).collect();
                let path = format!("{directory}/authorized_keys");
                archive.file(&path, account.owns(0o600), content.as_bytes())?;
            }
            if self.new_host_keys {
                add_host_keys(&mut archive)?;
            }
            archive.finish()
        };
        let packed = pack().map_err(|cause| {
            Error::permanent("failed to prepare the keys for a login").because(cause)
        })?;
        Ok(Some(packed))
    }
}

/// Adds keys of two types that all common servers and clients support. An RSA key would take seconds to generate.
fn add_host_keys(archive: &mut ArchiveBuilder) -> io::Result<()> {
    let curve = EcdsaCurve::NistP256;
    let types = [
        ("ed25519", Algorithm::Ed25519),
        ("ecdsa", Algorithm::Ecdsa { curve }),
    ];
    for (name, algorithm) in types {
        let key = PrivateKey::random(&mut key::safe_rng(), algorithm).map_err(io::Error::other)?;
        let private = key.to_openssh(LineEnding::LF).map_err(io::Error::other)?;
        let public = key.public_key().to_openssh().map_err(io::Error::other)?;
        let path = format!("{HOST_KEY_DIRECTORY}/ssh_host_{name}_key");
        archive.file(&path, Ownership::root(0o600), private.as_bytes())?;
        let public = format!("{public}\n");
        archive.file(
            &format!("{path}.pub"),
            Ownership::root(0o644),
            public.as_bytes(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::archive::file_names;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\nbroken\n\
        bad:x:x:0::/home/bad:/bin/sh\nzuul:x:1000:1001:,,,:/home/zuul/:/bin/sh\n\
        escape:x:1:1::/home/../../etc:/bin/sh\n";

    #[test]
    fn accounts_are_found_by_name() {
        let zuul = find_account(PASSWD, Some("zuul")).unwrap();
        assert_eq!(
            (zuul.uid, zuul.gid, &*zuul.home),
            (1000, 1001, "/home/zuul")
        );
        assert_eq!(find_account(PASSWD, None).unwrap().name, zuul.name);
        let only_root = b"root:x:0:0::/root:/bin/sh";
        assert_eq!(&*find_account(only_root, None).unwrap().name, "root");
        for nobody in ["broken", "bad", "escape", "nobody", ""] {
            assert_eq!(find_account(PASSWD, Some(nobody)), None, "{nobody}");
        }
    }

    #[test]
    fn files_have_the_owner_and_mode_that_sshd_requires() {
        let zuul = find_account(PASSWD, Some("zuul")).unwrap();
        let keys: Vec<Box<str>> = vec!["ssh-ed25519 AAAA a".into(), "ssh-rsa BBBB b".into()];
        let files = LoginFiles {
            authorized: Some((&zuul, &keys, false)),
            new_host_keys: true,
        };
        let packed = files.pack().unwrap().unwrap();
        let mut seen = Vec::new();
        for entry in tar::Archive::new(&packed[..]).entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            seen.push((path, header.uid().unwrap(), header.mode().unwrap()));
        }
        let expected = [
            ("home/zuul/.ssh/", 1000, 0o700),
            ("home/zuul/.ssh/authorized_keys", 1000, 0o600),
            ("etc/ssh/ssh_host_ed25519_key", 0, 0o600),
            ("etc/ssh/ssh_host_ed25519_key.pub", 0, 0o644),
            ("etc/ssh/ssh_host_ecdsa_key", 0, 0o600),
            ("etc/ssh/ssh_host_ecdsa_key.pub", 0, 0o644),
        ];
        let seen: Vec<_> = seen
            .iter()
            .map(|(path, uid, mode)| (path.as_str(), *uid, *mode))
            .collect();
        assert_eq!(seen, expected);
        assert!(has_host_key(&file_names(&packed).unwrap()));
        assert!(!has_host_key(&[
            "ssh_config".into(),
            "ssh_host_x.pub".into()
        ]));
    }

    #[test]
    fn host_keys_are_new_each_time() {
        let files = LoginFiles {
            authorized: None,
            new_host_keys: true,
        };
        assert_ne!(files.pack().unwrap(), files.pack().unwrap());
        assert!(LoginFiles::default().pack().unwrap().is_none());
    }
}
