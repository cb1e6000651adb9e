//! The traits that a driver implements: what it can do with machines, with images, or which machines it knows.

use std::collections::BTreeSet;
use std::fmt;

use async_trait::async_trait;
use nodeyard_model::{Label, Limits, NodeId, PoolName, Resources};

use crate::error::Error;
use crate::ids::ExternalId;
use crate::image::{CloudImage, ImageTarget, UploadOrder, UploadedImage};
use crate::instance::Instance;
use crate::order::{CreateOrder, Target};
use crate::progress::Progress;
use crate::resource::{Resource, ResourceKind};
use crate::roster::Roster;

/// One provider: what it can do, part by part. A driver returns the parts that it has.
pub trait Driver: fmt::Debug + Send + Sync {
    /// Creates and deletes machines.
    fn machines(&self) -> Option<&dyn Machines> {
        None
    }

    /// Takes uploads of images and deletes them.
    fn images(&self) -> Option<&dyn Images> {
        None
    }

    /// Knows machines that exist already.
    fn roster(&self) -> Option<&dyn Roster> {
        None
    }
}

/// Creates and deletes machines.
///
/// All methods may run at the same time, for different machines and for the same one. `create` and `delete` run until
/// they are done; a caller that gives up drops the future, at any await, and may call again.
#[async_trait]
pub trait Machines: Send + Sync {
    /// Creates the machine of an order, or goes on with what an earlier call for the same node left behind, and returns
    /// when the machine is up.
    ///
    /// Reports the id of the machine to `progress` as soon as it is known.
    async fn create(&self, order: &CreateOrder, progress: &Progress) -> Result<Instance, Error>;

    /// Deletes the target and returns when it is gone. Succeeds if it does not exist.
    async fn delete(&self, target: &Target) -> Result<(), Error>;

    /// Lists everything in the cloud, ours and others', images included. Costs one or a few calls.
    async fn list(&self) -> Result<Vec<Resource>, Error>;

    /// Returns the limits of the whole account.
    async fn limits(&self) -> Result<Limits, Error>;

    /// Returns how much of the limits one machine uses.
    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error>;

    /// Returns whether the cloud image of a label exists. Cheap: called for every request.
    async fn readiness(&self, _pool: &PoolName, _label: &Label) -> Result<Readiness, Error> {
        Ok(Readiness::Ready)
    }

    /// Returns the zones to choose from, empty if the cloud has none.
    async fn zones(&self, _pool: &PoolName) -> Result<Vec<Box<str>>, Error> {
        Ok(Vec::new())
    }

    /// Returns the name of the cluster within which machines reach each other's services. Requests that name a provider
    /// prefer providers of the same cluster.
    async fn cluster(&self) -> Option<Box<str>> {
        None
    }

    /// Whether a machine serves only the request that it is created for.
    fn is_bound_to_request(&self, _pool: &PoolName, _label: &Label) -> bool {
        false
    }

    /// Returns what the cloud recorded about a machine that did not come up, such as its console. None if there is
    /// nothing, or if the configuration does not ask for it.
    async fn evidence(
        &self,
        _pool: &PoolName,
        _label: &Label,
        _id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// Marks a machine that the cloud reports as ready, but that does not answer.
    async fn mark_unreachable(&self, _node: NodeId, _id: &ExternalId) -> Result<(), Error> {
        Ok(())
    }

    /// Deletes leftovers that cannot carry tags, such as ports without a server.
    async fn collect_garbage(&self) -> Result<Vec<Collected>, Error> {
        Ok(Vec::new())
    }

    /// Maintains what belongs to no single node, for as long as the provider runs. Returns at once if there is nothing to
    /// maintain.
    async fn run_background(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Uploads images to a cloud and deletes them.
#[async_trait]
pub trait Images: Send + Sync {
    /// Uploads an image, or goes on with what an earlier call for the same upload left behind, and returns when the image
    /// can be used.
    ///
    /// Reports the id of the image, and the bytes sent, to `progress` as soon as they are known.
    async fn upload(
        &self,
        order: &UploadOrder,
        progress: &Progress,
    ) -> Result<UploadedImage, Error>;

    /// Deletes an image and returns when it is gone. Succeeds if it does not exist.
    async fn delete_image(&self, target: &ImageTarget) -> Result<(), Error>;

    /// Lists the images of this account.
    async fn list_images(&self) -> Result<Vec<CloudImage>, Error>;

    /// Lists the images that `image-filters` choose from.
    async fn candidates(&self) -> Result<Vec<CloudImage>, Error> {
        self.list_images().await
    }

    /// Returns the images that existing machines were created from, as far as this account can see.
    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        Err(Error::unsupported("list the images in use"))
    }
}

/// Whether machines with a label can be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// With the reason for the operator.
    NotReady(String),
}

/// Leftovers of one kind that were deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collected {
    pub kind: ResourceKind,
    pub count: usize,
}
