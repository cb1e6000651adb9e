//! The codes of errors where operators see them: at the end of a command, and in the log.
//!
//! Most errors know their code ([`Coded`]). Here are those of crates that know nothing of the rest of the program, and
//! those that are only a text.

use std::error::Error;
use std::fmt;

use nodeyard_api as api;
use nodeyard_config::clouds::CloudsError;
use nodeyard_gearman::worker::WorkerConnectionError;
use nodeyard_gearman::{self as gearman, client, server};
use nodeyard_http_api as http_api;
use nodeyard_model::{Coded, ErrorCode};
use nodeyard_nodescan::ScanError;

use crate::api_client;

/// Gives an error a code.
pub(crate) trait WithCode<T> {
    fn code(self, code: ErrorCode) -> anyhow::Result<T>;
}

impl<T> WithCode<T> for anyhow::Result<T> {
    fn code(self, code: ErrorCode) -> anyhow::Result<T> {
        self.map_err(|error| WithOwnCode { code, error }.into())
    }
}

#[derive(Debug)]
struct WithOwnCode {
    code: ErrorCode,
    error: anyhow::Error,
}

impl fmt::Display for WithOwnCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl Error for WithOwnCode {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.source()
    }
}

/// Returns the code of an error, or of the first of its causes that has one.
pub(crate) fn code_of(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(code) = own_code(error) {
            return Some(code);
        }
        next = error.source();
    }
    None
}

/// Calls a macro with all types that are [`Coded`]. A test compares it with the sources.
macro_rules! with_coded_types {
    ($macro:ident) => {
        $macro!(
            nodeyard_builder::source::SourceError,
            nodeyard_builder::worker::Error,
            nodeyard_driver::Error,
            nodeyard_fetch::Error,
            nodeyard_image::CommitError,
            nodeyard_image::ConvertError,
            nodeyard_image::DownloadError,
            nodeyard_image::Error,
            nodeyard_image::FileError,
            nodeyard_image::InsufficientSpace,
            nodeyard_image::InvalidHeader,
            nodeyard_image::OpenError,
            nodeyard_image::SignatureError,
            nodeyard_launcher::AttemptError,
            nodeyard_launcher::StartError,
            nodeyard_operations::Error,
            nodeyard_store::Error,
            nodeyard_store::zookeeper::DialError,
            nodeyard_zuul_api::Error,
        )
    };
}

