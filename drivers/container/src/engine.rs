//! The calls of the Docker API that the driver needs, and what their answers say.
//!
//! Paths are without a version: each runtime then speaks its own current one, and Docker's newest servers refuse the
//! versions that the oldest understand. Answers are read leniently: states are texts, and what is absent or null is
//! nothing, for Podman has states of its own and leaves out other things than Docker does.

mod answers;
mod text;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use nodeyard_driver::{Error, UploadOrder};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::failure::{garbled, refused, told, unanswered};
use crate::host::Info;
use crate::image_file;
use crate::transport::{Answer, Call, CallBody, Transport};

pub(crate) use answers::{Container, Image, ImageConfig, Inspected};

use answers::{IMAGE_LABEL, with_tag};
use text::{encode, encode_query, text_of_log};

/// Gigabytes are unpacked and checked before there is an answer.
const IMPORT_LIMIT: Duration = Duration::from_secs(3600);

/// How long a runtime may take to say what it is.
const GREETING_LIMIT: Duration = Duration::from_secs(10);

/// What answers at a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Runtime {
    /// `podman` or `docker`.
    pub name: &'static str,
    pub version: String,
}

/// Asks whoever listens at a socket what it is. The error says what to do if nobody does.
pub async fn greet(socket: crate::Socket) -> Result<Runtime, Error> {
    let engine = Engine {
        transport: Arc::new(socket),
        limit: GREETING_LIMIT,
    };
    let info = engine.info().await?;
    Ok(Runtime {
        name: info.engine(),
        version: info.server_version,
    })
}

/// A runtime that is talked to.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) limit: Duration,
}

impl Engine {
    async fn call(
        &self,
        name: &'static str,
        method: Method,
        uri: String,
        body: CallBody,
        limit: Duration,
    ) -> Result<Answer, Error> {
        let call = Call {
            name,
            method,
            uri,
            body,
            limit,
        };
        let answer = self.transport.call(call).await;
        answer.map_err(|error| unanswered(name, error))
    }

    async fn get<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: String,
    ) -> Result<Option<T>, Error> {
        let answer = self
            .call(name, Method::GET, uri, CallBody::Empty, self.limit)
            .await?;
        found(name, answer)?
            .map(|answer| read(name, &answer))
            .transpose()
    }

    async fn list<T: DeserializeOwned>(
        &self,
        name: &'static str,
        uri: &str,
    ) -> Result<Vec<T>, Error> {
        let list = self.get(name, uri.to_owned()).await?;
        list.ok_or_else(|| {
            Error::retry(format!("the container runtime does not know how to {name}"))
        })
    }

    pub(crate) async fn info(&self) -> Result<Info, Error> {
        let name = "tell about itself";
        let info = self.get(name, "/info".to_owned()).await?;
        info.ok_or_else(|| {
            Error::permanent(
                "what listens at the socket is not a container runtime: set `socket` of the provider",
            )
        })
    }

    pub(crate) async fn containers(&self) -> Result<Vec<Container>, Error> {
        self.list("list containers", "/containers/json?all=true")
            .await
    }

    pub(crate) async fn inspect(&self, id: &str) -> Result<Option<Inspected>, Error> {
        let uri = format!("/containers/{}/json", encode(id));
        self.get("look at a container", uri).await
    }

    /// The id of the new container. None if the name is taken.
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
        let body = CallBody::Json(body.to_string().into());
        let answer = self.call(call, Method::POST, uri, body, self.limit).await?;
        if name.is_some() && is_name_conflict(&answer) {
            return Ok(None);
        }
        let created: Created = read(call, &accepted(call, answer)?)?;
        Ok(Some(created.id))
    }

    /// Also if it runs already.
    pub(crate) async fn start(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}/start", encode(id));
        let name = "start a container";
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, self.limit)
            .await?;
        match answer.status {
            304 => Ok(()),
            _ => accepted(name, answer).map(drop),
        }
    }

    /// Kills it first if it runs. Also if it is not there.
    pub(crate) async fn remove(&self, id: &str) -> Result<(), Error> {
        let uri = format!("/containers/{}?force=true&v=true", encode(id));
        let name = "remove a container";
        let answer = self
            .call(name, Method::DELETE, uri, CallBody::Empty, self.limit)
            .await?;
        found(name, answer).map(drop)
    }

    /// Returns when it does not run any more.
    pub(crate) async fn wait(&self, id: &str, limit: Duration) -> Result<(), Error> {
        let uri = format!("/containers/{}/wait?condition=not-running", encode(id));
        let name = "wait for a container";
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, limit)
            .await?;
        accepted(name, answer).map(drop)
    }

    /// The last lines of what it wrote.
    pub(crate) async fn logs(&self, id: &str, lines: u32) -> Result<String, Error> {
        let uri = format!(
            "/containers/{}/logs?stdout=true&stderr=true&tail={lines}",
            encode(id)
        );
        let name = "show the output of a container";
        let answer = self
            .call(name, Method::GET, uri, CallBody::Empty, self.limit)
            .await?;
        Ok(text_of_log(&accepted(name, answer)?.body))
    }

    /// A file or directory, as an archive.
    pub(crate) async fn take_out(&self, id: &str, path: &str) -> Result<Option<Bytes>, Error> {
        let name = "read a file of a container";
        let answer = self
            .call(
                name,
                Method::GET,
                archive_uri(id, path),
                CallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, answer)?.map(|answer| answer.body))
    }

    pub(crate) async fn has_path(&self, id: &str, path: &str) -> Result<bool, Error> {
        let name = "look for a file of a container";
        let answer = self
            .call(
                name,
                Method::HEAD,
                archive_uri(id, path),
                CallBody::Empty,
                self.limit,
            )
            .await?;
        Ok(found(name, answer)?.is_some())
    }

    /// Unpacks an archive in `/`.
    pub(crate) async fn put_in(&self, id: &str, archive: Bytes) -> Result<(), Error> {
        let name = "put files into a container";
        let answer = self
            .call(
                name,
                Method::PUT,
                archive_uri(id, "/"),
                CallBody::Tar(archive),
                self.limit,
            )
            .await?;
        accepted(name, answer).map(drop)
    }

    pub(crate) async fn images(&self) -> Result<Vec<Image>, Error> {
        self.list("list images", "/images/json").await
    }

    pub(crate) async fn image_config(&self, id: &str) -> Result<Option<ImageConfig>, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "PascalCase")]
        struct Inspected {
            config: Option<ImageConfig>,
        }
        let uri = format!("/images/{}/json", encode(id));
        let image: Option<Inspected> = self.get("look at an image", uri).await?;
        Ok(image.map(|image| image.config.unwrap_or_default()))
    }

    pub(crate) async fn pull(&self, reference: &str, limit: Duration) -> Result<(), Error> {
        let name = "pull an image";
        let uri = format!("/images/create?fromImage={}", encode(&with_tag(reference)));
        let answer = self
            .call(name, Method::POST, uri, CallBody::Empty, limit)
            .await?;
        progress(name, &accepted(name, answer)?).map(drop)
    }

    /// Makes an image of a root file system archive; returns its id.
    pub(crate) async fn import(
        &self,
        order: &UploadOrder,
        reference: &str,
    ) -> Result<String, Error> {
        let name = "import an image";
        let mut about = order.metadata.clone();
        let tags = order.tags.to_metadata().into_iter();
        about.extend(tags.map(|(key, value)| (key.to_owned(), value)));
        let label = format!("LABEL {IMAGE_LABEL}={}", encode_query(&about));
        let uri = format!(
            "/images/create?fromSrc=-&repo={}&tag=latest&changes={}",
            encode(reference),
            encode(&label)
        );
        let (body, verdict) = image_file::body(order);
        let body = CallBody::Stream(body);
        let answer = self
            .call(name, Method::POST, uri, body, IMPORT_LIMIT)
            .await
            .and_then(|answer| accepted(name, answer));
        // A runtime that was cut off has its own words for it.
        let answer = answer.map_err(|error| verdict.take().unwrap_or(error))?;
        let last = progress(name, &answer)?;
        last.ok_or_else(|| {
            Error::retry("the container runtime imported an image and did not say which")
        })
    }

    /// Removes one of an image's names, and the image with the last of them. False if it is in use.
    pub(crate) async fn remove_image(&self, id_or_reference: &str) -> Result<bool, Error> {
        let uri = format!("/images/{}", encode(id_or_reference));
        let name = "remove an image";
        let answer = self
            .call(name, Method::DELETE, uri, CallBody::Empty, self.limit)
            .await?;
        if answer.status == 409 {
            return Ok(false);
        }
        found(name, answer).map(|_| true)
    }
}

