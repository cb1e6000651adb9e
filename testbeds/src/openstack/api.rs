//! Asking the services directly, as the test sees them without the program that is tested.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{BufReader, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::{Value, json};

use super::http::{self, Head, Length};

const TOKEN: &str = "X-Auth-Token";

/// A type of service, as the catalog calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Service {
    Identity,
    Image,
    Placement,
    Network,
    Compute,
    BlockStorage,
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Identity => "identity",
            Self::Image => "image",
            Self::Placement => "placement",
            Self::Network => "network",
            Self::Compute => "compute",
            Self::BlockStorage => "block-storage",
        })
    }
}

/// Who one is, with a password.
#[derive(Debug, Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
    pub project: String,
    pub region: String,
}

/// Somebody who is logged in.
#[derive(Debug)]
pub struct Session {
    token: String,
    project: String,
    urls: BTreeMap<Service, String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: Value,
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize)]
struct Endpoint {
    interface: String,
    region: String,
    url: String,
}

impl Session {
    pub fn begin(identity: &str, login: &Login) -> Result<Self> {
        let domain = json!({"id": "default"});
        let auth = json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": {
                "name": login.user, "password": login.password, "domain": domain,
            }}},
            "scope": {"project": {"name": login.project, "domain": domain}},
        }});
        let answer = send("POST", &format!("{identity}/auth/tokens"), &[], Some(&auth))?;
        answer.expect_success("logging in")?;
        let token = answer.head.header("x-subject-token");
        let project = answer.json.pointer("/token/project/id");
        let catalog = answer.json.pointer("/token/catalog").cloned();
        let catalog: Vec<Entry> = serde_json::from_value(catalog.unwrap_or_default())?;
        let urls = catalog.into_iter().filter_map(|entry| {
            let service = Service::deserialize(entry.kind).ok()?;
            let mut endpoints = entry.endpoints.into_iter();
            let public = endpoints.find(|endpoint| {
                endpoint.interface == "public" && endpoint.region == login.region
            })?;
            Some((service, public.url))
        });
        Ok(Self {
            token: token.context("no token")?.to_owned(),
            project: text(project)?,
            urls: urls.collect(),
        })
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Logs out: from now on nobody takes the token.
    pub fn end(self) -> Result<()> {
        let headers = [TOKEN, "X-Subject-Token"].map(|name| (name, self.token()));
        let url = self.url(Service::Identity, "/auth/tokens")?;
        send("DELETE", &url, &headers, None)?.expect_success("logging out")
    }

    /// The id of the project.
    pub fn project(&self) -> &str {
        &self.project
    }

    /// `path` is what follows the address in the catalog.
    pub fn get(&self, service: Service, path: &str) -> Result<Value> {
        self.call("GET", service, path, None)
    }

    pub fn post(&self, service: Service, path: &str, body: &Value) -> Result<Value> {
        self.call("POST", service, path, Some(body))
    }

    pub fn put(&self, service: Service, path: &str, body: &Value) -> Result<Value> {
        self.call("PUT", service, path, Some(body))
    }

    /// What is gone already is gone.
    pub fn delete(&self, service: Service, path: &str) -> Result<()> {
        let answer = send("DELETE", &self.url(service, path)?, &self.headers(), None)?;
        if answer.head.status() == 404 {
            return Ok(());
        }
        answer.expect_success(path)
    }

    /// The list under a key of the answer.
    pub fn list(&self, service: Service, path: &str, key: &str) -> Result<Vec<Value>> {
        let mut answer = self.get(service, path)?;
        let list = answer.get_mut(key).map(Value::take);
        serde_json::from_value(list.unwrap_or_default())
            .with_context(|| format!("{service} {path} has no list {key}"))
    }

    /// Fails if the service does not say 2xx.
    pub fn call(
        &self,
        method: &str,
        service: Service,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value> {
        let answer = send(method, &self.url(service, path)?, &self.headers(), body)?;
        answer.expect_success(&format!("{method} {service} {path}"))?;
        Ok(answer.json)
    }

    /// Gives an image its content.
    pub fn upload(&self, image: &str, content: &[u8]) -> Result<()> {
        let url = self.url(Service::Image, &format!("/v2/images/{image}/file"))?;
        let body = Some(("application/octet-stream", content));
        send_bytes("PUT", &url, &self.headers(), body)?.expect_success("an upload")
    }

    fn headers(&self) -> [(&'static str, &str); 1] {
        [(TOKEN, &self.token)]
    }

    fn url(&self, service: Service, path: &str) -> Result<String> {
        let url = self.urls.get(&service);
        let url = url.with_context(|| format!("there is no service {service}"))?;
        Ok(format!("{url}{path}"))
    }
}

struct Reply {
    head: Head,
    /// Null where there is none.
    json: Value,
    text: String,
}

impl Reply {
    fn expect_success(&self, what: &str) -> Result<()> {
        let status = self.head.status();
        ensure!(
            (200..300).contains(&status),
            "{what}: {status} {}",
            self.text
        );
        Ok(())
    }
}

type Headers<'a> = [(&'a str, &'a str)];

fn send(method: &str, url: &str, headers: &Headers<'_>, body: Option<&Value>) -> Result<Reply> {
    let bytes = body.map(ToString::to_string).unwrap_or_default();
    let body = body.map(|_| ("application/json", bytes.as_bytes()));
    send_bytes(method, url, headers, body)
}

fn send_bytes(
    method: &str,
    url: &str,
    more: &Headers<'_>,
    body: Option<(&str, &[u8])>,
) -> Result<Reply> {
    let (host, path) = http::split_url(url)?;
    let mut stream = TcpStream::connect(host).with_context(|| format!("cannot reach {url}"))?;
    let mut headers = vec![
        ("Host".to_owned(), host.to_owned()),
        ("Connection".to_owned(), "close".to_owned()),
    ];
    let more = more.iter();
    headers.extend(more.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    if let Some((kind, bytes)) = body {
        headers.push(("Content-Type".to_owned(), kind.to_owned()));
        headers.push(("Content-Length".to_owned(), bytes.len().to_string()));
    }
    let head = Head {
        first: format!("{method} {path} HTTP/1.1"),
        headers,
    };
    head.write(&mut stream, |_| true, &[])?;
    if let Some((_, bytes)) = body {
        stream.write_all(bytes)?;
    }
    let mut reader = BufReader::new(stream);
    let head = Head::read(&mut reader)?.with_context(|| format!("{url} hung up"))?;
    let body = match head.status() {
        204 | 304 => Vec::new(),
        _ => http::read_body(&mut reader, head.length(Length::UntilEnd))?,
    };
    let text = String::from_utf8_lossy(&body).into_owned();
    Ok(Reply {
        head,
        json: serde_json::from_str(&text).unwrap_or_default(),
        text,
    })
}

/// What must be there and be a text.
pub(super) fn text(value: Option<&Value>) -> Result<String> {
    let text = value.and_then(Value::as_str);
    Ok(text.context("the answer lacks a text")?.to_owned())
}
