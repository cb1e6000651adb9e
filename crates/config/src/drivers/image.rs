//! Sections that the image entries of several drivers share.

use crate::section::section;
use crate::values::Port;

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

/// How to log in to machines that were booted from an image.
#[derive(Debug, Clone, Copy)]
pub struct ImageAccess<'c> {
    pub connection: &'c Connection,
    /// This and the following fields apply to existing images only. For built images they come from the upload.
    pub username: Option<&'c str>,
    pub python_path: &'c str,
    pub shell_type: Option<&'c str>,
}

/// Implements [`ImageAccess`] lookup for a section with `diskimages` and `cloud_images`.
macro_rules! image_access {
    ($section:ident) => {
        impl $section {
            /// How the machines of a label are reached that names `disk` as its `diskimage`, or `cloud` as its
            /// `cloud-image`.
            pub fn image_access(
                &self,
                disk: Option<&$crate::values::Name>,
                cloud: Option<&$crate::values::Name>,
            ) -> Option<$crate::drivers::ImageAccess<'_>> {
                if let Some(name) = disk {
                    let image = self.diskimages.iter().find(|image| image.name == *name)?;
                    return Some($crate::drivers::ImageAccess {
                        connection: &image.connection,
                        username: None,
                        python_path: "auto",
                        shell_type: None,
                    });
                }
                let name = cloud?;
                let image = self.cloud_images.iter().find(|image| image.name == *name)?;
                Some($crate::drivers::ImageAccess {
                    connection: &image.connection,
                    username: image.username.as_deref(),
                    python_path: &image.python_path,
                    shell_type: image.shell_type.as_deref(),
                })
            }
        }
    };
}
pub(super) use image_access;

/// Implements `DriverSection` for a section with `pools`, `diskimages` and `cloud_images`. More of its methods may follow.
macro_rules! image_driver {
    ($section:ident $({ $($method:item)+ })?) => {
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

            fn image_filters(
                &self,
            ) -> Vec<(&$crate::values::Name, &[$crate::drivers::ImageFilter])> {
                let chosen = self.cloud_images.iter();
                chosen
                    .filter_map(|image| Some((&image.name, image.image_filters.as_deref()?)))
                    .collect()
            }

            $($($method)+)?
        }
    };
}
pub(super) use image_driver;
