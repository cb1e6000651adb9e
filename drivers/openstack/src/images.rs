//! Images of the cloud.
//!
//! An uploaded image carries its tags from the beginning, and the property [`UNVERIFIED`]. Only when what the cloud stored
//! is what was sent does it get its other properties, in one change that also removes that one: until then no filter
//! finds it, whatever its status.

mod delete;
mod upload;

use nodeyard_driver::{CloudImage, ImageStatus};
use nodeyard_model::Timestamp;
use nodeyard_openstack::{Error, Image, Images, Session};

/// The property of an image whose data has not been compared.
const UNVERIFIED: &str = "nodeyard_unverified";

/// Lists all images that the project may use.
pub(crate) async fn list(session: &Session) -> Result<Vec<CloudImage>, Error> {
    let images = Images::new(session.clone()).list([]).await?;
    Ok(images.iter().map(cloud_image).collect())
}

fn cloud_image(image: &Image) -> CloudImage {
    let properties = image.properties();
    let status = match &*image.status {
        "active" if properties.contains_key(UNVERIFIED) => ImageStatus::Pending,
        "active" => ImageStatus::Active,
        "killed" | "deleted" | "pending_delete" | "deactivated" => ImageStatus::Failed,
        _ => ImageStatus::Pending,
    };
    let created = image.created_at.as_deref().and_then(|text| {
        let time: jiff::Timestamp = text.parse().ok()?;
        Timestamp::from_secs(time.as_microsecond() as f64 / 1e6)
    });
    CloudImage {
        id: (&*image.id).into(),
        name: image.name.clone().unwrap_or_default(),
        status,
        created,
        properties,
        marks: image.tags.clone(),
    }
}
