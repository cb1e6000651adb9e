//! As little of an HTTP client as the tests need, so that they can also send what no client would.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HttpResponse {
    pub(crate) status: u16,
    /// By names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl HttpResponse {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap()
    }
}

pub(crate) async fn get(server: SocketAddr, path: &str, headers: &[(&str, &str)]) -> HttpResponse {
    ask(server, "GET", path, headers).await.unwrap()
}

pub(crate) async fn ask(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> std::io::Result<HttpResponse> {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!("{method} {path} HTTP/1.0\r\nHost: test\r\n{headers}\r\n");
    raw(server, request.as_bytes()).await
}

/// Sends these bytes and reads until the server hangs up.
pub(crate) async fn raw(server: SocketAddr, request: &[u8]) -> std::io::Result<HttpResponse> {
    let mut stream = TcpStream::connect(server).await?;
    // The server may have heard enough before we have said everything.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    parse(&String::from_utf8(answer).unwrap())
        .ok_or_else(|| std::io::Error::other("no answer, or none that makes sense"))
}

fn parse(answer: &str) -> Option<HttpResponse> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers = lines.filter_map(|line| line.split_once(": "));
    Some(HttpResponse {
        status,
        headers: headers
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect(),
        body: body.to_owned(),
    })
}
