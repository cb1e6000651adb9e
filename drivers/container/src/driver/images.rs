//! Uploads: root file system archives that become images of the runtime.

use nodeyard_driver::{Error, ImageTarget, State, Step, Tags, UploadOrder, UploadedImage};
use nodeyard_model::{Timestamp, UploadKey};
use serde::{Deserialize, Serialize};

use super::{ContainerDriver, text_id};
use crate::engine::Image;
use crate::image_file::check_format;

#[derive(Debug, Default, Serialize, Deserialize)]
enum Delete {
    #[default]
    Asked,
    /// Containers are still made from it, or the runtime has been told.
    Waiting { since: Timestamp },
}

impl ContainerDriver {
    /// One step: an import is over when the runtime answers.
    pub(super) async fn step_upload(
        &self,
        order: &UploadOrder,
        state: &mut State,
    ) -> Result<Step<UploadedImage>, Error> {
        check_format(&order.format)?;
        if !order.marks.is_empty() {
            return Err(Error::permanent(
                "images of a container runtime have no tags without a value; use properties",
            ));
        }
        let reference = reference(order);
        let earlier = if state.take_fresh() {
            None
        } else {
            self.take_over(&order.tags).await?
        };
        let id = match earlier {
            Some(image) => image.id,
            None => self.engine.import(order, &reference).await?,
        };
        state.external_id = Some(id.as_str().into());
        Ok(Step::Done(UploadedImage {
            external_id: id.as_str().into(),
            external_name: reference.into(),
        }))
    }

    /// What an earlier run of this order left behind: one is taken over, the others go.
    async fn take_over(&self, tags: &Tags) -> Result<Option<Image>, Error> {
        let mut images = self.images_with(|of| of == tags).await?.into_iter();
        let good = images.next();
        for image in images {
            self.remove_image(&image).await?;
        }
        Ok(good)
    }

    async fn images_of(&self, upload: &UploadKey) -> Result<Vec<Image>, Error> {
        let owner = &self.options.owner;
        self.images_with(|tags| owner.owns_upload(tags, upload.build.build, upload.upload))
            .await
    }

    async fn images_with(&self, ours: impl Fn(&Tags) -> bool + Send) -> Result<Vec<Image>, Error> {
        let mut images = self.engine.images().await?;
        images.retain(|image| ours(&image.tags()));
        // The last of several imports has the name.
        images.sort_by_key(|image| image.references().next().is_none());
        Ok(images)
    }

    pub(super) async fn step_delete_image(
        &self,
        target: &ImageTarget,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        let mut ids: Vec<String> = self
            .images_of(&target.upload)
            .await?
            .into_iter()
            .map(|image| image.id)
            .collect();
        if let Some(id) = &target.external_id {
            let id = text_id(id)?;
            if !ids.contains(&id) {
                ids.push(id);
            }
        }
        self.remove_images(&ids, state, now).await
    }

    pub(super) async fn remove_images(
        &self,
        ids: &[String],
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error> {
        let mut images = self.engine.images().await?;
        images.retain(|image| ids.contains(&image.id));
        if images.is_empty() {
            return Ok(Step::Done(()));
        }
        let mut gone = true;
        for image in &images {
            gone &= self.remove_image(image).await?;
        }
        let since = match state.read()? {
            Delete::Asked => {
                state.write(&Delete::Waiting { since: now })?;
                now
            }
            Delete::Waiting { since } => since,
        };
        Ok(if gone {
            Step::go_on()
        } else {
            Step::wait(self.options.poll.after(now.since(since)))
        })
    }

    /// False if a container is made from it: Podman would remove that too if it were forced.
    async fn remove_image(&self, image: &Image) -> Result<bool, Error> {
        let containers = self.engine.containers().await?;
        if containers.iter().any(|container| container.uses(&image.id)) {
            return Ok(false);
        }
        let mut names: Vec<&str> = image.references().collect();
        if names.is_empty() {
            names.push(&image.id);
        }
        for name in names {
            if !self.engine.remove_image(name).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A name for people, in the characters that runtimes allow, and another one for each upload.
fn reference(order: &UploadOrder) -> String {
    let name: String = order
        .name
        .chars()
        .map(|char| match char.to_ascii_lowercase() {
            char @ ('a'..='z' | '0'..='9') => char,
            _ => '-',
        })
        .collect();
    let mut words = name.split('-').filter(|word| !word.is_empty());
    let first = words.next().unwrap_or("image").to_owned();
    let name = words.fold(first, |name, word| format!("{name}-{word}"));
    let build = order.upload.build.build.to_string().replace('-', "");
    format!("localhost/nodeyard/{name}-{build}-{}", order.upload.upload)
}