fn archive_uri(id: &str, path: &str) -> String {
    format!("/containers/{}/archive?path={}", encode(id), encode(path))
}

/// Docker has a status for it, Podman only a sentence.
fn is_name_conflict(answer: &Answer) -> bool {
    let message = crate::failure::message(answer);
    answer.status == 409 || (answer.status >= 400 && message.contains("name is already in use"))
}

fn accepted(call: &str, answer: Answer) -> Result<Answer, Error> {
    if (200..300).contains(&answer.status) {
        Ok(answer)
    } else {
        Err(refused(call, &answer))
    }
}

/// None if there is no such thing.
fn found(call: &str, answer: Answer) -> Result<Option<Answer>, Error> {
    if answer.status == 404 {
        return Ok(None);
    }
    accepted(call, answer).map(Some)
}

fn read<T: DeserializeOwned>(call: &str, answer: &Answer) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|cause| garbled(call, cause))
}

/// The id or status that the last line tells, unless one of them tells of an error.
fn progress(call: &str, answer: &Answer) -> Result<Option<String>, Error> {
    #[derive(Deserialize)]
    struct Line {
        error: Option<String>,
        id: Option<String>,
        status: Option<String>,
    }
    let mut last = None;
    for line in serde_json::Deserializer::from_slice(&answer.body).into_iter::<Line>() {
        let line = line.map_err(|cause| garbled(call, cause))?;
        if let Some(error) = line.error {
            return Err(told(call, 500, &error));
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
    fn progress_tells_the_id_or_the_error() {
        let answer = |text: &str| Answer {
            status: 200,
            body: text.to_owned().into(),
        };
        let docker = answer("{\"status\":\"Importing\"}\r\n{\"status\":\"sha256:ab\"}\r\n");
        assert_eq!(
            progress("import", &docker).unwrap().as_deref(),
            Some("sha256:ab")
        );
        let failed =
            answer(r#"{"status":"Pulling"} {"error":"manifest unknown","errorDetail":{}}"#);
        let error = progress("pull", &failed).unwrap_err();
        assert!(error.to_string().contains("manifest unknown"), "{error}");
    }
}
