//! A client of the API that keeps its connection.

use anyhow::{Context as _, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::{Request, Response};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

#[derive(Clone)]
pub(super) struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    url: String,
    token: String,
}

impl Client {
    pub(super) fn new(url: String, token: String) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Self {
            pool: Pool::builder(TokioExecutor::new()).build(connector),
            url,
            token,
        }
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Response<Incoming>> {
        let body = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = Request::builder()
            .method(method)
            .uri(format!("{}/api/v1{path}", self.url))
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(Full::new(body))?;
        Ok(self.pool.request(request).await?)
    }

    pub(super) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> anyhow::Result<Value> {
        let answer = self.send(method, path, body).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        ensure!(
            status.is_success(),
            "{method} {path}: {status}: {}",
            String::from_utf8_lossy(&body)
        );
        Ok(serde_json::from_slice(&body)?)
    }

    pub(super) async fn events(&self, query: &str) -> anyhow::Result<Events> {
        let answer = self.send("GET", &format!("/events?{query}"), None).await?;
        ensure!(
            answer.status().is_success(),
            "no events: {}",
            answer.status()
        );
        Ok(Events {
            body: answer.into_body(),
            buffer: BytesMut::new(),
        })
    }
}

pub(super) struct Events {
    body: Incoming,
    buffer: BytesMut,
}

impl Events {
    /// The data of the next event.
    pub(super) async fn next(&mut self) -> anyhow::Result<Bytes> {
        loop {
            while let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end + 1).freeze();
                if let Some(data) = line.strip_prefix(b"data: ") {
                    return Ok(Bytes::copy_from_slice(data));
                }
            }
            let frame = self.body.frame().await.context("the stream has ended")??;
            if let Ok(data) = frame.into_data() {
                self.buffer.extend_from_slice(&data);
            }
        }
    }
}
