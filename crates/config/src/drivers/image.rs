//! What the image entries of several drivers share.

use crate::decode::Decoder;
use crate::section::section;
use crate::values::Port;
use crate::yaml::Map;

const SSH_PORT: Port = Port(22);
const WINRM_PORT: Port = Port(5986);

section! {
    /// How a machine that was booted from an image is reached.
    pub struct Connection (_outer: ()) {
        /// Ansible's name for the kind of connection.
        "connection-type" connection_type: String = default("ssh".to_owned());
        /// Port of that connection.
        "connection-port" connection_port: Port = inherit("22, or 5986 for winrm", if connection_type == "winrm" { WINRM_PORT } else { SSH_PORT });
    }
}

section! {
    /// A condition on images; of those that meet all conditions the newest is used.
    pub struct ImageFilter (_outer: ()) checked by check_filter {
        /// Property to look at.
        "name" | "Name" name: String = required;
        /// Values of which one must match.
        "values" | "Values" values: Vec<String> = required;
    }
}

fn check_filter(filter: &ImageFilter, map: &Map, decoder: &mut Decoder<'_>) {
    if filter.values.is_empty() && (map.set("values").or(map.set("Values"))).is_some() {
        decoder.lenient(
            "empty-list",
            map.head(),
            "a filter without values matches nothing",
        );
    }
}

/// The driver-independent view of a section with `pools`, `diskimages` and `cloud_images`.
macro_rules! image_driver {
    ($section:ident) => {
        impl $crate::provider::DriverSection for $section {
            fn pools(&self) -> Vec<$crate::provider::PoolRef<'_>> {
                let pools = self.pools.iter().map(|pool| $crate::provider::PoolRef {
                    common: &pool.common,
                    labels: pool
                        .labels
                        .iter()
                        .map(|label| $crate::provider::LabelRef {
                            name: &label.name,
                            diskimage: label.diskimage.as_ref(),
                            cloud_image: label.cloud_image.as_ref(),
                        })
                        .collect(),
                });
                pools.collect()
            }

            fn diskimages(&self) -> Vec<&$crate::values::Name> {
                self.diskimages.iter().map(|image| &image.name).collect()
            }

            fn paused_diskimages(&self) -> Vec<&$crate::values::Name> {
                let paused = self.diskimages.iter().filter(|image| image.pause);
                paused.map(|image| &image.name).collect()
            }

            fn cloud_images(&self) -> Vec<&$crate::values::Name> {
                self.cloud_images.iter().map(|image| &image.name).collect()
            }
        }
    };
}
pub(super) use image_driver;
