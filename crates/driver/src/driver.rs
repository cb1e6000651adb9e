//! The trait.

use std::collections::BTreeSet;
use std::fmt;
use std::future::pending;

use async_trait::async_trait;
use nodeyard_model::{Label, Limits, NodeId, PoolName, Resources, Timestamp};

use crate::error::Error;
use crate::ids::ExternalId;
use crate::image::{CloudImage, ImageTarget, UploadOrder, UploadedImage};
use crate::image_filters::{self, ImageFilter};
use crate::instance::Instance;
use crate::order::{CreateOrder, Target};
use crate::resource::{Resource, ResourceKind};
use crate::roster::Roster;
use crate::step::{EventKey, State, Step, Wait};

/// What a driver can do at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// It makes machines; otherwise they are there already.
    pub launches: bool,
    /// It takes uploads.
    pub manages_images: bool,
}

/// Whether machines with a label can be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    /// With a text for the operator.
    NotReady(String),
}

/// Things without tags that were in nobody's use and have been removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tidied {
    pub kind: ResourceKind,
    pub count: usize,
}

/// One kind of cloud. All methods may be called at the same time.
///
/// `create`, `delete`, `upload` and `delete_image` take one step of a machine: look at the world, do one
/// thing, say when to come back. The caller stores the state between steps. A call may be dropped at any
/// await (that is how callers enforce their time-outs), and may come again with a state that was stored
/// before a step that did happen.
#[async_trait]
pub trait Driver: fmt::Debug + Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// The machines that exist already, for a driver that does not launch.
    fn roster(&self) -> Option<&dyn Roster> {
        None
    }

    /// Everything there is, ours and others', images included. Costs one or a few calls.
    async fn list(&self) -> Result<Vec<Resource>, Error>;

    async fn create(
        &self,
        order: &CreateOrder,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<Instance>, Error>;

    /// What is not there is deleted.
    async fn delete(
        &self,
        target: &Target,
        state: &mut State,
        now: Timestamp,
    ) -> Result<Step<()>, Error>;

    /// What the cloud allows us altogether.
    async fn limits(&self) -> Result<Limits, Error>;

    /// What one machine takes of the limits.
    async fn cost(&self, pool: &PoolName, label: &Label) -> Result<Resources, Error>;

    /// Zones to choose from, empty if the cloud has none.
    async fn zones(&self, pool: &PoolName) -> Result<Vec<Box<str>>, Error>;

    /// Whether the cloud image of a label is there. Cheap: this is asked for every request.
    async fn readiness(
        &self,
        pool: &PoolName,
        label: &Label,
        now: Timestamp,
    ) -> Result<Readiness, Error>;

    async fn upload(
        &self,
        _order: &UploadOrder,
        _state: &mut State,
        _now: Timestamp,
    ) -> Result<Step<UploadedImage>, Error> {
        Err(Error::unsupported("upload images"))
    }

    async fn list_images(&self) -> Result<Vec<CloudImage>, Error> {
        Ok(Vec::new())
    }

    /// What `image-filters` choose from.
    async fn choosable_images(&self) -> Result<Vec<CloudImage>, Error> {
        self.list_images().await
    }

    /// The newest usable image that meets all conditions.
    async fn find_image(&self, filters: &[ImageFilter]) -> Result<Option<CloudImage>, Error> {
        let images = self.choosable_images().await?;
        Ok(image_filters::newest(filters, &images).cloned())
    }

    /// The images that machines are made from, as far as this account sees.
    async fn images_in_use(&self) -> Result<BTreeSet<ExternalId>, Error> {
        Err(Error::unsupported("tell which images are in use"))
    }

    async fn delete_image(
        &self,
        _target: &ImageTarget,
        _state: &mut State,
        _now: Timestamp,
    ) -> Result<Step<()>, Error> {
        Err(Error::unsupported("delete images"))
    }

    /// What the cloud can tell about a machine that did not come up: its console, its events. None where
    /// there is nothing, or where the configuration does not ask for it.
    async fn evidence(
        &self,
        _pool: &PoolName,
        _label: &Label,
        _id: &ExternalId,
    ) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// Nobody answered at a machine that the cloud calls ready.
    async fn unreachable(&self, _node: NodeId, _id: &ExternalId) -> Result<(), Error> {
        Ok(())
    }

    /// Removes what this kind of cloud leaves lying about and cannot carry tags.
    async fn tidy(&self, _now: Timestamp) -> Result<Vec<Tidied>, Error> {
        Ok(Vec::new())
    }

    /// Looks after what belongs to no single node, and says when to come back. None if there is nothing of the kind.
    async fn attend(&self, _now: Timestamp) -> Result<Option<Wait>, Error> {
        Ok(None)
    }

    /// Where machines of this provider reach each other's services, if that is a place with a name: providers of the
    /// same place go first where the one that a request names cannot serve it.
    async fn cluster(&self) -> Option<Box<str>> {
        None
    }

    /// Whether a machine is for the request that it is made for, and of no use to another.
    fn binds(&self, _pool: &PoolName, _label: &Label) -> bool {
        false
    }

    /// What the launch of a node waits for, in words; asked when somebody wants to know.
    fn progress(&self, _node: NodeId) -> Option<String> {
        None
    }

    /// Returns when `event` has happened, or may have.
    async fn event(&self, _event: &EventKey) {
        pending::<()>().await;
    }
}
