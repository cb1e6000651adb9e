//! Cinder: what booting from volumes needs. Many clouds do not have it.

use std::collections::BTreeMap;

use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use crate::call::Call;
use crate::error::Error;
use crate::service::Service;
use crate::session::Session;

#[derive(Debug, Clone)]
pub struct Volumes(Session);

#[derive(Debug, Clone, Deserialize)]
pub struct Volume {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Option<Box<str>>,
    #[serde(default)]
    pub status: Box<str>,
    /// In GiB.
    #[serde(default)]
    pub size: i64,
    #[serde(default)]
    pub metadata: BTreeMap<String, String>,
}

/// The quota of a project; -1 is unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct VolumeLimits {
    #[serde(rename = "maxTotalVolumes")]
    pub volumes: i64,
    #[serde(rename = "maxTotalVolumeGigabytes")]
    pub gigabytes: i64,
}

impl Volumes {
    pub fn new(session: Session) -> Self {
        Self(session)
    }

    fn call(&self, method: Method, what: impl Into<Box<str>>) -> Call<'_> {
        self.0.call(Service::Volume, method, what)
    }

    pub async fn volumes(&self) -> Result<Vec<Volume>, Error> {
        let call = self.call(Method::GET, "list volumes");
        call.path(["volumes", "detail"]).list("volumes").await
    }

    pub async fn delete_volume(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::DELETE, format!("delete volume {id}"));
        call.path(["volumes", id]).send_ignoring_missing().await
    }

    /// Adds to the metadata of a volume.
    pub async fn add_metadata(
        &self,
        id: &str,
        metadata: &BTreeMap<&str, String>,
    ) -> Result<(), Error> {
        let call = self.call(Method::POST, format!("tag volume {id}"));
        let body = json!({"metadata": metadata});
        let call = call
            .path(["volumes", id, "metadata"])
            .body(&body)
            .repeatable();
        call.send_ignoring_missing().await
    }

    pub async fn limits(&self) -> Result<VolumeLimits, Error> {
        #[derive(Deserialize)]
        struct LimitsResponse {
            limits: Limits,
        }
        #[derive(Deserialize)]
        struct Limits {
            absolute: VolumeLimits,
        }
        let call = self.call(Method::GET, "show the limits of the project");
        let answer: LimitsResponse = call.path(["limits"]).json().await?;
        Ok(answer.limits.absolute)
    }
}
