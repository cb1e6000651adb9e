//! Prepares the login to a container: who logs in, and the files that are copied into it before it starts.

use nodeyard_driver::{BootImage, CreateOrder, Error};

use super::ContainerDriver;
use crate::archive;
use crate::login_files::{self, HOST_KEY_DIRECTORY, LoginFiles, UserAccount};
use crate::options::{ContainerAccess, ContainerImage, ContainerLabelOptions};

/// A longer `/etc/passwd` is not read to its end.
const MAX_PASSWD: u64 = 4 << 20;

/// The user that logs in to a container.
struct LoginUser {
    name: Option<Box<str>>,
    /// Whether the record of the node has the name already.
    is_recorded: bool,
}

impl ContainerDriver {
    fn login_user(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
    ) -> Result<LoginUser, Error> {
        if let BootImage::Upload { image, .. } = &order.image {
            let mut configured = self.options.disk_images.iter();
            let configured = configured.find(|configured| configured.name == *image);
            return Ok(LoginUser {
                name: configured.and_then(|image| image.username.clone()),
                is_recorded: true,
            });
        }
        let name = match &label.image {
            ContainerImage::Cloud(name) => self.cloud_image(name)?.username.clone(),
            _ => None,
        };
        Ok(LoginUser {
            is_recorded: name.is_some(),
            name,
        })
    }

    /// Copies what a login needs into the container. Returns the user name if only the image defines it. Idempotent.
    pub(super) async fn prepare_login(
        &self,
        order: &CreateOrder,
        label: &ContainerLabelOptions,
        container: &str,
    ) -> Result<Option<Box<str>>, Error> {
        if label.access == ContainerAccess::Exec {
            return Ok(None);
        }
        let user = self.login_user(order, label)?;
        let account = if label.authorized_keys.is_empty() && user.is_recorded {
            None
        } else {
            self.find_account(container, &user).await?
        };
        let authorized = match &account {
            _ if label.authorized_keys.is_empty() => None,
            Some(account) => {
                let make_home = !self.client.has_path(container, &account.home).await?;
                Some((account, &*label.authorized_keys, make_home))
            }
            None => return Err(missing_user(label, &user)),
        };
        let files = LoginFiles {
            authorized,
            new_host_keys: self.lacks_host_keys(container).await?,
        };
        if let Some(archive) = files.pack()? {
            self.client.upload_archive(container, archive).await?;
        }
        let account = account.filter(|_| !user.is_recorded);
        Ok(account.map(|account| account.name))
    }

    async fn find_account(
        &self,
        container: &str,
        user: &LoginUser,
    ) -> Result<Option<UserAccount>, Error> {
        let path = "/etc/passwd";
        let Some(archive) = self.client.download_archive(container, path).await? else {
            return Ok(None);
        };
        let passwd = archive::read_first_file(&archive, MAX_PASSWD).map_err(unreadable)?;
        let passwd = passwd.unwrap_or_default();
        Ok(login_files::find_account(&passwd, user.name.as_deref()))
    }

    /// Returns whether sshd is installed without host keys. A good image has none, so that each of its containers gets
    /// keys of its own.
    async fn lacks_host_keys(&self, container: &str) -> Result<bool, Error> {
        let path = HOST_KEY_DIRECTORY;
        match self.client.download_archive(container, path).await? {
            Some(archive) => {
                let files = archive::file_names(&archive).map_err(unreadable)?;
                Ok(!login_files::has_host_key(&files))
            }
            None => Ok(false),
        }
    }
}

fn missing_user(label: &ContainerLabelOptions, user: &LoginUser) -> Error {
    let name = user.name.as_deref().unwrap_or("zuul or root");
    Error::permanent(format!(
        "label {}: the image has no user {name} for `authorized-keys`; set `username` of the image",
        label.name
    ))
}

fn unreadable(cause: std::io::Error) -> Error {
    Error::retry("failed to read files of a container: invalid archive").because(cause)
}
