//! A client of the Docker API: the calls that the driver needs, and their responses.
//!
//! Paths contain no version, so that each runtime uses its current one: Docker's newest servers reject the versions that
//! the oldest support. Responses are parsed leniently (states are strings, fields may be absent or null) because Podman
//! has states of its own and omits other fields than Docker.

mod responses;
mod text;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use nodeyard_driver::{Error, Progress, UploadOrder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{call_error, invalid_response, message_error, refusal_error};
use crate::image_body;
use crate::runtime_info::RuntimeInfo;
use crate::transport::{RuntimeCall, RuntimeCallBody, RuntimeResponse, RuntimeTransport};

pub(crate) use responses::{ContainerDetails, ContainerSummary, ImageConfig, ImageSummary};

use responses::{IMAGE_LABEL, with_tag};
use text::{encode, encode_query, text_of_log};

/// The response arrives after gigabytes were unpacked and verified.
const IMPORT_LIMIT: Duration = Duration::from_secs(3600);

/// How long a runtime may take to report its name.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// The container runtime that listens at a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// `podman` or `docker`.
    pub name: &'static str,
    pub version: String,
}

/// Returns which runtime listens at a socket. The error contains the remedy if none does.
pub async fn greet(socket: crate::Socket) -> Result<Runtime, Error> {
    let client = RuntimeClient {
        transport: Arc::new(socket),
        limit: GREETING_LIMIT,
    };
    let info = client.info().await?;
    Ok(Runtime {
        name: info.runtime_name(),
        version: info.server_version,
    })
}

/// Calls one runtime.
#[derive(Debug)]
pub(crate) struct RuntimeClient {
    pub(crate) transport: Arc<dyn RuntimeTransport>,
    pub(crate) limit: Duration,
}

impl RuntimeClient {
    async fn call(
        &self,
        name: &'static str,
        method: Method,
        uri: String,
        body: RuntimeCallBody,
        limit: Duration,
    ) -> Result<RuntimeResponse, Error> {
        let call = RuntimeCall {
            name,
            method,
            uri,
            body,
            limit,
        };
        let response = self.transport.call(call).await;
        response.map_err(|error| call_error(name, error))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: String,
    ) -> Result<Option<T>, Error> {
        let response = self
            .call(name, Method::GET, uri, RuntimeCallBody::Empty, self.limit)
            .await?;
        found(name, response)?
            .map(|response| read(name, &response))
            .transpose()
    }

