//! The environment of child processes.
//!
//! Every program that a daemon starts gets the variables listed here, and those that the daemon sets for it. Everything else in
//! the environment of the daemon, such as API tokens, stays with the daemon.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::process::Command;
use std::sync::{PoisonError, RwLock};

/// The variables that children inherit; docs/builder-workers.md lists them too.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "TMPDIR",
    "http_proxy",
    "https_proxy",
    "ftp_proxy",
    "all_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "FTP_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "NODEYARD_CACHE",
];

/// The prefix of the locale variables, which children inherit too.
const LOCALE_PREFIX: &[u8] = b"LC_";

/// The variables that hold secrets according to the configuration.
static SECRET_NAMES: RwLock<BTreeSet<OsString>> = RwLock::new(BTreeSet::new());

/// Withholds variables from all children that are started from now on, even if they are on the list.
pub fn withhold<'n>(names: impl IntoIterator<Item = &'n str>) {
    let names = names.into_iter().map(OsString::from);
    let mut withheld = SECRET_NAMES.write().unwrap_or_else(PoisonError::into_inner);
    withheld.extend(names);
}

/// Replaces the environment of a command with the inherited variables. Variables that were set on it before are lost.
pub fn restrict(command: &mut Command) {
    let withheld = SECRET_NAMES.read().unwrap_or_else(PoisonError::into_inner);
    command
        .env_clear()
        .envs(inherited(std::env::vars_os(), &withheld));
}

fn inherited(
    variables: impl Iterator<Item = (OsString, OsString)>,
    withheld: &BTreeSet<OsString>,
) -> impl Iterator<Item = (OsString, OsString)> {
    variables.filter(|(name, _)| is_inherited(name) && !withheld.contains(name))
}

fn is_inherited(name: &OsStr) -> bool {
    let locale = name.as_encoded_bytes().starts_with(LOCALE_PREFIX);
    locale || INHERITED.iter().any(|inherited| name == *inherited)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_of(given: &[&str], withheld: &[&str]) -> Vec<OsString> {
        let given = given.iter().map(|name| (name.into(), "value".into()));
        let withheld = withheld.iter().map(OsString::from).collect();
        inherited(given, &withheld).map(|(name, _)| name).collect()
    }

    #[test]
    fn only_listed_variables_are_inherited() {
        let given = [
            "PATH",
            "NODEYARD_TOKEN",
            "LC_ALL",
            "AWS_SECRET_ACCESS_KEY",
            "https_proxy",
            "PATHS",
            "OS_PASSWORD",
        ];
        assert_eq!(names_of(&given, &[]), ["PATH", "LC_ALL", "https_proxy"]);
    }

    #[test]
    fn a_listed_variable_with_a_secret_is_not_inherited() {
        let given = ["PATH", "LC_TOKEN", "all_proxy"];
        assert_eq!(names_of(&given, &["LC_TOKEN", "all_proxy"]), ["PATH"]);
    }

    #[test]
    fn a_restricted_command_sees_no_other_variables() {
        // Cargo sets it for every test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let mut command = Command::new("env");
        restrict(&mut command);
        let output = command.env("OWN", "1").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("OWN=1\n"), "{text}");
        assert!(text.contains("PATH="), "{text}");
        assert!(!text.contains("CARGO"), "{text}");
    }
}