fn own_code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    macro_rules! find {
        ($($error:ty),+ $(,)?) => {
            $(if let Some(error) = error.downcast_ref::<$error>() {
                return error.code();
            })+
        };
    }
    with_coded_types!(find);
    if let Some(error) = error.downcast_ref::<WithOwnCode>() {
        return Some(error.code);
    }
    if let Some(error) = error.downcast_ref::<server::JobServerError>() {
        return Some(match error {
            server::JobServerError::RightsWithoutTls => ErrorCode::JobServerRights,
            server::JobServerError::PlainOffLoopback { .. }
            | server::JobServerError::Bind { .. } => ErrorCode::JobServerListen,
        });
    }
    if let Some(error) = error.downcast_ref::<client::ClientError>() {
        return Some(match error {
            client::ClientError::NoServers | client::ClientError::Connect(_) => {
                ErrorCode::JobServerUnreachable
            }
            _ => ErrorCode::JobServerRefused,
        });
    }
    if let Some(error) = error.downcast_ref::<client::AdminError>() {
        return Some(match error {
            client::AdminError::Connect(_) | client::AdminError::Closed => {
                ErrorCode::JobServerUnreachable
            }
            _ => ErrorCode::JobServerRefused,
        });
    }
    if let Some(http_api::Error::Bind(error)) = error.downcast_ref() {
        return own_code(error);
    }
    if let Some(http_api::ApiBindError::Tls { .. }) = error.downcast_ref() {
        return Some(ErrorCode::ApiTls);
    }
    let alike = [
        (error.is::<api_client::ApiError>(), ErrorCode::ApiRefused),
        (error.is::<ScanError>(), ErrorCode::MachineSilent),
        (
            error.is::<gearman::ConnectError>() || error.is::<WorkerConnectionError>(),
            ErrorCode::JobServerUnreachable,
        ),
        (
            error.is::<gearman::GearmanTlsError>(),
            ErrorCode::JobServerTls,
        ),
        (error.is::<api::statsd::Error>(), ErrorCode::Statsd),
        (
            error.is::<api::webapp::WebappBindError>(),
            ErrorCode::Listen,
        ),
        (error.is::<http_api::ApiBindError>(), ErrorCode::Listen),
        (
            error.is::<http_api::LocalTokenError>(),
            ErrorCode::LocalToken,
        ),
        (error.is::<CloudsError>(), ErrorCode::CloudsYaml),
    ];
    let found = alike.into_iter().find(|(is_it, _)| *is_it);
    found.map(|(_, code)| code)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    use anyhow::Context as _;
    use nodeyard_launcher::{AttemptError, StartError};
    use nodeyard_store::zookeeper::DialError;

    use super::*;

    #[test]
    fn the_outermost_code_counts() {
        let lost = || anyhow::Result::<()>::Err(nodeyard_store::Error::ConnectionLoss.into());
        let code = |result: anyhow::Result<()>| code_of(&*result.unwrap_err());
        assert_eq!(code(lost()), Some(ErrorCode::StoreUnreachable));
        let wrapped = lost().context("cannot list nodes");
        assert_eq!(code(wrapped), Some(ErrorCode::StoreUnreachable));
        let named = lost().context("no store").code(ErrorCode::NoStore);
        assert_eq!(named.as_ref().unwrap_err().to_string(), "no store");
        assert_eq!(
            code(named.context("cannot begin")),
            Some(ErrorCode::NoStore)
        );
        assert_eq!(code(Err(anyhow::anyhow!("something else"))), None);
    }

    /// Returns the types in the sources that are [`Coded`], each with its crate: `nodeyard_fetch::Error`.
    fn coded_in_sources() -> BTreeSet<String> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = BTreeSet::new();
        for parent in ["crates", "drivers"] {
            let mut rest: Vec<(Option<String>, PathBuf)> = vec![(None, root.join(parent))];
            while let Some((owner, directory)) = rest.pop() {
                for entry in std::fs::read_dir(directory).unwrap() {
                    let path = entry.unwrap().path();
                    let name = path.file_name().unwrap().to_str().unwrap();
                    if path.is_dir() && name != "tests" {
                        let owner = owner.clone().unwrap_or_else(|| name.replace('-', "_"));
                        rest.push((Some(owner), path));
                    } else if let Some(owner) = owner.as_ref().filter(|_| name.ends_with(".rs")) {
                        let source = std::fs::read_to_string(&path).unwrap();
                        let types = source.lines().filter_map(|line| {
                            line.strip_prefix("impl Coded for ")?.strip_suffix(" {")
                        });
                        let types = types.map(|name| name.rsplit("::").next().unwrap());
                        found.extend(types.map(|name| format!("nodeyard_{owner}::{name}")));
                    }
                }
            }
        }
        found
    }

    #[test]
    fn every_coded_type_is_found_behind_an_error() {
        macro_rules! names {
            ($($error:ty),+ $(,)?) => { [$(stringify!($error)),+] };
        }
        let known = with_coded_types!(names).map(|path| {
            let path = path.replace(' ', "");
            let (owner, _) = path.split_once("::").unwrap();
            let (_, name) = path.rsplit_once("::").unwrap();
            format!("{owner}::{name}")
        });
        let mut coded = coded_in_sources();
        // It is private, and leaves its crate as a text with the code in front.
        assert!(coded.remove("nodeyard_builder::SetupError"));
        assert_eq!(coded, BTreeSet::from(known));
    }

    #[test]
    fn codes_of_fetch_zuul_launches_and_starts_are_found() {
        let code = |error: &(dyn Error + 'static)| code_of(error);
        let refused = || {
            let url: nodeyard_fetch::Url = "http://zuul.example/".parse().unwrap();
            nodeyard_fetch::Error::Insecure { url }
        };
        assert_eq!(code(&refused()), Some(ErrorCode::UrlForbidden));
        let zuul = nodeyard_zuul_api::Error::Fetch(refused());
        assert_eq!(code(&zuul), Some(ErrorCode::UrlForbidden));
        let late = AttemptError::Timeout(Duration::from_secs(1));
        assert_eq!(code(&late), Some(ErrorCode::LaunchTimeout));
        let absent = AttemptError::NoImage("debian".to_owned());
        assert_eq!(code(&absent), Some(ErrorCode::NoImage));
        assert_eq!(code(&StartError::Panicked), Some(ErrorCode::DriverStart));
        let lost = nodeyard_operations::Error::Store(nodeyard_store::Error::ConnectionLoss);
        assert_eq!(code(&lost), Some(ErrorCode::StoreUnreachable));
        let no_server = DialError::NoHosts;
        assert_eq!(code(&no_server), Some(ErrorCode::StoreUnreachable));
    }
}
