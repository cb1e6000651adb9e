//! An HTTP client for untrusted URLs, such as those from Zuul, redirects and build artifacts.
//!
//! It enforces rules that a general client leaves to its caller:
//!
//! * Credentials belong to an [`Origin`] and are never sent to another one, even on redirects.
//! * Only `https`, unless allowed; no addresses of private networks, unless allowed or of a configured origin. The
//!   address that was checked is the one connected to.
//! * Redirect targets are checked like the first URL.
//! * Response sizes are limited, and so is the time without receiving data.
//! * A [`Url`] is displayed without its query, which may be a signature.
//!
//! Responses are neither decompressed nor cached.

mod address;
mod body;
mod client;
mod codes;
mod connect;
mod credentials;
mod error;
mod exchange;
mod retry;
mod url;

pub use body::ResponseBody;
pub use client::{HttpClient, HttpRequest, HttpResponse, Options};
pub use credentials::{HttpCredentials, SecretSource};
pub use error::Error;
pub use exchange::exchange;
pub use hyper::{Method, StatusCode, header};
pub use retry::{Backoff, is_absent_status, is_transient_status, retry_after};
pub use url::{Origin, Url, UrlError};
