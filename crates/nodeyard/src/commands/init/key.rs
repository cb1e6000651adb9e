//! The SSH key for the first login.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::Context as _;
use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey, key};

/// Returns the public key of a private key file, which is created if it does not exist.
pub(super) fn make_or_read(path: &Path) -> anyhow::Result<String> {
    let public_path = path.with_added_extension("pub");
    let cannot = |what: &str, path: &Path| format!("failed to {what} {}", path.display());
    let key = match fs::read_to_string(path) {
        Ok(text) => PrivateKey::from_openssh(&text).with_context(|| {
            format!(
                "{} is not a private key of OpenSSH; move it away",
                path.display()
            )
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let mut key = PrivateKey::random(&mut key::safe_rng(), Algorithm::Ed25519)?;
            key.set_comment("nodeyard");
            let text = key.to_openssh(LineEnding::LF)?;
            write(path, text.as_bytes(), 0o600).with_context(|| cannot("write", path))?;
            key
        }
        Err(error) => return Err(error).with_context(|| cannot("read", path)),
    };
    let public = key.public_key().to_openssh()?;
    if fs::symlink_metadata(&public_path).is_err() {
        let line = format!("{public}\n");
        write(&public_path, line.as_bytes(), 0o644)
            .with_context(|| cannot("write", &public_path))?;
    }
    Ok(public)
}

/// Writes a file atomically.
fn write(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let draft = path.with_added_extension("new");
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&draft)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_key_is_created_once_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("id");
        let public = make_or_read(&path).unwrap();
        assert!(public.starts_with("ssh-ed25519 AAAA") && public.ends_with(" nodeyard"));
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(make_or_read(&path).unwrap(), public);
        let file = fs::read_to_string(directory.path().join("id.pub")).unwrap();
        assert_eq!(file, format!("{public}\n"));
        assert_ne!(make_or_read(&directory.path().join("id2")).unwrap(), public);
        fs::write(&path, "something else").unwrap();
        let error = make_or_read(&path).unwrap_err();
        assert!(error.to_string().contains("move it away"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "something else");
    }
}
