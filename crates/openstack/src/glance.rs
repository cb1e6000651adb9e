//! Glance: images.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use reqwest::Method;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::call::Call;
use crate::data::{Digests, Outgoing};
use crate::error::{Error, ErrorKind};
use crate::service::Service;
use crate::session::Session;

/// Items per page.
const PAGE: &str = "200";
const PATCH_TYPE: &str = "application/openstack-images-v2.1-json-patch";
const DATA_TYPE: &str = "application/octet-stream";
/// The import method that takes staged data.
pub const STAGED_IMPORT: &str = "glance-direct";

/// Fields of every image that do not describe it.
const NO_PROPERTIES: [&str; 6] = [
    "self",
    "file",
    "schema",
    "locations",
    "direct_url",
    "stores",
];

#[derive(Debug, Clone)]
pub struct Images(Session);

#[derive(Debug, Clone, Deserialize)]
pub struct Image {
    pub id: Box<str>,
    #[serde(default)]
    pub name: Option<Box<str>>,
    #[serde(default)]
    pub status: Box<str>,
    #[serde(default)]
    pub created_at: Option<Box<str>>,
    #[serde(default)]
    pub tags: Vec<Box<str>>,
    #[serde(default)]
    pub size: Option<u64>,
    #[serde(default)]
    pub disk_format: Option<Box<str>>,
    /// The MD5 digest of the data; absent where MD5 is forbidden.
    #[serde(default)]
    pub checksum: Option<Box<str>>,
    #[serde(default)]
    pub os_hash_algo: Option<Box<str>>,
    #[serde(default)]
    pub os_hash_value: Option<Box<str>>,
    /// Properties are fields beside those of every image.
    #[serde(flatten)]
    others: Map<String, Value>,
}

impl Image {
    /// Returns all fields with a single value: the image's properties, and fields of every image, such as `owner` and
    /// `visibility`.
    pub fn properties(&self) -> BTreeMap<String, String> {
        let own = [
            ("disk_format", &self.disk_format),
            ("checksum", &self.checksum),
            ("os_hash_algo", &self.os_hash_algo),
            ("os_hash_value", &self.os_hash_value),
        ];
        let own = own
            .into_iter()
            .filter_map(|(key, value)| Some((key.to_owned(), value.as_deref()?.to_owned())));
        let others = self.others.iter().filter_map(|(key, value)| {
            let text = match value {
                Value::String(text) => text.clone(),
                Value::Bool(_) | Value::Number(_) => value.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => return None,
            };
            (!NO_PROPERTIES.contains(&key.as_str())).then(|| (key.clone(), text))
        });
        own.chain(others).collect()
    }
}

/// An image without its data.
#[derive(Debug, Clone, Serialize)]
pub struct NewImage<'a> {
    /// Chosen by the caller, so that a repeated call does not create a second image: it fails with a conflict.
    pub id: &'a str,
    pub name: &'a str,
    pub disk_format: &'a str,
    pub container_format: &'a str,
    pub visibility: &'a str,
    #[serde(flatten)]
    pub properties: BTreeMap<&'a str, String>,
}

/// Where data is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataTarget {
    Image,
    /// The staging area of an import.
    Stage,
}

impl DataTarget {
    fn as_str(self) -> &'static str {
        match self {
            Self::Image => "file",
            Self::Stage => "stage",
        }
    }
}

/// One change of an image.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum ImageChange {
    /// Sets a value, also if there is one.
    Add {
        path: String,
        value: Value,
    },
    Remove {
        path: String,
    },
}

impl ImageChange {
    pub fn set(key: &str, value: impl Into<Value>) -> Self {
        Self::Add {
            path: pointer(key),
            value: value.into(),
        }
    }

    pub fn remove(key: &str) -> Self {
        Self::Remove { path: pointer(key) }
    }
}

fn pointer(key: &str) -> String {
    format!("/{}", key.replace('~', "~0").replace('/', "~1"))
}

impl Images {
    pub fn new(session: Session) -> Self {
        Self(session)
    }

