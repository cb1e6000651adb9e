//! The codes of errors where operators see them: at the end of a command, and in the log.
//!
//! Most errors know their code ([`Coded`]). Here are those of crates that know nothing of the rest of the program, and
//! those that are only a text.

use std::error::Error;
use std::fmt;

use nodeyard_api as api;
use nodeyard_config::clouds::CloudsError;
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

fn own_code(error: &(dyn Error + 'static)) -> Option<ErrorCode> {
    macro_rules! coded {
        ($($error:ty),+ $(,)?) => {
            $(if let Some(error) = error.downcast_ref::<$error>() {
                return error.code();
            })+
        };
    }
    coded!(
        nodeyard_store::Error,
        nodeyard_driver::Error,
        nodeyard_image::Error,
        nodeyard_image::OpenError,
        nodeyard_image::FileError,
        nodeyard_image::CommitError,
        nodeyard_image::ConvertError,
        nodeyard_image::DownloadError,
        nodeyard_image::SignatureError,
        nodeyard_builder::worker::Error,
        nodeyard_builder::source::SourceError,
    );
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
            error.is::<gearman::ConnectError>(),
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
    use anyhow::Context as _;

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
}
