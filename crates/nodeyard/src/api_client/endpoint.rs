//! HTTP servers that commands call.

use std::fmt;
use std::path::Path;

use anyhow::{Context as _, bail};
use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::HOST;
use hyper::http::request;
use hyper::{Method, Request, Response, Uri};
use tokio::net::TcpStream;

use super::tls;

/// An HTTP server and the prefix of its paths. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct HttpEndpoint {
    host: String,
    port: u16,
    prefix: String,
    tls: Option<tls::Connector>,
}

impl HttpEndpoint {
    /// Parses a URL. With `https`, the CA certificates in the file `ca` are trusted, or those of the system.
    pub(crate) fn new(url: &str, ca: Option<&Path>) -> anyhow::Result<Self> {
        let uri: Uri = url.parse()?;
        let tls = match uri.scheme_str() {
            Some("http") => None,
            Some("https") => Some(tls::Connector::new(ca)?),
            _ => bail!("it does not start with http:// or https://"),
        };
        let host = uri.host().context("it has no host")?;
        let default = if tls.is_some() { 443 } else { 80 };
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(default),
            prefix: uri.path().trim_end_matches('/').to_owned(),
            tls,
        })
    }

    /// Returns a request for a path below the prefix.
    pub(crate) fn request(&self, method: Method, path: &str) -> request::Builder {
        Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(HOST, self.to_string())
    }

    /// Sends a request over a connection of its own. The response may have `limit` bytes.
    pub(crate) async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        limit: usize,
    ) -> anyhow::Result<Response<Bytes>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        let response = match &self.tls {
            Some(tls) => {
                let stream = tls.connect(&self.host, stream).await?;
                nodeyard_fetch::exchange(stream, request, limit).await
            }
            None => nodeyard_fetch::exchange(stream, request, limit).await,
        };
        response.map_err(|error| anyhow::anyhow!(error))
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_all_forms_are_parsed() {
        for (url, host, port, prefix) in [
            ("http://127.0.0.1:8006", "127.0.0.1", 8006, ""),
            ("http://[::1]:8006/", "::1", 8006, ""),
            ("http://ci.example/yard/", "ci.example", 80, "/yard"),
        ] {
            let endpoint = HttpEndpoint::new(url, None).unwrap();
            assert_eq!((&*endpoint.host, endpoint.port), (host, port), "{url}");
            assert_eq!(endpoint.prefix, prefix);
        }
        for url in ["ci.example", "ftp://ci.example", "", "http://"] {
            assert!(HttpEndpoint::new(url, None).is_err(), "{url}");
        }
    }
}
