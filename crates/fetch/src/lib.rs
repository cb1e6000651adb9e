//! An HTTP client for addresses that come from somebody else.
//!
//! What is fetched here was named by a Zuul, by a redirect, by a file that a job wrote. So the client keeps rules that
//! a general one leaves to its caller:
//!
//! * Credentials belong to an [`Origin`]. No other origin ever sees them, whatever redirects to it.
//! * Only `https`, unless allowed; no addresses of private networks, unless allowed or of an origin that the
//!   configuration names. Names are resolved here and the address that was judged is the one that is dialled.
//! * Every redirect is judged like the first address.
//! * Answers have a largest size, and no peer can keep us waiting without sending something.
//! * A [`Url`] shows neither its query, which may be a signature, nor anything else that is secret.
//!
//! Nothing is decompressed and nothing is kept: bytes are those of the server.

mod address;
mod body;
mod client;
mod codes;
mod connect;
mod credentials;
mod error;
mod retry;
mod url;

pub use body::Body;
pub use client::{Client, Options, Request, Response};
pub use credentials::{Credentials, Secret};
pub use error::Error;
pub use hyper::{Method, StatusCode, header};
pub use retry::{Backoff, is_absent_status, is_transient_status, retry_after};
pub use url::{BadUrl, Origin, Url};
