//! A running provider: its driver, its pools, and the state of their labels in its cloud.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use nodeyard_config as config;
use nodeyard_driver::backing::Backing;
use nodeyard_driver::{self as driver, Driver, ErrorClass, Machines, Owner};
use nodeyard_driver_common::{
    BackingSource, DriverContext, DriverKinds, ImageSettings, LabelSettings, ProviderSettings,
};
use nodeyard_model::{ImageName, ImageUpload, UploadKey, UploadState};
use nodeyard_model::{Label, LauncherId, Limits, PoolName, ProviderName, Resources};
use nodeyard_plan::{
    LabelReadiness, LabelSetup, PoolKey, PoolSetup, ProviderSetup, Supply, ZoneName,
};
use nodeyard_store::registry::{ImageId, ImageRecord, ImageShape};
use nodeyard_store::view::{Change, View};

use crate::backing::StoreBacking;
use crate::context::Context;
use crate::error::StartError;
use crate::launcher_id;
use crate::options::Options;

/// Opens the records of one provider's backing nodes.
struct ProviderBacking<'a> {
    ctx: &'a Context,
    provider: &'a ProviderName,
}

impl BackingSource for ProviderBacking<'_> {
    fn open(&self, identity: &str) -> Arc<dyn Backing> {
        let provider = self.provider.clone();
        Arc::new(StoreBacking::open(self.ctx.clone(), provider, identity))
    }
}

/// One generation of a provider: lasts until its configuration changes, or a broken label works again.
#[derive(Debug)]
pub(crate) struct Provider {
    pub(crate) name: ProviderName,
    pub(crate) config: config::Provider,
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) settings: ProviderSettings,
    pub(crate) owner: Owner,
    pub(crate) pools: BTreeMap<PoolName, Pool>,
    managed_images: BTreeMap<ImageName, Vec<(PoolKey, Label)>>,
    limits: Limits,
    /// The cluster within which its nodes reach each other.
    pub(crate) cluster: Option<Box<str>>,
    /// It did not start, and stands in for one that will.
    pub(crate) is_unreachable: bool,
}

#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) key: PoolKey,
    /// Identifies this pool in records; another one in every generation.
    pub(crate) id: LauncherId,
    labels: BTreeMap<Label, LabelSetup>,
    zones: Vec<ZoneName>,
}

impl Pool {
    /// Returns whether the label worked when the provider started.
    pub(crate) fn is_sound(&self, label: &Label) -> bool {
        let setup = self.labels.get(label);
        setup.is_some_and(|setup| {
            matches!(
                setup.readiness,
                LabelReadiness::Ready | LabelReadiness::ImageMissing { .. }
            )
        })
    }

    pub(crate) fn labels(&self) -> impl Iterator<Item = &Label> {
        self.labels.keys()
    }
}

impl Provider {
    /// Creates the driver and asks the cloud for everything that decisions need.
    pub(crate) async fn start(
        config: config::Provider,
        kinds: &DriverKinds,
        ctx: &Context,
        options: &Options,
    ) -> Result<Self, StartError> {
        let name = ProviderName::new(config.name())?;
        let kind = kinds.get(&config)?;
        let settings = kind.settings().map_err(StartError::Settings)?;
        let owner = Owner {
            system: ctx.system.clone(),
            provider: name.clone(),
        };
        let backing = ProviderBacking {
            ctx,
            provider: &name,
        };
        let driver = kind.make(DriverContext {
            owner: owner.clone(),
            backing: Some(&backing),
        })?;
        let (limits, cluster) = match driver.machines() {
            Some(machines) => (machines.limits().await?, machines.cluster().await),
            None => (Limits::unlimited(), None),
        };
        let mut pools = BTreeMap::new();
        for (pool, of) in &settings.pools {
            let key = PoolKey::new(name.clone(), pool.clone());
            let mut labels = BTreeMap::new();
            for (label, of) in &of.labels {
                labels.insert(label.clone(), setup(&*driver, &key, label, of).await?);
            }
            let zones = match driver.machines() {
                Some(machines) => machines.zones(pool).await?,
                None => Vec::new(),
            };
            let pool_run = Pool {
                id: launcher_id::generate(&options.fqdn, &key.provider, &key.pool),
                key,
                labels,
                zones: zones.iter().map(|zone| ZoneName::from(&**zone)).collect(),
            };
            pools.insert(pool.clone(), pool_run);
        }
        let managed_images = managed_images(&settings, &pools);
        Ok(Self {
            name,
            config,
            driver,
            settings,
            owner,
            pools,
            managed_images,
            limits,
            cluster,
            is_unreachable: false,
        })
    }