    async fn list<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: &str,
    ) -> Result<Vec<T>, Error> {
        let list = self.get(name, uri.to_owned()).await?;
        list.ok_or_else(|| {
            Error::retry(format!(
                "failed to {name}: the container runtime has no such call"
            ))
        })
    }

    pub(crate) async fn info(&self) -> Result<RuntimeInfo, Error> {
        let name = "query the container runtime";
        let info = self.get(name, "/info".to_owned()).await?;
        info.ok_or_else(|| {
            Error::permanent(
                "the server at the socket is not a container runtime; set `socket` of the provider",
            )
        })
    }

    pub(crate) async fn containers(&self) -> Result<Vec<ContainerSummary>, Error> {
        self.list("list containers", "/containers/json?all=true")
            .await
    }

    pub(crate) async fn inspect(&self, id: &str) -> Result<Option<ContainerDetails>, Error> {
        let uri = format!("/containers/{}/json", encode(id));
        self.get("inspect a container", uri).await
    }

    /// Returns the id of the new container, or None if the name is in use.
    pub(crate) async fn create(
        &self,
        name: Option<&str>,
        body: &Value,
    ) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Created {
            id: String,
        }
        let call = "create a container";
        let uri = match name {
            Some(name) => format!("/containers/create?name={}", encode(name)),
            None => "/containers/create".to_owned(),
        };
        let body = RuntimeCallBody::Json(body.to_string().into());
        let response = self.call(call, Method::POST, uri, body, self.limit).await?;
        if name.is_some() && is_name_conflict(&response) {
            return Ok(None);
        }
        let created: Created = read(call, &accepted(call, response)?)?;
        Ok(Some(created.id))
    }

    /// Starts a container. Succeeds if it runs already.
    pub(crate) async fn start(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}/start", encode(id));
        let name = "start a container";
        let response = self
            .call(name, Method::POST, uri, RuntimeCallBody::Empty, self.limit)
            .await?;
        match response.status {
            304 => Ok(()),
            _ => accepted(name, response).map(drop),
        }
    }

    /// Kills and removes a container. Succeeds if it does not exist.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}?force=true&v=true", encode(id));
        let name = "remove a container";
        let response = self
            .call(
                name,
                Method::DELETE,
                uri,
                RuntimeCallBody::Empty,
                self.limit,
            )
            .await?;
        found(name, response).map(drop)
    }

    /// Returns when the container no longer runs or exists.
    pub(crate) async fn wait(&self, id: &str, limit: Duration) -> Result<(), Error> {
        let uri = format!("/containers/{}/wait?condition=not-running", encode(id));
        let name = "wait for a container";
        let response = self
            .call(name, Method::POST, uri, RuntimeCallBody::Empty, limit)
            .await?;
        found(name, response).map(drop)
    }

    /// Returns the last lines of the output.
    pub(crate) async fn logs(&self, id: &str, lines: u32) -> Result<String, Error> {
        let uri = format!(
            "/containers/{}/logs?stdout=true&stderr=true&tail={lines}",
            encode(id)
        );
        let name = "read the output of a container";
        let response = self
            .call(name, Method::GET, uri, RuntimeCallBody::Empty, self.limit)
            .await?;
        Ok(text_of_log(&accepted(name, response)?.body))
    }

    /// Returns a file or directory as an archive, or None if it does not exist.
    pub(crate) async fn download_archive(
        &self,
        id: &str,
        path: &str,
    ) -> Result<Option<Bytes>, Error> {
        let name = "read a file of a container";
        let response = self
            .call(
                name,
                Method::GET,
                archive_uri(id, path),
                RuntimeCallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, response)?.map(|response| response.body))
    }

    pub(crate) async fn has_path(&self, id: &str, path: &str) -> Result<bool, Error> {
        let name = "look up a file of a container";
        let response = self
            .call(
                name,
                Method::HEAD,
                archive_uri(id, path),
                RuntimeCallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, response)?.is_some())
    }

    /// Unpacks an archive in `/`.
    pub(crate) async fn upload_archive(&self, id: &str, archive: Bytes) -> Result<(), Error> {
        let name = "copy files into a container";
        let response = self
            .call(
                name,
                Method::PUT,
                archive_uri(id, "/"),
                RuntimeCallBody::Tar(archive),
                self.limit,
            )
            .await?;
        accepted(name, response).map(drop)
    }

    pub(crate) async fn images(&self) -> Result<Vec<ImageSummary>, Error> {
        self.list("list images", "/images/json").await
    }

    pub(crate) async fn image_config(&self, id: &str) -> Result<Option<ImageConfig>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct ImageDetails {
            config: Option<ImageConfig>,
        }
        let uri = format!("/images/{}/json", encode(id));
        let image: Option<ImageDetails> = self.get("inspect an image", uri).await?;
        Ok(image.map(|image| image.config.unwrap_or_default()))
    }

    pub(crate) async fn pull(&self, reference: &str, limit: Duration) -> Result<(), Error> {
        let name = "pull an image";
        let uri = format!("/images/create?fromImage={}", encode(&with_tag(reference)));
        let response = self
            .call(name, Method::POST, uri, RuntimeCallBody::Empty, limit)
            .await?;
        read_progress(name, &accepted(name, response)?).map(drop)
    }

    /// Creates an image from a root file system archive and returns its id.
    pub(crate) async fn import(
        &self,
        order: &UploadOrder,
        reference: &str,
        progress: &Progress,
    ) -> Result<String, Error> {
        let name = "import an image";
        let mut metadata = order.metadata.clone();
        let tags = order.tags.to_metadata().into_iter();
        metadata.extend(tags.map(|(key, value)| (key.to_owned(), value)));
        let label = format!("LABEL {IMAGE_LABEL}={}", encode_query(&metadata));
        let uri = format!(
            "/images/create?fromSrc=-&repo={}&tag=latest&changes={}",
            encode(reference),
            encode(&label)
        );
        let (body, defect) = image_body::body(order, progress);
        let body = RuntimeCallBody::Stream(body);
        let response = self
            .call(name, Method::POST, uri, body, IMPORT_LIMIT)
            .await
            .and_then(|response| accepted(name, response));
        // A defect of the file cut the request off; the error of the runtime follows from that.
        let response = response.map_err(|error| defect.take().unwrap_or(error))?;
        let last = read_progress(name, &response)?;
        last.ok_or_else(|| {
            Error::retry("the container runtime did not return the id of an imported image")
        })
    }

    /// Removes one name of an image, and with the last one the image. Returns false if the image is in use.
    pub(crate) async fn remove_image(&self, id_or_reference: &str) -> Result<bool, Error> {
        let uri = format!("/images/{}", encode(id_or_reference));
        let name = "remove an image";
        let response = self
            .call(
                name,
                Method::DELETE,
                uri,
                RuntimeCallBody::Empty,
                self.limit,
            )
            .await?;
        if response.status == 409 {
            return Ok(false);
        }
        found(name, response).map(|_| true)
    }
}

