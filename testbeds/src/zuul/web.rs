//! Just enough of HTTP to talk to zuul-web on loopback.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

#[derive(Debug)]
pub(super) struct Web {
    pub(super) port: u16,
    /// Whether even a look needs the token.
    pub(super) protected: bool,
    pub(super) token: OnceLock<String>,
}

impl Web {
    pub(super) fn get(&self, path: &str) -> Result<Value> {
        let token = self.token.get().filter(|_| self.protected);
        self.request("GET", path, token.map(String::as_str), None)
    }

    /// An empty answer is `Null`.
    pub(super) fn request(
        &self,
        method: &str,
        path: &str,
        token: Option<&str>,
        body: Option<&Value>,
    ) -> Result<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let body = body.map(Value::to_string).unwrap_or_default();
        let authorization = token
            .map(|token| format!("Authorization: {token}\r\n"))
            .unwrap_or_default();
        // With this version the answer comes in one piece, up to the end of the connection.
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\n\
             Host: 127.0.0.1\r\n\
             {authorization}\
             Content-Type: application/json\r\n\
             Content-Length: {length}\r\n\
             \r\n\
             {body}",
            length = body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .with_context(|| format!("{method} {path}: the answer has no end of its head"))?;
        let status = head.split(' ').nth(1).unwrap_or_default();
        ensure!(status.starts_with('2'), "{method} {path}: {head}\n{body}");
        if body.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_str(body)?)
    }
}