    fn call(&self, method: Method, what: impl Into<Box<str>>) -> Call<'_> {
        self.0.call(Service::Image, method, what)
    }

    /// Lists the images that the project may use and whose `properties` have these values.
    pub async fn list<'q>(
        &self,
        properties: impl IntoIterator<Item = (&'q str, &'q str)>,
    ) -> Result<Vec<Image>, Error> {
        let mut call = self.call(Method::GET, "list images").query("limit", PAGE);
        for (key, value) in properties {
            call = call.query(key, value);
        }
        call.path(["images"]).list("images").await
    }

    pub async fn get(&self, id: &str) -> Result<Option<Image>, Error> {
        let call = self.call(Method::GET, format!("show image {id}"));
        call.path(["images", id]).json_if_found().await
    }

    pub async fn create(&self, image: &NewImage<'_>) -> Result<Image, Error> {
        let call = self.call(Method::POST, format!("create image {}", image.name));
        call.path(["images"]).body(image).repeatable().json().await
    }

    /// Sends a file as the data of an image. The service discards incomplete data.
    pub async fn send(
        &self,
        id: &str,
        path: &Path,
        target: DataTarget,
        progress: impl Fn(u64, u64) + Send + 'static,
    ) -> Result<Digests, Error> {
        let what = format!("take the data of image {id}");
        let unreadable = |cause: io::Error| {
            let text = format!("failed to read {}", path.display());
            Error::new(ErrorKind::Setup, Service::Image, what.as_str())
                .with_message(text)
                .because(cause)
        };
        let file = Outgoing::open(path, progress).map_err(unreadable)?;
        let call = self
            .call(Method::PUT, what.as_str())
            .path(["images", id, target.as_str()])
            .header(CONTENT_TYPE, DATA_TYPE)
            .header(CONTENT_LENGTH, &file.size.to_string());
        call.stream(file.body).await?;
        file.digests.await.map_err(|_| {
            Error::new(ErrorKind::Malformed, Service::Image, what.as_str())
                .with_message("it responded before it had the whole file")
        })
    }

    /// Starts the import of staged data.
    pub async fn import(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::POST, format!("import image {id}"));
        let call = call.path(["images", id, "import"]);
        let method = json!({"method": {"name": STAGED_IMPORT}});
        call.body(&method).send().await?;
        Ok(())
    }

    /// Lists the import methods that the service offers.
    pub async fn import_methods(&self) -> Result<Vec<String>, Error> {
        #[derive(Default, Deserialize)]
        struct Info {
            #[serde(rename = "import-methods")]
            methods: Methods,
        }
        #[derive(Default, Deserialize)]
        struct Methods {
            value: Vec<String>,
        }
        let call = self.call(Method::GET, "say how images can be imported");
        let info: Option<Info> = call.path(["info", "import"]).json_if_found().await?;
        Ok(info.unwrap_or_default().methods.value)
    }

    /// Applies all changes or none.
    pub async fn change(&self, id: &str, changes: &[ImageChange]) -> Result<Image, Error> {
        let call = self.call(Method::PATCH, format!("change image {id}"));
        let call = call.path(["images", id]).header(CONTENT_TYPE, PATCH_TYPE);
        call.body(&changes).repeatable().json().await
    }

    pub async fn delete(&self, id: &str) -> Result<(), Error> {
        let call = self.call(Method::DELETE, format!("delete image {id}"));
        call.path(["images", id]).send_ignoring_missing().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_stand_beside_what_every_image_has() {
        let image: Image = serde_json::from_value(json!({
            "id": "1", "name": null, "status": "active", "tags": ["ci"], "created_at": "2026-01-01T00:00:00Z",
            "owner": "p1", "visibility": "private", "min_disk": 0, "os_hidden": false, "disk_format": "raw",
            "size": null, "checksum": null, "locations": [{"url": "x"}], "self": "/v2/images/1",
            "file": "/v2/images/1/file", "schema": "/v2/schemas/image", "direct_url": "rbd://x", "os": "jammy",
        }))
        .unwrap();
        let properties = image.properties();
        let pairs: Vec<_> = properties
            .iter()
            .map(|(key, value)| (key.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            pairs,
            [
                ("disk_format", "raw"),
                ("min_disk", "0"),
                ("os", "jammy"),
                ("os_hidden", "false"),
                ("owner", "p1"),
                ("visibility", "private"),
            ]
        );
    }

    #[test]
    fn names_with_slashes_are_changed_as_one_name() {
        let changes = [ImageChange::set("a/b~c", "x"), ImageChange::remove("d")];
        assert_eq!(
            serde_json::to_value(changes).unwrap(),
            json!([
                {"op": "add", "path": "/a~1b~0c", "value": "x"},
                {"op": "remove", "path": "/d"},
            ])
        );
    }
}
