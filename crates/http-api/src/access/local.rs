//! The local token, which allows users who can read the state directory to do everything.
//!
//! The process that owns the embedded store creates it, so that commands of the same user need no configuration. It is
//! kept across restarts; to replace it, delete the file and restart.

use std::fmt;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of the token file in the state directory.
const FILE_NAME: &str = "api.token";
const RANDOM_BYTES: usize = 32;

/// The local token. Cloning is cheap.
#[derive(Clone)]
pub struct LocalToken(Arc<str>);

#[derive(Debug, thiserror::Error)]
pub enum LocalTokenError {
    #[error("failed to read the local API token from {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("failed to write the local API token to {}", path.display())]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the local API token {} is readable by other users; delete it and restart to create a new one", path.display())]
    Exposed { path: PathBuf },
}

impl LocalToken {
    /// Returns the path of the token in a state directory.
    pub fn path(state_dir: &Path) -> PathBuf {
        state_dir.join(FILE_NAME)
    }

    /// Reads the token for a client. Returns None if it does not exist or is not readable.
    pub fn find(state_dir: &Path) -> Option<Self> {
        let text = std::fs::read_to_string(Self::path(state_dir)).ok()?;
        Self::parse(&text)
    }

    /// Reads or creates the token, for the owner of the state directory.
    pub fn ensure(state_dir: &Path) -> Result<Self, LocalTokenError> {
        let path = Self::path(state_dir);
        match read(&path)? {
            Some(token) => Ok(token),
            None => create(&path).map_err(|source| LocalTokenError::Write { path, source }),
        }
    }

    /// Returns the secret, which goes behind `Bearer`.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let valid = text.len() == 2 * RANDOM_BYTES && text.bytes().all(|b| b.is_ascii_hexdigit());
        valid.then(|| Self(text.into()))
    }
}

impl fmt::Debug for LocalToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LocalToken")
    }
}

/// Returns None if the file does not exist or is incomplete.
fn read(path: &Path) -> Result<Option<LocalToken>, LocalTokenError> {
    let failed = |source| LocalTokenError::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = match std::fs::File::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        return Err(LocalTokenError::Exposed {
            path: path.to_owned(),
        });
    }
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(LocalToken::parse(&text))
}

/// Creates the token in a temporary file and renames it, so that readers never see half of it.
fn create(path: &Path) -> std::io::Result<LocalToken> {
    let mut random = [0; RANDOM_BYTES];
    let mut filled = 0;
    while let Some(rest) = random.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled += rustix::rand::getrandom(rest, rustix::rand::GetRandomFlags::empty())?;
    }
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let draft = path.with_extension("token.new");
    let _ = std::fs::remove_file(&draft);
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)?;
    writeln!(file, "{token}")?;
    file.sync_all()?;
    std::fs::rename(&draft, path)?;
    Ok(LocalToken(token.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_kept_and_readable_by_its_owner_only() {
        let directory = tempfile::tempdir().unwrap();
        let path = LocalToken::path(directory.path());
        assert!(LocalToken::find(directory.path()).is_none());
        let token = LocalToken::ensure(directory.path()).unwrap();
        assert_eq!(token.reveal().len(), 64);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let again = LocalToken::ensure(directory.path()).unwrap();
        assert_eq!(again.reveal(), token.reveal());
        let found = LocalToken::find(directory.path()).unwrap();
        assert_eq!(found.reveal(), token.reveal());
        assert!(!format!("{token:?}").contains(token.reveal()));

        // An incomplete token is replaced.
        std::fs::write(&path, "abc").unwrap();
        let other = LocalToken::ensure(directory.path()).unwrap();
        assert_ne!(other.reveal(), token.reveal());

        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&path, open).unwrap();
        let error = LocalToken::ensure(directory.path()).unwrap_err();
        assert!(matches!(error, LocalTokenError::Exposed { .. }));
    }
}
