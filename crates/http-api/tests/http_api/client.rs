//! As little of an HTTP client as the tests need, so that they can also send what no client would.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::testbed::DEADLINE;

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

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(crate) fn is(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        if self.body.is_empty() {
            Value::Null
        } else {
            self.json()
        }
    }

    /// The problem, which is well formed and of this kind.
    #[track_caller]
    pub(crate) fn problem(self, status: u16, kind: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), "application/problem+json");
        let problem = self.json();
        assert_eq!(problem["status"], status, "{problem}");
        let expected = format!("urn:nodeyard:problem:{kind}");
        assert_eq!(problem["type"], expected.as_str(), "{problem}");
        assert!(!problem["title"].as_str().unwrap().is_empty());
        assert!(!problem["detail"].as_str().unwrap().is_empty());
        problem
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Client {
    server: SocketAddr,
    headers: Vec<(String, String)>,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Self {
        Self {
            server,
            headers: Vec::new(),
        }
    }

    pub(crate) fn with_token(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        self.ask("GET", path, None).await
    }

    pub(crate) async fn put(&self, path: &str) -> HttpResponse {
        self.ask("PUT", path, None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> HttpResponse {
        self.ask("DELETE", path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> HttpResponse {
        let client = self.clone().with("content-type", "application/json");
        client.ask("POST", path, Some(&body.to_string())).await
    }

    pub(crate) async fn ask(&self, method: &str, path: &str, body: Option<&str>) -> HttpResponse {
        let head = self.head(method, path, "1.0", body.map(str::len));
        let request = head + body.unwrap_or("");
        raw(self.server, request.as_bytes()).await.unwrap()
    }

    fn head(&self, method: &str, path: &str, version: &str, length: Option<usize>) -> String {
        let headers = self.headers.iter();
        let headers: String = headers
            .map(|(name, value)| format!("{name}: {value}\r\n"))
            .collect();
        let length = length.map_or(String::new(), |length| {
            format!("content-length: {length}\r\n")
        });
        format!("{method} /api/v1{path} HTTP/{version}\r\nhost: test\r\n{length}{headers}\r\n")
    }

    /// Listens to events.
    pub(crate) async fn events(&self, query: &str) -> Events {
        let mut stream = TcpStream::connect(self.server).await.unwrap();
        let head = self.head("GET", &format!("/events{query}"), "1.0", None);
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream);
        let mut line = String::new();
        lines.read_line(&mut line).await.unwrap();
        assert!(line.contains(" 200 "), "{line}");
        while line != "\r\n" {
            line.clear();
            lines.read_line(&mut line).await.unwrap();
        }
        let mut events = Events { lines };
        // The server greets, so from here on nothing is missed.
        assert_eq!(events.line().await, ":");
        assert_eq!(events.line().await, "");
        events
    }
}

/// A stream of events, read as a browser reads it.
pub(crate) struct Events {
    lines: BufReader<TcpStream>,
}

#[derive(Debug, Clone)]
pub(crate) struct Event {
    pub(crate) id: String,
    pub(crate) kind: String,
    pub(crate) data: Value,
}

impl Events {
    async fn line(&mut self) -> String {
        let mut line = String::new();
        let reading = self.lines.read_line(&mut line);
        let read = tokio::time::timeout(DEADLINE, reading).await;
        let read = read.expect("no event came").unwrap();
        assert_ne!(read, 0, "the stream has ended");
        line.trim_end_matches('\n').to_owned()
    }

    pub(crate) async fn next(&mut self) -> Event {
        let (mut id, mut kind, mut data) = (String::new(), String::new(), None);
        loop {
            let line = self.line().await;
            match line.split_once(": ") {
                Some(("id", text)) => text.clone_into(&mut id),
                Some(("event", text)) => text.clone_into(&mut kind),
                Some(("data", text)) => data = Some(serde_json::from_str(text).unwrap()),
                _ if line.is_empty() => {
                    if let Some(data) = data {
                        return Event { id, kind, data };
                    }
                }
                _ => assert!(line.starts_with(':'), "{line}"),
            }
        }
    }

    /// All that still comes before the server hangs up.
    pub(crate) async fn rest(mut self) -> String {
        let mut rest = String::new();
        let reading = self.lines.read_to_string(&mut rest);
        let read = tokio::time::timeout(DEADLINE, reading).await;
        read.expect("the stream does not end").unwrap();
        rest
    }

    /// The next one that is as wanted.
    pub(crate) async fn until(&mut self, wanted: impl Fn(&Event) -> bool) -> Event {
        loop {
            let event = self.next().await;
            if wanted(&event) {
                return event;
            }
        }
    }
}

/// Sends these bytes and reads until the server hangs up.
pub(crate) async fn raw(server: SocketAddr, request: &[u8]) -> std::io::Result<HttpResponse> {
    let mut stream = TcpStream::connect(server).await?;
    // The server may have heard enough before we have said everything.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let reading = stream.read_to_end(&mut answer);
    let read = tokio::time::timeout(DEADLINE, reading).await;
    let read = read.expect("the server neither answers nor hangs up");
    // A reset after the answer is the server's way of hanging up on somebody who still talks.
    let answer = String::from_utf8(answer).unwrap();
    match parse(&answer) {
        Some(answer) => Ok(answer),
        None => {
            read?;
            Err(std::io::Error::other("no answer, or none that makes sense"))
        }
    }
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