    /// Creates the substitute of a provider that did not start. It has the pools and labels of the configuration, so that
    /// requests for them wait; it knows no machines.
    pub(crate) fn unreachable(
        config: config::Provider,
        kinds: &DriverKinds,
        ctx: &Context,
        options: &Options,
        reason: &str,
    ) -> Result<Self, StartError> {
        let name = ProviderName::new(config.name())?;
        let kind = kinds.get(&config)?;
        let settings = kind.settings().map_err(StartError::Settings)?;
        let label = LabelSetup {
            readiness: LabelReadiness::Unreachable {
                reason: reason.into(),
            },
            ..LabelSetup::launched(Resources::default())
        };
        let pools = settings.pools.iter().map(|(pool, of)| {
            let key = PoolKey::new(name.clone(), pool.clone());
            let labels = of.labels.keys().map(|name| (name.clone(), label.clone()));
            let pool_run = Pool {
                id: launcher_id::generate(&options.fqdn, &key.provider, &key.pool),
                key,
                labels: labels.collect(),
                zones: Vec::new(),
            };
            (pool.clone(), pool_run)
        });
        Ok(Self {
            pools: pools.collect(),
            owner: Owner {
                system: ctx.system.clone(),
                provider: name.clone(),
            },
            name,
            config,
            driver: Arc::new(NoDriver),
            settings,
            managed_images: BTreeMap::new(),
            limits: Limits::unlimited(),
            cluster: None,
            is_unreachable: true,
        })
    }

    /// Returns the images that we manage, each with the labels that boot from it. Broken labels are left out.
    pub(crate) fn managed_images(&self) -> impl Iterator<Item = (&ImageName, &[(PoolKey, Label)])> {
        let images = self.managed_images.iter();
        images.map(|(image, labels)| (image, labels.as_slice()))
    }

    /// Returns None if its machines exist already.
    pub(crate) fn machines(&self) -> Option<&dyn Machines> {
        self.driver.machines()
    }

    pub(crate) fn label(&self, pool: &PoolName, label: &Label) -> Option<&LabelSettings> {
        self.settings.pools.get(pool)?.labels.get(label)
    }

    /// Returns the provider as the plan sees it, in place of `before`.
    ///
    /// What others use is known only after the first poll of the cloud. Requests do not wait for it: ready nodes can be
    /// handed out meanwhile, and a full cloud refuses by itself.
    pub(crate) fn setup(&self, before: Option<&ProviderSetup>) -> ProviderSetup {
        let most = self.config.common.max_concurrency.0;
        ProviderSetup {
            limits: self.counted(self.limits.clone()),
            foreign: before.map_or_else(Resources::default, |before| before.foreign.clone()),
            leaked: before.map_or_else(Resources::default, |before| before.leaked.clone()),
            max_launches: most.map(|most| usize::try_from(most).unwrap_or(usize::MAX)),
            keeps_to_cluster: self.settings.keeps_to_cluster,
        }
    }

    /// Returns the limits that count: none if the provider ignores its quota.
    pub(crate) fn counted(&self, limits: Limits) -> Limits {
        if self.settings.ignore_quota {
            Limits::unlimited()
        } else {
            limits
        }
    }

    /// Returns the pools as the plan sees them. The dispatcher adds which managed images have uploads.
    pub(crate) fn pool_setups(&self) -> Vec<PoolSetup> {
        let pools = self.pools.iter().filter_map(|(name, pool)| {
            let settings = self.settings.pools.get(name)?;
            let labels = pool.labels.iter().map(|(label, setup)| {
                let mut setup = setup.clone();
                let image = settings.labels.get(label).map(|label| &label.image);
                if let Some(ImageSettings::Managed(image)) = image
                    && setup.readiness == LabelReadiness::Ready
                {
                    setup.readiness = LabelReadiness::ImageMissing {
                        image: image.as_str().into(),
                        reason: None,
                        pending: None,
                    };
                }
                (label.clone(), setup)
            });
            Some(PoolSetup {
                id: pool.id.clone(),
                key: pool.key.clone(),
                limits: settings.limits.clone(),
                labels: labels.collect(),
                zones: pool.zones.clone(),
            })
        });
        pools.collect()
    }
}

fn managed_images(
    settings: &ProviderSettings,
    pools: &BTreeMap<PoolName, Pool>,
) -> BTreeMap<ImageName, Vec<(PoolKey, Label)>> {
    let mut images: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, run) in pools {
        let labels = settings.pools.get(name).map(|pool| pool.labels.iter());
        for (label, of) in labels.into_iter().flatten() {
            if let ImageSettings::Managed(image) = &of.image
                && run.is_sound(label)
            {
                let labels = images.entry(image.clone()).or_default();
                labels.push((run.key.clone(), label.clone()));
            }
        }
    }
    images
}