fn archive_uri(id: &str, path: &str) -> String {
    format!("/containers/{}/archive?path={}", encode(id), encode(path))
}

/// Docker has a status for this, Podman only a message.
fn is_name_conflict(response: &RuntimeResponse) -> bool {
    let message = crate::failure::message(response);
    response.status == 409 || (response.status >= 400 && message.contains("name is already in use"))
}

fn accepted(call: &str, response: RuntimeResponse) -> Result<RuntimeResponse, Error> {
    if (200..300).contains(&response.status) {
        Ok(response)
    } else {
        Err(refusal_error(call, &response))
    }
}

/// Returns None if the object does not exist.
fn found(call: &str, response: RuntimeResponse) -> Result<Option<RuntimeResponse>, Error> {
    if response.status == 404 {
        return Ok(None);
    }
    accepted(call, response).map(Some)
}

fn read<T: DeserializeOwned>(call: &str, response: &RuntimeResponse) -> Result<T, Error> {
    serde_json::from_slice(&response.body).map_err(|cause| invalid_response(call, cause))
}

/// Returns the id or status of the last line, or the error that one of the lines contains.
fn read_progress(call: &str, response: &RuntimeResponse) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Line {
        error: Option<String>,
        id: Option<String>,
        status: Option<String>,
    }
    let mut last = None;
    for line in serde_json::Deserializer::from_slice(&response.body).into_iter::<Line>() {
        let line = line.map_err(|cause| invalid_response(call, cause))?;
        if let Some(error) = line.error {
            return Err(message_error(call, 500, &error));
        }
        let words = [line.id, line.status].into_iter().flatten();
        last = words.into_iter().find(|word| !word.is_empty()).or(last);
    }
    Ok(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_contains_the_id_or_the_error() {
        let response = |text: &str| RuntimeResponse {
            status: 200,
            body: text.to_owned().into(),
        };
        let docker = response("{\"status\":\"Importing\"}\r\n{\"status\":\"sha256:ab\"}\r\n");
        assert_eq!(
            read_progress("import", &docker).unwrap().as_deref(),
            Some("sha256:ab")
        );
        let failed =
            response(r#"{"status":"Pulling"} {"error":"manifest unknown","errorDetail":{}}"#);
        let error = read_progress("pull", &failed).unwrap_err();
        assert!(error.to_string().contains("manifest unknown"), "{error}");
    }
}
