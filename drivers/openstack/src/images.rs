//! Images of the cloud.

use std::collections::BTreeMap;

use nodeyard_driver::{CloudImage, ImageStatus};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{Error, Method, Service, Session};
use serde::Deserialize;
use serde_json::{Map, Value};

#[derive(Deserialize)]
struct Image {
    id: Box<str>,
    #[serde(default)]
    name: Option<Box<str>>,
    #[serde(default)]
    status: Box<str>,
    #[serde(default)]
    created_at: Option<String>,
    #[serde(default)]
    tags: Vec<Box<str>>,
    /// Properties stand beside what every image has.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl From<Image> for CloudImage {
    fn from(image: Image) -> Self {
        let status = match &*image.status {
            "active" => ImageStatus::Active,
            "killed" | "deleted" | "pending_delete" | "deactivated" => ImageStatus::Failed,
            _ => ImageStatus::Pending,
        };
        let created = image.created_at.and_then(|text| {
            let time: jiff::Timestamp = text.parse().ok()?;
            Timestamp::from_secs(time.as_microsecond() as f64 / 1e6)
        });
        let properties: BTreeMap<_, _> = image
            .others
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(text) => (key, text),
                other => (key, other.to_string()),
            })
            .collect();
        Self {
            id: (&*image.id).into(),
            name: image.name.unwrap_or_default(),
            status,
            created,
            properties,
            marks: image.tags,
        }
    }
}

/// All images that the project may use.
pub(crate) async fn list(session: &Session) -> Result<Vec<CloudImage>, Error> {
    let call = session.call(Service::Image, Method::GET, "list images");
    let images: Vec<Image> = call.path(["images"]).list("images").await?;
    Ok(images.into_iter().map(Into::into).collect())
}
