//! `driver: openstack` as the launcher and the builder see it.

use std::sync::Arc;

use nodeyard_config::OpenStack;
use nodeyard_driver::{Driver, Error};
use nodeyard_driver_common::openstack::{image_upload_settings, provider_settings};
use nodeyard_driver_common::{DriverContext, DriverKind, ImageUploadSettings, ProviderSettings};

use crate::{OpenStackDriver, Options, ProcessEnvironment};

#[derive(Debug)]
pub struct OpenStackKind;

impl DriverKind for OpenStackKind {
    type Section = OpenStack;

    fn name(&self) -> &'static str {
        "openstack"
    }

    fn settings(&self, section: &OpenStack) -> Result<ProviderSettings, Error> {
        provider_settings(&section.settings)
    }

    fn image_upload(&self, section: &OpenStack, image: &str) -> ImageUploadSettings {
        image_upload_settings(&section.settings, image)
    }

    fn make(
        &self,
        section: &OpenStack,
        context: DriverContext<'_>,
    ) -> Result<Arc<dyn Driver>, Error> {
        let options = Options::of(section, context.owner)?;
        let environment = ProcessEnvironment::current();
        Ok(Arc::new(OpenStackDriver::connect(options, &environment)?))
    }
}