/// The driver of a provider that did not start.
#[derive(Debug)]
struct NoDriver;

impl Driver for NoDriver {}

async fn setup(
    driver: &dyn Driver,
    key: &PoolKey,
    label: &Label,
    settings: &LabelSettings,
) -> Result<LabelSetup, StartError> {
    let supply = match driver.roster() {
        Some(roster) => {
            let places = roster.places().iter();
            let places =
                places.filter(|place| place.pool == key.pool && place.labels.contains(label));
            Supply::Fixed(places.count())
        }
        None => Supply::Launched,
    };
    let mut setup = LabelSetup {
        cost: Resources::default(),
        readiness: LabelReadiness::Ready,
        supply,
        bound: false,
    };
    if let Some(machines) = driver.machines() {
        setup.bound = machines.is_bound_to_request(&key.pool, label);
        match sound_cost(machines, &key.pool, label).await? {
            Ok(cost) => {
                setup.cost = cost;
                setup.readiness = cloud_readiness(machines, &key.pool, label, settings).await?;
            }
            Err(broken) => setup.readiness = broken,
        }
    }
    Ok(setup)
}

/// Returns how much one machine of a label uses. The inner error is a [`LabelReadiness::Broken`]: the cloud lacks what the
/// label asks for.
pub(crate) async fn sound_cost(
    machines: &dyn Machines,
    pool: &PoolName,
    label: &Label,
) -> Result<Result<Resources, LabelReadiness>, driver::Error> {
    match machines.cost(pool, label).await {
        Err(error) if error.class() == ErrorClass::Permanent => Ok(Err(LabelReadiness::Broken {
            reason: error.to_string().into(),
        })),
        cost => cost.map(Ok),
    }
}

/// Returns what the cloud says about the image of a label. It need not know images that we manage.
pub(crate) async fn cloud_readiness(
    machines: &dyn Machines,
    pool: &PoolName,
    label: &Label,
    settings: &LabelSettings,
) -> Result<LabelReadiness, driver::Error> {
    let ImageSettings::Cloud(image) = &settings.image else {
        return Ok(LabelReadiness::Ready);
    };
    Ok(match machines.readiness(pool, label).await? {
        driver::Readiness::Ready => LabelReadiness::Ready,
        driver::Readiness::NotReady(reason) => LabelReadiness::ImageMissing {
            image: (&**image).into(),
            reason: Some(reason.into()),
            pending: None,
        },
    })
}

/// Returns which of the images that are concerned have an upload that machines can boot from, and where.
pub(crate) fn uploaded_images(
    images: &View<ImageShape>,
    concerns: impl Fn(&ImageName) -> bool,
) -> HashSet<(ProviderName, ImageName)> {
    let mut uploaded = HashSet::new();
    images.for_each(|item| {
        if let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value)
            && upload.state == UploadState::Ready
            && concerns(&key.build.image)
        {
            uploaded.insert((key.provider.clone(), key.build.image.clone()));
        }
    });
    uploaded
}

/// Returns the images whose uploads have changed.
pub(crate) fn changed_uploads(change: Change<ImageId>) -> Change<ImageName> {
    match change {
        Change::Everything => Change::Everything,
        Change::Ids(ids) => Change::Ids(
            ids.into_iter()
                .filter_map(|id| match id {
                    ImageId::Upload(key) => Some(key.build.image),
                    ImageId::Build(_) => None,
                })
                .collect(),
        ),
    }
}

/// Returns the uploads that machines of this provider can boot from, the newest first, one of each build.
pub(crate) fn ready_uploads(
    images: &View<ImageShape>,
    image: &ImageName,
    provider: &ProviderName,
) -> Vec<(UploadKey, ImageUpload)> {
    let mut ready: Vec<(UploadKey, ImageUpload)> = Vec::new();
    images.for_each(|item| {
        let (ImageId::Upload(key), ImageRecord::Upload(upload)) = (&item.id, &*item.value) else {
            return;
        };
        let fits = key.build.image == *image
            && key.provider == *provider
            && upload.state == UploadState::Ready;
        if fits {
            ready.push((key.clone(), upload.clone()));
        }
    });
    ready.sort_by_key(|(_, upload)| std::cmp::Reverse(upload.state_time));
    let mut builds = HashSet::new();
    ready.retain(|(key, _)| builds.insert(key.build.build));
    ready
}
