//! The properties of an uploaded image.

use std::collections::BTreeMap;

use nodeyard_driver::{Error, UploadOrder};
use nodeyard_openstack::ImageChange;
use serde_json::Value;

use crate::images::UNVERIFIED;

/// Set by Glance, or by other parts of the upload.
const RESERVED: [&str; 18] = [
    "id",
    "name",
    "status",
    "created_at",
    "updated_at",
    "checksum",
    "os_hash_algo",
    "os_hash_value",
    "size",
    "virtual_size",
    "owner",
    "self",
    "file",
    "schema",
    "locations",
    "direct_url",
    "stores",
    "tags",
];

/// Fails if the properties are invalid, before gigabytes are sent.
pub(super) fn check(order: &UploadOrder) -> Result<(), Error> {
    let reserved = RESERVED
        .iter()
        .find(|key| order.metadata.contains_key(**key));
    if let Some(key) = reserved {
        return Err(Error::permanent(format!(
            "the metadata of image {} sets `{key}`, which is not a property of images",
            order.name
        )));
    }
    changes_of(&order.metadata).map(|_| ())
}

/// Returns all changes, including the removal of [`UNVERIFIED`].
pub(super) fn changes(order: &UploadOrder) -> Vec<ImageChange> {
    let mut changes = changes_of(&order.metadata).unwrap_or_default();
    let digest = |digest: &Option<Box<str>>| digest.as_deref().unwrap_or_default().to_owned();
    // As openstacksdk sets them.
    changes.extend([
        ImageChange::set("owner_specified.openstack.md5", digest(&order.md5)),
        ImageChange::set("owner_specified.openstack.sha256", digest(&order.sha256)),
        ImageChange::set(
            "owner_specified.openstack.object",
            format!("images/{}", order.name),
        ),
    ]);
    if !order.marks.is_empty() {
        let marks: Vec<&str> = order.marks.iter().map(|mark| &**mark).collect();
        changes.push(ImageChange::set("tags", marks));
    }
    changes.push(ImageChange::remove(UNVERIFIED));
    changes
}

/// Converts metadata: some properties have a type in Glance.
fn changes_of(metadata: &BTreeMap<String, String>) -> Result<Vec<ImageChange>, Error> {
    let mut changes = Vec::new();
    for (key, text) in metadata {
        let wrong = |wanted: &str| {
            Error::permanent(format!("image property `{key}` is {wanted}, not {text:?}"))
        };
        let value: Value = match key.as_str() {
            "disk_format" | "container_format" => continue,
            "min_disk" | "min_ram" => {
                let number: u64 = text.parse().map_err(|_| wrong("a number"))?;
                number.into()
            }
            "protected" | "os_hidden" => match text.to_lowercase().as_str() {
                "true" => true.into(),
                "false" => false.into(),
                _ => return Err(wrong("true or false")),
            },
            _ => text.as_str().into(),
        };
        changes.push(ImageChange::set(key, value));
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_have_the_types_that_glance_wants() {
        let metadata = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let good = metadata(&[
            ("container_format", "ovf"),
            ("min_disk", "3"),
            ("os_version", "22.04"),
            ("protected", "True"),
        ]);
        let changes = serde_json::to_value(changes_of(&good).unwrap()).unwrap();
        let set = |path: &str, value: Value| serde_json::json!({"op": "add", "path": path, "value": value});
        assert_eq!(
            changes,
            Value::from(vec![
                set("/min_disk", 3.into()),
                set("/os_version", "22.04".into()),
                set("/protected", true.into()),
            ])
        );
        for bad in [("min_ram", "much"), ("os_hidden", "perhaps")] {
            let error = changes_of(&metadata(&[bad])).unwrap_err();
            assert!(error.to_string().contains(bad.0), "{error}");
        }
    }
}
